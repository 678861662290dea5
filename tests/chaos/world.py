"""Where it happens: a sandbox of its own, a small disk that can be full, a wall clock that jumps, and the ledger."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from disks import empty
from ledger import Ledger
from shoal.errors import ShoalError
from shoal.sandbox import Sandbox, SandboxSpec, process, sandbox_names
from waiting import wait_until

SETTINGS = (("MessageTimeout", "2"), ("TCPTimeout", "1"), ("SlurmdTimeout", "6"), ("MinJobAge", "20"))
NODES = 3
LEASE_S = 9
DISK_MB = 128
SAVES_KEPT = 3


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def pids_with(word: str) -> list[int]:
    """Processes with this word in their command line, never our own; sorted, so that a seed picks alike."""
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            if pid != os.getpid() and word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def end_processes(folder: Path) -> None:
    """What was started on this machine without Slurm: it has the folder in its command line."""
    left = [found for pid in pids_with(f"{folder}/") if (found := process.find_process(pid)) is not None]
    for found in left:
        process.send_signal(found, signal.SIGKILL)
    process.wait_gone(left, 10)


def remove_leftovers() -> None:
    """Sandboxes and mounts of a harness that was killed; their names have its pid."""
    for name in sandbox_names():
        session = re.fullmatch(r"t(\d+)-c\d+", name)
        if session and not os.path.exists(f"/proc/{session[1]}"):
            Sandbox(SandboxSpec(name=name)).down()
    for row in Path("/proc/mounts").read_text().splitlines():
        disk = Path(row.split()[1])
        session = re.match(r".*/chaos-(\d+)-\d+-[^/]*/w/disk\Z", str(disk))
        if session and not os.path.exists(f"/proc/{session[1]}"):
            end_processes(disk.parent)
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
            shutil.rmtree(disk.parent.parent, ignore_errors=True)


class Hit(NamedTuple):
    """A fault as it was carried out: its kind, when (seconds of uptime), until when, and on which processes."""

    kind: str
    at: float
    until: float
    pids: frozenset[int]


class World:
    """Everything that a seed needs and that must be gone after it: `with World(folder, name) as world`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.sandbox = Sandbox(SandboxSpec(name=name, nodes=NODES, gpus=0, settings=SETTINGS))
        self.disk = folder / "disk"
        self.clock = folder / "clock"
        self.clock_library = folder / "clock.so"
        self.saves: list[Path] = []
        self.frozen: list[process.SandboxProcess] = []
        self.commands: list[subprocess.Popen[Any]] = []
        self.injected: Counter[str] = Counter()
        self.hits: list[Hit] = []
        self.over = threading.Event()
        self.guard = threading.Lock()

    def __enter__(self) -> World:
        self.ledger = Ledger(self.folder / "ledger")
        self.disk.mkdir()
        self._mount()
        try:
            self.clock.write_text("0")
            compiler = shutil.which("tcc") or shutil.which("cc") or "cc"
            source = Path(__file__).with_name("clock.c")
            subprocess.run([compiler, "-shared", "-fPIC", "-o", self.clock_library, source], check=True)
            self.sandbox.up(deadline_s=120)
        except BaseException:
            self.close()
            raise
        return self

    def _mount(self) -> None:
        """A small ext4, on which a synced write takes its time; a tmpfs where there are no loop devices."""
        image = self.folder / "disk.img"
        with image.open("wb") as file:
            file.truncate(DISK_MB << 20)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
        on_loop = ["mount", "-o", "loop", str(image), str(self.disk)]
        if subprocess.run(on_loop, capture_output=True, check=False).returncode != 0:
            words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=700", "shoal-chaos", str(self.disk)]
            subprocess.run(words, check=True, capture_output=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process, by its id, then the sandbox and the mount."""
        self.over.set()
        self.thaw_all()
        for command in self.commands:
            if command.poll() is None:
                command.kill()
            command.wait()
        try:
            end_processes(self.folder)
            self.sandbox.down()
            self.ledger.end_all()
        finally:
            subprocess.run(["umount", "--lazy", str(self.disk)], check=True)

    def clock_env(self, file: Path | None = None) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.clock_library), "CHAOS_CLOCK": str(file or self.clock)}

    def hit(self, kind: str, pids: Iterable[int] = (), hold_s: float = 0.0) -> None:
        self.injected[kind] += 1
        self.hits.append(Hit(kind, uptime(), uptime() + hold_s, frozenset(pids)))

    def freeze(self, pids: list[int]) -> Callable[[], None]:
        frozen = [found for pid in pids if (found := process.find_process(pid)) is not None]
        self.frozen += frozen
        for found in frozen:
            process.send_signal(found, signal.SIGSTOP)
        return lambda: self.thaw(frozen)

    def thaw(self, frozen: list[process.SandboxProcess]) -> None:
        for found in frozen:
            process.send_signal(found, signal.SIGCONT)

    def thaw_all(self) -> None:
        self.thaw(self.frozen)
        self.frozen = []

    def keep_saves(self, chance: random.Random) -> None:
        """A thread: copies of the controller's state, to replay it from."""
        while not self.over.wait(chance.uniform(3, 7)):
            copy = self.folder / f"save-{len(self.saves)}"
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(self.sandbox.layout.save, copy)
                with self.guard:
                    self.saves.append(copy)

    def heal(self) -> None:
        """All daemons run, all nodes take jobs, the disk has room, the clock is right, nothing is frozen or held."""
        self.thaw_all()
        empty(self.disk)
        self.clock.write_text("0")
        for daemon in ("slurmctld", *self.sandbox.nodes):
            with contextlib.suppress(ShoalError):
                self.sandbox.thaw(daemon)
            with contextlib.suppress(ShoalError):  # it runs
                self.sandbox.start_daemon(daemon)
        wait_until(self.resume_nodes, 30, "all nodes take jobs", poll_s=1)

    def resume_nodes(self) -> bool:
        """As an administrator does: return nodes to service, release jobs that Slurm held after a failed launch."""
        rows = self.sandbox.run("sinfo", "-h", "-N", "-o", "%N|%t", check=False, timeout_s=20).stdout.split()
        bad = sorted({row.partition("|")[0] for row in rows if not row.endswith(("|idle", "|mix", "|alloc", "|comp"))})
        for node in bad:
            self.sandbox.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        for row in self.sandbox.run("squeue", "-h", "-t", "PD", "-o", "%A|%r", check=False).stdout.splitlines():
            job, _, reason = row.partition("|")
            if "held" in reason.lower():
                self.sandbox.run("scontrol", "release", job, check=False)
        return len(set(rows)) == NODES and not bad
