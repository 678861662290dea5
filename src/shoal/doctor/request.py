"""Can any node of this cluster serve the request? Asked before submitting, because Slurm accepts some that never start.

A time above the partition's limit, for one, is accepted and then waits for ever (measured on Slurm 22.05).
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.clusters import ClusterFacts, NodeKind
from shoal.errors import RefusedError
from shoal.plan import ResolvedRequest
from shoal.units import format_memory, format_slurm_time


def refuse_impossible(requests: Sequence[ResolvedRequest], facts: ClusterFacts) -> None:
    """RefusedError with the nearest possible request if one can never start. A silent Slurm refuses nothing."""
    if not facts.node_kinds:
        return
    for resolved in {resolved.options: resolved for resolved in requests}.values():
        _check(resolved, facts)


def _check(resolved: ResolvedRequest, facts: ClusterFacts) -> None:
    asked = resolved.get("partition")
    known = [partition.name for partition in facts.partitions]
    unknown = [name for name in asked.split(",") if name not in known] if asked else []
    if unknown:
        raise RefusedError(
            f"there is no partition {unknown[0]!r} here; there are {', '.join(known)}",
            hint=f"--partition={known[0]}, or leave it out and let the cluster's profile choose",
        )
    # A request must fit on one kind of node, not on the best of each.
    excesses = [(kind, _excess_over_node(resolved, kind, facts)) for kind in facts.kinds(asked)]
    if excesses and all(excess for _, excess in excesses):
        closest, excess = min(excesses, key=lambda pair: len(pair[1]))
        parts = [f"{wanted} (at most {most})" for wanted, most in excess.values()]
        raise RefusedError(
            f"no node of partition {closest.partition} can serve {' and '.join(parts)}",
            hint=" ".join(f"--{flag}={most}" for flag, (_, most) in excess.items()),
        )


def _excess_over_node(resolved: ResolvedRequest, kind: NodeKind, facts: ClusterFacts) -> dict[str, tuple[str, str]]:
    """What is too much for this kind of node: flag -> (asked, possible)."""
    request = resolved.request
    partition = facts.partition(kind.partition)
    max_time_s = None if partition is None else partition.max_time_s
    found = {}
    if (request.gpus or 0) > kind.gpus:
        found["gpus-per-node"] = (f"{request.gpus} GPUs", str(kind.gpus))
    elif request.gpu_type and kind.gpu_types and _request_text(resolved) not in kind.gpu_types:
        found["gres"] = (f"GPU type {_request_text(resolved)}", f"gpu:{kind.gpu_types[0]}:{request.gpus}")
    if (request.cpus or 0) > kind.cpus:
        found["cpus-per-task"] = (f"{request.cpus} CPUs", str(kind.cpus))
    if (request.memory_mb or 0) > kind.memory_mb:
        found["mem"] = (f"{request.memory} of memory", format_memory(kind.memory_mb))
    if request.time_limit_s and max_time_s and request.time_limit_s > max_time_s:
        found["time"] = (f"{request.time} of time", format_slurm_time(max_time_s))
    return found


def _request_text(resolved: ResolvedRequest) -> str | None:
    kind = resolved.request.gpu_type
    return None if kind is None else resolved.cluster.gpu_types.get(kind, kind)
