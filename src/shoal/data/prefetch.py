"""Reading ahead in threads, so that the disk always has several requests.

Ranges that are read soon are announced to the kernel. Files that are needed completely are read in sequence instead:
the kernel then keeps them in large pieces, and reading and copying them takes a third of the CPU time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias

#: What is read at once of a file.
_READ_SIZE = 2 << 20
#: After so many looks in a row that found everything in memory, the kernel is told nothing until one does not.
_IDLE_AFTER_CACHED = 16
#: Every how many places are looked at when all is calm.
_IDLE_PROBE_INTERVAL = 8
#: Whether the system can say what is in memory.
_HAS_NOWAIT_READ = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")

#: The name of the threads here, which stay as long as the process.
THREAD_NAME = "shoal-ahead"

#: Ranges of open files: descriptor, offset, size.
FileRanges: TypeAlias = list[tuple[int, int, int]]


class CacheMonitor:
    """Whether what is read is in memory, from a look at a few places of every batch: a look is a system call."""

    def __init__(self) -> None:
        self._calm = 0
        self._turn = 0

    def sample_ranges(self) -> slice:
        """Which places of a batch to look at. A look at what is missing makes the disk read a page: few of those."""
        self._turn = (self._turn + 1) % _IDLE_PROBE_INTERVAL
        return (
            slice(self._turn, None, _IDLE_PROBE_INTERVAL)
            if self._calm >= _IDLE_AFTER_CACHED
            else slice(self._turn, self._turn + 1)
        )

    def misses(self, places: FileRanges) -> bool:
        """Whether one of these places, or of those of late, is not in memory."""
        for fd, offset, size in places:
            there = is_cached(fd, offset + max(0, size - 1))
            self._calm = 0 if there is False else self._calm + (there is True)
            if there is None:
                return False  # This file system cannot say, or it is memory: plain reads, the kernel's own read-ahead.
        return self._calm < _IDLE_AFTER_CACHED


def prefetch_ranges(places: FileRanges, wait: bool = False) -> None:
    """Have the places brought to memory. With `wait` the kernel knows all of them when this returns."""
    if wait:
        _advise_kernel(places)
    else:
        _run_in_thread(_advise_kernel, places)


def prefetch_files(paths: Sequence[str]) -> None:
    """Have whole files brought to memory, one after the other; those that are not there are left out."""
    _run_in_thread(_read_all, list(paths))


def _run_in_thread(work: Callable[[Any], None], what: Any) -> None:
    """Have a thread do it, after what it was given before. Each kind of work has one; a forked process its own."""
    me = (os.getpid(), work)
    if me not in _QUEUES:
        _QUEUES[me] = SimpleQueue()
        threading.Thread(target=_run_queue, args=(work, _QUEUES[me]), daemon=True, name=THREAD_NAME).start()
    _QUEUES[me].put(what)


_QUEUES: dict[tuple[int, Callable[[Any], None]], SimpleQueue[Any]] = {}


def _run_queue(work: Callable[[Any], None], queue: SimpleQueue[Any]) -> None:
    while True:
        work(queue.get())


def _advise_kernel(places: FileRanges) -> None:
    tell, soon = os.posix_fadvise, os.POSIX_FADV_WILLNEED
    for fd, offset, size in places:
        try:
            tell(fd, offset, size, soon)
        except OSError:
            pass  # Closed meanwhile, or no file system to be told something: reading will say.


def _read_all(paths: list[str]) -> None:
    """Sent to nowhere, a file is read without being copied."""
    with open(os.devnull, "wb", buffering=0) as nowhere:
        for path in paths:
            try:
                with open(path, "rb", buffering=0) as file:
                    _sendfile(nowhere.fileno(), file.fileno(), os.fstat(file.fileno()).st_size)
            except OSError:
                continue  # Whoever needs it will meet the error.


def _sendfile(nowhere: int, fd: int, size: int) -> None:
    start = 0
    while start < size:
        start += _READ_SIZE if is_cached(fd, start) else os.sendfile(nowhere, fd, start, _READ_SIZE) or size


def is_cached(fd: int, offset: int) -> bool | None:
    """Whether the byte at `offset` can be had without the disk; None where nobody can say."""
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) >= 0 if _HAS_NOWAIT_READ else None
    except BlockingIOError:
        return False
    except OSError:
        return None


def prefetch_budget() -> int:
    """Bytes that may be brought to memory: half of what is free for this process."""
    free = [
        int(line.split()[1]) << 10 for line in _read_key_values("/proc/meminfo") if line.startswith("MemAvailable:")
    ]
    for line in _read_key_values("/proc/self/cgroup"):
        _, kind, path = line.rstrip("\n").split(":", 2)
        base, name = {"": ("", "memory.max"), "memory": ("/memory", "memory.limit_in_bytes")}.get(kind, ("", ""))
        while name and path.startswith("/"):
            free += [
                int(text) for text in _read_key_values(f"/sys/fs/cgroup{base}{path}/{name}") if text.strip().isdigit()
            ]
            path = path.rpartition("/")[0]
    return min(free, default=0) // 2


def _read_key_values(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readlines()
    except OSError:
        return []
