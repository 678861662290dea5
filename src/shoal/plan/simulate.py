"""The engine's own decisions, played through without processes. Pure.

The same books and the same queue as in the allocation decide, so what is simulated is what will happen, as far as the
durations are right.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from shoal.job import GPU_PARTS, Allocator, Assignment, Demand, QueuedRun, RunQueue, even_share
from shoal.plan.pack_order import PackJob, expected_length_s


class ScheduledRun(NamedTuple):
    """One run of a schedule: where it ran and when."""

    job: PackJob
    holding: Assignment
    start: float
    end: float


class PackSchedule(NamedTuple):
    """A schedule of one allocation. `busy` counts GPU-seconds if there are GPUs, else slot-seconds."""

    placed: list[ScheduledRun]
    makespan: float
    width: int
    busy: float

    @property
    def idle(self) -> float:
        return max(0.0, self.width * self.makespan - self.busy)


def simulate(jobs: Sequence[PackJob], *, slots: int, gpus: int = 0) -> PackSchedule:
    """Run jobs in their order over one node. A job that can never fit is a ValueError. CPUs do not count: an allocation
    asks for as many as the runs in all its slots need.
    """
    books = Allocator(slots, gpus, (), keep_whole=len({job.gpu_parts >= GPU_PARTS for job in jobs}) > 1)
    items = [QueuedRun(str(job.place), at, Demand(job.gpu_parts if gpus else 0)) for at, job in enumerate(jobs)]
    for item in items:
        why = books.never(item.need)
        if why is not None:
            raise ValueError(why)
    queue = RunQueue(items)
    now = 0.0
    running: list[tuple[float, int, Assignment]] = []
    placed: list[ScheduledRun] = []
    while len(queue) or running:
        while (choice := queue.next(books, None)) is not None:
            job = jobs[choice.item.place]
            end = now + expected_length_s(job)
            placed.append(ScheduledRun(job, choice.holding, now, end))
            heapq.heappush(running, (end, choice.item.place, choice.holding))
        now, _, holding = heapq.heappop(running)
        books.give(holding)
        while running and running[0][0] == now:
            books.give(heapq.heappop(running)[2])
    busy = sum((one.end - one.start) * (one.job.gpu_parts / GPU_PARTS if gpus else 1) for one in placed)
    return PackSchedule(placed, max((one.end for one in placed), default=0.0), gpus or slots, busy)


def fill_gpu_shares(jobs: Sequence[PackJob], slots: int, gpus: int) -> list[PackJob]:
    """Jobs that leave their share of GPUs open, with the one that the engine will give them."""
    share = even_share(slots, gpus)
    return [job if job.gpu_parts >= 0 else job._replace(gpu_parts=share) for job in jobs]


def min_makespan_s(jobs: Sequence[PackJob], *, slots: int, gpus: int = 0) -> float:
    """No schedule is shorter than the longest run, nor than all work spread evenly."""
    lengths = [expected_length_s(job) for job in jobs]
    if not lengths:
        return 0.0
    work = sum(expected_length_s(job) * (job.gpu_parts / GPU_PARTS if gpus else 1) for job in jobs)
    return max(max(lengths), work / (gpus or slots), sum(lengths) / slots)
