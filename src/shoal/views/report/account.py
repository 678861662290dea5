"""Hours: asked for, held, used, idle, lost; queue wait; failures by cause. Pure sums over attempts."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from shoal.kernel import KIND_TEXTS
from shoal.model import SUCCESSFUL_STATES
from shoal.views.report.history import AttemptHistory, RunHistory


class ResourceHours(NamedTuple):
    """GPU-hours, or CPU-hours. `requested` is what the time limits allowed, `held` what passed while it was allocated,
    `idle` the part of it in which samples saw nothing being done, `used` the rest; `lost` was held by attempts whose
    work was thrown away. `sampled` is the part of `held` that was sampled at all.

    `held` is made of `useful` (seen at work, and kept), `unseen` (kept, without samples), `lost`, and what idled."""

    requested: float = 0.0
    held: float = 0.0
    used: float = 0.0
    idle: float = 0.0
    lost: float = 0.0
    sampled: float = 0.0
    useful: float = 0.0
    unseen: float = 0.0


class QueueWait(NamedTuple):
    median_s: float
    longest_s: float
    attempts: int


class FailureGroup(NamedTuple):
    """Attempts that ended badly for the same reason."""

    cause: str
    times: int
    gpu_hours: float
    runs: list[str]


def gpu_hours(tries: Sequence[AttemptHistory]) -> ResourceHours:
    requested = held = idle = lost = sampled = useful = unseen = 0.0
    for one in tries:
        here = one.gpus * one.hours
        held += here
        requested += one.gpus * max(one.hours, (one.time_limit_s or 0) / 3600)
        lost += 0.0 if one.kept else here
        if one.use is not None and one.use.gpus and here:
            seen = sum(gpu.idle_s for gpu in one.use.gpus) / 3600
            # GPUs that nobody could sample are taken to do as the others.
            idle_here = min(here, seen * one.gpus / len(one.use.gpus))
            idle += idle_here
            sampled += here
            useful += here - idle_here if one.kept else 0.0
        else:
            unseen += here if one.kept else 0.0
    return ResourceHours(requested, held, held - idle, idle, lost, sampled, useful, unseen)


def cpu_hours(tries: Sequence[AttemptHistory]) -> ResourceHours:
    requested = held = used = lost = sampled = useful = unseen = 0.0
    for one in tries:
        cpus = one.asked.nodes * (one.asked.cpus or 1)
        here = cpus * one.hours
        held += here
        requested += cpus * max(one.hours, (one.time_limit_s or 0) / 3600)
        lost += 0.0 if one.kept else here
        if one.use is not None:
            used_here = min(here, one.use.cpu_s * one.asked.nodes / len(one.use.nodes) / 3600)
            used += used_here
            sampled += here
            useful += used_here if one.kept else 0.0
        else:
            unseen += here if one.kept else 0.0
    return ResourceHours(requested, held, used, max(0.0, sampled - used), lost, sampled, useful, unseen)


def queue_wait(tries: Sequence[AttemptHistory]) -> QueueWait | None:
    """From submission to start; attempts that follow a requeue have waited for something else and do not count."""
    waits = [max(0.0, one.begin - one.submitted) for one in tries if one.submitted is not None]
    return QueueWait(median(waits), max(waits), len(waits)) if waits else None


def total_makespan_s(tries: Sequence[AttemptHistory]) -> float | None:
    """From the first submission to the last end."""
    if not tries:
        return None
    return max(one.end for one in tries) - min(one.submitted or one.begin for one in tries)


def group_failures(histories: Sequence[RunHistory], causes: dict[str, str]) -> list[FailureGroup]:
    """Bad ends by cause, the costliest first. `causes` are the words found in the logs of runs that failed for good."""
    groups: dict[str, list[AttemptHistory]] = {}
    for history in histories:
        for one in history.tries:
            if one.state in SUCCESSFUL_STATES | {"running"}:
                continue
            is_last = one is history.tries[-1]
            word = causes.get(one.run) if is_last else None
            groups.setdefault(word or _cause_of_state(one.state), []).append(one)
    found = [
        FailureGroup(cause, len(tries), sum(one.gpus * one.hours for one in tries), sorted({one.run for one in tries}))
        for cause, tries in groups.items()
    ]
    return sorted(found, key=lambda one: (one.gpu_hours, one.times), reverse=True)


def _cause_of_state(state: str) -> str:
    return {
        "oom": KIND_TEXTS["host_oom"],
        "timeout": KIND_TEXTS["time_limit"],
        "preempted": KIND_TEXTS["preempted"],
        "node_fail": KIND_TEXTS["node"],
        "failed": "ended with an error",
        "lost": "vanished without a trace",
    }.get(state, state)
