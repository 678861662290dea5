"""Progress, metrics and curves of a run, from its output directory and its logs. The only reader of these in shoal.

progress_lines.py parses one line of a log or of $SHOAL_PROGRESS, metric_files.py the files of metrics and trackers.
The program needs no change for this.

Progress comes from the first of these that tells how much there is to do: the file $SHOAL_PROGRESS, the logs, the files
of trainers, TensorBoard and W&B. Metrics come from all of them, and explicit ones take precedence: metrics.json before
metrics.jsonl, before names that a step declares and prints, before trainers' files, before trackers, before records in
the log.
"""

import math
import os
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import layout, metric_files, progress_lines
from .metric_files import MetricRow, flatten_numbers
from .progress_lines import PrintedTotals, ProgressCount, parse_progress, totals_of_command, value_of

__all__ = [
    "NewMetrics",
    "Progress",
    "ProgressCount",
    "RunOutput",
    "flatten_numbers",
    "parse_progress",
    "read_metrics",
    "read_progress",
    "read_series",
    "totals_of_command",
    "value_of",
]

#: Of a log: the end, which tells how far the program is; the beginning, which tells its settings; and what is searched
#: for metrics.
_TAIL_BYTES = 1 << 15
_HEAD_BYTES = 1 << 14
_LOG_BYTES = 4 << 20
_MAX_METRICS_BYTES = 512 << 20
_MAX_SERIES_BYTES = 16 << 20
#: Of a running run's directory so many entries are looked at, because `status` does so for many runs.
_MAX_ENTRIES = 2000
_MAX_CURVES = 40
_MAX_POINTS = 600
_MAX_NAME = 60
METRICS_JSONL = "metrics.jsonl"


class RunOutput(NamedTuple):
    """Where a run's numbers are. `metrics` are names that its step declares, printed with a value in the log; `steps`
    and `epochs` what its command promises, for sources that tell only how many are done."""

    folder: str
    logs: Sequence[str] = ()
    metrics: Sequence[str] = ()
    steps: Optional[float] = None
    epochs: Optional[float] = None


class Progress(NamedTuple):
    """`step` of `total`, and the part of the way that is done; what is not known is None. `t`: when it was written."""

    step: Optional[float]
    total: Optional[float]
    fraction: Optional[float]
    source: str
    text: str
    t: float

    @property
    def words(self) -> str:
        """`text` with the percentage, where it is known and not said yet."""
        if self.fraction is None or "%" in self.text:
            return self.text
        return "%s (%.0f%%)" % (self.text, math.floor(100 * self.fraction))


def read_progress(output: RunOutput) -> Optional[Progress]:
    """The newest word on a run's progress, or None."""
    written, unclear = _progress_file(output)
    if written is not None:
        return written
    facts = _totals(output)
    found = _newest_of_logs(output, facts)
    if found is None or found.fraction is None:
        for candidate in _progress_of_files(output, facts):
            if candidate.fraction is not None:
                return candidate
            found = found or candidate
    return found or unclear


def _progress_file(output: RunOutput) -> Tuple[Optional[Progress], Optional[Progress]]:
    """What the program wrote to $SHOAL_PROGRESS; or, apart, its last words where they tell no number."""
    path = os.path.join(output.folder, "progress")
    written = progress_lines.split_lines(metric_files.read_end(path, _TAIL_BYTES))
    if not written:
        return None, None
    source = "progress file"
    count = progress_lines.newest_count(written, PrintedTotals(output.steps, output.epochs), plain=True)
    if count is None:
        return None, Progress(None, None, None, source, progress_lines.clean_line(written[-1])[:120], _mtime(path))
    if (
        not progress_lines.clean_line(written[-1]).startswith("{")
        and progress_lines.parse_progress(written[-1], plain=True) is not None
    ):
        count = count._replace(text=progress_lines.clean_line(written[-1]))
    return _progress(count, source, path), None


def _newest_of_logs(output: RunOutput, facts: PrintedTotals) -> Optional[Progress]:
    """stdout and stderr tell different things: the one with a total counts, then the newer one."""
    best: Optional[Progress] = None
    for log in output.logs:
        count = progress_lines.newest_count(progress_lines.split_lines(metric_files.read_end(log, _TAIL_BYTES)), facts)
        if count is None:
            continue
        candidate = _progress(count, "log", log)
        if best is None or (candidate.fraction is not None, candidate.t) > (best.fraction is not None, best.t):
            best = candidate
    return best


def _totals(output: RunOutput) -> PrintedTotals:
    """The settings that a program prints first, in any of its logs; what the command promises counts more."""
    steps, epochs, first_epoch = output.steps, output.epochs, None
    for log in output.logs:
        printed = progress_lines.printed_totals(progress_lines.split_lines(metric_files.read_start(log, _HEAD_BYTES)))
        steps, epochs = steps or printed.steps, epochs or printed.epochs
        first_epoch = first_epoch if first_epoch is not None else printed.first_epoch
    return PrintedTotals(steps, epochs, first_epoch)


def _progress_of_files(output: RunOutput, facts: PrintedTotals) -> Iterator[Progress]:
    files = metric_files.find_metric_files(output.folder, _MAX_ENTRIES)
    own = own_file(output.folder, METRICS_JSONL)
    for source, paths, read_rows in (
        ("metrics.jsonl", [own], lambda path: metric_files.jsonl_rows(metric_files.read_end(path, _TAIL_BYTES))),
        ("trainer_state.json", files.trainer_states[-1:], _trainer_state),
        ("summary.csv", files.summaries[-1:], _summary),
        ("metrics.csv", files.metrics_csv[-1:], _metrics_csv),
    ):
        for path in paths:
            count = _count_of_rows(read_rows(path), facts)
            if count is not None:
                yield _progress(count, source, path)
    for source, paths, last_step in (
        ("TensorBoard", files.tensorboard[-1:], metric_files.tensorboard_last_step),
        ("W&B", files.wandb[-1:], lambda path: metric_files.wandb_last_step(metric_files.read_end(path, 1 << 20))),
    ):
        for path in paths:
            step = last_step(path)
            if step is not None:
                count = _count_of_rows([MetricRow({}, float(step))], facts)
                yield _progress(count or ProgressCount(None, None, None, ""), source, path)


def _count_of_rows(rows: Iterable[MetricRow], facts: PrintedTotals) -> Optional[ProgressCount]:
    """The newest step, and the newest word on how many there are; else the newest epoch."""
    step = total = epoch = None
    for row in rows:
        step, total = row.step if row.step is not None else step, row.total or total
        epoch = row.epoch if row.epoch is not None else epoch
    total = total or facts.steps
    if step is not None and (total or epoch is None or not facts.epochs):
        fraction = max(0.0, min(1.0, step / total)) if total else None
        return ProgressCount(step, total, fraction, "step %d" % step + ("/%d" % total if total else ""))
    if epoch is None:
        return None
    fraction = max(0.0, min(1.0, epoch / facts.epochs)) if facts.epochs else None
    text = "epoch %g" % epoch + ("/%g" % facts.epochs if facts.epochs else "")
    return ProgressCount(epoch if step is None else step, None, fraction, text)


def _progress(count: ProgressCount, source: str, path: str) -> Progress:
    return Progress(count.step, count.total, count.fraction, source, count.text[:120], _mtime(path))


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def read_metrics(output: RunOutput) -> Dict[str, float]:
    """The last value of each metric; damaged or half-written files give what is whole in them."""
    found: Dict[str, float] = {}
    for rows in _sources(output, _MAX_METRICS_BYTES, summaries=True):
        for row in rows:
            found.update(row.values)
    found.update(metric_files.flatten_numbers(metric_files.parse_json(_bytes(own_file(output.folder, "metrics.json")))))
    return found


def read_series(output: RunOutput) -> Dict[str, List[List[float]]]:
    """Metric -> [[step, value], ...], thinned to what a plot can show. A metric comes from the best of its sources."""
    found: Dict[str, List[List[float]]] = {}
    for rows in _sources(output, _MAX_SERIES_BYTES, summaries=False):
        fresh: Dict[str, List[List[float]]] = {}
        for number, row in enumerate(rows):
            step = row.step if row.step is not None else row.epoch if row.epoch is not None else float(number)
            for name, value in row.values.items():
                if abs(value) < 1e300:  # not for NaN
                    fresh.setdefault(name[:_MAX_NAME], []).append([step, value])
        fresh.update((name, points) for name, points in found.items() if name not in fresh)
        found = dict(list(fresh.items())[:_MAX_CURVES])
    return {name: _downsample(points) for name, points in found.items()}


def _downsample(points: List[List[float]]) -> List[List[float]]:
    """The lowest and the highest point of each stretch, so that no spike is lost, and always the last point."""
    if len(points) <= _MAX_POINTS:
        return points
    step = -(-2 * len(points) // _MAX_POINTS)
    kept: List[List[float]] = []
    for at in range(0, len(points), step):
        places = range(at, min(at + step, len(points)))
        low, high = min(places, key=lambda i: points[i][1]), max(places, key=lambda i: points[i][1])
        kept += [points[i] for i in sorted({low, high})]
    return kept if kept[-1] is points[-1] else [*kept, points[-1]]


def _sources(output: RunOutput, max_bytes: int, summaries: bool) -> Iterator[Iterator[MetricRow]]:
    """Rows of each source, the least telling source first: what comes later wins. `summaries` hold final values, and
    are no points of a curve."""
    yield from metric_sources(output, max_bytes, summaries)
    yield metric_files.jsonl_rows(metric_files.read_end(own_file(output.folder, METRICS_JSONL), max_bytes))


def metric_sources(
    output: RunOutput, max_bytes: int, summaries: bool, log_bytes: int = _LOG_BYTES
) -> Iterator[Iterator[MetricRow]]:
    """All but metrics.jsonl, which comes after them."""
    files = metric_files.find_metric_files(output.folder)
    yield _log_records(output, log_bytes)
    yield (
        MetricRow({tag: value}, float(step), t=t)
        for path in files.tensorboard
        for tag, step, value, t in metric_files.tensorboard_points(metric_files.read_whole(path, max_bytes))
        if tag != "epoch"
    )
    yield (
        metric_files.metric_row(metric_files.parse_json(_bytes(path))) for path in files.wandb_summaries if summaries
    )
    yield (
        metric_files.metric_row(row)
        for path in files.wandb
        for logged, row in metric_files.wandb_rows(metric_files.read_whole(path, max_bytes))
        if logged or summaries
    )
    yield (row for path in files.metrics_csv for row in _metrics_csv(path))
    yield (row for path in files.summaries for row in _summary(path))
    yield (row for path in files.trainer_states[-1:] for row in _trainer_state(path))
    yield (metric_files.metric_row(metric_files.parse_json(_bytes(path))) for path in files.results if summaries)
    yield _printed_metrics(output, log_bytes)


class NewMetrics:
    """The records of a run's metrics.jsonl as they are written: each is given once. `is_anew`: the last call found
    that the program had begun the file anew."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path: Optional[str] = None
        self._offset = 0
        self.is_anew = False

    def read(self, is_final: bool = False) -> List[Dict[str, Any]]:
        """What is whole and new since the last call; a file that is not there, or was begun anew, is no mistake.
        `is_final`: nobody writes any more, so a last line without its newline is whole."""
        path = self._path or own_file(self._folder, METRICS_JSONL)
        try:
            with open(path, "rb") as file:
                self.is_anew = os.fstat(file.fileno()).st_size < self._offset
                if self.is_anew:
                    self._offset = 0
                file.seek(self._offset)
                data = file.read(_LOG_BYTES)
        except OSError:
            return []
        self._path = path
        whole = data if is_final and len(data) < _LOG_BYTES else data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return list(metric_files.jsonl_records(whole))


def own_file(folder: str, name: str) -> str:
    """A file of this name in the output directory, or else in the program's working directory."""
    paths = [os.path.join(place, name) for place in layout.written_dirs(folder)]
    return next((path for path in paths if os.path.exists(path) and path in layout.OwnFiles(folder)), paths[0])


def _log_records(output: RunOutput, log_bytes: int) -> Iterator[MetricRow]:
    """Lines of logs that are records of metrics: an object that counts steps or epochs."""
    for log in output.logs:
        for line in progress_lines.split_lines(metric_files.read_end(log, log_bytes)):
            if line.lstrip().startswith("{"):
                record = metric_files.parse_object(progress_lines.clean_line(line))
                row = metric_files.metric_row(record) if record else None
                if row is not None and (row.step is not None or row.epoch is not None):
                    yield row


def _printed_metrics(output: RunOutput, log_bytes: int) -> Iterator[MetricRow]:
    """Values that the log prints behind names which the step declares, at the step that was printed last."""
    if not output.metrics:
        return
    for log in output.logs:
        step: Optional[float] = None
        for line in progress_lines.split_lines(metric_files.read_end(log, log_bytes)):
            count = progress_lines.parse_progress(line)
            if count is not None and count.step is not None:
                step = max(step or 0.0, count.step)  # an epoch's last line counts epochs, those before it steps
            values = progress_lines.named_values(progress_lines.clean_line(line), output.metrics)
            if values:
                yield MetricRow(values, step)


def _trainer_state(path: str) -> Iterator[MetricRow]:
    return metric_files.trainer_state_rows(_bytes(path))


def _summary(path: str) -> Iterator[MetricRow]:
    return metric_files.csv_rows(_bytes(path), is_row_per_epoch=True)


def _metrics_csv(path: str) -> Iterator[MetricRow]:
    return metric_files.csv_rows(_bytes(path))


def _bytes(path: str) -> bytes:
    return metric_files.read_whole(path, _MAX_METRICS_BYTES)
