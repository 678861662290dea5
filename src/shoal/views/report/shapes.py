"""A pack as it ran, beside what the same runs would have cost in other shapes: every length is a measured one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal.job import GPU_PARTS
from shoal.plan import LayoutCost, PackJob, compare_layouts
from shoal.units import format_duration
from shoal.views.report.history import AttemptHistory
from shoal.views.timeline import held_lanes

ACTUAL_LAYOUT = "as it ran"


class _PackAllocation(NamedTuple):
    """A job of a pack: GPUs or slots that it had, held from its first start to its last end."""

    width: int
    begin: float
    end: float


def layout_breakdown(tries: Sequence[AttemptHistory]) -> list[LayoutCost]:
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
    ran = LayoutCost(
        ACTUAL_LAYOUT, len(jobs), width, makespan, held / 3600, used / 3600, max(0.0, held - used) / 3600, makespan
    )
    lengths = [
        PackJob(at, round((one.gpus or 1) * GPU_PARTS), expect_s=one.end - one.begin) for at, one in enumerate(done)
    ]
    return [ran, *compare_layouts(lengths, []).shapes]


def _allocations(packed: Sequence[AttemptHistory]) -> list[_PackAllocation]:
    groups: dict[str, list[AttemptHistory]] = {}
    for one in packed:
        groups.setdefault(one.job, []).append(one)
    return [
        _PackAllocation(
            len({lane for one in group for lane in _lane_names(one)}),
            min(one.begin for one in group),
            max(one.end for one in group),
        )
        for group in groups.values()
    ]


def layout_rows(found: Sequence[LayoutCost]) -> list[tuple[str, ...]]:
    return [
        (
            shape.name,
            str(shape.entries),
            str(shape.gpus),
            "-" if shape.name == ACTUAL_LAYOUT else format_duration(shape.time_limit_s),
            "-" if shape.name == ACTUAL_LAYOUT else _format_hours(shape.requested),
            _format_hours(shape.used),
            _format_hours(shape.idle),
            format_duration(shape.makespan_s) if shape.makespan_s >= 120 else f"{shape.makespan_s:.1f} s",
        )
        for shape in found
    ]


def layout_header(tries: Sequence[AttemptHistory]) -> tuple[str, ...]:
    """Runs without GPUs are counted by the slots that they took."""
    wide = "GPUS" if any(one.held is not None and one.held.gpus for one in tries) else "SLOTS"
    return ("SHAPE", "JOBS", wide, "TIME LIMIT", "ASKED FOR", "USED", "IDLE", "MAKESPAN")


def _lane_names(one: AttemptHistory) -> list[str]:
    if one.held is None:
        return []
    return held_lanes(one.host, one.held)


def _format_hours(hours: float) -> str:
    """Hours of a GPU or slot, or seconds where that would be nearly nothing."""
    return f"{hours:.2f} h" if hours >= 1 else f"{hours * 3600:.1f} s"
