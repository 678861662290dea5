"""A pack as it ran, beside what the same runs would have cost in other shapes: every length is a measured one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal.job import WHOLE
from shoal.plan import Job, ShapeCost, compare
from shoal.units import format_duration
from shoal.views.report.history import Try

AS_IT_RAN = "as it ran"


class _Allocation(NamedTuple):
    """A job of a pack: GPUs or slots that it had, held from its first start to its last end."""

    width: int
    begin: float
    end: float


def shapes(tries: Sequence[Try]) -> list[ShapeCost]:
    """The pack first, then job each, array, packs and pilots by computation; nothing where no run was packed."""
    packed = [one for one in tries if one.held is not None]
    done = list({one.run: one for one in packed if one.state == "done"}.values())
    if not done:
        return []
    jobs = _allocations(packed)
    used = sum((one.end - one.begin) * (one.gpus or 1) for one in packed)
    held = sum(job.width * (job.end - job.begin) for job in jobs)
    width = max(sum(job.width for job in jobs if job.begin <= at.begin < job.end or job is at) for at in jobs)
    makespan = max(job.end for job in jobs) - min(job.begin for job in jobs)
    ran = ShapeCost(
        AS_IT_RAN, len(jobs), width, makespan, held / 3600, used / 3600, max(0.0, held - used) / 3600, makespan
    )
    lengths = [Job(at, round((one.gpus or 1) * WHOLE), expect_s=one.end - one.begin) for at, one in enumerate(done)]
    return [ran, *compare(lengths, []).shapes]


def _allocations(packed: Sequence[Try]) -> list[_Allocation]:
    groups: dict[str, list[Try]] = {}
    for one in packed:
        groups.setdefault(one.job, []).append(one)
    return [
        _Allocation(
            len({lane for one in group for lane in _lanes(one)}),
            min(one.begin for one in group),
            max(one.end for one in group),
        )
        for group in groups.values()
    ]


def rows(found: Sequence[ShapeCost]) -> list[tuple[str, ...]]:
    return [
        (
            shape.name,
            str(shape.entries),
            str(shape.gpus),
            "-" if shape.name == AS_IT_RAN else format_duration(shape.time_limit_s),
            "-" if shape.name == AS_IT_RAN else _amount(shape.requested),
            _amount(shape.used),
            _amount(shape.idle),
            format_duration(shape.makespan_s) if shape.makespan_s >= 120 else f"{shape.makespan_s:.1f} s",
        )
        for shape in found
    ]


def header(tries: Sequence[Try]) -> tuple[str, ...]:
    """Runs without GPUs are counted by the slots that they took."""
    wide = "GPUS" if any(one.held is not None and one.held.gpus for one in tries) else "SLOTS"
    return ("SHAPE", "JOBS", wide, "TIME LIMIT", "ASKED FOR", "USED", "IDLE", "MAKESPAN")


def _lanes(one: Try) -> list[str]:
    if one.held is None:
        return []
    return [f"{one.host}:gpu{gpu}" for gpu in one.held.gpus] or [f"{one.host}:{one.held.slot}"]


def _amount(hours: float) -> str:
    """Hours of a GPU or slot, or seconds where that would be nearly nothing."""
    return f"{hours:.2f} h" if hours >= 1 else f"{hours * 3600:.1f} s"
