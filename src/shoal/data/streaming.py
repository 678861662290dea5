"""Samples in a shuffled order that is the same everywhere, split over ranks and workers, from any position on.

The order of an epoch is a pure function of (dataset, seed, epoch): shards in a permuted order, grouped into windows,
the samples of a window permuted. Sample p of that order belongs to rank p mod world. So every sample is seen exactly
once per epoch, a position is one number that holds for any number of ranks and workers, and nothing is replayed. Where
the data is, and how much of it is staged, changes nothing: one rank of a job may read a copy and another the source.

Epoch 0 begins with the small first shard and takes one shard at a time: it can begin when that one is staged, and
nothing is lost, since sharding has shuffled the samples. The next shards are requested from staging before they are
needed. The window of later epochs mixes several shards.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.data import optional_packages
from shoal.data.dataset import SampleTable
from shoal.data.shard_plan import Permutation
from shoal.errors import InputError

if TYPE_CHECKING:
    from shoal.data.dataset import Dataset

DEFAULT_WINDOW = 4
#: Shards that somebody else wrote may be sorted by class, so more of them are mixed.
DEFAULT_WINDOW_UNSHUFFLED = 16
_BLOCK_SAMPLES = 64
#: How many places of the order are computed at once.
_ORDER_CHUNK = 4096
#: How many samples the disk is told about before they are read.
_PREFETCH_SAMPLES = 128
#: Whole windows are brought to memory if the ranks of this node read this share of them; else single samples.
_MIN_WINDOW_SHARE = 0.5
#: How many windows are brought to memory before they are read.
_PREFETCH_WINDOWS = 2


class ShuffleWindow(NamedTuple):
    """Shards that are mixed, and the place of their samples in the epoch: start ... end - 1."""

    shards: tuple[int, ...]
    start: int
    end: int


class SampleStream:
    """An iterable over one rank's share of an epoch. Iterating again goes on with the next epoch.

    An iteration that was broken off is begun anew by the next one, unless a state was loaded in between.

    seed       of the order; None keeps the order of sharding
    epoch      the first epoch to iterate
    rank, world  this process among all; taken from RANK and WORLD_SIZE if not given
    remainder  when the samples do not divide by the ranks: "keep" all (ranks differ by one), "drop" or "pad" (repeat)
    window     how many shards are mixed
    """

    def __init__(
        self,
        data: Dataset,
        *,
        seed: int | None = 0,
        epoch: int = 0,
        rank: int | None = None,
        world: int | None = None,
        remainder: str = "keep",
        window: int | None = None,
    ) -> None:
        self.data = data
        self.seed = seed
        self.epoch = epoch
        self.rank, self.world = resolve_rank(rank, world)
        self.remainder = remainder
        self.window = window
        self.position = 0
        self._loaded = False
        if not 0 <= self.rank < self.world:
            raise InputError(f"rank {self.rank} of {self.world} ranks is not possible")
        if remainder not in ("keep", "drop", "pad"):
            raise InputError(f"the remainder is kept, dropped or padded, not {remainder!r}", hint='remainder="drop"')

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch."""
        total = self._total()
        return max(0, -(-(total - self.rank) // self.world))

    def __iter__(self) -> Iterator[Any]:
        """This rank's samples from the current position to the end of the epoch."""
        self.begin(over=not self.left())
        for block in self.blocks():
            for sample, place in zip(block.samples, block.positions, strict=True):
                # The position counts samples of all ranks: those behind it have been handed out by every rank.
                self.position = place - self.rank + self.world
                yield sample
        self.next_epoch()

    def begin(self, over: bool) -> None:
        """Go to where an iteration begins: at the start of the epoch, or where a loaded state says.

        `over`: nothing of this epoch is left; who took its last sample need not have asked for one more.
        """
        if self.position and over:
            self.next_epoch()
        elif not self._loaded:
            self.position = 0
        self._loaded = False

    def left(self) -> int:
        """Samples from the current position to the end of the epoch, of the rank that has most: the same for all."""
        return max(0, -((self.position - self._total()) // self.world))

    def next_epoch(self) -> None:
        self.epoch += 1
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is. It holds for every rank, and for any number of ranks that go on from here."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "window": self.window,
            "data": self.data.identity,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("data") != self.data.identity:
            raise InputError(
                f"the state belongs to data set {state.get('data')}, and this is {self.data.identity}",
                hint="continue with the data that the training began with",
            )
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self.seed, self.window = state["seed"], state["window"]
        self._loaded = True

    def windows(self) -> list[ShuffleWindow]:
        """The epoch's windows in order."""
        np = optional_packages.numpy()
        count, counts = len(self.data.shards), self.data.counts
        if self.seed is None:
            order, size = list(range(count)), 1
        elif self.epoch == 0 and self.data.manifest.seed is not None:
            rest = Permutation(count - 1, self.seed, 0, 1).at(np.arange(count - 1)) + 1
            order, size = [0, *rest.tolist()], self.window or 1
        else:
            order = Permutation(count, self.seed, self.epoch, 1).at(np.arange(count)).tolist()
            shuffled = self.data.manifest.seed is not None
            size = self.window or (DEFAULT_WINDOW if shuffled else DEFAULT_WINDOW_UNSHUFFLED)
        found, start = [], 0
        for first in range(0, count, size):
            shards = tuple(order[first : first + size])
            end = start + sum(counts[shard] for shard in shards)
            if end > start:
                found.append(ShuffleWindow(shards, start, end))
            start = end
        return found

    def blocks(self, worker: int = 0, workers: int = 1, block: int = _BLOCK_SAMPLES) -> Iterator[SampleBlock]:
        """This rank's samples in blocks, each read at once; a worker takes every `workers`-th of them.

        With the block as large as a batch, batches come in the same order whatever the number of workers.
        """
        mine, windows = self._positions(), self.windows()
        firsts = range(worker * block, len(mine), workers * block)
        # The order is that of the epoch now: whoever calls for the next one meanwhile does not mix the two.
        located = self._located([mine[first : first + block] for first in firsts], windows, self.seed, self.epoch)
        waiting: deque[_PlannedBlock] = deque()
        opened, table = -1, SampleTable(self.data.shards, ())
        while True:
            for coming in islice(located, 1 + max(1, _PREFETCH_SAMPLES // block) - len(waiting)):
                waiting.append(coming)
                self._will_read([coming], opened, table)
            if not waiting:
                return
            samples: list[Any] = []
            for which, places in waiting[0].pieces:
                if which != opened:
                    self._will_open(windows, opened, which)
                    opened, table = which, SampleTable(self.data.shards, windows[which].shards)
                    self._will_read(waiting, opened, table)
                samples += self.data.samples(table, places)
            yield SampleBlock(samples, waiting.popleft().positions)

    def _will_open(self, windows: list[ShuffleWindow], opened: int, which: int) -> None:
        """Wait for a window's shards, so that their indexes are here too and not read over a busy link; and have it
        and the next ones brought here and to memory."""
        self.data.shards.request(
            [s for window in windows[which : which + 1 + _PREFETCH_WINDOWS] for s in window.shards]
        )
        for shard in windows[which].shards:
            self.data.shards.path(shard)
        if self._share_here() < _MIN_WINDOW_SHARE:
            return  # The rest is other nodes' and would be read for nothing.
        asked = 0 if opened < 0 else opened + 1 + _PREFETCH_WINDOWS
        for window in windows[max(which, asked) : which + 1 + _PREFETCH_WINDOWS]:
            self.data.shards.prefetch_shards(window.shards)

    def _share_here(self) -> float:
        """How much of the data the ranks on this node read together."""
        return min(1.0, int(os.environ.get("LOCAL_WORLD_SIZE") or 1) / self.world)

    def _will_read(self, blocks: Iterable[_PlannedBlock], opened: int, table: SampleTable) -> None:
        """The disk is told what lies in the opened window."""
        for block in blocks:
            for which, places in block.pieces:
                if which == opened:
                    self.data.will_read(table, places)

    def _located(
        self, blocks: list[range], windows: list[ShuffleWindow], seed: int | None, epoch: int
    ) -> Iterator[_PlannedBlock]:
        """For each block of positions where its samples are. Some thousand at a time, because the order is computed
        with numpy, where few numbers cost as much as many."""
        np = optional_packages.numpy()
        starts, ends = (np.array([getattr(window, name) for window in windows]) for name in ("start", "end"))
        together = max(1, _ORDER_CHUNK // len(blocks[0])) if blocks else 1
        for first in range(0, len(blocks), together):
            some = blocks[first : first + together]
            positions = np.concatenate([np.arange(b.start, b.stop, b.step) for b in some]) % ends[-1]
            which = np.searchsorted(ends, positions, side="right")
            places = positions - starts[which]
            if seed is not None:
                for number in np.unique(which).tolist():
                    length, inside = windows[number].end - windows[number].start, which == number
                    places[inside] = Permutation(length, seed, epoch, 2, number).at(places[inside])
            begin = 0
            for block in some:
                end = begin + len(block)
                cuts = [begin, *(np.flatnonzero(np.diff(which[begin:end])) + begin + 1).tolist(), end]
                yield _PlannedBlock(block, [(int(which[a]), places[a:b]) for a, b in pairwise(cuts)])
                begin = end

    def _total(self) -> int:
        total = sum(self.data.counts)
        if self.remainder == "drop":
            return total - total % self.world
        return total if self.remainder == "keep" else total + -total % self.world

    def _positions(self) -> range:
        """This rank's places in the epoch's order from the current position on; padding counts on from the start."""
        first = self.position + (self.rank - self.position) % self.world
        return range(first, self._total(), self.world)


class SampleBlock(NamedTuple):
    samples: list[Any]
    positions: range


class _PlannedBlock(NamedTuple):
    """A block that is not read yet: pieces of (window, places in it)."""

    positions: range
    pieces: list[tuple[int, Any]]


def resolve_rank(rank: int | None, world: int | None) -> tuple[int, int]:
    """(rank, world) as given, else as the launcher says. Half an answer is refused: ranks would read the same."""
    if rank is None and world is None:
        rank_text, world_text = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
        if int(world_text or 1) > 1 and not rank_text:
            raise InputError(
                f"WORLD_SIZE is {world_text} and RANK is not set, so every process would read the same samples",
                hint="data.stream(rank=..., world=...)",
            )
        return int(rank_text or 0), int(world_text or 1)
    if rank is None or world is None:
        raise InputError(f"rank and world belong together, not rank={rank} and world={world}")
    return rank, world
