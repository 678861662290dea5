"""What the page shows, as JSON: runs (only those that changed since the page last asked), logs, metrics, reports.

Nothing is read while no page asks, and never more often than every two seconds, however many pages are open; Slurm's
part comes from the answer that all watchers share. A run is named by a short hash, so no URL holds a path.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from shoal.errors import InputError
from shoal.kernel import layout, list_names, read_series, strip_escapes
from shoal.model import ACTIVE_STATES, FAILED_STATES, RETRYABLE_STATES
from shoal.observe import AskQueue, DamagedRecord, RunReader, find_output, usage
from shoal.views import logs, status, why
from shoal.views.details import run_events
from shoal.views.log_files import collapse_carriage_returns, first_nonempty, rank_logs, read_slice
from shoal.views.report.gather import gather_report as gather_report
from shoal.views.report.page import report_page as report_page
from shoal.views.terminal import strip_control_sequences

_REFRESH_S = 2.0
_MAX_LOG_BYTES = 1 << 20
_FIELDS = (
    "name", "experiment", "state", "cause", "attempt", "job_id", "node", "exit_code", "submitted", "started", "ended",
    "time_limit_s", "gpus", "partition", "progress", "progress_fraction", "gpu_percent", "gpu_idle_s", "memory_mb",
    "error_kind",
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


class DashboardData:
    """One project, looked at on demand. Safe to use from several threads."""

    def __init__(self, home: str, ask: AskQueue, clock: Callable[[], float] = time.time) -> None:
        self.home = home
        self._ask, self._clock = ask, clock
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._version = 0
        self._head: dict[str, Any] = {}
        self._records: dict[str, tuple[int, dict[str, Any]]] = {}
        self._names: dict[str, str] = {}
        self._gone: dict[str, int] = {}

    def runs(self, since: int = 0) -> dict[str, Any]:
        """Counts, and every run that changed after version `since`; the page keeps the others."""
        with self._lock:
            if self._clock() - self._looked_at >= _REFRESH_S:
                self._look()
                self._looked_at = self._clock()
            fresh = since > self._version  # a page of an earlier server
            since = 0 if fresh else since
            changed = [record for version, record in self._records.values() if version > since]
            gone = [one for one, version in self._gone.items() if version > since]
            return {**self._head, "version": self._version, "complete": since == 0, "runs": changed, "gone": gone}

    def name_of(self, run: str) -> str:
        """The name behind a page's id; ApiNotFound for anything else."""
        if run not in self._names:
            self.runs()
        if run not in self._names:
            raise ApiNotFound("there is no such run")
        return self._names[run]

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
            "run": self._records[run][1],
            "spec": msgspec.to_builtins(spec) if spec else None,
            "script": self._script(name),
            "attempts": layout.parse_names(list_names(layout.run_dir(self.home, name))).attempts.get("start", []),
            "events": run_events(self.home, name),
        }

    def why(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(why.explain_run(self.home, self.name_of(run), os.environ))
        return {**found, "log_lines": [strip_control_sequences(line, colour=False) for line in found["log_lines"]]}

    def log(
        self, run: str, stream: str, attempt: int | None, offset: int, *, most: int = _MAX_LOG_BYTES, part: str = ""
    ) -> dict[str, Any]:
        """A slice of a log as harmless text, cut at a line's end where more may follow.

        `part` is one of the answer's `rank_logs`: a rank or a replica, whose newest try is shown. Without one it is the
        run's own log, or the first part that has printed something, because beside replicas it may be empty.
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
            files, label = chosen.tries, chosen.label
        answer = {"text": "", "offset": 0, "next": 0, "size": 0, "attempt": source.attempt}
        answer |= {"part": label, "parts": labels, "tries": len(files)}
        try:
            data, start, size = read_slice(files[-1], offset, max(1, min(most, _MAX_LOG_BYTES)))
        except (IndexError, FileNotFoundError):
            return answer
        if offset < 0 and start > 0:
            data, start = data[data.find(b"\n") + 1 :], start + data.find(b"\n") + 1
        if start + len(data) < size and b"\n" in data:
            data = data[: data.rfind(b"\n") + 1]
        text = strip_escapes(collapse_carriage_returns(data.replace(b"\0", b"")).decode("utf-8", "replace"))
        text = strip_control_sequences(text, colour=False)
        return {**answer, "text": text, "offset": start, "next": start + len(data), "size": size}

    def metrics(self, run: str) -> dict[str, Any]:
        """Curves of the run's metrics, and what the job sampled about itself."""
        name = self.name_of(run)
        view = self._views.get(name)
        record = self._records[run][1]
        sample = usage.read_usage(self.home, name, record["attempt"]) if record["attempt"] else None
        return {
            "series": read_series(find_output(self.home, view)) if view is not None and view.output_dir else {},
            "usage": [msgspec.to_builtins(node) for node in sample.nodes] if sample else [],
        }

    def report(self, experiment: str) -> str:
        experiments = {record["experiment"] for _, record in self._records.values()}
        if experiment and experiment not in experiments:
            raise ApiNotFound("there is no such experiment")
        return report_page(gather_report(self.home, [experiment] if experiment else [], ask=self._ask))

    def _look(self) -> None:
        report = status.gather_status(self.home, ask=self._ask, clock=self._clock)
        self._views = {view.name: view for view in report.views}
        document = status.status_document(report)
        version, changed = self._version + 1, False
        seen = set()
        for record in document.pop("runs"):
            one = run_id(record["name"])
            seen.add(one)
            self._names[one] = record["name"]
            slim = {"id": one, **{key: record[key] for key in _FIELDS}}
            if self._records.get(one, (0, None))[1] != slim:
                self._records[one] = (version, slim)
                changed = True
        for one in set(self._records) - seen:
            del self._records[one]
            self._names.pop(one, None)
            self._gone[one] = version
            changed = True
        self._version = version if changed else self._version
        self._head = {**document, "schema": 1, "states": _STATES}

    def _script(self, name: str) -> str:
        try:
            with open(RunReader(self.home).script_file(name) or os.devnull, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                return strip_control_sequences(file.read(1 << 18), colour=False)
        except OSError:
            return ""
