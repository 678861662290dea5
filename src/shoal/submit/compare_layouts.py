"""`shoal plan --shapes`: the same runs in every layout, with known durations, and when Slurm would start each.

Start times come from one `sbatch --test-only` for each different request. Nothing is submitted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from shoal.batch import SbatchFlags, parse_flags
from shoal.clusters import check_with_sbatch
from shoal.describe import Cluster, Project, RequestedRun
from shoal.errors import InputError
from shoal.model import Request
from shoal.plan import (
    LayoutComparison,
    LayoutCost,
    PackOptions,
    assume_durations,
    build_queue,
    compare_layouts,
    fill_gpu_shares,
    past_durations,
    resolve_request,
    split_over_nodes,
    with_start_times,
)
from shoal.units import format_slurm_time

_TIMEOUT_S = 20.0


def expected_starts(
    shapes: Sequence[LayoutCost],
    per_gpu: Request,
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
    clock: Callable[[], float] = time.time,
) -> dict[str, float]:
    """Shape -> seconds until its first allocation would start; a shape that Slurm does not answer for is left out.

    `per_gpu` is what goes with each GPU: its type, CPUs and memory.
    """
    found: dict[str, float] = {}
    asked: dict[tuple[str, ...], float | None] = {}
    for shape in shapes:
        try:
            argv = tuple(_argv(shape, per_gpu, project, cluster))
        except InputError:
            continue
        if argv not in asked:
            asked[argv] = expected_start(argv, environ, clock)
        seconds = asked[argv]
        if seconds is not None:
            found[shape.name] = seconds
    return found


def _argv(shape: LayoutCost, per_gpu: Request, project: Project, cluster: Cluster) -> list[str]:
    nodes, gpus = split_over_nodes(shape.gpus, cluster.gpus_per_node)
    request = Request(
        nodes=nodes,
        gpus=gpus,
        gpu_type=per_gpu.gpu_type,
        cpus=per_gpu.cpus * gpus if per_gpu.cpus else None,
        memory=f"{per_gpu.memory_mb * gpus}M" if per_gpu.memory_mb else None,
        time=format_slurm_time(max(60, int(shape.time_limit_s))),
    )
    return resolve_request(request, SbatchFlags(), cluster, project.clusters).argv()


def expected_start(
    argv: Sequence[str], environ: Mapping[str, str], clock: Callable[[], float] = time.time
) -> float | None:
    """Seconds until Slurm would start a job with these options; None if it does not say."""
    start = check_with_sbatch(argv, environ, timeout_s=_TIMEOUT_S).start
    return None if start is None else max(0.0, start - clock())


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
