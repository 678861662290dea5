"""What this job really has: nodes, CPUs, memory, GPUs, as its environment and this machine tell."""

import glob
import os
import shutil
from typing import List, Mapping, NamedTuple, Optional

from ...kernel import slurm
from .geometry import LaunchGeometry, fold_to_one_node
from .rank import visible_gpus


class AllocationMismatch(Exception):
    """The allocation is not what the launch was computed for, or something it needs is not here."""


class LaunchResources(NamedTuple):
    """`nodes` are Slurm's names, or this machine alone; `cpus` and `memory_mb` are per node, None where unknown."""

    slurm: bool
    nodes: List[str]
    cpus: Optional[int]
    memory_mb: Optional[int]
    job: str


def find_resources(geometry: LaunchGeometry, environ: Mapping[str, str], here_only: bool) -> LaunchResources:
    """The allocation that a launch is laid over. `here_only`: on this machine, even from inside somebody's job."""
    job = environ.get("SLURM_JOB_ID")
    inside = bool(job and environ.get("SLURM_JOB_NODELIST") and shutil.which("srun", path=environ.get("PATH")))
    if here_only or not inside:
        return LaunchResources(False, ["localhost"], None, None, str(os.getpid()))
    count = int(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or 1)
    if count != geometry.nodes:
        raise AllocationMismatch("this launch needs %d nodes, and job %s has %d" % (geometry.nodes, job, count))
    nodes = expand_nodelist(environ["SLURM_JOB_NODELIST"])
    return LaunchResources(True, nodes, _cpus_per_node(geometry, environ), _memory_per_node_mb(environ), str(job))


def fold_onto_machine(geometry: LaunchGeometry, environ: Mapping[str, str]) -> LaunchGeometry:
    """The launch folded onto one machine; Mismatch if it has GPUs, but fewer than asked for. None at all means CPUs."""
    folded = fold_to_one_node(geometry)
    there = local_gpu_ids(environ)
    if not there:
        return folded._replace(gpus=0)
    if folded.gpus > len(there):
        raise AllocationMismatch(
            "this machine has %d GPU%s and the run asks for %d: --gpus-per-node=%d"
            % (len(there), "" if len(there) == 1 else "s", folded.gpus, max(1, len(there) // geometry.nodes))
        )
    return folded


def local_gpu_ids(environ: Mapping[str, str]) -> List[str]:
    seen = visible_gpus(dict(environ))
    if seen is not None:
        return seen
    return [str(number) for number in range(len(glob.glob("/dev/nvidia[0-9]*")))]


def expand_nodelist(nodelist: str) -> List[str]:
    """The nodes of n[1-4]; Mismatch if Slurm cannot be asked."""
    names = slurm.expand_hostlist(nodelist, os.environ)
    if not names:
        raise AllocationMismatch("scontrol cannot list the nodes of %s" % nodelist)
    return names


def _cpus_per_node(geometry: LaunchGeometry, environ: Mapping[str, str]) -> Optional[int]:
    if geometry.cpus is not None:
        return geometry.cpus
    told = environ.get("SLURM_CPUS_ON_NODE", "")
    return int(told) if told.isdigit() else None


def _memory_per_node_mb(environ: Mapping[str, str]) -> Optional[int]:
    told = environ.get("SLURM_MEM_PER_NODE", "")
    return int(told) if told.isdigit() and int(told) > 0 else None
