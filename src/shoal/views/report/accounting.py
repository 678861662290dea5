"""The attempts of all runs: their states, queue wait, failures; what was requested against what was used.

A run's directory records each attempt: its request, its duration and its end. Sums over attempts are pure functions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import msgspec

from shoal.kernel import KIND_OF_STATE, KIND_TEXTS, SLURM_ENDED_STATES, layout, list_names
from shoal.model import ENDED_STATES, FAILED_STATES, SUCCESSFUL_STATES, RunSpec
from shoal.observe import (
    AssignedResources,
    AttemptUsage,
    ClaimRecord,
    DamagedRecord,
    End,
    RequestedResources,
    RunReader,
    RunView,
    derive_attempt_state,
    run_files,
    usage,
)


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
    allocation: str = ""
    checkpoint_t: float | None = None
    token: str = ""
    #: The next attempt went on from its checkpoint, or none has come yet.
    is_continued: bool = True
    is_followed: bool = False
    cause: str | None = None
    reason: str | None = None

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
    attempts: list[AttemptHistory]


def read_history(home: str, view: RunView, reader: RunReader, now: float) -> RunHistory:
    """All attempts of one run, oldest first; what is damaged is left out."""
    folder = layout.run_dir(home, view.name)
    names = layout.parse_names(list_names(folder))
    try:
        spec = reader.spec(view.name)
    except DamagedRecord:
        spec = None
    attempts: list[AttemptHistory] = []
    for number in names.attempts.get("start", []):
        try:
            found = _read_attempt(home, folder, names, view, reader, number, now)
        except DamagedRecord:
            continue
        if found is not None:
            attempts.append(found)
    return RunHistory(view, spec, _with_kept(attempts))


def _read_attempt(
    home: str, folder: str, names: layout.RunNames, view: RunView, reader: RunReader, number: int, now: float
) -> AttemptHistory | None:
    start = run_files.read_start(folder, number)
    if start is None:
        return None
    end = run_files.read_end(folder, names, number)
    claim = run_files.read_checked(os.path.join(folder, layout.submit_file(start.generation, "claim")), ClaimRecord)
    submission = reader.submission(claim.token).submission if claim else None
    seen = _attempt_view(folder, names, view, reader, number, end)
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
        max(start.t, end.ended if end is not None else now),
        seen.state,
        seen.state == "completed",
        asked,
        limit,
        usage.read_usage(home, view.name, number),
        start.resume_from is not None,
        end.data if end is not None else (),
        held.share if held is not None and 0 < held.share < 1 else 1.0,
        held,
        start.job_id or start.token,
        start.allocation,
        end.checkpoint_t if end is not None else None,
        start.token,
        cause=seen.cause,
        reason=seen.reason,
    )


def _attempt_view(
    folder: str, names: layout.RunNames, view: RunView, reader: RunReader, number: int, end: End | None
) -> RunView:
    """State, cause and reason of one attempt: the run's own if it was the run's end."""
    if end is None:
        return msgspec.structs.replace(view, state="running", cause=None)
    if number == names.attempt and view.state in ENDED_STATES:
        return view
    files, path = reader.run(view.name), os.path.join(folder, layout.submit_file(end.generation, "claim"))
    claim = run_files.read_checked(path, ClaimRecord)
    if claim is not None:
        files = files._replace(claim=claim, origin=reader.submission(claim.token))
    later = [other for other in names.attempts.get("start", []) if other > number]
    following = run_files.read_start(folder, min(later)) if later else None
    return derive_attempt_state(files, end, run_files.read_verdict(folder, names, end), following)


def _with_kept(attempts: list[AttemptHistory]) -> list[AttemptHistory]:
    """An attempt's work is kept if it succeeded or still runs, or if the next one went on from its checkpoint."""
    found: list[AttemptHistory] = []
    for one in reversed(attempts):
        went_on = bool(found) and found[-1].resumed and found[-1].kept
        one = one._replace(is_continued=not found or found[-1].resumed, is_followed=bool(found))
        is_done = one.state in SUCCESSFUL_STATES and (one.state == "completed" or not found)
        found.append(one._replace(kept=is_done or one.state == "running" or went_on))
    return found[::-1]


class UsageSpread(NamedTuple):
    """One measure over attempts: fractions of what was asked for, and ten bins from 0 to 100 %."""

    name: str
    low: float
    middle: float
    high: float
    attempts: int
    bins: tuple[int, ...]


def usage_spreads(attempts: Sequence[AttemptHistory]) -> list[UsageSpread]:
    """Memory, CPU, GPU and time over attempts that were sampled; a measure nobody took is left out."""
    measures: dict[str, list[float]] = {"memory": [], "cpu": [], "gpu": [], "time limit": []}
    for one in attempts:
        if one.use is not None and one.asked.memory_mb:
            measures["memory"].append(one.use.peak_memory_mb / one.asked.memory_mb)
        if one.use is not None and one.asked.cpus and one.use.mean_cpus is not None:
            measures["cpu"].append(one.use.mean_cpus / one.asked.cpus)
        if one.use is not None and one.use.mean_gpu_percent is not None:
            measures["gpu"].append(one.use.mean_gpu_percent / 100)
        if one.time_limit_s and one.state == "completed":
            measures["time limit"].append((one.end - one.begin) / one.time_limit_s)
    return [_usage_spread(name, values) for name, values in measures.items() if values]


def _usage_spread(name: str, values: Sequence[float]) -> UsageSpread:
    bins = [0] * 10
    for value in values:
        bins[min(9, max(0, int(value * 10)))] += 1
    return UsageSpread(name, min(values), median(values), max(values), len(values), tuple(bins))


class QueueWait(NamedTuple):
    median_s: float
    max_s: float
    jobs: int


class AttemptDelay(NamedTuple):
    """What attempts waited for besides the queue."""

    median_s: float
    max_s: float
    attempts: int


class FailureGroup(NamedTuple):
    """Attempts that failed for the same reason, and the GPU-hours that were allocated to them."""

    reason: str
    times: int
    gpu_hours: float
    runs: list[str]


def queue_wait(waits: Sequence[float]) -> QueueWait | None:
    """Of jobs, each from eligible to start; a requeue is a wait of its own."""
    return QueueWait(median(waits), max(waits), len(waits)) if waits else None


def total_makespan_s(attempts: Sequence[AttemptHistory]) -> float | None:
    """From the first submission to the last end."""
    if not attempts:
        return None
    return max(one.end for one in attempts) - min(one.submitted or one.begin for one in attempts)


def group_failures(
    histories: Sequence[RunHistory], reasons: Mapping[str, str], paid: Mapping[tuple[str, int], float]
) -> list[FailureGroup]:
    """Failures by reason, the costliest first. `reasons` are the words in the logs of last attempts; `paid` is what
    attempts cost in GPU-hours, as attempt 0 what a job cost in which the run did not begin."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for history in histories:
        name = history.view.name
        for one in history.attempts:
            if one.state in FAILED_STATES:
                word = reasons.get(name) if one is history.attempts[-1] else None
                groups.setdefault(word or _reason_of_state(one.state), []).append((name, one.attempt))
        if not history.attempts and _failed_before_start(history.view, (name, 0) in paid):
            groups.setdefault(history.view.reason or "its job failed", []).append((name, 0))
    found = [
        FailureGroup(
            reason, len(members), sum(paid.get(one, 0.0) for one in members), sorted({run for run, _ in members})
        )
        for reason, members in groups.items()
    ]
    return sorted(found, key=lambda one: (one.gpu_hours, one.times), reverse=True)


def _failed_before_start(view: RunView, paid: bool) -> bool:
    """Whether the job of a run failed before any run began in it: its set-up, or the engine of its pack."""
    by_slurm = SLURM_ENDED_STATES.get(view.slurm_state or "")
    return view.state in FAILED_STATES or (paid and view.state == "new" and by_slurm in FAILED_STATES)


def _reason_of_state(state: str) -> str:
    if state in KIND_OF_STATE:
        return KIND_TEXTS[KIND_OF_STATE[state]]
    return {"failed": "ended with an error", "lost": "lost: its end was not recorded"}.get(state, state)
