"""What a view shows beyond the state: progress, GPU use, age of the log, and the log's own words about a failure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from shoal.kernel import Cause, Progress, layout, read_progress, resumed
from shoal.model import FAILED_STATES
from shoal.observe import RunView, find_output, records, remaining_s
from shoal.views import usage
from shoal.views.faults import LogError, error_sentence, find_error
from shoal.views.tail import log_age_s

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
        start = records.read_start(layout.run_dir(home, view.name), view.attempt)
        checkpoint = start.resume_from if start is not None else None
    if not checkpoint or not view.log_dir or not view.attempt:
        return None
    began = resumed.check_resume(view.log_dir, view.attempt, checkpoint, is_over=view.state != "running")
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
