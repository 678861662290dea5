"""The processes of a run on this node and what they use, from /proc."""

import os
from typing import Dict, Mapping, NamedTuple, Set, Tuple

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
