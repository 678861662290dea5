"""`pack --dry-run`: how many shards there will be, and how long it takes, from reading a few of the files."""

from __future__ import annotations

import os
import random
import time
from typing import NamedTuple

from shoal.data.packing import prepare_sharding
from shoal.data.planning import ShardSettings
from shoal.data.scan import SourceScan
from shoal.data.writing import read_file
from shoal.errors import ShoalError

_SAMPLED_FILES, _SAMPLING_S = 200, 2.0


class ShardingEstimate(NamedTuple):
    source: str
    samples: int
    files: int
    bytes: int
    shards: int
    seconds: float
    scan: SourceScan


def estimate_sharding(source: str, settings: ShardSettings, workers: int | None = None) -> ShardingEstimate:
    """Look at the source and read some of it. Writes nothing."""
    plan = prepare_sharding(source, settings)
    names = [file for sample in plan.scan.samples for _, file in sample.files]
    dice = random.Random(0)  # noqa: S311 (a choice of files, not a secret)
    began, size, count = time.perf_counter(), 0, 0
    for file in dice.sample(names, min(_SAMPLED_FILES, len(names))):
        try:
            size += len(read_file(plan.scan.root, file))
        except (OSError, ShoalError):
            continue
        count += 1
        if time.perf_counter() - began > _SAMPLING_S:
            break
    spent = time.perf_counter() - began
    # Most of a small file's time is opening it, so files count and bytes do not; writing costs about as much again.
    seconds = 2 * spent * len(names) / max(1, count) / max(1, min(workers or os.cpu_count() or 1, plan.shards))
    shards = 1 if settings.format == "squashfs" else plan.shards
    return ShardingEstimate(
        source,
        len(plan.scan.samples),
        len(names),
        plan.bytes,
        shards,
        seconds,
        plan.scan,
    )
