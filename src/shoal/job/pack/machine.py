"""What this node really has for us: GPUs by index or UUID, CPUs, memory, and the time until the allocation ends."""

import os
import re
import subprocess
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from ...kernel import slurm

#: Variables that say which GPUs a process may use, in the order in which they are believed.
_CUDA_VARIABLE, _ROCR_VARIABLE, _HIP_VARIABLE = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class VisibleGpus(NamedTuple):
    """The GPUs that we were given: their ids as the variable spells them (index, UUID, MIG), and that variable."""

    variable: str = _CUDA_VARIABLE
    ids: Sequence[str] = ()

    @property
    def is_nvidia(self) -> bool:
        return self.variable == _CUDA_VARIABLE

    @property
    def mig(self) -> bool:
        return any(name.startswith("MIG-") for name in self.ids)


def visible_gpus_of_node(environ: Mapping[str, str]) -> VisibleGpus:
    """From what Slurm or the user set; on a machine of our own, from the driver. A node's others are not ours."""
    for variable in (_CUDA_VARIABLE, _ROCR_VARIABLE, _HIP_VARIABLE):
        if variable in environ:
            ids = _parse_gpu_ids(environ[variable])
            if ids or variable == _CUDA_VARIABLE:
                return VisibleGpus(variable, ids)
    if environ.get("SLURM_JOB_ID"):
        return VisibleGpus()
    return VisibleGpus(_CUDA_VARIABLE, _driver_gpu_ids())


def gpu_environment(gpus: VisibleGpus, chosen: Sequence[int]) -> Dict[str, str]:
    """The variables with which a run sees its GPUs and no others."""
    names = [gpus.ids[index] for index in chosen]
    if gpus.variable != _ROCR_VARIABLE:
        return {gpus.variable: ",".join(names)}
    # The HIP layer counts within what the layer below shows it, and Ray and others want to see it set.
    return {_ROCR_VARIABLE: ",".join(names), _HIP_VARIABLE: ",".join(str(number) for number in range(len(names)))}


def thread_environment(threads: int, base: Mapping[str, str]) -> Dict[str, str]:
    """As many threads as the run has CPUs, except where somebody has said otherwise."""
    return {name: str(max(1, threads)) for name in _THREAD_VARIABLES if name not in base}


def usable_cpus(environ: Mapping[str, str]) -> List[int]:
    """The CPUs that this process may use, as many of them as Slurm gave the job on this node.

    Where Slurm gave more than there are, as on a node that is oversubscribed, they are counted more than once: a GPU
    that stands idle for want of a CPU to count would help nobody.
    """
    try:
        cpus = sorted(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cpus = list(range(os.cpu_count() or 1))
    told = environ.get("SLURM_CPUS_ON_NODE", "") if environ.get("SLURM_JOB_ID") else ""
    if not told.isdigit() or int(told) == 0:
        return cpus
    return [cpus[number % len(cpus)] for number in range(int(told))]


def end_of_allocation(environ: Mapping[str, str], inside: bool) -> Optional[float]:
    """When Slurm will end this job (Unix time), or None where nothing ends it. Newer Slurm tells in the environment."""
    if not inside:
        return None
    told = environ.get("SLURM_JOB_END_TIME", "")
    if told.isdigit():
        return float(told)
    return slurm.job_end_time(environ["SLURM_JOB_ID"], environ)


def min_cpus(told: str) -> Optional[int]:
    """4(x2),2 -> 2, as SLURM_JOB_CPUS_PER_NODE writes it."""
    found = [int(number) for number in re.findall(r"(?:^|,)(\d+)", told)]
    return min(found) if found else None


def memory_mb(environ: Mapping[str, str]) -> Optional[int]:
    """What Slurm gave the job on this node; None where it gave all that there is, or does not say."""
    node, cpu = environ.get("SLURM_MEM_PER_NODE", ""), environ.get("SLURM_MEM_PER_CPU", "")
    if not cpu.isdigit():
        return int(node) or None if node.isdigit() else None
    return int(cpu) * len(usable_cpus(environ)) or None


def _parse_gpu_ids(text: str) -> List[str]:
    """The ids in a variable. The CUDA library stops reading at the first that is none, such as -1 or NoDevFiles."""
    found: List[str] = []
    for word in text.split(","):
        word = word.strip()
        if not word or word == "NoDevFiles" or word.startswith("-"):
            break
        found.append(word)
    return found


def _driver_gpu_ids() -> List[str]:
    try:
        argv = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.decode().split() if done.returncode == 0 else []
