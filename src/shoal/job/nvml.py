"""NVIDIA's management library by ctypes: use and memory of the GPUs that a run may use. Absence is an answer."""

import ctypes
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple


class _NvmlUtilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _NvmlMemory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class GpuIdentity(NamedTuple):
    """What a GPU is called everywhere, and how many bytes it has."""

    uuid: str
    memory: int


class NvmlGpu:
    """One device; `read()` is None when the driver will not tell (a MIG slice, a GPU that fell off the bus)."""

    def __init__(self, library: Any, handle: Any, name: str) -> None:
        self._library, self._handle, self.name = library, handle, name

    def identity(self) -> Optional[GpuIdentity]:
        text, memory = ctypes.create_string_buffer(96), _NvmlMemory()
        if self._library.nvmlDeviceGetUUID(self._handle, text, 96) != 0:
            return None
        if self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)) != 0:
            return None
        return GpuIdentity(text.value.decode("ascii", "replace"), int(memory.total))

    def read(self) -> Optional[Dict[str, Any]]:
        use, memory = _NvmlUtilization(), _NvmlMemory()
        if self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(use)) != 0:
            return None
        self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory))
        return {
            "name": self.name,
            "percent": float(use.gpu),
            "used_mb": memory.used / 1048576.0,
            "total_mb": memory.total / 1048576.0,
        }


def gpu_identity(name: str) -> Optional[GpuIdentity]:
    """Of the GPU with this index or UUID; None where the driver does not tell."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    count = ctypes.c_uint()
    if library.nvmlInit_v2() != 0 or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
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
    code = library.nvmlInit_v2()
    if code != 0:
        return [], "NVML does not start (code %d)" % code
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
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
        code = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
    else:
        code = library.nvmlDeviceGetHandleByUUID(name.encode("ascii", "ignore"), ctypes.byref(handle))
    if code != 0:
        return None
    text = ctypes.create_string_buffer(96)
    library.nvmlDeviceGetName(handle, text, 96)
    return NvmlGpu(library, handle, text.value.decode("ascii", "replace"))
