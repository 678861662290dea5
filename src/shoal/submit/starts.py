"""When Slurm would start each shape: one `sbatch --test-only` for each different request. Nothing is submitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from shoal.batch import SbatchFlags
from shoal.clusters import check_with_sbatch
from shoal.describe import Cluster, Project
from shoal.errors import InputError
from shoal.model import Request
from shoal.plan import LayoutCost, resolve_request, split_over_nodes
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
