"""`shoal plan --shapes`: the same runs in every shape, with what is known about how long they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.batch import parse_flags
from shoal.describe import Cluster, Project, RequestedRun
from shoal.errors import InputError
from shoal.model import Request
from shoal.plan import (
    LayoutComparison,
    PackOptions,
    assume_durations,
    build_queue,
    compare_layouts,
    fill_gpu_shares,
    past_durations,
    with_start_times,
)
from shoal.submit.starts import expected_starts


def compare_layouts_of(
    asked: Sequence[RequestedRun],
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
    *,
    startup_s: float = 0.0,
) -> LayoutComparison:
    """Compare what every shape would cost for these runs, done or not; Slurm is asked when each would start."""
    if not asked:
        raise InputError("there is no run to compare shapes for", hint="shoal plan FILE")
    runs = []
    for one in asked:
        spec = one.run.spec
        runs.append((spec, parse_flags(spec.flags, nodes=spec.request.nodes).request.over(spec.request)))
    earlier = past_durations(str(project.home), [spec.name for spec, _ in runs])
    plan = build_queue(runs, PackOptions(), earlier)
    jobs = fill_gpu_shares(plan.jobs, 1, 1)
    try:
        known, assumptions = assume_durations(jobs, plan.source)
    except ValueError as error:
        raise InputError(str(error), hint='cost = "depth" in the sweep, or a time in its [request]') from None
    # A run that asks for no GPU is counted by the slot that it takes.
    no_gpu = all(job.gpu_parts == 0 for job in known)
    if no_gpu:
        known = fill_gpu_shares([job._replace(gpu_parts=-1) for job in known], 1, 1)
        assumptions = [*assumptions, "runs take no GPU: hours and GPUs are slots"]
    comparison = compare_layouts(known, assumptions, startup_s=startup_s)._replace(of_slots=no_gpu)
    if cluster.is_local or no_gpu:
        return comparison
    first = runs[0][1]
    gpus = first.gpus or 1
    each = Request(
        gpu_type=first.gpu_type,
        cpus=first.cpus and max(1, first.cpus // gpus),
        memory=f"{first.memory_mb // gpus}M" if first.memory_mb else None,
    )
    return with_start_times(comparison, expected_starts(comparison.shapes, each, project, cluster, environ))
