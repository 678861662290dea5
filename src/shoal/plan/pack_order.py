"""Expected durations, and the order that wastes least. Pure.

List scheduling ends within (2 - 1/m) of the best possible on m slots whatever the order; longest first within
(4/3 - 1/(3m)), and guesses that are wrong by half still bring nearly all of that (Graham 1969; measured again in
docs/pack.md). Runs that take more GPUs go first: they need several to be free at the same moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.job import GPU_PARTS


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
