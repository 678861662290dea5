"""Compare job, array, packs and pilots for the same runs: hours requested, used and idle, makespan, time limit. Pure.

Compared is what the request costs once it runs; how long each layout waits in Slurm's queue depends on the cluster, and
is asked there (`starts`) where it answers. An allocation that ends early returns its GPUs at once: idle is time in
which they were allocated and no run used them.

A pack is simulated with the allocator and queue of job/pack, so it does what the simulation shows as far as the
durations are right. Expected durations also give the order of its runs. List scheduling ends within (2 - 1/m) of the
optimum on m slots whatever the order; longest first within (4/3 - 1/(3m)), and guesses that are wrong by half still
achieve nearly all of that (Graham 1969; measured again in docs/pack.md). Runs that take more GPUs go first: they need
several to be free at the same moment.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.job import GPU_PARTS, Allocator, Assignment, Demand, QueuedRun, RunQueue, even_share


class PackJob(NamedTuple):
    """One run as planning sees it: its place among those asked for, its share of GPUs, what is known of its length."""

    place: int
    gpu_parts: int = GPU_PARTS
    cpus: int = 0
    cost: float | None = None
    expect_s: float | None = None
    limit_s: float | None = None
    warn_s: float | None = None
    needs: tuple[str, ...] = ()


def expect_durations(jobs: Sequence[PackJob], earlier: Mapping[int, float]) -> tuple[list[PackJob], str]:
    """Jobs with expected durations where they can be known, and in words where those come from.

    `earlier` are measured durations of earlier attempts of some of these runs. With costs, one measured run tells what
    a unit of cost takes; without, runs that were never measured are expected to take the median of the others.
    """
    if not earlier:
        words = "their cost, in no unit" if any(job.cost for job in jobs) else "nothing: as given"
        return list(jobs), words
    import statistics  # here: without earlier attempts the first run need not wait for it

    rates = [earlier[job.place] / job.cost for job in jobs if job.place in earlier and job.cost and job.cost > 0]
    rate = statistics.median(rates) if rates else None
    middle = statistics.median(earlier.values())
    found = []
    for job in jobs:
        guess = job.cost * rate if rate is not None and job.cost else middle
        found.append(job._replace(expect_s=earlier.get(job.place, guess)))
    source = "earlier attempts" if len(earlier) == len(jobs) else f"{len(earlier)} earlier attempts"
    return found, source + (" and their cost" if rate is not None and len(earlier) < len(jobs) else "")


def longest_first(jobs: Sequence[PackJob]) -> list[PackJob]:
    """The order in which to start: wide before narrow, then long before short, then as given."""
    return sorted(jobs, key=lambda job: (-max(job.gpu_parts, GPU_PARTS), -expected_length_s(job), job.place))


def expected_length_s(job: PackJob) -> float:
    return job.expect_s if job.expect_s is not None else (job.cost or 0.0)


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


#: A time limit is this much longer than what is expected.
TIME_LIMIT_FACTOR = 1.2
#: Where even the smallest request would wait so long, the cluster is full.
_FULL_CLUSTER_WAIT_S = 60.0
JOB_PER_RUN, ARRAY = "job each", "array"


class LayoutCost(NamedTuple):
    """One way to lay the runs over allocations. Hours are GPU-hours, or slot-hours where runs take no GPU.

    `held` is what passes while it is allocated; `start_s` is in how many seconds Slurm would start the first of it.
    """

    name: str
    entries: int
    gpus: int
    time_limit_s: float
    requested: float
    used: float
    idle: float
    makespan_s: float
    start_s: float | None = None

    @property
    def held(self) -> float:
        return self.used + self.idle

    @property
    def finish_s(self) -> float:
        return self.makespan_s + (self.start_s or 0.0)


class LayoutComparison(NamedTuple):
    """All shapes, what was assumed, the best for time and for cost, whether the cluster is full, and whether GPUs are
    slots here because the runs take no GPU.
    """

    shapes: list[LayoutCost]
    assumptions: list[str]
    fastest: str
    cheapest: str
    full: bool = False
    of_slots: bool = False


def split_over_nodes(gpus: int, per_node: int | None) -> tuple[int, int]:
    """The nodes of an allocation with so many GPUs, and the GPUs on each of them."""
    nodes = -(-gpus // per_node) if per_node else 1
    return nodes, -(-gpus // nodes)


def assume_durations(jobs: Sequence[PackJob], source: str) -> tuple[list[PackJob], list[str]]:
    """Jobs that all have a duration, and what had to be assumed for that. ValueError when nothing at all is known."""
    if all(job.expect_s is not None for job in jobs):
        return list(jobs), [f"durations from {source}"]
    limits = [job.limit_s for job in jobs]
    costs = [job.cost for job in jobs]
    if all(costs) and any(limits):
        top = max(cost for cost in costs if cost)
        longest = max(limit for limit in limits if limit)
        scaled = [job._replace(expect_s=(job.cost or 0) / top * longest) for job in jobs]
        return scaled, [f"durations in proportion to cost, the longest taking its time limit of {longest:g} s"]
    if all(limits):
        return [job._replace(expect_s=job.limit_s) for job in jobs], ["every run takes its whole time limit"]
    if all(costs):
        return [job._replace(expect_s=job.cost) for job in jobs], ["durations in units of cost: compare, do not add up"]
    raise ValueError("nothing says how long these runs take")


def compare_layouts(
    jobs: Sequence[PackJob], assumptions: Sequence[str], *, startup_s: float = 0.0, widths: Sequence[int] | None = None
) -> LayoutComparison:
    """Compare shapes for jobs with durations. `startup_s` is paid once by every allocation (set-up, staging)."""
    widest = max(1, max(math.ceil(job.gpu_parts / GPU_PARTS) for job in jobs))
    most = max(widest, sum(max(job.gpu_parts, 1) for job in jobs) // GPU_PARTS)
    if widths is None:
        widths = [width for width in (1, 2, 4, 8, 16, 32) if widest <= width <= most] or [widest]
    shapes = [_job_per_run(jobs, startup_s), _array(jobs, startup_s)]
    # What pilots do together is what one allocation of all their GPUs would: each width is played once.
    played = _ScheduleCache(longest_first(jobs))
    shapes += [_pack(played.on(width), startup_s) for width in widths]
    shapes += [_pilots(played.on(count * widest), count, widest, startup_s) for count in widths if count > 1]
    return LayoutComparison(shapes, [*assumptions, *_startup_note(startup_s)], _fastest(shapes), _cheapest(shapes))


def with_start_times(comparison: LayoutComparison, starts: Mapping[str, float]) -> LayoutComparison:
    """The same with the seconds until Slurm would start each shape, as it answered.

    On a full cluster the runs of jobs and arrays do not start together: what is expected of them is not true there,
    and small allocations that share a queue are what gets through it.
    """
    shapes = [shape._replace(start_s=starts.get(shape.name)) for shape in comparison.shapes]
    if not starts or min(starts.values()) < _FULL_CLUSTER_WAIT_S:
        return comparison._replace(shapes=shapes, fastest=_fastest(shapes), cheapest=_cheapest(shapes))
    queues = [
        shape for shape in shapes if shape.name not in (JOB_PER_RUN, ARRAY) and shape.start_s is not None
    ] or shapes
    said = "the cluster is full: jobs and arrays would not start together and are not compared for time"
    return comparison._replace(
        shapes=shapes,
        fastest=_fastest(queues),
        cheapest=_cheapest(shapes),
        assumptions=[*comparison.assumptions, said],
        full=True,
    )


def _job_per_run(jobs: Sequence[PackJob], startup_s: float) -> LayoutCost:
    limits = [math.ceil(expected_length_s(job) * TIME_LIMIT_FACTOR + startup_s) for job in jobs]
    asked = sum(limit * _gpus(job) for limit, job in zip(limits, jobs, strict=True))
    return _separate_jobs(JOB_PER_RUN, jobs, asked, max(limits), startup_s)


def _array(jobs: Sequence[PackJob], startup_s: float) -> LayoutCost:
    limit = math.ceil(max(expected_length_s(job) for job in jobs) * TIME_LIMIT_FACTOR + startup_s)
    return _separate_jobs(ARRAY, jobs, limit * sum(_gpus(job) for job in jobs), limit, startup_s)


def _separate_jobs(name: str, jobs: Sequence[PackJob], asked: float, limit: float, startup_s: float) -> LayoutCost:
    """All at once, each on GPUs of its own, given back when it ends; a share of a GPU still takes a whole one."""
    used = sum(expected_length_s(job) * job.gpu_parts / GPU_PARTS for job in jobs)
    held = sum((expected_length_s(job) + startup_s) * _gpus(job) for job in jobs)
    longest = max(expected_length_s(job) for job in jobs) + startup_s
    gpus = max(_gpus(job) for job in jobs)
    return LayoutCost(name, len(jobs), gpus, limit, asked / 3600, used / 3600, (held - used) / 3600, longest)


class _ScheduleCache:
    """Schedules of the same jobs over allocations of different width, each computed once."""

    def __init__(self, ordered: Sequence[PackJob]) -> None:
        self._ordered, self._known = ordered, dict[int, PackSchedule]()
        self._least = min(max(job.gpu_parts, 1) for job in ordered)

    def on(self, width: int) -> PackSchedule:
        if width not in self._known:
            slots = max(1, width * GPU_PARTS // self._least)
            self._known[width] = simulate(self._ordered, slots=slots, gpus=width)
        return self._known[width]


def _pack(played: PackSchedule, startup_s: float) -> LayoutCost:
    width = played.width
    makespan = played.makespan + startup_s
    limit = math.ceil(makespan * TIME_LIMIT_FACTOR)
    idle = max(0.0, width * makespan - played.busy)
    return LayoutCost(
        f"pack of {width}", 1, width, limit, width * limit / 3600, played.busy / 3600, idle / 3600, makespan
    )


def _pilots(played: PackSchedule, count: int, widest: int, startup_s: float) -> LayoutCost:
    """Small allocations that share the queue: each ends with the last run that it got."""
    ends: dict[int, float] = {}
    for one in played.placed:
        for gpu in one.holding.gpus:
            ends[gpu // widest] = max(ends.get(gpu // widest, 0.0), one.end)
    held = sum((end + startup_s) * widest for end in ends.values())
    makespan = played.makespan + startup_s
    limit = math.ceil(makespan * TIME_LIMIT_FACTOR)
    asked = count * widest * limit
    idle = max(0.0, held - played.busy)
    return LayoutCost(f"{count} pilots", count, widest, limit, asked / 3600, played.busy / 3600, idle / 3600, makespan)


def _gpus(job: PackJob) -> int:
    return max(1, math.ceil(job.gpu_parts / GPU_PARTS))


def _startup_note(startup_s: float) -> list[str]:
    told = ["jobs and arrays find a free GPU for every run at once"]
    return [*told, f"every allocation needs {startup_s:g} s to start up"] if startup_s else told


def _fastest(shapes: Sequence[LayoutCost]) -> str:
    return min(shapes, key=lambda shape: (round(shape.finish_s, 3), shape.held, shape.entries)).name


def _cheapest(shapes: Sequence[LayoutCost]) -> str:
    return min(shapes, key=lambda shape: (round(shape.held, 6), shape.requested, shape.entries)).name
