"""The last value and the range of each metric of a run, cheap enough to look again every two seconds.

`metrics.jsonl` is read on from where the last look stopped, so a million lines are parsed once. Of a log only the end
is read. The sources and their precedence are those of progress.py.
"""

import math
import os
from typing import Dict, Iterable, NamedTuple, Optional

from . import files, metric_files, progress
from .metric_files import MetricRow

#: Of metrics.jsonl so much is read in one look, of a log its end, and larger files of trackers not at all.
_MAX_NEW_BYTES = 16 << 20
_LOG_BYTES = 256 << 10
_MAX_TRACKER_BYTES = 16 << 20


class MetricRange(NamedTuple):
    """`low` and `high` are over finite values, NaN where there is none. `is_whole`: every value was seen; else a better
    one may be in what was not read."""

    last: float
    low: float
    high: float
    is_whole: bool = True


class MetricSummary(NamedTuple):
    """`metrics` is over all sources; the rest is where reading metrics.jsonl goes on."""

    metrics: Dict[str, MetricRange]
    jsonl: Dict[str, MetricRange] = {}  # noqa: RUF012 (a constant)
    inode: int = 0
    offset: int = 0


def summarize_metrics(output: progress.RunOutput, before: Optional[MetricSummary] = None) -> MetricSummary:
    """The metrics of a run; `before` is what the same attempt had at an earlier look."""
    others: Dict[str, MetricRange] = {}
    is_log_whole = all((files.size_of(log) or 0) <= _LOG_BYTES for log in output.logs)
    sources = progress.metric_sources(output, _MAX_TRACKER_BYTES, summaries=True, log_bytes=_LOG_BYTES)
    for rows in sources:
        _add_rows(others, rows)
    if not is_log_whole:
        others = {name: one._replace(is_whole=False) for name, one in others.items()}
    own = _read_jsonl(progress.own_file(output.folder, progress.METRICS_JSONL), before)
    merged = dict(others)
    for name, one in own.jsonl.items():
        merged[name] = one if name not in merged else _merge(merged[name], one)._replace(is_whole=one.is_whole)
    final = metric_files.parse_json(
        metric_files.read_whole(progress.own_file(output.folder, "metrics.json"), _MAX_TRACKER_BYTES)
    )
    for name, value in metric_files.flatten_numbers(final).items():
        one = _range(value)
        merged[name] = one if name not in merged else _merge(merged[name], one)
    return own._replace(metrics=merged)


def _read_jsonl(path: str, before: Optional[MetricSummary]) -> MetricSummary:
    """Go on where the last look stopped; a file that was replaced or became shorter is read from its beginning."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if before is None or found.st_ino != before.inode or found.st_size < before.offset:
                before = MetricSummary({}, {}, found.st_ino, 0)
            file.seek(before.offset)
            data = file.read(_MAX_NEW_BYTES)
    except OSError:
        return MetricSummary({})
    whole_lines = data.rfind(b"\n") + 1
    if not whole_lines and len(data) == _MAX_NEW_BYTES:
        whole_lines = len(data)  # one endless line is no row
    is_whole = before.offset + len(data) >= found.st_size
    ranges = dict(before.jsonl)
    # The last line may lack its newline for good. It counts, and the next look reads it again, which changes nothing.
    _add_rows(ranges, metric_files.jsonl_rows(data))
    if not is_whole:
        _add_rows(ranges, metric_files.jsonl_rows(metric_files.read_end(path, _LOG_BYTES)))
    ranges = {name: one._replace(is_whole=is_whole) for name, one in ranges.items()}
    return MetricSummary({}, ranges, found.st_ino, before.offset + whole_lines)


def _add_rows(ranges: Dict[str, MetricRange], rows: Iterable[MetricRow]) -> None:
    for row in rows:
        for name, value in row.values.items():
            known = ranges.get(name)
            if known is None:
                ranges[name] = _range(value)
            elif known.low <= value <= known.high:  # not for NaN
                ranges[name] = MetricRange(value, known.low, known.high, known.is_whole)
            else:
                ranges[name] = _merge(known, _range(value))


def _range(value: float) -> MetricRange:
    bound = value if math.isfinite(value) else math.nan
    return MetricRange(value, bound, bound)


def _merge(earlier: MetricRange, later: MetricRange) -> MetricRange:
    low = later.low if math.isnan(earlier.low) or later.low < earlier.low else earlier.low
    high = later.high if math.isnan(earlier.high) or later.high > earlier.high else earlier.high
    return MetricRange(later.last, low, high, earlier.is_whole)
