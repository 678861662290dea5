"""What the page shows, as JSON: runs (only those that changed since the page last asked), logs, metrics, reports.

Nothing is read while no page asks, and never more often than every two seconds, however many pages are open; Slurm's
part comes from the answer that all watchers share. A run is named by a short hash, so no URL holds a path.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shoal.describe import project_or_bare, project_prices
from shoal.errors import InputError
from shoal.kernel import strip_escapes
from shoal.model import ACTIVE_STATES, FAILED_STATES, RETRYABLE_STATES
from shoal.observe import AskQueue, DamagedRecord, RunReader, RunSummary, RunView, usage
from shoal.redaction import secret_values
from shoal.units import natural_sort_key
from shoal.views import logs, status, why
from shoal.views.curves import CurveReader
from shoal.views.details import RunDetails, run_events
from shoal.views.figures import experiment_curves
from shoal.views.log_files import collapse_carriage_returns, first_nonempty, rank_logs, read_slice, real_log
from shoal.views.render import finite_or_none
from shoal.views.report.gather import gather_report as gather_report
from shoal.views.report.page import report_page as report_page
from shoal.views.run_table import (
    MetricChoice,
    best_run,
    best_value,
    choose_metric,
    format_param,
    guess_mode,
    last_value,
    short_param_names,
    value_key,
    varying_params,
)
from shoal.views.status import StatusMemory, StatusReport
from shoal.views.terminal import strip_control_sequences
from shoal.views.web import run_facts
from shoal.views.web.cluster import cluster_document
from shoal.views.web.experiment import CurvesQuery, curves_document, experiment_document, values_document

_REFRESH_S = 2.0
_MAX_LOG_BYTES = 1 << 20
#: So many runs are shown before the others are read, where they are not known yet, and so many come with each answer.
_FIRST_RUNS = 300
_PART_RUNS = 3000
#: Processor seconds of a look for reading parameters and metrics: pages wait for it.
_MAX_LOOK_S = 0.3
#: In one answer; the page asks for the others at once.
MAX_RUNS = 2000
#: Of one run so many metrics are drawn at once.
_MAX_RUN_CURVES = 40
_FIELDS = (
    "name", "experiment", "state", "cause", "reason", "attempt", "job_id", "node", "exit_code", "submitted", "started",
    "ended", "time_limit_s", "gpus", "partition", "adopted", "progress", "progress_fraction", "gpu_percent",
    "gpu_idle_s", "memory_mb", "error_kind", "seed", "remaining_s",
)  # fmt: skip

#: Sets of states that the page needs, so that it has none of its own.
_STATES = {"active": sorted(ACTIVE_STATES), "failed": sorted(FAILED_STATES), "retryable": sorted(RETRYABLE_STATES)}


class ApiNotFound(InputError):
    """The page asked for something that is not there."""


def run_id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def project_name(home: str) -> str:
    """What the page calls the project: its folder's name."""
    return os.path.basename(os.path.dirname(home)) or home


class _Row(NamedTuple):
    """A run as the page has it: what it is made of, and once it was sent, its `json`. `version` is its place in the
    order in which runs changed."""

    version: int
    json: bytes | None
    view: RunView
    summary: RunSummary
    details: RunDetails | None
    table: _ExperimentTable


class DashboardData:
    """One project, looked at on demand. Safe to use from several threads."""

    def __init__(
        self,
        home: str,
        ask: AskQueue,
        clock: Callable[[], float] = time.time,
        *,
        metric: Mapping[str, str] | None = None,
        memory: StatusMemory | None = None,
    ) -> None:
        self.home, self._metric = home, metric
        self._ask, self._clock = ask, clock
        self._memory = memory or StatusMemory(home, max_look_s=_MAX_LOOK_S)
        self._lock = threading.Lock()
        self._curves, self._curves_lock = CurveReader(home), threading.Lock()
        self._cluster_lock = threading.Lock()
        self._looked_at = float("-inf")
        self._version = self._reach = 0
        self._head: dict[str, Any] = {}
        #: By id, in the order in which they changed.
        self._rows: dict[str, _Row] = {}
        self._ids: dict[str, str] = {}
        self._gone: dict[str, int] = {}
        self._tables: dict[str, _ExperimentTable] = {}

    def runs(self, since: int = 0) -> dict[str, Any]:
        """Counts, and every run that changed after version `since`; the page keeps the others."""
        found: dict[str, Any] = json.loads(self.runs_json(since, {}, limit=None))
        return found

    def runs_json(self, since: int, extra: Mapping[str, Any], limit: int | None = MAX_RUNS) -> bytes:
        """As `runs`, with what the server adds, and at most `limit` runs: `more` says that the rest comes if one asks
        again with the version of this answer."""
        with self._lock:
            if self._clock() - self._looked_at >= _REFRESH_S:
                self._look(is_in_parts=limit is not None)
                # What has not been read yet is read as soon as somebody asks again.
                self._looked_at = self._clock() if not self._head["unread"] else float("-inf")
            since = 0 if since > self._version else since  # a page of an earlier server
            rows = ((row.version, one) for one, row in reversed(self._rows.items()))
            gone = ((version, one) for one, version in reversed(self._gone.items()))
            changed = sorted([*_newer(rows, since), *_newer(gone, since)])
            part = changed[:limit]
            head = {
                **self._head,
                **extra,
                "version": part[-1][0] if part else self._version,
                "complete": since == 0,
                "more": len(part) < len(changed) or self._head["unread"] > 0,
                "gone": [one for _, one in part if one in self._gone],
            }
            texts = b",".join(self._json(one) for _, one in part if one in self._rows)
        return json.dumps(head, separators=(",", ":")).encode()[:-1] + b',"runs":[' + texts + b"]}"

    def name_of(self, run: str) -> str:
        """The name behind a page's id; ApiNotFound for anything else."""
        if run not in self._rows:
            self.runs()
        row = self._rows.get(run)
        if row is None:
            raise ApiNotFound("there is no such run")
        return row.view.name

    def _view(self, run: str) -> RunView:
        self.name_of(run)  # first: it may look anew, and then there are other rows
        row = self._rows.get(run)
        if row is None:
            raise ApiNotFound("there is no such run any more")
        return row.view

    def run(self, run: str) -> dict[str, Any]:
        """One run in full: record, spec, script, attempts, events."""
        name = self.name_of(run)
        reader = RunReader(self.home)
        try:
            spec = reader.spec(name)
        except DamagedRecord:
            spec = None
        return {
            "id": run,
            "run": json.loads(self._json(run)),
            "spec": msgspec.to_builtins(spec) if spec else None,
            "script": self._script(name),
            "attempts": run_facts.attempts(self.home, name),
            "commands": run_facts.commands(self._view(run), spec),
            "events": run_events(self.home, name),
        }

    def provenance(self, run: str) -> dict[str, Any]:
        return run_facts.provenance(self.home, self._view(run), secret_values(os.environ))

    def files(self, run: str) -> dict[str, Any]:
        return run_facts.output_files(self._view(run).output_dir)

    def why(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(why.explain_run(self.home, self.name_of(run), os.environ))
        return {**found, "log_lines": [strip_control_sequences(line, colour=False) for line in found["log_lines"]]}

    def log(
        self, run: str, stream: str, attempt: int | None, offset: int, *, most: int = _MAX_LOG_BYTES, part: str = ""
    ) -> dict[str, Any]:
        """A slice of a log as harmless text, cut at a line's end where more may follow.

        `part` is one of the answer's `rank_logs`: a rank or a replica, whose newest attempt is shown. Without one it is
        the run's own log, or the first part that has printed something, because beside replicas it may be empty.
        """
        if stream not in ("out", "slurm"):
            raise ApiNotFound("there is no such log")
        source = logs.find_logs(self.home, self.name_of(run), attempt=attempt, slurm=stream == "slurm")
        files, labels, label = source.paths, [], ""
        if files and stream != "slurm":
            found = rank_logs(os.path.dirname(files[-1]), source.attempt)
            labels = [one.label for one in found]
            if part and part not in labels:
                raise ApiNotFound("there is no such part of it")
            chosen = found[labels.index(part) if part else first_nonempty(found)]
            files, label = chosen.attempts, chosen.label
        answer = {"text": "", "offset": 0, "next": 0, "size": 0, "attempt": source.attempt}
        answer |= {"part": label, "parts": labels, "attempts": len(files)}
        try:
            data, start, size = read_slice(files[-1], offset, max(1, min(most, _MAX_LOG_BYTES)))
        except (IndexError, FileNotFoundError):
            return answer
        except PermissionError:
            return {**answer, "text": f"cannot read the log {real_log(files[-1])}: permission denied\n"}
        if offset < 0 and start > 0:
            data, start = data[data.find(b"\n") + 1 :], start + data.find(b"\n") + 1
        if start + len(data) < size and b"\n" in data:
            data = data[: data.rfind(b"\n") + 1]
        text = strip_escapes(collapse_carriage_returns(data.replace(b"\0", b"")).decode("utf-8", "replace"))
        text = strip_control_sequences(text, colour=False)
        return {**answer, "text": text, "offset": start, "next": start + len(data), "size": size}

    def metrics(self, run: str) -> dict[str, Any]:
        """Curves of the run's metrics over steps, the most telling first, and what the job sampled about itself."""
        name = self.name_of(run)
        view = self._view(run)
        sample = usage.read_usage(self.home, name, view.attempt) if view.attempt else None
        with self._curves_lock:
            found = self._curves.read([view], None).runs.get(name, {})
            shown = sorted(found, key=lambda one: (guess_mode(one) is None, one))[:_MAX_RUN_CURVES]
            series = {one: found[one].points("step", None, 600) for one in shown}
        return {
            "series": {
                one: [list(point) for point in zip(xs, ys, strict=True)]
                for one, (xs, ys) in series.items()
                if any(y is not None for y in ys)
            },
            "metrics": len(found),
            "usage": [msgspec.to_builtins(node) for node in sample.nodes] if sample else [],
        }

    def cluster(self) -> dict[str, Any]:
        with self._cluster_lock:
            return cluster_document(self.home, self._ask, os.environ, self._clock)

    def experiment(self, experiment: str) -> dict[str, Any]:
        """Groups over seeds and metrics of one experiment, or of all."""
        return experiment_document(*self._of(experiment), self._metric, run_id)

    def values(self, experiment: str, metric: str) -> dict[str, Any]:
        return values_document(*self._of(experiment), metric, run_id)

    def curves(self, query: str) -> dict[str, Any]:
        """`query` is a CurvesQuery in JSON; a ValueError if it is none."""
        asked = msgspec.json.decode(query, type=CurvesQuery)
        rows = self._rows
        with self._curves_lock:
            return curves_document(self._curves, asked, lambda run: row.view if (row := rows.get(run)) else None)

    def _of(self, experiment: str) -> tuple[list[RunView], dict[str, RunSummary]]:
        """The runs of an experiment, or of all, with what each is set to and has reached."""
        self.runs()
        rows = [row for row in list(self._rows.values()) if experiment in ("", row.view.experiment)]
        rows.sort(key=lambda row: natural_sort_key(row.view.name))
        return [row.view for row in rows], {row.view.name: row.summary for row in rows}

    def report(self, experiment: str) -> str:
        if experiment and experiment not in self._tables:
            raise ApiNotFound("there is no such experiment")
        which, price_of = [experiment] if experiment else [], project_prices(project_or_bare(Path.cwd(), os.environ))
        found = gather_report(self.home, which, ask=self._ask, price_of=price_of)
        views = [history.view for history in found.histories]
        return report_page(found, experiment_curves(self.home, views, self._metric))

    def _look(self, is_in_parts: bool) -> None:
        """Look at the project. A first answer of many runs has a screenful, and runs that nobody has read before are
        read in parts; those that stand last come first, because they are usually the newest. `unread` in the head
        counts the others, and those without their metrics."""
        names = self._memory.settled.names()
        is_first = self._reach == 0 and len(names) > _PART_RUNS
        if is_in_parts and (is_first or not (self._reach >= len(names) or self._memory.settled.knows_most_of(names))):
            self._reach += _PART_RUNS if self._reach else _FIRST_RUNS
        else:
            self._reach = max(self._reach, len(names))
        part = names[-self._reach :] if self._reach < len(names) else names
        report = status.gather_status(self.home, ask=self._ask, clock=self._clock, memory=self._memory, names=part)
        views = _by_experiment(report.views)
        self._tables = {
            experiment: _experiment_table(members, report, self._metric, self._tables.get(experiment))
            for experiment, members in views.items()
        }
        for experiment, members in views.items():
            self._put_changed(members, report, self._tables[experiment])
        if len(report.views) < len(self._rows):
            seen = {view.name for view in report.views}
            for name in [name for name in self._ids if name not in seen]:
                one = self._ids.pop(name)
                del self._rows[one]
                self._version += 1
                self._gone[one] = self._version
        self._head = {
            **status.counts_document(report),
            "schema": 1,
            "states": _STATES,
            "tables": {experiment: table.document for experiment, table in self._tables.items()},
            "unread": len(names) - len(part) + report.unread,
        }

    def _put_changed(self, views: Sequence[RunView], report: StatusReport, table: _ExperimentTable) -> None:
        """Write those runs anew of which anything has changed that they are made of."""
        summaries, all_details, ids, rows, document = (
            report.summaries,
            report.details,
            self._ids,
            self._rows,
            table.document,
        )
        for view in views:
            name = view.name
            one = ids.get(name)
            row = rows[one] if one is not None else None
            details = all_details.get(name)
            if details is not None:
                details = details._replace(log_age_s=None)  # the page does not show it
            is_same = row is not None and row.view is view and row.table.document is document
            if row is None or not (is_same and row.summary is summaries[name] and row.details == details):
                one = ids.setdefault(name, run_id(name))
                self._put(one, _Row(0, None, view, summaries[name], details, table))

    def _put(self, one: str, row: _Row) -> None:
        """A run that nobody has been sent yet is written when it is sent; another one changes if its text does."""
        before = self._rows.get(one)
        if before is not None and before.json is not None:
            row = row._replace(json=_row_json(one, row))
        if before is not None and before.json == row.json:
            self._rows[one] = row._replace(version=before.version)
            return
        self._version += 1
        self._rows.pop(one, None)
        self._gone.pop(one, None)
        self._rows[one] = row._replace(version=self._version)

    def _json(self, one: str) -> bytes:
        row = self._rows[one]
        if row.json is not None:
            return row.json
        text = _row_json(one, row)
        self._rows[one] = row._replace(json=text)
        return text

    def _script(self, name: str) -> str:
        try:
            with open(RunReader(self.home).script_file(name) or os.devnull, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                return strip_control_sequences(file.read(1 << 18), colour=False)
        except OSError:
            return ""


def _by_experiment(views: Sequence[RunView]) -> dict[str, list[RunView]]:
    """Those of an experiment stand together."""
    found: dict[str, list[RunView]] = {}
    prefix, members = "/", list[RunView]()
    for view in views:
        if not view.name.startswith(prefix):
            prefix = f"{view.experiment}/"
            members = found.setdefault(view.experiment, [])
        members.append(view)
    return found


def _newer(known: Iterable[tuple[int, str]], since: int) -> Iterator[tuple[int, str]]:
    """Those that changed after a version; `known` begins with the newest."""
    return itertools.takewhile(lambda one: one[0] > since, known)


def _row_json(one: str, row: _Row) -> bytes:
    record = status.run_document(row.view, row.details, row.summary)
    values = _table_values(row.summary, row.table)
    return _encode({"id": one, **{key: record[key] for key in _FIELDS}, **values})


def _encode(record: dict[str, Any]) -> bytes:
    """json where msgspec refuses: names may hold bytes that are no UTF-8."""
    try:
        return msgspec.json.encode(record)
    except (ValueError, OverflowError):
        return json.dumps(record, separators=(",", ":")).encode()


class _ExperimentTable(NamedTuple):
    """Columns of an experiment: `document` for the page. It stays the same object as long as nothing in it changes."""

    metric: MetricChoice | None
    params: list[str]
    document: dict[str, Any]
    made_of: list[int]


def _experiment_table(
    views: Sequence[RunView],
    report: StatusReport,
    setting: Mapping[str, str] | None,
    known: _ExperimentTable | None,
) -> _ExperimentTable:
    """Parameters that vary with their short names, the metric, and the best run. `setting` is the project's metric."""
    summaries = {view.name: report.summaries[view.name] for view in views}
    made_of = [id(one) for one in summaries.values()]
    if known is not None and known.made_of == made_of:
        return known
    names, metric = varying_params(summaries.values()), choose_metric(summaries.values(), setting)
    best = best_run(summaries, metric)
    document = {
        "params": [[name, short] for name, short in short_param_names(names).items()],
        "metric": metric._asdict() if metric is not None else None,
        "best": run_id(best) if best is not None else None,
    }
    if known is not None and known.document == document:
        document = known.document
    return _ExperimentTable(metric, names, document, made_of)


def _table_values(summary: RunSummary, table: _ExperimentTable) -> dict[str, Any]:
    """A run's cells: each parameter as text with the key that sorts it, and the metric."""
    last = last_value(summary, table.metric)
    return {
        "params": {
            name: [format_param(summary.params.get(name)), *value_key(summary.params.get(name))]
            for name in table.params
        },
        "last": finite_or_none(last),
        "is_finite": last is None or finite_or_none(last) is not None,
        "best": best_value(summary, table.metric),
    }
