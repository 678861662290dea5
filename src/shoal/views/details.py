"""What a view shows beyond the state: progress, GPU use, age of the log, and the log's own words about a failure."""

from __future__ import annotations

import os
from typing import NamedTuple

import msgspec

from shoal.kernel.progress import Progress, read
from shoal.store.fold import RunView
from shoal.store.output import find_output
from shoal.store.pace import left_s
from shoal.views import usage
from shoal.views.causes import WORDS, Cause, find_cause
from shoal.views.render import BAD_STATES
from shoal.views.tail import last_text, log_age_s

#: Failures whose logs are looked into by one status; beyond that the bare cause has to do.
MOST_LOGS = 3000


class Details(NamedTuple):
    progress: Progress | None = None
    log_age_s: float | None = None
    gpu_percent: float | None = None
    gpu_idle_s: float | None = None
    memory_mb: float | None = None
    cause: Cause | None = None
    left_s: float | None = None


def details_of(home: str, view: RunView, now: float) -> Details:
    """Details of one run: a running one from its progress, log and samples; a failed one from its log's end."""
    if view.state == "running":
        sample = usage.read(home, view.name, view.attempt)
        idle = sample.idle_node if sample else None
        progress = progress_of(home, view)
        return Details(
            progress,
            log_age_s(view.log_dir, view.attempt, now),
            sample.gpu_percent if sample else None,
            idle.gpu_idle_for_s if idle else None,
            sample.memory_mb if sample else None,
            left_s=left_s(view, progress, now),
        )
    if view.state in BAD_STATES and view.log_dir and view.attempt:
        return Details(cause=cause_in_log(view), log_age_s=log_age_s(view.log_dir, view.attempt, now))
    return Details()


def cause_in_log(view: RunView) -> Cause | None:
    for stream in ("err", "out"):
        lines = last_text(os.path.join(view.log_dir or "", f"attempt-{view.attempt}.{stream}"), 120, 1 << 15)
        if (cause := find_cause(lines)) is not None:
            return cause
    return None


def with_cause(view: RunView, cause: Cause | None) -> RunView:
    """The view with its cause told in the log's words: "exit code 1: RuntimeError: ..."."""
    if cause is None or view.state != "failed":
        return view
    word = WORDS[cause.kind] if cause.kind not in ("python", "shell", "crash", "import") else ""
    said = f"{word} ({cause.line})" if word and word.lower() not in cause.line.lower() else cause.line
    return msgspec.structs.replace(view, cause=f"{view.cause}: {said}" if view.cause else said)


def progress_of(home: str, view: RunView) -> Progress | None:
    """Only running runs have one worth showing."""
    if view.state != "running" or view.output_dir is None:
        return None
    return read(find_output(home, view))
