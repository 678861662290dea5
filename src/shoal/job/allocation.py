"""What this job has, as its environment and the node tell: nodes, CPUs, memory, GPUs, remaining time, addresses, ports.

GPUs are known by index or UUID. A node's own name is not a usable address: it may resolve to 127.0.1.1, to several
networks, or only to IPv6. The address of this node that leads to another one is asked of the kernel: a datagram socket
that is connected there (nothing is sent) has it as its own.
"""

import fcntl
import glob
import os
import re
import shutil
import socket
import struct
import subprocess
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..kernel import node_name, slurm
from .launch.geometry import PORT_BASE, PORT_COUNT, LaunchGeometry, fold_to_one_node
from .launch.rank import visible_gpus


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
    """The launch on one machine; AllocationMismatch if it has GPUs, but fewer than requested. No GPU means CPUs."""
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
    """The nodes of n[1-4]; AllocationMismatch if Slurm cannot be asked."""
    names = slurm.expand_hostlist(nodelist, os.environ)
    if not names:
        raise AllocationMismatch("scontrol cannot list the nodes of %s" % nodelist)
    return names


def _cpus_per_node(geometry: LaunchGeometry, environ: Mapping[str, str]) -> Optional[int]:
    if geometry.cpus is not None:
        return geometry.cpus
    count = environ.get("SLURM_CPUS_ON_NODE", "")
    return int(count) if count.isdigit() else None


def _memory_per_node_mb(environ: Mapping[str, str]) -> Optional[int]:
    memory = environ.get("SLURM_MEM_PER_NODE", "")
    return int(memory) if memory.isdigit() and int(memory) > 0 else None


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
    count = environ.get("SLURM_CPUS_ON_NODE", "") if environ.get("SLURM_JOB_ID") else ""
    if not count.isdigit() or int(count) == 0:
        return cpus
    return [cpus[number % len(cpus)] for number in range(int(count))]


def end_of_allocation(environ: Mapping[str, str], inside: bool) -> Optional[float]:
    """When Slurm will end this job (Unix time), or None where nothing ends it. Newer Slurm tells in the environment."""
    if not inside:
        return None
    end_time = environ.get("SLURM_JOB_END_TIME", "")
    if end_time.isdigit():
        return float(end_time)
    return slurm.job_end_time(environ["SLURM_JOB_ID"], environ)


def min_cpus(counts: str) -> Optional[int]:
    """4(x2),2 -> 2, as SLURM_JOB_CPUS_PER_NODE writes it."""
    found = [int(number) for number in re.findall(r"(?:^|,)(\d+)", counts)]
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


_SIOCGIFADDR = 0x8915


class NoSuchInterface(Exception):
    """The profile or the launch names a network interface that this node does not have."""


def reachable_address(peers: List[str], interface: Optional[str]) -> str:
    """This node's address as the peers see it; its name where nothing better can be found out."""
    if interface:
        return interface_address(interface)
    for peer in peers:
        for family, kind, _, _, place in _resolve_host(peer):
            try:
                with socket.socket(family, kind) as probe:
                    probe.connect(place)
                    found = str(probe.getsockname()[0])
            except OSError:
                continue
            if not found.startswith("127.") and found != "::1":
                return found
    return socket.gethostname()


def interface_address(name: str) -> str:
    """The IPv4 address of an interface; NoSuchInterface names those that there are."""
    if name not in interface_names():
        raise NoSuchInterface(
            "%s has no network interface %s; it has %s" % (node_name(), name, ", ".join(interface_names()))
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            raise NoSuchInterface("interface %s of %s has no IPv4 address" % (name, node_name()))
    return socket.inet_ntoa(answer[20:24])


def check_interfaces(env: Mapping[str, str]) -> Optional[str]:
    """What is wrong with the interfaces that NCCL or gloo are told to use, or None. NCCL takes beginnings of names."""
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        words = env.get(variable, "")
        if not words or words.startswith("^"):
            continue
        exact = words.startswith("=") or variable.startswith("GLOO")
        wanted = words.lstrip("=").split(",")
        there = interface_names()
        if not any(name == word if exact else name.startswith(word) for word in wanted for name in there):
            return "%s=%s names no interface of %s; it has %s" % (
                variable,
                words,
                node_name(),
                ", ".join(there),
            )
    return None


def interface_names() -> List[str]:
    return [name for _, name in socket.if_nameindex()]


def reserve_port(seed: int) -> Tuple[int, Optional[socket.socket]]:
    """A port that is free here, by preference the one that belongs to `seed`; keep the second value while it is in use.

    Between the look and the moment when torch binds it seconds pass, so a mark that every launcher of this host sees
    holds it meanwhile: an abstract socket, which lives in the same network namespace and goes away with its owner.
    """
    for step in range(PORT_COUNT):
        port = PORT_BASE + (seed + step) % PORT_COUNT
        mark = _lock_port(port)
        if mark is None:
            continue
        if _is_free(port):
            return port, mark[0]
        if mark[0] is not None:
            mark[0].close()
    raise OSError("no free port between %d and %d" % (PORT_BASE, PORT_BASE + PORT_COUNT - 1))


def _lock_port(port: int) -> Optional[Tuple[Optional[socket.socket]]]:
    """None if another launcher holds the port; else what holds it for us, if this system can."""
    if os.uname().sysname != "Linux":
        return (None,)
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        mark.bind("\0shoal-port-%d" % port)
    except OSError:
        mark.close()
        return None
    return (mark,)


def _is_free(port: int) -> bool:
    for family, any_address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 (a probe)
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((any_address, port))
        except OSError as error:
            if family == socket.AF_INET or error.errno == 98:
                return False
    return True


def _resolve_host(peer: str) -> List[tuple]:  # type: ignore[type-arg]
    try:
        found = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return []
    return sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
