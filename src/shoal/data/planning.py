"""What a pack will write, decided before a byte of the source is read: order, shards, and a digest of all of it.

The same source and settings give the same plan and the same bytes. So a pack that was killed goes on where it was, two
that run at once help each other, and a source that changed meanwhile is noticed by its digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from shoal.data import needs
from shoal.data.order import Permutation
from shoal.data.scan import SourceSample, SourceScan
from shoal.errors import InputError

DEFAULT_SHARD_MB = 128
DEFAULT_FIRST_MB = 8
_MB = 1_000_000


class ShardSettings(NamedTuple):
    format: str = "tar"
    shard_mb: float = DEFAULT_SHARD_MB
    first_mb: float = DEFAULT_FIRST_MB
    seed: int | None = 0
    group: str = "file"
    label: str = "auto"
    path_column: str | None = None
    skip_bad: bool = False
    split: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def check(self) -> None:
        if not 0 < self.shard_mb < 1 << 20:
            raise InputError(f"a shard of {self.shard_mb:g} MB is not possible", place="--shard-size")
        if self.first_mb < 0:
            raise InputError("the first shard cannot be smaller than nothing", place="--first-shard")


class ShardPlan(NamedTuple):
    """Shard k holds the samples order[bounds[k]] ... order[bounds[k + 1] - 1] of the scan."""

    scan: SourceScan
    settings: ShardSettings
    order: Sequence[int]
    bounds: list[int]
    digest: str

    @property
    def shards(self) -> int:
        return len(self.bounds) - 1

    @property
    def bytes(self) -> int:
        return sum(sample.size for sample in self.scan.samples)

    def samples(self, shard: int) -> list[SourceSample]:
        return [self.scan.samples[i] for i in self.order[self.bounds[shard] : self.bounds[shard + 1]]]


def plan_shards(found: SourceScan, settings: ShardSettings) -> ShardPlan:
    settings.check()
    np = needs.numpy()
    count = len(found.samples)
    order: list[int]
    if settings.seed is None:
        order = list(range(count))
    else:
        order = Permutation(count, settings.seed).at(np.arange(count)).tolist()
    sizes = [found.samples[i].size + 1024 * (1 + len(found.samples[i].files)) for i in order]
    return ShardPlan(found, settings, order, _shard_bounds(sizes, settings), _plan_digest(found, settings))


def _shard_bounds(sizes: list[int], settings: ShardSettings) -> list[int]:
    """Where shards begin: a small first one, so that a training can start on it, then equal ones."""
    if not sizes:
        return [0]
    bounds, full = [0], settings.shard_mb * _MB
    first = min(settings.first_mb * _MB, full)
    total = sum(sizes)
    begin = 0
    if first and total > full:
        filled = 0.0
        while begin < len(sizes) and filled < first:
            filled += sizes[begin]
            begin += 1
        if begin < len(sizes):
            bounds.append(begin)
            total -= int(filled)
    # Equal shards rather than full ones and a rest: the last to arrive is never a straggler or a crumb.
    goal = total / max(1, -(-total // int(full)))
    filled, cut = 0.0, goal
    for number in range(begin, len(sizes)):
        filled += sizes[number]
        if filled >= cut - 1 and number + 1 < len(sizes):
            bounds.append(number + 1)
            cut += goal * max(1, (filled - cut) // goal + 1)
    return [*bounds, len(sizes)]


def _plan_digest(found: SourceScan, settings: ShardSettings) -> str:
    state = hashlib.sha256(repr((os.path.abspath(found.root), settings._replace(skip_bad=False))).encode())
    for sample in found.samples:
        state.update(repr(sample).encode("utf-8", "surrogateescape"))
    return state.hexdigest()[:24]
