"""Readers of resource use on this node: processes of a run in /proc, OOM kills in its cgroup, GPUs by NVML.

The cgroup is asked whether the kernel killed a process of this job for lack of memory, so that no accounting is needed.
NVIDIA's management library is loaded by ctypes; its absence is a result and not an error.
"""

import ctypes
import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

_TICKS = float(os.sysconf("SC_CLK_TCK")) if hasattr(os, "sysconf") else 100.0
_PAGE_MB = (os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096) / 1048576.0


class ResourceUse(NamedTuple):
    """CPU seconds and memory of processes that live now; the times of those that ended are in their parents."""

    cpu_s: float
    memory_mb: float


def process_use(pid: int, env: Mapping[str, str]) -> ResourceUse:
    """The process, its descendants, and srun's tasks on this node if srun is among them."""
    pids = _with_descendants(pid)
    if env.get("SLURM_JOB_ID") and any(_comm(one) == "srun" for one in pids):
        pids |= _job_pids(env)
    return _total_use(pids)


def job_use(env: Mapping[str, str]) -> ResourceUse:
    """All that this job runs on this node."""
    return _total_use(_job_pids(env))


def process_start(pid: int) -> bytes:
    """When a process began, in the kernel's count, so that its number alone is not taken for it; b"" if it is gone."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 and fields[0] != b"Z" else b""


def _total_use(pids: Set[int]) -> ResourceUse:
    ticks, own_mb, shared_mb = 0.0, 0.0, 0.0
    for one in pids:
        fields = _stat(one)
        try:
            with open("/proc/%d/statm" % one, "rb") as file:
                pages = file.read().split()
            ticks += sum(int(field) for field in fields[11:15])
            own_mb += max(0, int(pages[1]) - int(pages[2])) * _PAGE_MB
            shared_mb = max(shared_mb, int(pages[2]) * _PAGE_MB)
        except (OSError, IndexError):
            continue
    return ResourceUse(ticks / _TICKS, own_mb + shared_mb)


def _stat(pid: int) -> "list[bytes]":
    """The fields behind the name, which may itself hold anything."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _with_descendants(pid: int) -> Set[int]:
    """The process and its descendants, from the kernel's own lists of children."""
    found: Set[int] = set()
    waiting = [pid]
    while waiting and len(found) < 5000:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        try:
            for thread in os.listdir("/proc/%d/task" % one):
                with open("/proc/%d/task/%s/children" % (one, thread)) as file:
                    waiting += [int(word) for word in file.read().split()]
        except OSError:
            continue
    return found


#: Whether a process is of the job, by its number and beginning: its environment never changes.
_job_pids_cache: Dict[Tuple[int, bytes], bool] = {}


def _job_pids(env: Mapping[str, str]) -> Set[int]:
    """srun's tasks are children of Slurm's own daemon: the job and the node in their environment tell them."""
    wanted = {("%s=%s" % (name, env[name])).encode() for name in ("SLURM_JOB_ID", "SLURMD_NODENAME") if env.get(name)}
    uid, seen = os.getuid(), {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        try:
            if os.stat("/proc/%d" % pid).st_uid != uid:
                continue
            key = (pid, process_start(pid))
            if key in _job_pids_cache:
                seen[key] = _job_pids_cache[key]
                continue
            with open("/proc/%d/environ" % pid, "rb") as file:
                words = file.read(1 << 18).split(b"\0")
            if words != [b""]:  # empty in the middle of an exec
                seen[key] = wanted <= set(words)
        except OSError:
            continue
    _job_pids_cache.clear()
    _job_pids_cache.update(seen)  # those that are gone are forgotten
    return {pid for (pid, _), ours in seen.items() if ours} - {os.getpid()}


def _comm(pid: int) -> str:
    try:
        with open("/proc/%d/comm" % pid) as file:
            return file.read().strip()
    except OSError:
        return ""


def oom_kills() -> int:
    """How many processes the kernel has killed for memory in this process's cgroups so far; 0 where nobody counts."""
    total = 0
    for folder in _memory_cgroups():
        for name in ("memory.events", "memory.oom_control"):
            try:
                with open(os.path.join(folder, name)) as file:
                    for line in file:
                        key, _, value = line.partition(" ")
                        if key == "oom_kill":
                            total += int(value)
            except (OSError, ValueError):
                continue
    return total


def _memory_cgroups() -> Iterator[str]:
    """The memory cgroup of this process and those above it that belong to the same Slurm job."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        elif "memory" in controllers.split(","):
            roots = ["/sys/fs/cgroup/memory"]
        else:
            continue
        while path not in ("", "/"):
            for root in roots:
                yield root + path
            path = os.path.dirname(path) if "/job_" in path else ""


#: NVML's own code for a function that the driver does not have.
_FUNCTION_NOT_FOUND = 13


def _call_nvml(library: Any, function: str, *arguments: Any) -> int:
    """Old drivers and stub libraries lack functions: that costs the samples, not the run."""
    try:
        found = getattr(library, function)
    except AttributeError:
        return _FUNCTION_NOT_FOUND
    return int(found(*arguments))


class _NvmlUtilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _NvmlMemory(ctypes.Structure):
    """`used` holds what the driver reserves for itself too: 615 MiB of an H200."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _NvmlMemoryV2(ctypes.Structure):
    """`used` is what programs have, as in nvidia-smi; since driver 510."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def _read_memory(library: Any, handle: Any) -> Optional[Tuple[int, int]]:
    """(bytes in use, bytes in all) of a GPU."""
    newer = _NvmlMemoryV2(version=ctypes.sizeof(_NvmlMemoryV2) | 2 << 24)
    if _call_nvml(library, "nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(newer)) == 0:
        return int(newer.used), int(newer.total)
    memory = _NvmlMemory()
    if _call_nvml(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)) == 0:
        return int(memory.used), int(memory.total)
    return None


class GpuIdentity(NamedTuple):
    """What a GPU is called everywhere, and how many bytes it has."""

    uuid: str
    memory: int


class NvmlGpu:
    """One device; `read()` is None when the driver will not tell (a MIG slice, a GPU that fell off the bus)."""

    def __init__(self, library: Any, handle: Any, name: str) -> None:
        self._library, self._handle, self.name = library, handle, name

    def identity(self) -> Optional[GpuIdentity]:
        text = ctypes.create_string_buffer(96)
        if _call_nvml(self._library, "nvmlDeviceGetUUID", self._handle, text, 96) != 0:
            return None
        memory = _read_memory(self._library, self._handle)
        return None if memory is None else GpuIdentity(text.value.decode("ascii", "replace"), memory[1])

    def read(self) -> Optional[Dict[str, Any]]:
        use = _NvmlUtilization()
        if _call_nvml(self._library, "nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(use)) != 0:
            return None
        memory = _read_memory(self._library, self._handle)
        if memory is None:
            return None
        used, total = memory
        return {
            "name": self.name,
            "percent": float(use.gpu),
            "used_mb": used / 1048576.0,
            "total_mb": total / 1048576.0,
        }


def gpu_identity(name: str) -> Optional[GpuIdentity]:
    """Of the GPU with this index or UUID; None where the driver does not tell."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    count = ctypes.c_uint()
    if (
        _call_nvml(library, "nvmlInit_v2") != 0
        or _call_nvml(library, "nvmlDeviceGetCount_v2", ctypes.byref(count)) != 0
    ):
        return None
    gpu = _open_gpu(library, name, count.value)
    return None if gpu is None else gpu.identity()


def open_gpus(env: Mapping[str, str]) -> Tuple[List[NvmlGpu], Optional[str]]:
    """(the GPUs of this run, what is wrong): all that NVML shows, or those that CUDA_VISIBLE_DEVICES names."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return [], None
    if visible is None and env.get("SLURM_JOB_ID") and not (env.get("SLURM_JOB_GPUS") or env.get("SLURM_GPUS_ON_NODE")):
        return [], None
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return [], "no NVML on this node"
    code = _call_nvml(library, "nvmlInit_v2")
    if code != 0:
        return [], "NVML does not start (code %d)" % code
    count = ctypes.c_uint()
    _call_nvml(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    names = visible.split(",") if visible else [str(index) for index in range(count.value)]
    found = [gpu for gpu in (_open_gpu(library, name.strip(), count.value) for name in names) if gpu is not None]
    if len(found) < len(names):
        return found, "NVML does not know %d of the GPUs %s" % (len(names) - len(found), ",".join(names))
    return found, None


def _open_gpu(library: Any, name: str, count: int) -> Optional[NvmlGpu]:
    handle = ctypes.c_void_p()
    if name.isdigit():
        if int(name) >= count:
            return None
        code = _call_nvml(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(name)), ctypes.byref(handle))
    else:
        code = _call_nvml(library, "nvmlDeviceGetHandleByUUID", name.encode("ascii", "ignore"), ctypes.byref(handle))
    if code != 0:
        return None
    text = ctypes.create_string_buffer(96)
    _call_nvml(library, "nvmlDeviceGetName", handle, text, 96)
    return NvmlGpu(library, handle, text.value.decode("ascii", "replace"))
