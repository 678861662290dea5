"""Is the loader or the model the bottleneck, and what would change it: three measured times and two formulas.

wait   how long the training waits for a batch        step   how long it computes on one
prep   how long one worker takes to make a batch

With no worker a step costs step + prep; with w workers the slower side decides: max(step, prep / w). Workers beyond
the cores do not help where making a batch is CPU work, so the CPU time of both sides is also divided by the cores.

Where other programs use the same cores, a batch takes longer than it costs. The kernel reports how long a thread was
ready to run and could not; that time is subtracted, so the times are those of free cores, and its share is reported.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shoal.data.dataset import Dataset
from shoal.errors import InputError, ShoalError

#: Batches at the beginning that tell of start-up rather than of the training.
_WARM_UP_BATCHES = 3
_MIN_LOADER_STALL = 0.10
#: Of so many samples one is looked for in memory before it is read.
_CACHE_PROBE_INTERVAL = 16
#: From this share of contention on, figures are told to be those of free cores.
_MIN_CONTENTION = 0.10


class BatchTimes(NamedTuple):
    """Seconds per batch, on free cores. `cpu_share` is how much of prep is CPU work; the rest waits for storage.

    `step_cpu_s` is the CPU work of a step. `contention` is the share of its time that the training was ready to run and
    found no free core; `wait_s` is as it was measured, contention included. `data` is what the loader reads, as far as
    that can be seen: "staged" or "sharded" shards, or nothing.
    """

    step_s: float
    prep_s: float
    batch: int
    workers: int = 0
    wait_s: float | None = None
    cpu_share: float = 1.0
    step_cpu_s: float = 0.0
    contention: float = 0.0
    data: str = ""


class ReadThroughput(NamedTuple):
    """Samples per second that one process gets from the data set: bytes alone, and with the user's decoding.

    `decode_per_s` is None where nothing was decoded. `in_memory` is the share of the samples that was in the system's
    memory before they were read, None where the system does not tell.
    """

    read_per_s: float
    decode_per_s: float | None
    mb_per_sample: float
    in_memory: float | None
    cpu_share: float
    contention: float = 0.0
    staged: bool = False

    @property
    def prep_per_s(self) -> float:
        return self.read_per_s if self.decode_per_s is None else self.decode_per_s


class LoaderAdvice(NamedTuple):
    """`bound`: loader or model. `predicted` maps workers to steps per second."""

    times: BatchTimes
    bound: str
    stall: float
    workers: int
    predicted: dict[int, float]
    sentences: list[str]


def predict(times: BatchTimes, workers: int, cores: int) -> float:
    """Steps per second with so many workers on so many cores."""
    if workers == 0:
        return 1.0 / (times.step_s + times.prep_s)
    # The CPU work of both sides shares the cores; waiting overlaps without limit.
    cpu_s = times.prep_s * times.cpu_share + times.step_cpu_s
    return 1.0 / max(times.step_s, times.prep_s / workers, cpu_s / max(1, cores))


def advise_loader(
    times: BatchTimes, cores: int, delivery: ReadThroughput | None = None, link_mb_per_s: float | None = None
) -> LoaderAdvice:
    """The verdict and what to change, with numbers."""
    if times.step_s < 0 or times.prep_s <= 0:
        raise InputError("a step cannot take less than no time")
    now = predict(times, times.workers, cores)
    # What was waited for a processor is no fault of the loader: then only the formula tells who would wait for whom.
    waited = times.wait_s if times.contention <= _MIN_CONTENTION else None
    stall = max(0.0, 1 - now * times.step_s if waited is None else waited / (waited + times.step_s))
    bound = "loader" if stall > _MIN_LOADER_STALL else "model"
    needed = max(1, math.ceil(times.prep_s / (0.95 * times.step_s))) if times.step_s else cores
    counts = sorted({0, 1, 2, 4, 8, times.workers, min(needed, 64)})
    predicted = {count: predict(times, count, cores) for count in counts if count <= max(cores, times.workers, 1)}
    if times.cpu_share < 0.5:
        predicted.update({count: predict(times, count, cores) for count in counts})
    return LoaderAdvice(
        times, bound, stall, needed, predicted, _sentences(times, bound, needed, cores, delivery, link_mb_per_s)
    )


def _sentences(
    times: BatchTimes, bound: str, needed: int, cores: int, delivery: ReadThroughput | None, link_mb_per_s: float | None
) -> list[str]:
    advice = []
    if times.contention > _MIN_CONTENTION:
        advice.append(
            f"the cores are contended: {times.contention:.0%} of the time was spent waiting for one of {cores} "
            f"(load {os.getloadavg()[0]:.1f}); the figures are for free cores, and now it is slower"
        )
    if bound == "model":
        advice.append(f"the model is the bottleneck: a batch takes it {times.step_s * 1e3:.1f} ms")
        if times.workers > needed + 1:
            advice.append(f"{needed} worker{'s' if needed > 1 else ''} would do; you run {times.workers}")
    else:
        advice.append(
            f"the loader is the bottleneck: a worker takes {times.prep_s * 1e3:.1f} ms for a batch, "
            f"the model {times.step_s * 1e3:.1f} ms"
        )
        now = predict(times, times.workers, cores)
        count = max(1, min(needed, cores)) if times.cpu_share > 0.5 else needed
        if count != times.workers and predict(times, count, cores) > 1.05 * now:
            advice.append(f"use {count} workers: {now:.2f} -> {predict(times, count, cores):.2f} steps/s")
        if needed > cores and times.cpu_share > 0.5:
            advice.append(
                f"{needed} workers would be needed and there are {cores} cores: ask for more CPUs per GPU, "
                f"or decode less (smaller images, a faster decoder, decode once when sharding)"
            )
    if times.cpu_share < 0.5:
        waiting = f"{1 - times.cpu_share:.0%} of making a batch is waiting, most likely for storage"
        advice.append(f"{waiting}: {_FORMAT_ADVICE[times.data]}")
    if delivery is not None:
        decoded = "" if delivery.decode_per_s is None else f", with decoding {delivery.decode_per_s:,.0f}"
        advice.append(
            f"reading gives {delivery.read_per_s:,.0f} samples/s per process ({_cache_sentence(delivery)}){decoded}"
        )
        if link_mb_per_s is not None and delivery.mb_per_sample:
            limit, needed_rate = link_mb_per_s / delivery.mb_per_sample, times.batch / max(times.step_s, 1e-9)
            verdict = "staging hides behind training" if limit >= needed_rate else "the first epoch waits for the link"
            advice.append(f"the link brings {limit:,.0f} samples/s, the model takes {needed_rate:,.0f}: {verdict}")
    return advice


#: What would make the storage faster, by what the loader reads already.
_FORMAT_ADVICE = {
    "": "write shards (shoal data shard) and stage them",
    "sharded": "stage the shards (shoal data stage)",
    "staged": "the shards are staged already, so the node's disk is the limit; more workers wait at once",
}


def _cache_sentence(delivery: ReadThroughput) -> str:
    if delivery.in_memory is None:
        return "the system does not tell whether it was cached"
    if 0.05 < delivery.in_memory < 0.95:
        return f"{delivery.in_memory:.0%} of it cached"
    return "warm cache" if delivery.in_memory > 0.5 else "cold cache"


def measure_delivery(data: Dataset, batch: int, seconds: float = 2.0) -> ReadThroughput:
    """How fast one process gets samples in a random order, without and, if there is one, with the transform."""
    import random

    generator = random.Random(0)  # noqa: S311 (an order, not a secret)
    numbers = list(range(len(data)))
    generator.shuffle(numbers)
    if not numbers:
        raise InputError("there is no sample to measure with")
    plain = Dataset(data.shards, fields=data.fields)
    plain.__dict__["table"] = data.table
    seen: list[bool | None] = []

    def get(chosen: Sequence[int]) -> list[Any]:
        seen.extend(data.table.in_memory(chosen[: max(1, len(chosen) // _CACHE_PROBE_INTERVAL)]))
        return plain.batch(chosen)

    read = made = _measure_rate(get, numbers, batch, seconds)
    if data.transform is not None:
        made = _measure_rate(data.batch, numbers[len(numbers) // 2 :] + numbers[: len(numbers) // 2], batch, seconds)
    size = data.manifest.bytes / max(1, data.manifest.samples) / 1e6
    return ReadThroughput(
        read.per_s,
        None if data.transform is None else made.per_s,
        size,
        None if None in seen or not seen else seen.count(True) / len(seen),
        made.cpu_share,
        max(read.contention, made.contention),
        data.shards.staged is not None,
    )


class _SampleRate(NamedTuple):
    """Samples per second on free cores, the share of CPU work in that, and how contended the cores were."""

    per_s: float
    cpu_share: float
    contention: float


def _measure_rate(
    get: Callable[[Sequence[int]], list[Any]], numbers: list[int], batch: int, seconds: float
) -> _SampleRate:
    """Read batches for so long."""
    get(numbers[:batch])
    began, cpu, queued, count, place = time.perf_counter(), time.process_time(), _cpu_wait_s(), 0, 0
    while time.perf_counter() - began < seconds:
        chosen = numbers[place : place + batch]
        count += len(get(chosen))
        place = place + batch if place + batch < len(numbers) else 0
    wall, waited = time.perf_counter() - began, _cpu_wait_s() - queued
    free = max(wall - waited, 1e-6)
    return _SampleRate(count / free, min(1.0, (time.process_time() - cpu) / free), waited / wall)


def _cpu_wait_s() -> float:
    """Seconds in which this thread was ready to run and no processor was free; 0 where the kernel does not tell."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def measure_script(argv: Sequence[str], batches: int = 40, patience_s: float = 600.0) -> BatchTimes:
    """Run a training for some batches and take its times; the run is then ended, so let it write nowhere precious."""
    probe = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe")
    with tempfile.TemporaryDirectory(prefix="shoal-probe-") as folder:
        path = os.pathsep.join(filter(None, [probe, os.environ.get("PYTHONPATH", "")]))
        env = {**os.environ, "PYTHONPATH": path, "SHOAL_PROBE_DIR": folder, "SHOAL_PROBE_BATCHES": str(batches)}
        try:
            done = subprocess.run(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=patience_s, check=False
            )
            code: int | None = done.returncode
        except FileNotFoundError:
            raise InputError(f"there is no program {argv[0]}", hint="shoal data advise -- python train.py") from None
        except subprocess.TimeoutExpired:
            code = None
        records = [
            json.loads(line) for name in os.listdir(folder) for line in _read_records(os.path.join(folder, name))
        ]
    times = batch_times(records)
    if times is None:
        why = f"it ended with exit code {code}" if code else "it made too few batches with a torch DataLoader"
        raise ShoalError(
            f"the script could not be measured: {why}", hint="or give the time of a step: --step-time 0.12 --batch 256"
        )
    return times


def batch_times(records: list[dict[str, Any]]) -> BatchTimes | None:
    """Times from what the probe wrote; None if there is too little."""
    batches = [record for record in records if record["kind"] == "batch"][_WARM_UP_BATCHES:]
    preps = [record for record in records if record["kind"] == "prep"][_WARM_UP_BATCHES:]
    steps = [record for record in batches if record["step_s"] is not None]
    if len(steps) < 3 or not preps:
        return None
    mean = statistics.fmean
    step_s, step_queued_s = mean(one["step_s"] for one in steps), mean(one["queued_s"] for one in steps)
    prep_s, prep_queued_s = mean(one["s"] for one in preps), mean(one["queued_s"] for one in preps)
    free_prep_s = max(prep_s - prep_queued_s, 1e-6)
    return BatchTimes(
        step_s=max(step_s - step_queued_s, 0.0),
        prep_s=free_prep_s,
        batch=int(batches[0]["size"] or 1),
        workers=int(batches[0]["workers"]),
        wait_s=mean(one["wait_s"] for one in batches),
        cpu_share=min(1.0, mean(one["cpu_s"] for one in preps) / free_prep_s),
        step_cpu_s=mean(one["cpu_s"] for one in steps),
        contention=(step_queued_s + prep_queued_s) / (step_s + prep_s),
        data=str(batches[-1].get("data", "")),
    )


def _read_records(path: str) -> list[str]:
    with open(path) as file:
        return [line for line in file if line.endswith("\n")]
