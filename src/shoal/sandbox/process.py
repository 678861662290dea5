"""Processes of a sandbox: start them, find them again, signal exactly them.

A process is known by pid and start time, so that a reused pid is never mistaken for it, and signals go through a pidfd,
so that it cannot be reused in between. What no record names (a killed `up`, a job's processes) is found by what only
the sandbox's processes have: its mark in their environment, its log file open in slurmstepd, its SLURM_CONF in a job.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from shoal.errors import ShoalError

MARK_VARIABLE = "SHOAL_SANDBOX_MARK"
_PROC = Path("/proc")
_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


class ProcessExitedError(ShoalError):
    """A program was gone before it could be looked at."""


class SandboxProcess(msgspec.Struct, frozen=True):
    """A process that cannot be confused with a later one of the same pid."""

    pid: int
    start_ticks: int


def spawn(argv: Sequence[str], *, env: Mapping[str, str], output: Path) -> SandboxProcess:
    """Start a program in a session of its own, in /, its output appended to a file; it outlives the caller."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", 'cd / && exec "$@"', "sh", *argv],
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigdef=[signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD, signal.SIGHUP],
        setsigmask=[],
    )
    process = find_process(pid)
    if process is None:
        raise ProcessExitedError(f"{argv[0]} ended at once", hint=f"read {output}")
    return process


def find_process(pid: int) -> SandboxProcess | None:
    """The living process with this pid now, if any; one that only waits for its parent is not living."""
    fields = _stat(pid)
    return SandboxProcess(pid, int(fields[19])) if fields and fields[0] not in "ZX" else None


def is_alive(process: SandboxProcess) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)  # it may be our own child, and dead
    return find_process(process.pid) == process


def is_frozen(process: SandboxProcess) -> bool:
    fields = _stat(process.pid)
    return bool(fields) and fields[0] in "Tt"


def wait_frozen(process: SandboxProcess, deadline_s: float) -> None:
    """Wait until a SIGSTOP has reached every thread; it is sent in no time, but not obeyed in no time."""
    end = time.monotonic() + deadline_s
    while is_alive(process) and not is_frozen(process):
        if time.monotonic() > end:
            raise ShoalError(f"process {process.pid} did not stop within {deadline_s:.0f} s")
        time.sleep(0.005)


def listens(process: SandboxProcess, port: int) -> bool:
    """Whether this very process listens on the TCP port; somebody else's socket there does not count."""
    rows = [line.split() for line in _read(process.pid, "net/tcp").decode().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port}
    return any(target in {f"socket:[{inode}]" for inode in inodes} for target in _open_files(process.pid))


def command_name(process: SandboxProcess) -> str:
    return _read(process.pid, "comm").decode(errors="replace").strip()


def send_signal(process: SandboxProcess, number: signal.Signals) -> bool:
    """Signal this process and no other; False when it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def wait_gone(processes: Iterable[SandboxProcess], deadline_s: float) -> list[SandboxProcess]:
    """Wait until all have ended; return those that have not by the deadline."""
    end = time.monotonic() + deadline_s
    left = [process for process in processes if is_alive(process)]
    while left and (rest_s := end - time.monotonic()) > 0:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(left[0].pid)
            try:
                select.select([handle], [], [], min(rest_s, 0.5))
            finally:
                os.close(handle)
        left = [process for process in left if is_alive(process)]
    return left


def children(pid: int) -> list[int]:
    """Direct children, by a walk over all processes: /proc/PID/task/*/children is not in every kernel."""
    return [child for child, parent in _parents().items() if parent == pid]


def sandbox_processes(mark: str, folder: Path, conf: Path) -> list[SandboxProcess]:
    """Every process that belongs to the sandbox, its jobs and their children included; never the caller's own line."""
    parents = _parents()
    roots = {pid for pid in parents if _is_sandbox_process(pid, mark, folder, conf)}
    return _with_descendants(roots, parents)


def slurmstepd_processes(log: Path) -> list[SandboxProcess]:
    """The slurmstepd processes of one node, and all that runs under them."""
    parents = _parents()
    return _with_descendants({pid for pid in parents if _is_titled(pid, log)}, parents)


def _with_descendants(roots: set[int], parents: dict[int, int]) -> list[SandboxProcess]:
    own_line = set(_ancestors(os.getpid(), parents))
    found = []
    for pid in parents:
        if (
            pid not in own_line
            and roots.intersection(_ancestors(pid, parents))
            and (process := find_process(pid)) is not None
        ):
            found.append(process)
    return found


def _is_sandbox_process(pid: int, mark: str, folder: Path, conf: Path) -> bool:
    environment = set(_read(pid, "environ").split(b"\0"))
    if f"{MARK_VARIABLE}={mark}".encode() in environment:
        return True
    if b"SLURM_CONF=" + os.fsencode(conf) in environment:
        # A shell that merely uses the sandbox has SLURM_CONF too; only what Slurm started has a job id.
        return any(entry.startswith(b"SLURM_JOB_ID=") for entry in environment)
    return _is_titled(pid, folder)


def _is_titled(pid: int, path: Path) -> bool:
    """Whether it is one of those who write a title over their environment; their daemon's log file stays open."""
    if _read(pid, "comm").strip() not in (b"slurmstepd", b"slurmscriptd"):
        return False
    return any(path in (target := Path(name), *target.parents) for name in _open_files(pid))


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    """The process, its parent, and so on up."""
    seen = set()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        yield pid
        pid = parents.get(pid, 0)


def _parents() -> dict[int, int]:
    pids = (int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit())
    return {pid: int(fields[1]) for pid in pids if (fields := _stat(pid))}


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third (state) on; the second may itself contain blanks and brackets."""
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def _open_files(pid: int) -> list[str]:
    """What the process has open, as the kernel names it; empty when it is gone or not ours to look at."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(_PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(entry.path))
    return found


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""
