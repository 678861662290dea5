"""What is asked of the disk before it is needed, in threads beside the program, so that it has much to do at once.

Places that are read soon are told to the kernel. Files of which everything is needed are read in sequence instead: the
kernel then keeps them in large pieces, and bringing and copying them takes a third of the processor's time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias

#: What is read at once of a file.
_PIECE = 2 << 20
#: After so many looks in a row that found everything in memory, the kernel is told nothing until one does not.
_CALM = 16
#: Every how many places are looked at when all is calm.
_EVERY = 8
#: Whether the system can say what is in memory.
_CAN_LOOK = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")

#: The name of the threads here, which stay as long as the process.
THREAD = "shoal-ahead"

#: Ranges of open files: descriptor, offset, size.
Places: TypeAlias = list[tuple[int, int, int]]


class Watch:
    """Whether what is read is in memory, from a look at a few places of every batch: a look is a system call."""

    def __init__(self) -> None:
        self._calm = 0
        self._turn = 0

    def some(self) -> slice:
        """Which places of a batch to look at. A look at what is missing makes the disk read a page: few of those."""
        self._turn = (self._turn + 1) % _EVERY
        return slice(self._turn, None, _EVERY) if self._calm >= _CALM else slice(self._turn, self._turn + 1)

    def misses(self, places: Places) -> bool:
        """Whether one of these places, or of those of late, is not in memory."""
        for fd, offset, size in places:
            there = is_in_memory(fd, offset + max(0, size - 1))
            self._calm = 0 if there is False else self._calm + (there is True)
            if there is None:
                return False  # This file system cannot say, or it is memory: plain reads, the kernel's own read-ahead.
        return self._calm < _CALM


def bring(places: Places, wait: bool = False) -> None:
    """Have the places brought to memory. With `wait` the kernel knows all of them when this returns."""
    if wait:
        _tell(places)
    else:
        _beside(_tell, places)


def bring_files(paths: Sequence[str]) -> None:
    """Have whole files brought to memory, one after the other; those that are not there are left out."""
    _beside(_read_all, list(paths))


def _beside(work: Callable[[Any], None], what: Any) -> None:
    """Have a thread do it, after what it was given before. Each kind of work has one; a forked process its own."""
    me = (os.getpid(), work)
    if me not in _WORK:
        _WORK[me] = SimpleQueue()
        threading.Thread(target=_work_on, args=(work, _WORK[me]), daemon=True, name=THREAD).start()
    _WORK[me].put(what)


_WORK: dict[tuple[int, Callable[[Any], None]], SimpleQueue[Any]] = {}


def _work_on(work: Callable[[Any], None], queue: SimpleQueue[Any]) -> None:
    while True:
        work(queue.get())


def _tell(places: Places) -> None:
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
                    _send(nowhere.fileno(), file.fileno(), os.fstat(file.fileno()).st_size)
            except OSError:
                continue  # Whoever needs it will meet the error.


def _send(nowhere: int, fd: int, size: int) -> None:
    start = 0
    while start < size:
        start += _PIECE if is_in_memory(fd, start) else os.sendfile(nowhere, fd, start, _PIECE) or size


def is_in_memory(fd: int, offset: int) -> bool | None:
    """Whether the byte at `offset` can be had without the disk; None where nobody can say."""
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) >= 0 if _CAN_LOOK else None
    except BlockingIOError:
        return False
    except OSError:
        return None


def room() -> int:
    """Bytes that may be brought to memory: half of what is free for this process."""
    free = [int(line.split()[1]) << 10 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    for line in _lines("/proc/self/cgroup"):
        _, kind, path = line.rstrip("\n").split(":", 2)
        base, name = {"": ("", "memory.max"), "memory": ("/memory", "memory.limit_in_bytes")}.get(kind, ("", ""))
        while name and path.startswith("/"):
            free += [int(text) for text in _lines(f"/sys/fs/cgroup{base}{path}/{name}") if text.strip().isdigit()]
            path = path.rpartition("/")[0]
    return min(free, default=0) // 2


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readlines()
    except OSError:
        return []
