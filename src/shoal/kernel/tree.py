"""The processes below one: found by their parents, stopped and killed as a whole."""

import ctypes
import os
import signal
import sys
import time
from typing import Callable, Dict, Iterable, List, NamedTuple, Set

_PR_SET_CHILD_SUBREAPER = 36
_WALK_PAUSE_S = 0.005
#: How long killing is tried: a process in uninterruptible sleep ends when its I/O returns.
MAX_KILL_S = 30.0


def become_subreaper() -> None:
    """Become the parent of whatever our descendants leave behind, so that it can be found and ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class _ProcEntry(NamedTuple):
    parent: int
    state: str


def descendants(top: int, but: int = 0) -> Dict[int, str]:
    """pid -> state letter of /proc for every process below `top`; `but` itself is left out, what is below it is not."""
    return {pid: state for pid, state in with_descendants([top]).items() if pid not in (top, but)}


def with_descendants(tops: Iterable[int]) -> Dict[int, str]:
    """pid -> state letter of /proc for these processes and all below them; those that are gone are left out."""
    known = _processes()
    children: Dict[int, List[int]] = {}
    for pid, one in known.items():
        children.setdefault(one.parent, []).append(pid)
    found: Dict[int, str] = {}
    todo = list(tops)
    while todo:
        pid = todo.pop()
        if pid in known and pid not in found:
            found[pid] = known[pid].state
            todo += children.get(pid, [])
    return found


def stop_processes(look: Callable[[], Dict[int, str]], within_s: float) -> Set[int]:
    """SIGSTOP to everything that `look` finds until it finds nothing that runs; returns what was stopped."""
    stopped: Set[int] = set()
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        running = [pid for pid, state in look().items() if state not in "TtZX"]
        if not running:
            break
        for pid in running:
            send_signal(pid, signal.SIGSTOP)
            stopped.add(pid)
        time.sleep(_WALK_PAUSE_S)
    return stopped


def kill_processes(look: Callable[[], Dict[int, str]], within_s: float) -> None:
    """SIGKILL to everything that `look` finds until it finds nothing but what cannot be killed; our children are
    collected."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        left = [pid for pid, state in look().items() if state not in "ZX"]
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        collect_children()
        if not left:
            return
        time.sleep(_WALK_PAUSE_S)


def kill_descendants(within_s: float = MAX_KILL_S) -> None:
    """Kill everything below us. Whoever has no child has nothing below: that is known without reading /proc."""
    if collect_children():
        kill_processes(lambda: descendants(os.getpid()), within_s)


def send_signal(pid: int, number: int) -> None:
    """A signal to a process that may be gone by now."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def collect_children() -> bool:
    """Whether children are left after collecting those that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _processes() -> Dict[int, _ProcEntry]:
    found: Dict[int, _ProcEntry] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            found[int(name)] = _ProcEntry(int(fields[1]), fields[0].decode())
        except (OSError, IndexError, ValueError):
            continue
    return found
