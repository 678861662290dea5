"""Compare job, array, packs and pilots for the same runs: GPU-hours of runs and overhead, makespan. Pure.

All of it is estimated from durations. What a layout requests (jobs, GPUs, time limit) is not computed here: it is read
off the submissions that `submit` would send (actions/compare_layouts.py), and so is when Slurm would start them. An
allocation that ends early returns its GPUs at once: overhead is time in which they were allocated and no run had them.

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
from shoal.units import plural


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
    assignment: Assignment
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
    allocator = Allocator(slots, gpus, (), keep_whole=len({job.gpu_parts >= GPU_PARTS for job in jobs}) > 1)
    items = [QueuedRun(str(job.place), at, Demand(job.gpu_parts if gpus else 0)) for at, job in enumerate(jobs)]
    for item in items:
        why = allocator.never(item.need)
        if why is not None:
            raise ValueError(why)
    queue = RunQueue(items)
    now = 0.0
    running: list[tuple[float, int, Assignment]] = []
    placed: list[ScheduledRun] = []
    while len(queue) or running:
        while (choice := queue.next(allocator, None)) is not None:
            job = jobs[choice.item.place]
            end = now + expected_length_s(job)
            placed.append(ScheduledRun(job, choice.assignment, now, end))
            heapq.heappush(running, (end, choice.item.place, choice.assignment))
        now, _, assignment = heapq.heappop(running)
        allocator.give(assignment)
        while running and running[0][0] == now:
            allocator.give(heapq.heappop(running)[2])
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


#: Where even the smallest request would wait so long, the cluster is full.
_FULL_CLUSTER_WAIT_S = 60.0
JOB_PER_RUN, ARRAY = "job per run", "array"


class LayoutCost(NamedTuple):
    """One way to lay the runs over allocations. Hours are GPU-hours, or slot-hours where runs take no GPU.

    Estimated from durations: `runs`, `overhead`, `makespan_s` (which holds if `gpus_at_once` are free), and `start_s`,
    in how many seconds Slurm would start the first job. What `submit` sends: `jobs`, and `nodes` and `gpus` of the
    largest of them, the longest `time_limit_s`, `requested`, and `max_follow_ups`; None where a job has no time limit.
    """

    name: str
    jobs: int
    gpus: int
    runs: float
    overhead: float
    makespan_s: float
    gpus_at_once: int
    nodes: int = 1
    time_limit_s: int | None = None
    requested: float | None = None
    max_follow_ups: int = 0
    start_s: float | None = None
    flags: str = ""

    @property
    def allocated(self) -> float:
        return self.runs + self.overhead

    @property
    def finish_s(self) -> float:
        return self.makespan_s + (self.start_s or 0.0)


#: Fields of LayoutCost that are estimates; all others are facts of the request.
ESTIMATED_FIELDS = ("allocated", "runs", "overhead", "makespan_s", "start_s", "finish_s")


class LayoutComparison(NamedTuple):
    """All layouts, what was assumed, the best for time and for cost, whether the cluster is full, and whether GPUs are
    slots here because the runs take no GPU. `left_out` says which layouts cannot be submitted, and why.
    """

    layouts: list[LayoutCost]
    assumptions: list[str]
    fastest: str
    cheapest: str
    full: bool = False
    of_slots: bool = False
    left_out: tuple[str, ...] = ()
    run_count: int = 0


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
    raise ValueError("run durations are unknown")


def layout_widths(jobs: Sequence[PackJob], per_node: int | None = None, max_gpus: int | None = None) -> list[int]:
    """How many GPUs packs are compared with: powers of two, as far as the runs can use them and the cluster has them,
    rounded up to whole nodes."""
    widest = _widest(jobs)
    most = max(widest, sum(max(job.gpu_parts, 1) for job in jobs) // GPU_PARTS)
    most = max(widest, min(most, max_gpus or most))
    wanted = [width for width in (1, 2, 4, 8, 16, 32) if widest <= width <= most] or [widest]
    return list(dict.fromkeys(math.prod(split_over_nodes(width, per_node)) for width in wanted))


def compare_layouts(
    jobs: Sequence[PackJob],
    assumptions: Sequence[str],
    *,
    startup_s: float = 0.0,
    widths: Sequence[int] | None = None,
    max_gpus: int | None = None,
    one_by_one: bool = False,
) -> LayoutComparison:
    """Compare layouts for jobs with durations. `startup_s` is paid once by every allocation (set-up, staging).

    `max_gpus` are those of the cluster: what asks for more of them waits for others to end. With `one_by_one` (this
    machine) jobs follow each other, and arrays and pilots do not exist.
    """
    widest = _widest(jobs)
    if widths is None:
        widths = layout_widths(jobs, max_gpus=max_gpus)
    # What pilots do together is what one allocation of all their GPUs would: each width is played once.
    played = _ScheduleCache(longest_first(jobs))
    separate = _separate_jobs(jobs, startup_s, max_gpus, one_by_one)
    layouts = [separate] if one_by_one else [separate, separate._replace(name=ARRAY)]
    layouts += [_pack(played.on(width), startup_s) for width in widths]
    for count in () if one_by_one else widths:
        side_by_side = min(count, max(1, (max_gpus or count * widest) // widest))
        if count > 1:
            layouts.append(_pilots(played.on(side_by_side * widest), count, widest, startup_s))
    remarks = [f"every allocation needs {startup_s:g} s to start up"] if startup_s else []
    remarks += [f"the cluster has {plural(max_gpus, 'GPU')}"] if max_gpus else []
    return LayoutComparison(
        layouts, [*assumptions, *remarks], _fastest(layouts), _cheapest(layouts), run_count=len(jobs)
    )


def choose_best(comparison: LayoutComparison) -> LayoutComparison:
    """The same, with the best of its layouts named anew."""
    layouts = comparison.layouts
    return comparison._replace(fastest=_fastest(layouts), cheapest=_cheapest(layouts))


def with_start_times(comparison: LayoutComparison, starts: Mapping[str, float]) -> LayoutComparison:
    """The same with the seconds until Slurm would start each layout, as it answered.

    On a full cluster the runs of jobs and arrays do not start together: what is expected of them is not true there,
    and small allocations that share a queue are what gets through it.
    """
    layouts = [layout._replace(start_s=starts.get(layout.name)) for layout in comparison.layouts]
    if not starts or min(starts.values()) < _FULL_CLUSTER_WAIT_S:
        return choose_best(comparison._replace(layouts=layouts))
    queues = [
        layout for layout in layouts if layout.name not in (JOB_PER_RUN, ARRAY) and layout.start_s is not None
    ] or layouts
    assumption = "the cluster is full: jobs and arrays would not start together and are not compared for time"
    return comparison._replace(
        layouts=layouts,
        fastest=_fastest(queues),
        cheapest=_cheapest(layouts),
        assumptions=[*comparison.assumptions, assumption],
        full=True,
    )


def _separate_jobs(jobs: Sequence[PackJob], startup_s: float, max_gpus: int | None, one_by_one: bool) -> LayoutCost:
    """Each on GPUs of its own, given back when it ends; a share of a GPU still takes a whole one. All start at once, as
    far as the cluster has GPUs."""
    runs = sum(expected_length_s(job) * job.gpu_parts / GPU_PARTS for job in jobs)
    allocated = sum((expected_length_s(job) + startup_s) * _gpus(job) for job in jobs)
    lengths = [expected_length_s(job) + startup_s for job in jobs]
    wanted, widest = sum(map(_gpus, jobs)), _widest(jobs)
    at_once = widest if one_by_one else max(widest, min(wanted, max_gpus or wanted))
    makespan = sum(lengths) if one_by_one else max(lengths)
    if at_once < wanted and not one_by_one:
        whole = [
            job._replace(gpu_parts=_gpus(job) * GPU_PARTS, expect_s=length)
            for job, length in zip(jobs, lengths, strict=True)
        ]
        makespan = simulate(whole, slots=at_once, gpus=at_once).makespan
    return LayoutCost(
        JOB_PER_RUN, len(jobs), widest, runs / 3600, (allocated - runs) / 3600, makespan, gpus_at_once=at_once
    )


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
    overhead = max(0.0, width * makespan - played.busy)
    return LayoutCost(f"pack of {width}", 1, width, played.busy / 3600, overhead / 3600, makespan, gpus_at_once=width)


def _pilots(played: PackSchedule, count: int, widest: int, startup_s: float) -> LayoutCost:
    """Small allocations that share the queue: each ends with the last run that it got."""
    ends: dict[int, float] = {}
    for one in played.placed:
        for gpu in one.assignment.gpus:
            ends[gpu // widest] = max(ends.get(gpu // widest, 0.0), one.end)
    allocated = sum((end + startup_s) * widest for end in ends.values())
    overhead, makespan = max(0.0, allocated - played.busy), played.makespan + startup_s
    return LayoutCost(
        f"{count} pilots", count, widest, played.busy / 3600, overhead / 3600, makespan, gpus_at_once=played.width
    )


def _gpus(job: PackJob) -> int:
    return max(1, math.ceil(job.gpu_parts / GPU_PARTS))


def _widest(jobs: Sequence[PackJob]) -> int:
    return max(map(_gpus, jobs))


def _fastest(layouts: Sequence[LayoutCost]) -> str:
    return min(layouts, key=lambda layout: (round(layout.finish_s, 3), layout.allocated, layout.jobs)).name


def _cheapest(layouts: Sequence[LayoutCost]) -> str:
    return min(layouts, key=lambda layout: (round(layout.allocated, 6), layout.requested or 0.0, layout.jobs)).name
