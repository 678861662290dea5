"""Which sample goes into which shard, decided before the source is read; and seeded permutations that need no memory.

The same source and settings give the same plan and the same bytes. So a killed command continues where it was, two
concurrent commands share the work, and a source that changed meanwhile is noticed by the plan's digest.

A permutation of any length is computed at any position and not stored: a Feistel network over the smallest power of
four that holds the range, repeated until the value falls into the range. So an epoch of a billion samples begins, and
resumes anywhere, at once, and every rank and worker computes the same order. The order for (length, seed, epoch) is
part of the format: it must never change, since resumed trainings rely on it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from shoal.data import optional_packages
from shoal.data.scan import SourceSample, SourceScan
from shoal.errors import InputError

_FEISTEL_ROUNDS = 6
_MASK_64 = (1 << 64) - 1


class Permutation:
    """A permutation of range(length). `at(positions)` takes and gives arrays of int64."""

    def __init__(self, length: int, *words: int) -> None:
        self.length = length
        self._half = max(1, ((max(length, 2) - 1).bit_length() + 1) // 2)
        key = 0x9E3779B97F4A7C15
        keys = []
        for word in (*words, *range(_FEISTEL_ROUNDS)):
            key = _splitmix64(key ^ _splitmix64(word & _MASK_64))
            keys.append(key)
        self._keys = keys[-_FEISTEL_ROUNDS:]

    def at(self, positions: Any) -> Any:
        np = optional_packages.numpy()
        values = self._permute_once(np.asarray(positions, dtype=np.uint64))
        outside = np.flatnonzero(values >= self.length)
        while len(outside):
            moved = self._permute_once(values[outside])
            values[outside] = moved
            outside = outside[moved >= self.length]
        return values.astype(np.int64)

    def _permute_once(self, values: Any) -> Any:
        np = optional_packages.numpy()
        half, mask = np.uint64(self._half), np.uint64((1 << self._half) - 1)
        left, right = values >> half, values & mask
        for key in self._keys:
            mixed = (right + np.uint64(key)) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
            left, right = right, left ^ ((mixed >> np.uint64(33)) & mask)
        return (left << half) | right


def _splitmix64(word: int) -> int:
    """One step of splitmix64: neighbouring seeds give unrelated keys."""
    word = (word + 0x9E3779B97F4A7C15) & _MASK_64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return word ^ (word >> 31)


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
    np = optional_packages.numpy()
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
