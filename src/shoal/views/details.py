"""What a view shows about a run beyond its state: progress, GPU use, age of the log, the logged error, and events.

Events come from the times of the small files in the run's directory.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from shoal.kernel import Cause, Progress, checkpoints, layout, list_names, read_bound, read_progress
from shoal.model import FAILED_STATES
from shoal.observe import (
    OUTPUT_AGE_S,
    DamagedRecord,
    RunSummary,
    RunView,
    find_output,
    read_cache,
    read_start,
    remaining_s,
    run_files,
    usage,
    write_cache,
)
from shoal.views.error_groups import LogError, error_sentence, find_error
from shoal.views.log_files import log_age_s

#: Failures whose logs are looked into by one status; beyond that the bare reason has to do.
MAX_LOGS = 3000
#: How often a process that stays writes the cache.
_SAVE_EVERY_S = 30.0
_TRIAL = re.compile(r"_t\d{3,}\Z", re.ASCII)


class RunDetails(NamedTuple):
    progress: Progress | None = None
    log_age_s: float | None = None
    gpu_percent: float | None = None
    gpu_idle_s: float | None = None
    memory_mb: float | None = None
    fault: LogError | None = None
    restart: str | None = None
    left_s: float | None = None
    #: Of a trial of a search: the parameters that it has got.
    trial: Mapping[str, Any] | None = None

    @property
    def cause(self) -> Cause | None:
        return self.fault.cause if self.fault is not None else None


def run_details(home: str, view: RunView, now: float, summary: RunSummary | None = None) -> RunDetails:
    """Details of one run: a running one from its progress, log and samples; a failed one from its log's end. `summary`
    spares reading its progress again."""
    if view.state == "running":
        sample = usage.read_usage(home, view.name, view.attempt)
        idle = sample.idle_node if sample else None
        progress = summary.progress if summary is not None else progress_of(home, view)
        return RunDetails(
            progress,
            log_age_s(view.log_dir, view.attempt, now),
            sample.gpu_percent if sample else None,
            idle.gpu_idle_for_s if idle else None,
            sample.memory_mb if sample else None,
            restart=ignored_checkpoint(home, view),
            left_s=remaining_s(view, progress, now),
            trial=_trial_parameters(home, view.name),
        )
    if view.state in FAILED_STATES:
        age = log_age_s(view.log_dir, view.attempt, now)
        return RunDetails(fault=find_error(home, view), log_age_s=age, restart=ignored_checkpoint(home, view))
    return RunDetails()


def _trial_parameters(home: str, name: str) -> Mapping[str, Any] | None:
    """What a search has chosen for a run; None for any other run."""
    experiment, _, stem = name.partition("/")
    for trial in (stem, stem.rpartition("_")[0]):
        try:
            bound = read_bound(home, experiment, trial) if _TRIAL.search(trial) else None
        except ValueError:
            return None  # the run itself fails, and says why
        if bound is not None:
            return bound.params
    return None


def ignored_checkpoint(home: str, view: RunView) -> str | None:
    """That an attempt started over although it was given a checkpoint, as its log tells; None if it did not."""
    checkpoint = view.resume_from
    if view.state == "completed" and view.attempt:  # of which the view tells only the end
        start = run_files.read_start(layout.run_dir(home, view.name), view.attempt)
        checkpoint = start.resume_from if start is not None else None
    if not checkpoint or not view.log_dir or not view.attempt:
        return None
    began = checkpoints.check_resume(view.log_dir, view.attempt, checkpoint, is_over=view.state != "running")
    return None if began is None or began.continued else began.words(view.attempt, checkpoint)


def with_log_reason(view: RunView, fault: LogError | None) -> RunView:
    """The view with its reason in the log's words: "exit code 1: RuntimeError: ..."."""
    if fault is None or view.state != "failed":
        return view
    return msgspec.structs.replace(view, reason=error_sentence(view, fault))


class _KnownFailure(msgspec.Struct, array_like=True):
    """`view` as it was read at time `t`, and as it is shown."""

    view: RunView
    complete: RunView
    details: RunDetails
    t: float


class _KeptFailures(msgspec.Struct, frozen=True):
    """`schema` is raised when the same logs give other details."""

    runs: dict[str, _KnownFailure]
    schema: int = 1


class KnownFailures:
    """Details of failed runs, kept from look to look as long as their views stay the same, also in `.shoal/cache/`. A
    look spends at most `max_look_s` processor seconds on the logs of new ones; `unread` counts the others."""

    def __init__(self, home: str, max_look_s: float = float("inf")) -> None:
        self._home, self._max_look_s, self._spent_s = home, max_look_s, 0.0
        self.unread = 0
        self._known: dict[str, dict[str, _KnownFailure]] = {}
        self._unsaved: set[str] = set()
        self._saved_at = float("-inf")

    def begin_look(self) -> None:
        self._spent_s, self.unread = 0.0, 0

    def details_of(
        self, home: str, view: RunView, now: float, summary: RunSummary | None, is_unchecked: bool = False
    ) -> tuple[RunView, RunDetails]:
        """The run with its reason in the log's words, and its details. One that is `is_unchecked` ended long ago: what
        an earlier command has read of its log then is not read again."""
        failures = self._of(view.experiment)
        known = failures.get(view.name)
        if known is not None and (known.view is view or (is_unchecked and _is_log_complete(known, view))):
            known.view = view
            age = known.details.log_age_s
            return known.complete, known.details if age is None else known.details._replace(
                log_age_s=age + now - known.t
            )
        if view.state in FAILED_STATES and self._spent_s > self._max_look_s:
            self.unread += 1
            return view, RunDetails()
        begin = time.thread_time()
        details = run_details(home, view, now, summary)
        complete = with_log_reason(view, details.fault)
        self._spent_s += time.thread_time() - begin
        if view.state in FAILED_STATES:
            failures[view.name] = _KnownFailure(view, complete, _without_window(details), now)
            if known is None or not _is_log_complete(known, view) or known.complete != complete:
                self._unsaved.add(view.experiment)
        elif failures.pop(view.name, None) is not None:
            self._unsaved.add(view.experiment)
        return complete, details

    def save(self) -> None:
        """Keep it for the next command."""
        if not self._unsaved or time.monotonic() - self._saved_at < _SAVE_EVERY_S:
            return
        for experiment in self._unsaved:
            write_cache(self._home, "failures", experiment, _KeptFailures(self._known[experiment]))
        self._unsaved, self._saved_at = set(), time.monotonic()

    def _of(self, experiment: str) -> dict[str, _KnownFailure]:
        if experiment not in self._known:
            kept = read_cache(self._home, "failures", experiment, _KeptFailures)
            self._known[experiment] = kept.runs if kept is not None and kept.schema == 1 else {}
        return self._known[experiment]


def _is_log_complete(known: _KnownFailure, view: RunView) -> bool:
    """Whether a log was read so long after the run's end that no node or server still had a part of it."""
    return known.view == view and known.t > (view.ended or 0.0) + OUTPUT_AGE_S


def _without_window(details: RunDetails) -> RunDetails:
    """Tables show one line of a log."""
    fault = details.fault
    if fault is None:
        return details
    line = fault.log_line if fault.cause is None else None
    return details._replace(fault=fault._replace(window=[line] if line else []))


def progress_of(home: str, view: RunView) -> Progress | None:
    """Only running runs have one worth showing."""
    if view.state != "running" or view.output_dir is None:
        return None
    return read_progress(find_output(home, view))


def run_events(home: str, name: str) -> list[dict[str, Any]]:
    """What happened to a run, oldest first: the small files of its folder, by the time they were written."""
    words = {
        "claim": "submitted",
        "cancel": "cancel asked for",
        "start": "attempt {n} started",
        "end": "attempt {n} ended",
        "lost": "attempt {n} was lost",
        "handover": "another job asked attempt {n} to end",
        "verdict": "Slurm's word kept",
    }
    folder = layout.run_dir(home, name)
    found = []
    for file in list_names(folder):
        parts = file.split(".")
        if len(parts) not in (3, 4) or parts[0] not in ("submit", "attempt"):
            continue
        text = words.get(parts[2].rstrip("0123456789"), "")
        if text:
            try:
                moment = _start_time(folder, int(parts[1])) if parts[2] == "start" else None
                moment = moment or os.stat(os.path.join(folder, file)).st_mtime
            except (OSError, ValueError):
                continue
            found.append({"t": moment, "what": text.format(n=parts[1]), "file": file})
    return sorted(found, key=lambda event: (event["t"], event["file"]))


def _start_time(folder: str, attempt: int) -> float | None:
    """As the record says: its file is the one that the end is written to."""
    try:
        start = read_start(folder, attempt)
    except DamagedRecord:
        return None
    return start.t if start is not None else None
