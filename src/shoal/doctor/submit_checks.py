"""What `shoal submit` checks before it sends anything: the rules, and whether nodes can serve the request.

The rules look at each planned run, before there is a script, which would not tell them more: the script starts the
agent (job/main.py), and what that starts is known here. Errors refuse the submission, warnings are printed. The nodes
are checked because Slurm accepts requests that never start: a time above the partition's limit, for one, is accepted
and then pends forever (measured on Slurm 22.05).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from shoal.clusters import ClusterFacts, NodeKind
from shoal.doctor.check import DiskFiles, examine_job
from shoal.doctor.finding import Finding
from shoal.doctor.planned import planned_job
from shoal.errors import RefusedError
from shoal.job import GeometryError
from shoal.model import RunSpec
from shoal.plan import ResolvedRequest
from shoal.units import format_memory, format_slurm_time


class _RunLike(Protocol):
    @property
    def spec(self) -> RunSpec: ...


class _SubmissionLike(Protocol):
    @property
    def runs(self) -> Sequence[_RunLike]: ...
    @property
    def resolved(self) -> ResolvedRequest: ...


def check_submissions(submissions: Iterable[_SubmissionLike], root: str, *, force: bool = False) -> list[str]:
    """Warnings as notes; RefusedError for the first error, unless `force`, which makes it a note as well."""
    notes: dict[str, None] = {}
    seen: set[tuple[object, ...]] = set()
    for planned in submissions:
        spec = planned.runs[0].spec
        settings = msgspec.json.encode(spec.launch_settings)
        told = (tuple(spec.command[:3]), spec.launch, settings, tuple(spec.flags), tuple(spec.env.items()))
        key = (planned.resolved.options, *told)
        if key in seen:
            continue
        seen.add(key)
        for finding in run_findings(spec, planned.resolved, root):
            if finding.severity == "error" and not force:
                raise RefusedError(
                    f"the doctor refuses {spec.name}: {finding.message} ({finding.code})",
                    hint=f"{finding.fix}   # or --force, to submit it all the same",
                )
            notes[f"{finding.code}: {finding.message}; {finding.fix}"] = None
    return list(notes)


def run_findings(spec: RunSpec, resolved: ResolvedRequest, root: str) -> list[Finding]:
    """Errors and warnings on one run; nothing when it cannot be laid over its request, which others say better."""
    folder = Path(spec.cwd if os.path.isabs(spec.cwd) else os.path.join(root, spec.cwd))
    try:
        job = planned_job(spec, resolved, folder)
    except GeometryError:
        return []
    return [one for one in examine_job(job, DiskFiles(Path(job.path), folder)) if one.severity != "hint"]


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
