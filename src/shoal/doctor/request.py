"""Can any node of this cluster serve the request? Asked before submitting, because Slurm accepts some that never start.

A time above the partition's limit, for one, is accepted and then waits for ever (measured on Slurm 22.05).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.backends.slurm.commands import run_slurm
from shoal.backends.slurm.facts import TIMEOUT_S, PartitionSummary, parse_sinfo
from shoal.errors import RefusedError, SchedulerError
from shoal.plan import ResolvedRequest
from shoal.units import format_memory, format_slurm_time


def refuse_impossible(requests: Sequence[ResolvedRequest], environ: Mapping[str, str]) -> None:
    """RefusedError with the nearest possible request if one can never start. A silent Slurm refuses nothing."""
    try:
        told = run_slurm(["sinfo", "--noheader", "--exact", "--format=%R|%P|%l|%c|%m|%G"], TIMEOUT_S, environ=environ)
    except SchedulerError:
        return
    # One line for each kind of node: a request must fit on one kind, not on the best of each.
    kinds = [kind for line in told.stdout.splitlines() for kind in parse_sinfo(line)]
    if told.returncode == 0 and kinds:
        for resolved in {resolved.options: resolved for resolved in requests}.values():
            check_request(resolved, kinds)


def check_request(resolved: ResolvedRequest, kinds: Sequence[PartitionSummary]) -> None:
    """Pure part of the above."""
    asked = resolved.get("partition")
    wanted = asked.split(",") if asked else [kind.name for kind in kinds if kind.is_default]
    known = list(dict.fromkeys(kind.name for kind in kinds))
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise RefusedError(
            f"there is no partition {unknown[0]!r} here; there are {', '.join(known)}",
            hint=f"--partition={known[0]}, or leave it out and let the cluster's profile choose",
        )
    candidates = [kind for kind in kinds if kind.name in wanted]
    if candidates and not any(_node_fits(resolved, kind) for kind in candidates):
        raise RefusedError(_rejection_reason(resolved, candidates), hint=_nearest_request(resolved, candidates))


def _node_fits(resolved: ResolvedRequest, kind: PartitionSummary) -> bool:
    return not _excess_over_node(resolved, kind)


def _excess_over_node(resolved: ResolvedRequest, kind: PartitionSummary) -> dict[str, tuple[str, str]]:
    """What is too much for this kind of node: flag -> (asked, possible)."""
    request = resolved.request
    found = {}
    if (request.gpus or 0) > kind.gpus_per_node:
        found["gpus-per-node"] = (f"{request.gpus} GPUs", str(kind.gpus_per_node))
    elif request.gpu_type and kind.gpu_types and _request_text(resolved) not in kind.gpu_types:
        found["gres"] = (f"GPU type {_request_text(resolved)}", f"gpu:{kind.gpu_types[0]}:{request.gpus}")
    if (request.cpus or 0) > kind.cpus_per_node:
        found["cpus-per-task"] = (f"{request.cpus} CPUs", str(kind.cpus_per_node))
    if (request.memory_mb or 0) > kind.memory_per_node_mb:
        found["mem"] = (f"{request.memory} of memory", format_memory(kind.memory_per_node_mb))
    if request.time_limit_s and kind.max_time_s and request.time_limit_s > kind.max_time_s:
        found["time"] = (f"{request.time} of time", format_slurm_time(kind.max_time_s))
    return found


def _request_text(resolved: ResolvedRequest) -> str | None:
    kind = resolved.request.gpu_type
    return None if kind is None else resolved.cluster.gpu_types.get(kind, kind)


def _rejection_reason(resolved: ResolvedRequest, candidates: Sequence[PartitionSummary]) -> str:
    closest = min(candidates, key=lambda kind: len(_excess_over_node(resolved, kind)))
    parts = [f"{asked} (at most {most})" for asked, most in _excess_over_node(resolved, closest).values()]
    return f"no node of partition {closest.name} can serve {' and '.join(parts)}"


def _nearest_request(resolved: ResolvedRequest, candidates: Sequence[PartitionSummary]) -> str:
    closest = min(candidates, key=lambda kind: len(_excess_over_node(resolved, kind)))
    return " ".join(f"--{flag}={most}" for flag, (_, most) in _excess_over_node(resolved, closest).items())
