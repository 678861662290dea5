"""What to request next time, from what completed runs used. Pure.

Advice to request less needs enough to go by (MIN_SAMPLES, MIN_RUNS), and says how much. It knows what a run had:
a slot of a pack is changed by the pack's flags, and runs that share a GPU already are not advised to share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from shoal.model import RunSpec
from shoal.units import format_duration, format_memory, format_memory_short, format_slurm_time, plural
from shoal.views.report.accounting import AttemptHistory

#: What a next request keeps in reserve above the most that was seen.
_MEMORY_MARGIN, _TIME_MARGIN = 1.25, 1.5
#: Fewer samples of memory, CPUs or GPUs, or fewer ends of runs, are not enough to request less.
MIN_SAMPLES, MIN_RUNS = 30, 3


class RequestAdvice(NamedTuple):
    """One sentence, and the flag that follows from it (None where no flag helps). `line` is what to paste and `place`
    where: a file, a table, or "" for the shell."""

    code: str
    sentence: str
    flag: str | None
    runs: int
    samples: int
    line: str = ""
    place: str = ""


def request_advice(
    attempts: Sequence[AttemptHistory], spec: RunSpec | None = None, file: str | None = None
) -> list[RequestAdvice]:
    """What to request next time for runs of one kind. `spec` is one of them and `file` where it is described, if known.

    Only attempts that did their work are a measure of what the work needs.
    """
    good = [one for one in attempts if one.state == "completed"] or [one for one in attempts if one.state == "running"]
    checks = (_memory_advice, _time_advice, _cpu_advice, _gpu_advice)
    return [_with_line(advice, good, spec, file) for check in checks if (advice := check(good)) is not None]


def _memory_advice(attempts: Sequence[AttemptHistory]) -> RequestAdvice | None:
    seen = [one for one in attempts if one.use and one.asked.memory_mb]
    if not seen:
        return None
    peaks = [one.use.peak_memory_mb for one in seen if one.use]
    least, most, asked = min(peaks), max(peaks), max(one.asked.memory_mb or 0 for one in seen)
    words = (
        f"{format_memory_short(most)}"
        if most - least < 0.1 * most
        else f"{format_memory_short(least)} to {format_memory_short(most)}"
    )
    want, runs, samples = _round_memory(most * _MEMORY_MARGIN), len(seen), _samples(seen)
    if want < 0.7 * asked and samples >= MIN_SAMPLES:
        sentence = f"memory: {format_memory_short(asked)} requested per node, {words} used {_basis(runs, samples)}"
        return RequestAdvice("memory_low", sentence, f"--mem={format_memory(want)}", runs, samples)
    if most > 0.92 * asked:
        sentence = f"memory: {words} of {format_memory_short(asked)} used, close to the limit {_basis(runs, samples)}"
        want = _round_memory(most * 1.5)
        return RequestAdvice("memory_high", sentence, f"--mem={format_memory(want)}", runs, samples)
    return None


def _time_advice(attempts: Sequence[AttemptHistory]) -> RequestAdvice | None:
    seen = [
        (one.end - one.begin, one.time_limit_s) for one in attempts if one.time_limit_s and one.state == "completed"
    ]
    if not seen:
        return None
    most, limit, runs = max(lasted for lasted, _ in seen), max(limit for _, limit in seen), len(seen)
    want = max(300, math.ceil(most * _TIME_MARGIN / 300) * 300)
    words = f"time: at most {format_duration(most)} of {format_duration(limit)} used"
    if want < 0.6 * limit and runs >= MIN_RUNS:
        sentence = f"{words} {_basis(runs)}; shorter jobs start sooner"
        return RequestAdvice("time_low", sentence, f"--time={format_slurm_time(want)}", runs, 0)
    if most > 0.95 * limit:
        want = math.ceil(limit * 1.5 / 300) * 300
        return RequestAdvice("time_high", f"{words} {_basis(runs)}", f"--time={format_slurm_time(want)}", runs, 0)
    return None


def _cpu_advice(attempts: Sequence[AttemptHistory]) -> RequestAdvice | None:
    seen = [one for one in attempts if one.use and one.asked.cpus and one.use.mean_cpus]
    if not seen or _samples(seen) < MIN_SAMPLES:
        return None
    most = max(one.use.mean_cpus or 0.0 for one in seen if one.use)
    asked, runs, samples = max(one.asked.cpus or 0 for one in seen), len(seen), _samples(seen)
    want = max(1, math.ceil(most * 1.3))
    if asked < 4 or want > asked * 0.6:
        return None
    flag = f"--cpus-per-run={want}" if _are_packed(seen) else f"--cpus-per-task={want}"
    sentence = f"CPUs: {asked} requested, {most:.1f} busy on average {_basis(runs, samples)}"
    return RequestAdvice("cpus_low", sentence, flag, runs, samples)


def _gpu_advice(attempts: Sequence[AttemptHistory]) -> RequestAdvice | None:
    """Of runs that share a GPU nothing is said: what was sampled is the GPU, and not one of its runs."""
    seen = [one for one in attempts if one.use and one.use.gpus and one.share == 1.0]
    if not seen or _samples(seen) < MIN_SAMPLES:
        return None
    mean = median(one.use.mean_gpu_percent or 0.0 for one in seen if one.use)
    parts = [gpu.peak_memory_mb / gpu.memory_mb for one in seen if one.use for gpu in one.use.gpus if gpu.memory_mb]
    memory, runs, samples = max(parts, default=1.0), len(seen), _samples(seen)
    if mean >= 50:
        return None
    used = f"{mean:.0f}% busy (median), at most {memory:.0%} of their memory used"
    sentence = f"GPUs: {used} {_basis(runs, samples)}"
    if memory < 0.4 and all(one.gpus == 1 for one in seen):
        flag = "--layout=pack --gpus=1 --gpus-per-run=0.5"
        return RequestAdvice("gpu_idle", f"{sentence}; two runs would fit on one GPU", flag, runs, samples)
    more = "more data-loading workers or a larger batch may help"
    return RequestAdvice("gpu_idle", f"{sentence}; {more}", None, runs, samples)


#: The key of a request that a flag of sbatch sets.
_REQUEST_KEYS = {"--mem": "memory", "--time": "time", "--cpus-per-task": "cpus"}


def _with_line(
    advice: RequestAdvice, attempts: Sequence[AttemptHistory], spec: RunSpec | None, file: str | None
) -> RequestAdvice:
    """The advice as it is written where the request of these runs is."""
    flag = advice.flag
    if flag is None or spec is None:
        return advice
    name, _, value = flag.partition("=")
    if name not in _REQUEST_KEYS:  # flags of a pack, which a batch script cannot be part of
        words = f"shoal submit {file} " if file and not spec.script else ""
        return advice._replace(line=f"{words}{'' if 'pack' in flag else '--layout=pack '}{flag}" if words else "")
    if spec.script:
        return advice._replace(line=f"#SBATCH {flag}", place=str(spec.script.get("path", "")))
    if file and file.endswith(".sh"):
        return advice._replace(line=f"{spec.step_kind} {flag}", place=file)
    line = f"{_REQUEST_KEYS[name]} = {value}" if value.isdigit() else f'{_REQUEST_KEYS[name]} = "{value}"'
    where = f"[request] of {file}" if file and file.endswith(".toml") else f"[steps.{spec.step_kind}.request]"
    return advice._replace(line=line, place=where)


def advice_text(one: RequestAdvice) -> str:
    """What to write next time, and where."""
    if one.line:
        return f"next time, in {one.place}: {one.line}" if one.place else f"next time: {one.line}"
    return f"next time: {one.flag}" if one.flag else ""


def _are_packed(attempts: Sequence[AttemptHistory]) -> bool:
    return all(one.held is not None for one in attempts)


def _samples(attempts: Sequence[AttemptHistory]) -> int:
    return sum(
        round(node.duration_s / node.every_s) for one in attempts if one.use for node in one.use.nodes if node.every_s
    )


def _basis(runs: int, samples: int = 0) -> str:
    return f"(from {plural(runs, 'run')}, {plural(samples, 'sample')})" if samples else f"(from {plural(runs, 'run')})"


def _round_memory(size_mb: float) -> int:
    """Up to a whole GB, or to 100 MB below one."""
    return math.ceil(size_mb / 1024) * 1024 if size_mb > 1024 else max(100, math.ceil(size_mb / 100) * 100)
