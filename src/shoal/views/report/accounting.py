"""The attempts of all runs and what they cost: hours requested, allocated, used, idle and wasted; queue wait; failures.

A run's directory records each attempt: its request, its duration and its end. Sums over attempts are pure functions, as
is the comparison of requested and used resources, which gives the flag to request less or more.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from shoal.kernel import KIND_TEXTS, layout, list_names
from shoal.model import SUCCESSFUL_STATES, RunSpec
from shoal.observe import (
    AssignedResources,
    AttemptUsage,
    ClaimRecord,
    DamagedRecord,
    End,
    RequestedResources,
    RunReader,
    RunView,
    run_files,
    usage,
)
from shoal.units import format_duration, format_memory, format_memory_short, format_slurm_time


class AttemptHistory(NamedTuple):
    """One attempt. `end` is when it ended, or was last known to live; `kept`: its work was not lost.

    `share` is its part of each GPU, when it shared them with other runs of a pack; `held` is what it had there, and
    `job` the allocation: a Slurm job, or what one command ran on this machine.
    """

    run: str
    attempt: int
    host: str
    submitted: float | None
    begin: float
    end: float
    state: str
    kept: bool
    asked: RequestedResources
    time_limit_s: int | None
    use: AttemptUsage | None
    resumed: bool = False
    data: Sequence[dict[str, Any]] = ()
    share: float = 1.0
    held: AssignedResources | None = None
    job: str = ""

    @property
    def gpus(self) -> float:
        held = self.asked.nodes * self.asked.gpus * self.share
        return int(held) if held == int(held) else held

    @property
    def hours(self) -> float:
        return max(0.0, self.end - self.begin) / 3600


class RunHistory(NamedTuple):
    view: RunView
    spec: RunSpec | None
    tries: list[AttemptHistory]


def read_history(home: str, view: RunView, reader: RunReader, now: float) -> RunHistory:
    """All attempts of one run, oldest first; what is damaged is left out."""
    folder = layout.run_dir(home, view.name)
    names = layout.parse_names(list_names(folder))
    try:
        spec = reader.spec(view.name)
    except DamagedRecord:
        spec = None
    tries: list[AttemptHistory] = []
    for number in names.attempts.get("start", []):
        try:
            found = _read_attempt(home, folder, names, view, reader, number, now)
        except DamagedRecord:
            continue
        if found is not None:
            tries.append(found)
    return RunHistory(view, spec, _with_kept(tries))


def _read_attempt(
    home: str, folder: str, names: layout.RunNames, view: RunView, reader: RunReader, number: int, now: float
) -> AttemptHistory | None:
    start = run_files.read_start(folder, number)
    if start is None:
        return None
    end = run_files.read_end(folder, names, number)
    claim = run_files.read_checked(os.path.join(folder, layout.submit_file(start.generation, "claim")), ClaimRecord)
    submission = reader.submission(claim.token).submission if claim else None
    is_last = number == names.attempt
    if end is not None:
        until, state = end.ended, "done" if end.success else (view.state if is_last else _end_state(end))
    else:
        until, state = now, "running"
    first = not any(other < number for other in names.attempts.get("start", []))
    asked = (submission.asked if submission else None) or RequestedResources()
    limit, held = submission.time_limit_s if submission else None, start.held
    if held is not None:
        # One of many in a pack: it held its slot, and the time limit was everybody's.
        asked, limit = (
            RequestedResources(nodes=1, gpus=len(held.gpus), cpus=held.cpus or None, partition=asked.partition),
            None,
        )
    return AttemptHistory(
        view.name,
        number,
        (held.host if held else None) or start.node or start.host,
        claim.t if claim and (first or start.resume_from is not None) else None,
        start.t,
        max(start.t, until),
        state,
        state == "done",
        asked,
        limit,
        usage.read_usage(home, view.name, number),
        start.resume_from is not None,
        end.data if end is not None else (),
        held.share if held is not None and 0 < held.share < 1 else 1.0,
        held,
        start.job_id or start.token,
    )


def _end_state(end: End) -> str:
    if end.oom:
        return "oom"
    return {"cancelled": "cancelled", "search": "stopped"}.get(end.stopped_by or "", "failed")


def _with_kept(tries: list[AttemptHistory]) -> list[AttemptHistory]:
    """An attempt's work is kept if it succeeded or still runs, or if the next one went on from its checkpoint."""
    found: list[AttemptHistory] = []
    for one in reversed(tries):
        went_on = bool(found) and found[-1].resumed and found[-1].kept
        found.append(one._replace(kept=one.state in SUCCESSFUL_STATES | {"running"} or went_on))
    return found[::-1]


#: What a next request keeps in reserve above the most that was seen.
_MEMORY_MARGIN, _TIME_MARGIN = 1.25, 1.5


class UsageSpread(NamedTuple):
    """One measure over attempts: fractions of what was asked for, and ten bins from 0 to 100 %."""

    name: str
    low: float
    middle: float
    high: float
    attempts: int
    bins: tuple[int, ...]


class RequestAdvice(NamedTuple):
    """One sentence, and the flag that follows from it (None where no flag helps)."""

    code: str
    sentence: str
    flag: str | None


def usage_spreads(tries: Sequence[AttemptHistory]) -> list[UsageSpread]:
    """Memory, CPU, GPU and time over attempts that were sampled; a measure nobody took is left out."""
    measures: dict[str, list[float]] = {"memory": [], "cpu": [], "gpu": [], "time limit": []}
    for one in tries:
        if one.use is not None and one.asked.memory_mb:
            measures["memory"].append(one.use.peak_memory_mb / one.asked.memory_mb)
        if one.use is not None and one.asked.cpus and one.use.mean_cpus is not None:
            measures["cpu"].append(one.use.mean_cpus / one.asked.cpus)
        if one.use is not None and one.use.mean_gpu_percent is not None:
            measures["gpu"].append(one.use.mean_gpu_percent / 100)
        if one.time_limit_s and one.state == "done":
            measures["time limit"].append((one.end - one.begin) / one.time_limit_s)
    return [_usage_spread(name, values) for name, values in measures.items() if values]


def _usage_spread(name: str, values: Sequence[float]) -> UsageSpread:
    bins = [0] * 10
    for value in values:
        bins[min(9, max(0, int(value * 10)))] += 1
    return UsageSpread(name, min(values), median(values), max(values), len(values), tuple(bins))


def request_advice(tries: Sequence[AttemptHistory]) -> list[RequestAdvice]:
    """What to ask for next time. Only attempts that did their work are a measure of what the work needs."""
    good = [one for one in tries if one.state == "done"] or [one for one in tries if one.state == "running"]
    checks = (_memory_advice, _time_advice, _cpu_advice, _gpu_advice)
    return [advice for check in checks if (advice := check(good)) is not None]


def _memory_advice(tries: Sequence[AttemptHistory]) -> RequestAdvice | None:
    seen = [(one.use.peak_memory_mb, one.asked.memory_mb) for one in tries if one.use and one.asked.memory_mb]
    if not seen:
        return None
    least, most, asked = min(peak for peak, _ in seen), max(peak for peak, _ in seen), max(mb for _, mb in seen)
    words = (
        f"{format_memory_short(most)}"
        if most - least < 0.1 * most
        else f"{format_memory_short(least)} to {format_memory_short(most)}"
    )
    want = _round_memory(most * _MEMORY_MARGIN)
    if want < 0.7 * asked:
        sentence = (
            f"memory: {format_memory_short(asked)} was asked for per node, {words} was used by {len(seen)} attempts"
        )
        return RequestAdvice("memory_low", sentence, f"--mem={format_memory(want)}")
    if most > 0.92 * asked:
        sentence = f"memory: {words} of {format_memory_short(asked)} was used, which is close to being killed"
        return RequestAdvice("memory_high", sentence, f"--mem={format_memory(_round_memory(most * 1.5))}")
    return None


def _time_advice(tries: Sequence[AttemptHistory]) -> RequestAdvice | None:
    seen = [(one.end - one.begin, one.time_limit_s) for one in tries if one.time_limit_s and one.state == "done"]
    if not seen:
        return None
    most, limit = max(lasted for lasted, _ in seen), max(limit for _, limit in seen)
    want = max(300, math.ceil(most * _TIME_MARGIN / 300) * 300)
    if want < 0.6 * limit:
        sentence = (
            f"time: the longest of {len(seen)} attempts took {format_duration(most)} of {format_duration(limit)}; "
        )
        return RequestAdvice("time_low", sentence + "shorter jobs start sooner", f"--time={format_slurm_time(want)}")
    if most > 0.95 * limit:
        sentence = f"time: the longest attempt took {format_duration(most)} of {format_duration(limit)}"
        return RequestAdvice("time_high", sentence, f"--time={format_slurm_time(math.ceil(limit * 1.5 / 300) * 300)}")
    return None


def _cpu_advice(tries: Sequence[AttemptHistory]) -> RequestAdvice | None:
    seen = [(one.use.mean_cpus, one.asked.cpus) for one in tries if one.use and one.asked.cpus and one.use.mean_cpus]
    if not seen:
        return None
    most, asked = max(mean for mean, _ in seen if mean), max(cpus for _, cpus in seen if cpus)
    want = max(1, math.ceil(most * 1.3))
    if asked >= 4 and want <= asked * 0.6:
        return RequestAdvice(
            "cpus_low", f"CPUs: {asked} were asked for, {most:.1f} were busy on average", f"--cpus-per-task={want}"
        )
    return None


def _gpu_advice(tries: Sequence[AttemptHistory]) -> RequestAdvice | None:
    seen = [one.use for one in tries if one.use and one.use.gpus]
    if not seen:
        return None
    mean = median(use.mean_gpu_percent or 0.0 for use in seen)
    parts = [gpu.peak_memory_mb / gpu.memory_mb for use in seen for gpu in use.gpus if gpu.memory_mb]
    memory = max(parts, default=0.0)
    if mean >= 50:
        return None
    sentence = f"GPUs: {mean:.0f}% busy in the median, {memory:.0%} of their memory used at most; "
    if memory < 0.4:
        return RequestAdvice("gpu_idle", sentence + "two or more runs would fit on one GPU", None)
    return RequestAdvice("gpu_idle", sentence + "more data-loading workers or a larger batch may help", None)


def _round_memory(size_mb: float) -> int:
    """Up to a whole GB, or to 100 MB below one."""
    return math.ceil(size_mb / 1024) * 1024 if size_mb > 1024 else max(100, math.ceil(size_mb / 100) * 100)


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
