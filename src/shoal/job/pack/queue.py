"""The runs in the order in which they should start, and which of them starts next. Pure: the clock is an argument."""

from typing import Any, Container, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .allocator import Allocator, Assignment, Demand

#: An expectation is stretched by this before it is compared with the time left.
DURATION_MARGIN = 1.1


class QueuedRun(NamedTuple):
    """One run of the queue. `expect_s` is its expected duration; `cost` only compares it with the others.

    `needs` are runs that must complete first; `warn_s` is the time before its end at which it wants to be warned.
    """

    name: str
    place: int
    need: Demand
    cost: Optional[float] = None
    expect_s: Optional[float] = None
    limit_s: Optional[float] = None
    warn_s: float = 0.0
    needs: Tuple[str, ...] = ()


class PackSettings(NamedTuple):
    """How the queue is worked through, as `pack.json` of the submission says."""

    slots: Optional[int] = None
    gpus: Optional[int] = None
    cpus: Optional[int] = None
    retries: int = 0
    losses: int = 2
    grace_s: float = 30.0
    warn_s: float = 60.0
    bind: bool = False
    time_limit_s: Optional[float] = None
    max_follow_ups: int = 0
    preload: Sequence[str] = ()
    engine: str = "auto"
    probe_s: Optional[float] = None
    shrink: bool = False
    mps: bool = True
    dashboard: bool = False
    early_stopping: Optional[Dict[str, Any]] = None
    sampler_command: Sequence[str] = ()
    waits_for_ends: bool = False
    #: A run that asks for more GPUs than there are gets all of them, instead of an error.
    takes_fewer_gpus: bool = False


class RunQueue:
    """Items that wait, in order. A run that other ones overtook too often is waited for, so that none starves.

    `later` may start from a moment on; `blocked` when the runs that they depend on completed.
    """

    def __init__(self, items: List[QueuedRun]) -> None:
        self.waiting = [item for item in items if not item.needs]
        self.blocked = [item for item in items if item.needs]
        self.later: List[Tuple[float, QueuedRun]] = []
        self._rank = {item.place: rank for rank, item in enumerate(items)}
        self._rates: List[float] = []
        self._overtaken: Dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.waiting) + len(self.later) + len(self.blocked)

    def learn(self, item: QueuedRun, duration_s: float) -> None:
        """A run has finished: what the others will take is now known better."""
        if item.cost and item.cost > 0:
            self._rates.append(duration_s / item.cost)

    def expected_s(self, item: QueuedRun) -> Optional[float]:
        """How long a run should take: what it was said to, or what its cost means by the runs that have finished."""
        if item.expect_s is not None:
            return item.expect_s
        if item.cost and self._rates:
            import statistics  # here: no run has ended when the first one is to start

            return item.cost * statistics.median(self._rates)
        return None

    def fits(self, item: QueuedRun, left_s: Optional[float]) -> bool:
        """Whether a run that started now would end in time; one that nobody knows anything about may try."""
        if left_s is None:
            return True
        expected = self.expected_s(item)
        return left_s > item.warn_s and (expected is None or expected * DURATION_MARGIN <= left_s)

    def next(self, allocator: Allocator, left_s: Optional[float]) -> "Optional[NextRun]":
        """The first run in order that fits into what is free and into the time left, with what it now holds."""
        for position, item in enumerate(self.waiting):
            if not self.fits(item, left_s):
                continue
            assignment = allocator.take(item.need)
            if assignment is not None:
                for passed in self.waiting[:position]:
                    self._overtaken[passed.place] = self._overtaken.get(passed.place, 0) + 1
                del self.waiting[position]
                return NextRun(item, assignment)
            if allocator.is_full:
                return None
            if self._overtaken.get(item.place, 0) >= 2 * allocator.slots and allocator.never(item.need) is None:
                return None
        return None

    def put_back(self, item: QueuedRun, last: bool = False) -> None:
        self.waiting.insert(len(self.waiting) if last else 0, item)

    def put_by_length(self, item: QueuedRun) -> None:
        """A run whose length was just learnt: behind those of which nothing is known yet, and the longer ones."""
        shorter = (at for at, other in enumerate(self.waiting) if (other.expect_s or 0.0) < (item.expect_s or 0.0))
        known = (at for at in shorter if self.waiting[at].expect_s is not None)
        self.waiting.insert(next(known, len(self.waiting)), item)

    def put_off(self, item: QueuedRun, until: float) -> None:
        """Let a run wait until a moment of the clock that `wake` is told."""
        self.later.append((until, item))

    def wake(self, now: float) -> None:
        for until, item in [entry for entry in self.later if entry[0] <= now]:
            self.later.remove((until, item))
            self.put_back(item, last=True)

    def unblock(self, completed: Container[str]) -> None:
        """Runs that waited for others may start when all of those completed, at their place in the order."""
        for item in [item for item in self.blocked if all(name in completed for name in item.needs)]:
            self.blocked.remove(item)
            rank = self._rank[item.place]
            later = (at for at, other in enumerate(self.waiting) if self._rank[other.place] > rank)
            self.waiting.insert(next(later, len(self.waiting)), item)

    def is_stuck(self, allocator: Allocator, left_s: Optional[float]) -> bool:
        """Whether nothing that waits can ever start here: too long for the time left, too much for the slots."""
        return all(not self.fits(item, left_s) or allocator.never(item.need) is not None for item in self.waiting)


class NextRun(NamedTuple):
    item: QueuedRun
    assignment: Assignment


def read_queue(record: Mapping[str, Any], names: Sequence[str]) -> "tuple[PackSettings, List[QueuedRun]]":
    """`pack.json` and the submission's run names -> settings and items in order. ValueError if they do not agree."""
    known = {key: value for key, value in record.get("settings", {}).items() if key in PackSettings._fields}
    items = []
    for row in record["queue"]:
        index = int(row["index"])
        if not 0 <= index < len(names):
            raise ValueError("the queue names run %d of %d" % (index, len(names)))
        need = Demand(int(row.get("gpu_parts", -1)), int(row.get("cpus", 0)))
        items.append(
            QueuedRun(
                names[index],
                index,
                need,
                row.get("cost"),
                row.get("expect_s"),
                row.get("limit_s"),
                float(row.get("warn_s") or 0),
                tuple(row.get("needs") or ()),
            )
        )
    return PackSettings(**known), items
