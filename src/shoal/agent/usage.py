"""What a run uses, sampled from inside its job: processors and memory from /proc, GPUs from NVML where there is one.

Cheap on purpose: one look every ten seconds, only at the run's own processes, and one small file that never grows past
a few hundred points (older ones are averaged in pairs). Where something cannot be read, it says so and goes on.
"""

import os
import resource
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Set

from . import files, nvml

_MOST_POINTS = 240
_WRITE_EVERY_S = 30.0
#: A GPU that does less than this is called idle; an empty CUDA context shows 0, a data loader's trickle 1 or 2.
_IDLE_PERCENT = 5.0
_TICKS = float(os.sysconf("SC_CLK_TCK")) if hasattr(os, "sysconf") else 100.0
_PAGE_MB = (os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096) / 1048576.0


def watch(path: str, pid: int, env: Mapping[str, str], over: threading.Event) -> None:
    """Sample the process tree under `pid` until `over`, keeping the record at `path` up to date. Never raises."""
    every_s = _number(env.get("SHOAL_SAMPLE_S"), 10.0)
    if every_s <= 0:
        return
    record = Record(every_s)
    written = 0.0
    wait_s = min(1.0, every_s)
    try:
        gpus, record.gpu_problem = nvml.open_gpus(env)
    except Exception as error:  # a driver may do anything, and the run matters more
        gpus, record.gpu_problem = [], "NVML failed: %s" % error
    while True:
        ended = over.wait(wait_s)
        wait_s = every_s
        try:
            if not ended:
                record.add(_processes(pid, env), [gpu.read() for gpu in gpus])
            else:
                record.close()
            if ended or time.monotonic() - written >= _WRITE_EVERY_S:
                files.replace(path, files.to_json(record.as_json()), sync=False)
                written = time.monotonic()
        except Exception:  # a full disk or a vanished process costs one sample, not the run
            pass
        if ended:
            return


class Record:
    """Samples of one attempt, and what they add up to."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self.gpu_problem: Optional[str] = None
        self._began = self._last = time.monotonic()
        self._cpu_s = self._peak_mb = 0.0
        self._points: List[List[Optional[float]]] = []
        self._gpus: List[Dict[str, Any]] = []
        self._before = _children_cpu_s()

    def add(self, processes: Mapping[str, float], gpus: List[Optional[Mapping[str, Any]]]) -> None:
        now = time.monotonic()
        span = max(1e-6, now - self._last)
        cpus = max(0.0, processes["cpu_s"] - self._cpu_s) / span
        self._cpu_s = max(self._cpu_s, processes["cpu_s"])
        self._peak_mb = max(self._peak_mb, processes["memory_mb"])
        known = [gpu for gpu in gpus if gpu is not None]
        self._add_gpus(gpus, span)
        mean = sum(gpu["percent"] for gpu in known) / len(known) if known else None
        memory = sum(gpu["used_mb"] for gpu in known) if known else None
        self._points.append([now - self._began, cpus, processes["memory_mb"], mean, memory])
        self._last = now
        if len(self._points) > _MOST_POINTS:
            self._points = [_mean(a, b) for a, b in zip(self._points[::2], self._points[1::2])]

    def close(self) -> None:
        """The kernel's own sum, which also knows processes that lived between two samples."""
        self._last = time.monotonic()
        self._cpu_s = max(self._cpu_s, _children_cpu_s() - self._before)
        self._peak_mb = max(self._peak_mb, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024.0)

    def as_json(self) -> Dict[str, Any]:
        gpus = [
            {
                "name": gpu["name"],
                "mean_percent": gpu["area"] / gpu["seen_s"] if gpu["seen_s"] else 0.0,
                "peak_percent": gpu["peak"],
                "peak_memory_mb": gpu["peak_mb"],
                "memory_mb": gpu["total_mb"],
                "idle_s": gpu["idle_s"],
            }
            for gpu in self._gpus
        ]
        return {
            "schema": 1,
            "every_s": self.every_s,
            "duration_s": self._last - self._began,
            "cpu_s": self._cpu_s,
            "peak_memory_mb": self._peak_mb,
            "gpus": gpus,
            "gpu_problem": self.gpu_problem,
            "points": [[None if value is None else round(value, 2) for value in point] for point in self._points],
        }

    def _add_gpus(self, gpus: List[Optional[Mapping[str, Any]]], span: float) -> None:
        if not self._gpus:
            fresh = {
                "name": "",
                "area": 0.0,
                "seen_s": 0.0,
                "peak": 0.0,
                "peak_mb": 0.0,
                "total_mb": 0.0,
                "idle_s": 0.0,
            }
            self._gpus = [dict(fresh) for gpu in gpus if gpu is not None]
        for kept, gpu in zip(self._gpus, (gpu for gpu in gpus if gpu is not None)):
            kept["name"], kept["total_mb"] = gpu["name"], gpu["total_mb"]
            kept["area"] += gpu["percent"] * span
            kept["seen_s"] += span
            kept["peak"] = max(kept["peak"], gpu["percent"])
            kept["peak_mb"] = max(kept["peak_mb"], gpu["used_mb"])
            kept["idle_s"] += span if gpu["percent"] < _IDLE_PERCENT else 0.0


def _processes(pid: int, env: Mapping[str, str]) -> Dict[str, float]:
    """CPU seconds and memory of the run's processes that live now; times of those that ended are in their parents."""
    pids = _family(pid)
    if any(_comm(one) == "srun" for one in pids) and env.get("SLURM_JOB_ID"):
        # srun's tasks are children of Slurm's own daemon: the job's number in their environment tells them.
        pids |= _of_job(env["SLURM_JOB_ID"], pids)
    ticks, own_mb, shared_mb = 0.0, 0.0, 0.0
    for one in pids:
        try:
            with open("/proc/%d/stat" % one, "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            with open("/proc/%d/statm" % one, "rb") as file:
                pages = file.read().split()
        except (OSError, IndexError):
            continue
        ticks += sum(int(field) for field in fields[11:15])
        own_mb += max(0, int(pages[1]) - int(pages[2])) * _PAGE_MB
        shared_mb = max(shared_mb, int(pages[2]) * _PAGE_MB)
    return {"cpu_s": ticks / _TICKS, "memory_mb": own_mb + shared_mb}


def _family(pid: int) -> Set[int]:
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


_known: Dict[int, bool] = {}


def _of_job(job_id: str, known: Set[int]) -> Set[int]:
    wanted, uid, found = ("SLURM_JOB_ID=%s" % job_id).encode(), os.getuid(), set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        if pid not in _known:
            try:
                if os.stat("/proc/%d" % pid).st_uid != uid:
                    _known[pid] = False
                    continue
                with open("/proc/%d/environ" % pid, "rb") as file:
                    _known[pid] = wanted in file.read(1 << 18).split(b"\0")
            except OSError:
                continue
        if _known[pid]:
            found.add(pid)
    return found - {os.getpid()}


def _comm(pid: int) -> str:
    try:
        with open("/proc/%d/comm" % pid) as file:
            return file.read().strip()
    except OSError:
        return ""


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _mean(a: List[Optional[float]], b: List[Optional[float]]) -> List[Optional[float]]:
    pairs = list(zip(a, b))
    return [b[0]] + [None if x is None or y is None else (x + y) / 2 for x, y in pairs[1:]]


def _number(text: Optional[str], default: float) -> float:
    try:
        return float(text) if text else default
    except ValueError:
        return default
