"""Parts of a report: a pack against other layouts, the use of each node, and staged data. Pure.

A pack is compared with what the same runs, with their measured durations, would have cost in other layouts. Nodes are
compared by the samples of all attempts on them, so that a slow or idle node is visible. Staged data: how much was
copied, how much was shared with other runs of the node, how long runs waited.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from shoal.job import GPU_PARTS
from shoal.observe import NodeUsage
from shoal.plan import LayoutCost, PackJob, compare_layouts
from shoal.units import format_bytes, format_duration, format_memory_short
from shoal.views.report.accounting import AttemptHistory
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


NODE_HEADER = ("NODE", "ATTEMPTS", "HOURS", "CPUS BUSY", "MEMORY AT MOST", "GPU", "GPU-HOURS IDLE")


class NodeReport(NamedTuple):
    """One node over all attempts that were sampled on it; `gpu_percent` is None where no GPU could be read."""

    host: str
    attempts: int
    hours: float
    mean_cpus: float
    peak_memory_mb: float
    gpu_percent: float | None
    gpu_idle_hours: float | None


def node_breakdown(tries: Iterable[AttemptHistory]) -> list[NodeReport]:
    """By name; nodes that told nothing are left out."""
    groups: dict[str, list[NodeUsage]] = {}
    for one in tries:
        for use in one.use.nodes if one.use else ():
            groups.setdefault(use.host or one.host, []).append(use)
    return [_sum_node(host, uses) for host, uses in sorted(groups.items())]


def _sum_node(host: str, uses: list[NodeUsage]) -> NodeReport:
    seconds = sum(use.duration_s for use in uses)
    gpus = [gpu for use in uses for gpu in use.gpus]
    return NodeReport(
        host,
        len(uses),
        seconds / 3600,
        sum(use.cpu_s for use in uses) / max(1.0, seconds),
        max(use.peak_memory_mb for use in uses),
        sum(gpu.mean_percent for gpu in gpus) / len(gpus) if gpus else None,
        sum(gpu.idle_s for gpu in gpus) / 3600 if gpus else None,
    )


def node_rows(found: Iterable[NodeReport]) -> list[list[str]]:
    return [
        [
            one.host,
            str(one.attempts),
            f"{one.hours:.2f}",
            f"{one.mean_cpus:.1f}",
            format_memory_short(one.peak_memory_mb),
            "no data" if one.gpu_percent is None else f"{one.gpu_percent:.0f}%",
            "no data" if one.gpu_idle_hours is None else f"{one.gpu_idle_hours:.2f}",
        ]
        for one in found
    ]


DATASET_HEADER = ("DATA", "TIMES", "COPIED", "SHARED", "MB/S", "LONGEST WAIT", "FROM SOURCE")


class StagedDataset(NamedTuple):
    """One data set over all attempts. `saved_bytes` were on the node already; `waited_s` is the longest start delay."""

    name: str
    source: str
    times: int
    copied_bytes: int
    saved_bytes: int
    mb_per_s: float | None
    waited_s: float | None
    from_source: int


def dataset_breakdown(tries: Iterable[AttemptHistory]) -> list[StagedDataset]:
    """What every attempt's record says about its data, added up by data set."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in tries:
        for record in one.data:
            groups.setdefault((str(record.get("name")), str(record.get("source"))), []).append(record)
    return [_sum_dataset(name, source, records) for (name, source), records in sorted(groups.items())]


def dataset_rows(found: Iterable[StagedDataset]) -> list[list[str]]:
    return [
        [
            one.name,
            str(one.times),
            format_bytes(one.copied_bytes),
            format_bytes(one.saved_bytes),
            "-" if one.mb_per_s is None else f"{one.mb_per_s:,.0f}",
            "-" if one.waited_s is None else f"{one.waited_s:.1f}s",
            str(one.from_source) if one.from_source else "-",
        ]
        for one in found
    ]


def _sum_dataset(name: str, source: str, records: list[dict[str, Any]]) -> StagedDataset:
    copied = sum(int(record.get("copied_bytes") or 0) for record in records)
    local = [record for record in records if record.get("how") != "source"]
    needed = sum(int(record.get("bytes") or 0) - int(record.get("left_at_source_bytes") or 0) for record in local)
    seconds = sum(float(record.get("seconds") or 0) for record in records if record.get("copied_bytes"))
    waits = [float(record["ready_s"]) for record in records if record.get("ready_s") is not None]
    return StagedDataset(
        name,
        source,
        len(records),
        copied,
        max(0, needed - copied),
        copied / seconds / 1e6 if seconds else None,
        max(waits) if waits else None,
        len(records) - len(local),
    )
