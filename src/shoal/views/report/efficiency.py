"""How much of what was asked for was used, over all runs, and the exact flag to ask for less or more. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from shoal.units import format_duration, format_memory, format_memory_short, format_slurm_time
from shoal.views.report.history import AttemptHistory

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
