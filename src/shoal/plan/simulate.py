"""The engine's own decisions, played through without processes. Pure.

The same books and the same queue as in the allocation decide, so what is simulated is what will happen, as far as the
durations are right.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from shoal.job import WHOLE, Allocator, Assignment, Demand, Item, Queue, even_share
from shoal.plan.pack_order import Job, length


class Placed(NamedTuple):
    """One run of a schedule: where it ran and when."""

    job: Job
    holding: Assignment
    start: float
    end: float


class Schedule(NamedTuple):
    """A schedule of one allocation. `busy` counts GPU-seconds if there are GPUs, else slot-seconds."""

    placed: list[Placed]
    makespan: float
    width: int
    busy: float

    @property
    def idle(self) -> float:
        return max(0.0, self.width * self.makespan - self.busy)


def play(jobs: Sequence[Job], *, slots: int, gpus: int = 0) -> Schedule:
    """Run jobs in their order over one node. A job that can never fit is a ValueError. CPUs do not count: an allocation
    asks for as many as the runs in all its slots need.
    """
    books = Allocator(slots, gpus, (), keep_whole=len({job.gpu_parts >= WHOLE for job in jobs}) > 1)
    items = [Item(str(job.place), at, Demand(job.gpu_parts if gpus else 0)) for at, job in enumerate(jobs)]
    for item in items:
        why = books.never(item.need)
        if why is not None:
            raise ValueError(why)
    queue = Queue(items)
    now = 0.0
    running: list[tuple[float, int, Assignment]] = []
    placed: list[Placed] = []
    while len(queue) or running:
        while (choice := queue.next(books, None)) is not None:
            job = jobs[choice.item.place]
            end = now + length(job)
            placed.append(Placed(job, choice.holding, now, end))
            heapq.heappush(running, (end, choice.item.place, choice.holding))
        now, _, holding = heapq.heappop(running)
        books.give(holding)
        while running and running[0][0] == now:
            books.give(heapq.heappop(running)[2])
    busy = sum((one.end - one.start) * (one.job.gpu_parts / WHOLE if gpus else 1) for one in placed)
    return Schedule(placed, max((one.end for one in placed), default=0.0), gpus or slots, busy)


def even_out(jobs: Sequence[Job], slots: int, gpus: int) -> list[Job]:
    """Jobs that leave their share of GPUs open, with the one that the engine will give them."""
    share = even_share(slots, gpus)
    return [job if job.gpu_parts >= 0 else job._replace(gpu_parts=share) for job in jobs]


def lower_bound(jobs: Sequence[Job], *, slots: int, gpus: int = 0) -> float:
    """No schedule is shorter than the longest run, nor than all work spread evenly."""
    lengths = [length(job) for job in jobs]
    if not lengths:
        return 0.0
    work = sum(length(job) * (job.gpu_parts / WHOLE if gpus else 1) for job in jobs)
    return max(max(lengths), work / (gpus or slots), sum(lengths) / slots)
