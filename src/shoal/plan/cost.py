"""The most that planned submissions can cost: GPU-hours, and the time from the first start to the last end."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.plan.submissions import PlannedSubmission


def max_gpu_hours(planned: PlannedSubmission) -> float:
    """GPUs times the time limit."""
    request = planned.request
    jobs = len(planned.runs) if planned.pack is None else max(1, planned.pack.pilots)
    return jobs * (request.nodes or 1) * (request.gpus or 0) * (request.time_limit_s or 0) / 3600


def max_makespan_s(submissions: Sequence[PlannedSubmission], *, one_by_one: bool) -> float | None:
    """When the last run has ended if each takes its whole time limit and nothing waits in the queue; None if one has no
    limit. Submissions come after those that they need, and with `one_by_one` each run after the one before."""
    ends: dict[str, float] = {}
    last = 0.0
    for planned in submissions:
        limit_s = planned.request.time_limit_s
        if limit_s is None:
            return None
        begin = (
            last if one_by_one or planned.at_once else max((ends.get(name, 0.0) for name in planned.needs), default=0.0)
        )
        last = begin + limit_s * _sequential_runs(planned, one_by_one)
        ends.update((run.spec.name, last) for run in planned.runs)
    return max(ends.values(), default=None)


def _sequential_runs(planned: PlannedSubmission, one_by_one: bool) -> int:
    """How many of its runs follow each other."""
    if planned.pack is not None:
        return 1
    runs = len(planned.runs)
    return runs if one_by_one else -(-runs // (planned.at_once or runs))
