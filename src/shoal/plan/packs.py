"""Many runs as one submission: a queue in one allocation, or in several small ones that share it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from shoal.batch import SbatchFlags, parse_flags
from shoal.describe import Cluster, PlannedRun, Project
from shoal.errors import InputError
from shoal.job import GPU_PARTS
from shoal.model import Request
from shoal.plan.layouts import fill_gpu_shares
from shoal.plan.pack_queue import PackOptions, PackQueue, build_queue
from shoal.plan.sbatch_options import resolve_request
from shoal.plan.submissions import PlannedSubmission
from shoal.units import format_slurm_time

PACK_LAYOUTS = ("pack", "pilots")
#: What Ray's own processes need beside the runs (measured: 0.7 GB without a dashboard).
_RAY_OVERHEAD_MB = 1500


def plan_pack_submission(
    runs: Sequence[PlannedRun],
    project: Project,
    cluster: Cluster,
    options: PackOptions,
    earlier: Mapping[int, float],
    *,
    layout: str,
    requeue: bool = True,
) -> PlannedSubmission:
    """All runs as one submission. What a run asks for is its part; the allocation is computed from it and `options`."""
    if layout == "pilots" and options.pilots is None:
        options = options._replace(pilots=min(len(runs), 8))
    options = options.validate()
    if layout == "pilots" and cluster.is_local:
        raise InputError("pilots are Slurm jobs, and this machine is not Slurm", hint="leave --pilots out")
    for flag, value in (("--nodes", options.nodes), ("--mem", options.memory)):
        if cluster.is_local and value is not None:
            raise InputError(f"{flag} has no effect on this machine, which is one node", hint=f"remove {flag}")
    known: dict[tuple[object, ...], SbatchFlags] = {}
    asked = []
    for run in runs:
        key = (*run.spec.flags, run.spec.request.nodes)
        flags = known.get(key) or known.setdefault(key, parse_flags(run.spec.flags, nodes=run.spec.request.nodes))
        asked.append((run.spec, flags.request.over(run.spec.request)))
    if not cluster.is_local:
        options = options._replace(gpus=_gpus_per_node(options, asked, layout))
    plan = build_queue(asked, options, earlier, {place: run.needs for place, run in enumerate(runs) if run.needs})
    first = next(iter(known.values()))
    request = _allocation(plan, [request for _, request in asked], cluster)
    resolved = resolve_request(request, msgspec.structs.replace(first, request=Request()), cluster, project.clusters)
    return PlannedSubmission(tuple(runs), layout, resolved, requeue=requeue, pack=plan)


def pack_share(planned: PlannedSubmission, project: Project, cluster: Cluster) -> PlannedSubmission:
    """A pack as its first run sees it: one node, and the GPUs and CPUs that it gets there. Others stay as they are."""
    plan = planned.pack
    if plan is None:
        return planned
    job = next(job for job in plan.jobs if job.place == 0)
    [job] = fill_gpu_shares([job], slot_count(plan), plan.options.gpus or 0)
    flags = parse_flags(planned.runs[0].spec.flags)
    part = msgspec.structs.replace(
        planned.request, nodes=1, gpus=math.ceil(job.gpu_parts / GPU_PARTS) or None, cpus=job.cpus or None
    )
    own = resolve_request(part, msgspec.structs.replace(flags, request=Request()), cluster, project.clusters)
    return planned._replace(resolved=own)


def _gpus_per_node(options: PackOptions, asked: Sequence[tuple[object, Request]], layout: str) -> int:
    """GPUs on each node of the allocation: as said, or as many as the runs need at a time."""
    if options.gpus is not None:
        return options.gpus
    widest = options.gpus_per_run
    if widest is None:
        widest = max((request.gpu_share or request.gpus or 0) for _, request in asked)
    if options.slots is None and layout != "pilots" and widest:
        raise InputError(
            "how many GPUs should the pack ask for?", hint="--gpus 4, or --layout pilots for several small allocations"
        )
    return math.ceil(widest * (options.slots or 1))


def slot_count(plan: PackQueue) -> int:
    """How many runs one allocation holds at a time."""
    options = plan.options
    if options.slots is not None:
        return options.slots
    wanted = [job.gpu_parts for job in plan.jobs if job.gpu_parts > 0]
    if options.gpus and wanted:
        return max(1, options.gpus * GPU_PARTS // min(wanted))
    return max(1, options.gpus or 1)


def _allocation(plan: PackQueue, requests: Sequence[Request], cluster: Cluster) -> Request:
    options, slots = plan.options, slot_count(plan)
    if cluster.is_local:
        return Request(nodes=1)
    nodes = options.nodes or 1
    cpus = max((options.cpus_per_run or request.cpus or 0) for request in requests) * slots
    memory_mb = max((request.memory_mb or 0) for request in requests) * slots
    if memory_mb and options.engine == "ray":
        memory_mb += _RAY_OVERHEAD_MB
    together = slots * nodes * (options.pilots or 1)
    seconds = plan.time_limit_s(together, (options.gpus or 0) * nodes * (options.pilots or 1))
    time = options.time or (None if seconds is None else format_slurm_time(seconds))
    kinds = {request.gpu_type for request in requests}
    return Request(
        nodes=nodes,
        gpus=options.gpus,
        gpu_type=kinds.pop() if len(kinds) == 1 else None,
        cpus=cpus or (slots if not options.gpus else None),
        memory=options.memory or (f"{memory_mb}M" if memory_mb else None),
        time=time,
    )
