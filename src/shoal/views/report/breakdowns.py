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
from shoal.views.report.allocation_costs import AllocationRow
from shoal.views.report.costs import Costs, Holding, divide
from shoal.views.timeline import held_lanes

ACTUAL_LAYOUT = "as it ran"


def layout_breakdown(allocations: Sequence[AllocationRow]) -> list[LayoutCost]:
    """The packs as they ran, then other layouts estimated from the lengths of their runs; nothing without a pack."""
    rows = [row for row in allocations if any(one.held is not None for one in row.attempts)]
    packed = [one for row in rows for one in row.attempts if one.held is not None]
    done = list({one.run: one for one in packed if one.state == "completed"}.values())
    if not done:
        return []
    costs = [row.gpu.whole if row.view.gpus else _slot_costs(row) for row in rows]
    whole = sum(costs, Costs()).in_hours()
    width = max(
        sum(_width(row) for row in rows if row.view.start <= at.view.start < row.view.end or row is at) for at in rows
    )
    makespan = max(row.view.end for row in rows) - min(row.view.start for row in rows)
    ran = LayoutCost(
        ACTUAL_LAYOUT, len(rows), width, whole.runs + whole.staging, whole.overhead, makespan, gpus_at_once=width
    )
    lengths = [
        PackJob(at, round((one.gpus or 1) * GPU_PARTS), expect_s=one.end - one.begin) for at, one in enumerate(done)
    ]
    return [ran, *compare_layouts(lengths, []).layouts]


def _slot_costs(row: AllocationRow) -> Costs:
    """Runs without GPUs are counted by the slots that they took."""
    holdings = [Holding(one.run, one.attempt, one.begin, one.end, 1.0) for one in row.attempts if one.held is not None]
    return divide(row.view.start, row.view.end, _width(row), None, holdings).whole


def _width(row: AllocationRow) -> int:
    """GPUs that Slurm granted; without GPUs, the slots that were used."""
    return row.view.gpus or len({lane for one in row.attempts for lane in _lane_names(one)})


def layout_rows(found: Sequence[LayoutCost]) -> list[tuple[str, ...]]:
    """Measured as it ran; of all others `~` marks estimates."""
    rows = []
    for layout in found:
        is_measured = layout.name == ACTUAL_LAYOUT
        mark, many = "" if is_measured else "~", layout.gpus_at_once != 1
        free = "" if is_measured else f", if {layout.gpus_at_once} {'are' if many else 'is'} free"
        makespan = format_duration(layout.makespan_s) if layout.makespan_s >= 120 else f"{layout.makespan_s:.1f} s"
        hours = (layout.allocated, layout.runs, layout.overhead)
        rows.append(
            (
                layout.name,
                str(layout.jobs),
                str(layout.gpus),
                *(f"{mark}{_format_hours(value)}" for value in hours),
                f"{mark}{makespan}{free}",
            )
        )
    return rows


def layout_document(layout: LayoutCost) -> dict[str, Any]:
    """A layout for --json. `is_estimate`: it did not run like this; the figures follow from the lengths of runs."""
    values = {name: getattr(layout, name) for name in ("name", "jobs", "gpus", "allocated", "runs", "overhead")}
    times = {"makespan_s": layout.makespan_s, "gpus_at_once": layout.gpus_at_once}
    return {**values, **times, "is_estimate": layout.name != ACTUAL_LAYOUT}


def layout_header(attempts: Sequence[AttemptHistory]) -> tuple[str, ...]:
    """Runs without GPUs are counted by the slots that they took."""
    wide = "GPUS" if any(one.held is not None and one.held.gpus for one in attempts) else "SLOTS"
    return ("LAYOUT", "JOBS", wide, "ALLOCATED", "RUNS", "OVERHEAD", "MAKESPAN")


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


def node_breakdown(attempts: Iterable[AttemptHistory]) -> list[NodeReport]:
    """By name; nodes that told nothing are left out."""
    groups: dict[str, list[NodeUsage]] = {}
    for one in attempts:
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


def dataset_breakdown(attempts: Iterable[AttemptHistory]) -> list[StagedDataset]:
    """What every attempt's record says about its data, added up by data set."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in attempts:
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
