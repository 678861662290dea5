"""One node of a rank group: start the launcher of its ranks, forward signals to the ranks, leave no process behind.

On Slurm this is the step's task on that node; on one machine it runs inside the launcher itself.
"""

import glob
import json
import os
import signal
import socket
import subprocess
import threading
import time
from typing import Any, Callable, List, Mapping, Optional, Set

from ...kernel import processes
from .. import allocation, usage, usage_readers
from . import launcher_args
from .rank import EXIT_BAD_GEOMETRY
from .rank_group import RankGroup, load_group, write_json

_MAX_RENDEZVOUS_S = 120.0


def main(argv: List[str]) -> int:
    group = load_group(argv[0])
    number = int(os.environ.get("SLURM_NODEID") or 0) if group.slurm else 0
    return NodeLauncher(group, number).run(os.environ)


class NodeLauncher:
    """torchrun (or a launcher like it) on one node, and the way to its ranks."""

    def __init__(self, group: RankGroup, number: int) -> None:
        self.group = group
        self.number = number
        self.stopping: Optional[int] = None
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._signalled: Set[int] = set()
        self._mark: Any = None

    def run(self, environ: Mapping[str, str], look: Callable[[], None] = lambda: None) -> int:
        """The launcher's exit code, or that of the signal which ended it before any rank had begun."""
        processes.become_subreaper()
        inbox = processes.SignalQueue()
        env = self.environment(environ)
        problem = allocation.check_interfaces(env) or self.group.absent()
        if problem is not None:
            processes.log_message(problem)
            return EXIT_BAD_GEOMETRY
        if self.group.slurm:
            self._note_step(environ)
        address = self._local_address()
        if self.group.port < 0:
            self._agree_on_rendezvous(address or socket.gethostname())
        argv = launcher_args.launcher_argv(self.group, self.number, address)
        try:
            self._child = subprocess.Popen(
                argv,
                env=env,
                cwd=self.group.cwd,
                start_new_session=True,
                preexec_fn=processes.make_preexec(block_signals=True),
            )
        except OSError as error:
            processes.log_message("cannot start %s: %s" % (argv[0], error.strerror))
            return 127 if isinstance(error, FileNotFoundError) else 126

        def look_around() -> None:
            look()
            if self.stopping is not None:
                self._signal_ranks(self.stopping)  # also those that torchrun has started again meanwhile

        over = self._sample(env)
        code = processes.wait_for_child(self._child, inbox, self.signal, look_around)
        over.set()
        processes.kill_descendants()
        return 128 + self.stopping if code == -signal.SIGKILL and self.stopping else processes.shell_exit_code(code)

    def environment(self, environ: Mapping[str, str]) -> "dict[str, str]":
        """What torchrun and its ranks inherit: threads by the CPUs that each rank has, and the interface by name."""
        env = dict(environ, **self.group.env)
        if not env.get("OMP_NUM_THREADS"):
            here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            env["OMP_NUM_THREADS"] = str(max(1, min(here, self.group.cpus or here) // self.group.processes))
        if self.group.mode == "accelerate" and not self.group.gpus:
            env.setdefault("ACCELERATE_USE_CPU", "true")
        if self.group.mode == "deepspeed" and env.get("CUDA_VISIBLE_DEVICES"):
            env["SHOAL_DEVICES"] = env["CUDA_VISIBLE_DEVICES"]
        if self.group.interface:
            for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
                env.setdefault(name, self.group.interface)
        return env

    def _sample(self, env: "dict[str, str]") -> threading.Event:
        """On a further node of the job nobody else looks at what is used."""
        over = threading.Event()
        path = self.group.use_file(env.get("SLURMD_NODENAME", ""))
        if path is not None and self._child is not None:
            pid = self._child.pid
            look = lambda: usage_readers.process_use(pid, env)  # noqa: E731
            threading.Thread(target=usage.sample_until, args=(path, env, look, over), daemon=True).start()
        return over

    def signal(self, number: int) -> None:
        """Hand a signal to every rank of this node. Before there is one, a stop signal ends the launcher itself."""
        if number not in processes.STOP_SIGNALS:
            self._signalled.clear()
            self._signal_ranks(number)
            return
        self.stopping = number
        self._signalled.clear()
        if not self._signal_ranks(number) and self._child is not None:
            self._child.kill()

    def _signal_ranks(self, number: int) -> int:
        """Signal the ranks of this node that have not had it yet; how many ranks there are."""
        ranks = self._ranks()
        for pid in ranks:
            if pid not in self._signalled:
                self._signalled.add(pid)
                try:
                    os.kill(pid, number)
                except (ProcessLookupError, PermissionError):
                    pass
        return len(ranks)

    def _ranks(self) -> List[int]:
        """Pids of this node's ranks, as they noted them, unless the note is older than we are."""
        found = []
        for path in glob.glob(glob.escape(self.group.log) + "rank-*.json"):
            record = _read_json(path)
            if record.get("host") == socket.gethostname() and record.get("pid"):
                pid = int(record["pid"])
                if _is_descendant(pid):
                    found.append(pid)
        return found

    def _local_address(self) -> Optional[str]:
        """This node's address as the job's other nodes see it; None where there are none."""
        if self.group.interface:
            return allocation.interface_address(self.group.interface)
        own = socket.gethostname().partition(".")[0]
        others = [peer for peer in self.group.peers if peer.partition(".")[0] != own]
        return allocation.reachable_address(others, None) if others else None

    def _agree_on_rendezvous(self, address: str) -> None:
        """Agree on a rendezvous: the group's first node reserves a port and writes it down, the others read it."""
        path = self.group.log + "meet.json"
        if self.number == 0:
            port, self._mark = allocation.reserve_port(int(self.group.id.partition("-")[0]))
            write_json(path, {"address": address, "port": port})
        deadline = time.monotonic() + _MAX_RENDEZVOUS_S
        # A listing, because a file server's client may deny a new name for half a minute when asked for it alone.
        while os.path.basename(path) not in os.listdir(os.path.dirname(path)):
            if time.monotonic() > deadline:
                raise TimeoutError("the first node of %s did not say where to meet" % self.group.id)
            time.sleep(0.05)
        record = _read_json(path)
        self.group = self.group._replace(address=record["address"], port=record["port"])

    def _note_step(self, environ: Mapping[str, str]) -> None:
        """The step's number, by which the supervisor can end it."""
        record = {"step": environ.get("SLURM_STEP_ID"), "host": socket.gethostname(), "pid": os.getpid()}
        write_json("%snode-%d.json" % (self.group.log, self.number), record)


def _is_descendant(pid: int) -> bool:
    """Whether that process descends from this one: a pid alone may be somebody else's by now."""
    me, seen = os.getpid(), 0
    while pid > 1 and seen < 8:
        if pid == me:
            return True
        try:
            with open("/proc/%d/stat" % pid, "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            return False
        seen += 1
    return pid == me


def _read_json(path: str) -> "dict[str, Any]":
    try:
        with open(path) as file:
            record = json.load(file)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
