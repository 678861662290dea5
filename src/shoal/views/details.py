"""What a view shows about a run beyond its state: progress, GPU use, age of the log, the logged error, and events.

Events come from the times of the small files in the run's directory.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import msgspec

from shoal.kernel import Cause, Progress, checkpoints, layout, list_names, read_progress
from shoal.model import FAILED_STATES
from shoal.observe import DamagedRecord, RunView, find_output, read_start, remaining_s, run_files, usage
from shoal.views.error_groups import LogError, error_sentence, find_error
from shoal.views.log_files import log_age_s

#: Failures whose logs are looked into by one status; beyond that the bare cause has to do.
MAX_LOGS = 3000


class RunDetails(NamedTuple):
    progress: Progress | None = None
    log_age_s: float | None = None
    gpu_percent: float | None = None
    gpu_idle_s: float | None = None
    memory_mb: float | None = None
    fault: LogError | None = None
    restart: str | None = None
    left_s: float | None = None

    @property
    def cause(self) -> Cause | None:
        return self.fault.cause if self.fault is not None else None


def run_details(home: str, view: RunView, now: float) -> RunDetails:
    """Details of one run: a running one from its progress, log and samples; a failed one from its log's end."""
    if view.state == "running":
        sample = usage.read_usage(home, view.name, view.attempt)
        idle = sample.idle_node if sample else None
        progress = progress_of(home, view)
        return RunDetails(
            progress,
            log_age_s(view.log_dir, view.attempt, now),
            sample.gpu_percent if sample else None,
            idle.gpu_idle_for_s if idle else None,
            sample.memory_mb if sample else None,
            restart=ignored_checkpoint(home, view),
            left_s=remaining_s(view, progress, now),
        )
    if view.state in FAILED_STATES:
        age = log_age_s(view.log_dir, view.attempt, now)
        return RunDetails(fault=find_error(home, view), log_age_s=age, restart=ignored_checkpoint(home, view))
    return RunDetails()


def ignored_checkpoint(home: str, view: RunView) -> str | None:
    """That an attempt started over although it was given a checkpoint, as its log tells; None if it did not."""
    checkpoint = view.resume_from
    if view.state == "done" and view.attempt:  # of which the view tells only the end
        start = run_files.read_start(layout.run_dir(home, view.name), view.attempt)
        checkpoint = start.resume_from if start is not None else None
    if not checkpoint or not view.log_dir or not view.attempt:
        return None
    began = checkpoints.check_resume(view.log_dir, view.attempt, checkpoint, is_over=view.state != "running")
    return None if began is None or began.continued else began.words(view.attempt, checkpoint)


def with_log_reason(view: RunView, fault: LogError | None) -> RunView:
    """The view with its cause told in the log's words: "exit code 1: RuntimeError: ..."."""
    if fault is None or view.state != "failed":
        return view
    return msgspec.structs.replace(view, cause=error_sentence(view, fault))


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
