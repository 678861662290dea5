"""Keep the running job, or switch to its replacement? From how far the job is and what the replacement would do. Pure.

The wait for the replacement is counted once: meanwhile the running job goes on, and the replacement starts from the
checkpoint that exists then.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.kernel import value_of
from shoal.observe import ProgressRate

#: What GPUs that work together are taken to lose, where nobody has measured it.
ASSUMED_EFFICIENCY = 0.8
#: A switch has its own risks: it must save a tenth of the time that is left, and at least this much.
_MIN_SAVING_S = 300.0


class RunningJob(ProgressRate, frozen=True, kw_only=True):
    """The job as it is; `checkpoint_age_s` is None when there is no checkpoint to start from."""

    gpus: int
    nodes: int = 1
    checkpoint_age_s: float | None = None
    time_left_s: float | None = None


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """`wait_s` is None when Slurm gives no estimate; `efficiency` is 1 for twice as fast on twice as many GPUs."""

    gpus: int
    nodes: int = 1
    efficiency: float = ASSUMED_EFFICIENCY
    efficiency_from: str = "assumed"
    wait_s: float | None = None
    time_limit_s: float | None = None


class SwitchAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds are counted from now. `lost_s` is work of the running job that its replacement repeats."""

    recommend: str
    why: str
    keep_s: float
    switch_s: float
    saved_s: float
    wait_s: float | None
    speedup: float
    efficiency: float
    efficiency_from: str
    worth_above: float | None
    lost_s: float
    keep_gpu_hours: float
    switch_gpu_hours: float
    notes: list[str] = []


def advise(running: RunningJob, replacement: Replacement) -> SwitchAdvice:
    """Numbers for both ways, and a recommendation that they bear."""
    rate, wait_s = running.rate, replacement.wait_s or 0.0
    now, keep_s = running.now, running.left_s
    at_start = min(1.0, now + rate * wait_s)
    begins_at = _start_fraction(running, now, at_start)
    ratio = size_ratio(running, replacement)
    speedup = ratio * replacement.efficiency
    work_s = (1.0 - begins_at) / (rate * speedup)
    switch_s = wait_s + work_s
    lost_s = (at_start - begins_at) / rate
    spare_s = keep_s - wait_s
    worth = (1.0 - begins_at) / (rate * ratio * spare_s) if spare_s > 0 else None
    recommend, why = _recommend(running, replacement, keep_s, switch_s, work_s)
    return SwitchAdvice(
        recommend=recommend,
        why=why,
        keep_s=keep_s,
        switch_s=switch_s,
        saved_s=keep_s - switch_s,
        wait_s=replacement.wait_s,
        speedup=speedup,
        efficiency=replacement.efficiency,
        efficiency_from=replacement.efficiency_from,
        worth_above=worth,
        lost_s=lost_s,
        keep_gpu_hours=keep_s * running.gpus / 3600,
        switch_gpu_hours=(min(wait_s, keep_s) * running.gpus + work_s * replacement.gpus) / 3600,
        notes=_notes(running, replacement, keep_s, work_s),
    )


def size_ratio(running: RunningJob, replacement: Replacement) -> float:
    """How much larger the replacement is: by GPUs, or by nodes where there are none."""
    return replacement.gpus / running.gpus if running.gpus else replacement.nodes / max(1, running.nodes)


def _start_fraction(running: RunningJob, now: float, at_start: float) -> float:
    """The part of the way at which the replacement begins: that of the newest checkpoint when it starts. Checkpoints
    are taken to be as old then as the newest one is now."""
    if running.checkpoint_age_s is None:
        return 0.0
    behind = running.rate * running.checkpoint_age_s
    return max(0.0, now - behind, at_start - behind)


def _recommend(
    running: RunningJob, replacement: Replacement, keep_s: float, switch_s: float, work_s: float
) -> tuple[str, str]:
    if replacement.wait_s is not None and keep_s <= replacement.wait_s:
        return "keep", "the current job completes before the new one would start"
    if replacement.time_limit_s is not None and work_s > replacement.time_limit_s:
        return "keep", "the new job would not complete within its time limit"
    if running.time_left_s is not None and keep_s > running.time_left_s:
        return "switch", "the current job reaches its time limit before it completes"
    if keep_s - switch_s > max(_MIN_SAVING_S, keep_s / 10):
        return "switch", "switching completes sooner"
    return "keep", "switching does not complete sooner, or by too little to be worth it"


def _notes(running: RunningJob, replacement: Replacement, keep_s: float, work_s: float) -> list[str]:
    notes = []
    if running.checkpoint_age_s is None:
        notes.append("it has no checkpoint: the other begins at the beginning")
    if replacement.wait_s is None:
        notes.append("Slurm gives no estimate of the other's start; none is counted")
    if replacement.efficiency_from == "assumed":
        size = f"{replacement.gpus} GPUs" if replacement.gpus else f"{replacement.nodes} nodes"
        notes.append(
            f"the efficiency {replacement.efficiency:g} is assumed; a run of the same command on {size}, even a "
            "part of one, would measure it, and --efficiency says it"
        )
    if running.time_left_s is not None and keep_s > running.time_left_s:
        notes.append("it does not fit into its time limit")
    if replacement.time_limit_s is not None and work_s > replacement.time_limit_s:
        notes.append("the other does not fit into its time limit; --time gives it more")
    if running.is_start_up:
        notes.append("it has only begun: what was measured is mostly its start-up")
    return notes


def batch_notes(words: Sequence[str], ratio: float, unit: str = "GPU") -> list[str]:
    """What changes silently when the number of processes does; `words` are the command and its arguments."""
    if ratio == 1:
        return []
    found = value_of(words, "batch")
    of = f" ({found:g} becomes {found * ratio:g})" if found is not None else ""
    times = f"{ratio:g} times as large" if ratio > 1 else f"{1 / ratio:g} times smaller"
    notes = [
        f"with the same batch per {unit}, the batch of one optimizer step is {times}{of}, and an epoch has "
        f"{'fewer' if ratio > 1 else 'more'} steps; a fixed number of steps means {ratio:g} times the data"
    ]
    rate = value_of(words, "lr", "learning_rate", "learning-rate")
    if rate is not None:
        notes.append(
            f"the learning rate {rate:g} was chosen for another batch size; the linear rule gives {rate * ratio:g}"
        )
    return notes
