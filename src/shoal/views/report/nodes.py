"""What each node was used for, from the samples of all attempts on it: a slow or idle node stands out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shoal.units import format_memory_short
from shoal.views.report.history import AttemptHistory
from shoal.views.usage import NodeUsage

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
