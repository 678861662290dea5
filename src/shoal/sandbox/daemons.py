"""The daemons of one sandbox: how each is started, when it is ready, which process it is; the sandbox's status."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from shoal.errors import ShoalError
from shoal.kernel import slurm
from shoal.sandbox import conf, hosts, machine, process
from shoal.sandbox.paths import SandboxPaths, SandboxState, SlurmRoot, write_atomically
from shoal.sandbox.process import MARK_VARIABLE, SandboxProcess

_TAIL_LINES = 12
_POLL_S = 0.05
_PORT_TAKEN = ("Address already in use", "Unable to bind")


class DaemonError(ShoalError):
    """A daemon ended or did not become ready; the message carries the end of its log."""


class PortTakenError(DaemonError):
    """Another program took the port between our look and the daemon's start."""


class DatabaseEndedError(DaemonError):
    """MariaDB ended while slurmdbd was starting, as was seen once on a busy machine."""


class Daemons:
    def __init__(self, state: SandboxState, layout: SandboxPaths) -> None:
        self.state = state
        self.layout = layout
        self.user = machine.user_name()

    @property
    def names(self) -> tuple[str, ...]:
        """All daemons, in the order in which they start."""
        database = ("mariadbd", "slurmdbd") if self.state.spec.accounting else ()
        return ("munged", *database, "slurmctld", *self.state.spec.node_names)

    def start(self, daemon: str, deadline_s: float) -> None:
        """Start a daemon and wait until it answers."""
        self.launch(daemon)
        self.wait_ready(daemon, deadline_s)

    def launch(self, daemon: str) -> None:
        """Start a daemon, record it, and do not wait; a second one is refused."""
        if self.find(daemon) is not None:
            raise ShoalError(f"{daemon} runs already")
        try:
            self._record(daemon, self._spawn(daemon))
        except process.ProcessExitedError:
            raise self.failure(daemon, "ended at once") from None

    def _spawn(self, daemon: str) -> SandboxProcess:
        argv, output = self._argv(daemon), self.layout.output(daemon)
        if self.state.spec.hosts and daemon in self.state.spec.node_names:
            outer = process.spawn(hosts.run_on_host_argv(self._holder(daemon), argv), env=self.env(), output=output)
            return hosts.find_child("slurmd", outer)
        return process.spawn(argv, env=self.env(), output=output)

    def wait_ready(self, daemon: str, deadline_s: float) -> None:
        self._wait(self._readiness(daemon), daemon, deadline_s, "did not answer")

    def wait_idle(self, deadline_s: float) -> None:
        """Wait until Slurm shows every node as idle."""
        self._wait(self._all_idle, "slurmctld", deadline_s, "did not see all nodes idle")

    def find(self, daemon: str) -> SandboxProcess | None:
        """The daemon's process if it lives."""
        try:
            known = msgspec.json.decode(self.layout.record(daemon).read_bytes(), type=SandboxProcess)
        except FileNotFoundError:
            return None
        return known if process.is_alive(known) else None

    def running(self, daemon: str) -> SandboxProcess:
        if daemon not in self.names:
            raise ShoalError(f"there is no daemon {daemon!r}", hint=f"the daemons are {', '.join(self.names)}")
        found = self.find(daemon)
        if found is None:
            raise ShoalError(f"{daemon} of sandbox {self.state.spec.name!r} does not run")
        return found

    def dead(self) -> list[str]:
        return [daemon for daemon in self.names if self.find(daemon) is None]

    def node_states(self) -> dict[str, str]:
        """Slurm's own word for each node, such as "idle" or "down*"; empty when the controller does not answer."""
        if not self._listens("slurmctld"):
            return {}  # sinfo would wait for it, for several seconds
        env = {**os.environ, **programs_first(self.state.slurm_root, os.environ), "SLURM_CONF": str(self.layout.conf)}
        done = slurm.run_command(["sinfo", "-h", "-N", "-o", "%N|%t"], 10.0, env)
        rows = [line.split("|") for line in done.stdout.splitlines()]
        return {row[0]: row[1].strip() for row in rows if len(row) == 2}

    def failure(self, daemon: str, problem: str) -> DaemonError:
        """The error for a daemon that did not do what it should, with the end of what it wrote."""
        tail = log_tail(self.layout.output(daemon))
        kind = PortTakenError if any(sign in tail for sign in _PORT_TAKEN) else DaemonError
        return kind(f"{daemon} of sandbox {self.state.spec.name!r} {problem}; it wrote last:\n{tail}")

    def make_host(self, number: int) -> None:
        """Make a node's namespaces; its slurmd is started inside later, and again after a crash."""
        holder = hosts.start_host(self.state, self.layout, number, self.env())
        self._record(f"{self.state.spec.node_names[number - 1]}@host", holder)

    def _holder(self, node: str) -> SandboxProcess:
        found = self.find(f"{node}@host")
        if found is None:
            raise ShoalError(f"the namespaces of {node} are gone")
        return found

    def _record(self, daemon: str, started: SandboxProcess) -> None:
        write_atomically(self.layout.record(daemon), msgspec.json.encode(started))

    def _argv(self, daemon: str) -> list[str]:
        layout = self.layout
        if daemon == "munged":
            # --force: munged dislikes that only we can enter the folder of its socket, which is what we want.
            files = {"key-file": layout.munge_key, "socket": layout.munge_socket, "pid-file": layout.run / "munged.pid"}
            files["seed-file"] = layout.run / "munge.seed"
            paths = [f"--{key}={path}" for key, path in files.items()]
            return [self.program("munged"), "--foreground", "--force", "--num-threads=4", *paths]
        if daemon == "mariadbd":
            return conf.mariadbd_argv(self.program("mariadbd"), self.state, layout, self.user)
        if daemon == "slurmdbd":
            return [self.program("slurmdbd"), "-D"]
        if daemon == "slurmctld":
            return [self.program("slurmctld"), "-D", "-f", str(layout.conf)]
        if daemon in self.state.spec.node_names:
            stepd = ["-d", self.program("slurmstepd")] if self.state.slurm_root is not None else []
            return [self.program("slurmd"), "-D", "-N", daemon, "-f", str(layout.conf), *stepd]
        raise ShoalError(f"there is no daemon {daemon!r}", hint=f"the daemons are {', '.join(self.names)}")

    def program(self, name: str) -> str:
        """Where one of Slurm's, munge's or MariaDB's programs is."""
        if self.state.slurm_root is not None:
            return str(self.state.slurm_root.programs / name)
        return machine.find_program(name) or name

    def env(self) -> dict[str, str]:
        """The environment of all that `up` starts; the mark lets `down` find it whatever happened in between."""
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "USER", "LANG", "TZ") if key in os.environ}
        return {
            **kept,
            **programs_first(self.state.slurm_root, kept),
            MARK_VARIABLE: self.state.mark,
            "SLURM_CONF": str(self.layout.conf),
            "MYSQL_UNIX_PORT": str(self.layout.database_socket),
        }

    def _readiness(self, daemon: str) -> Callable[[], bool]:
        if daemon == "munged":
            return lambda: _accepts_connections(self.layout.munge_socket)
        if daemon == "mariadbd":
            return lambda: _accepts_connections(self.layout.database_socket)
        return lambda: self._listens(daemon)

    def _listens(self, daemon: str) -> bool:
        nodes = dict(zip(self.state.spec.node_names, self.state.ports.slurmd, strict=True))
        ports = {"slurmctld": self.state.ports.slurmctld, "slurmdbd": self.state.ports.slurmdbd, **nodes}
        found = self.find(daemon)
        return found is not None and process.listens(found, ports[daemon])

    def _all_idle(self) -> bool:
        for node in self.state.spec.node_names:
            if self.find(node) is None:
                raise self.failure(node, "ended")
        states = self.node_states()
        return len(states) == self.state.spec.nodes and set(states.values()) == {"idle"}

    def _wait(self, condition: Callable[[], bool], daemon: str, deadline_s: float, problem: str) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            if daemon == "slurmdbd" and self.find("mariadbd") is None:
                raise DatabaseEndedError(str(self.failure("mariadbd", "ended")))
            if self.find(daemon) is None:
                raise self.failure(daemon, "ended")
            if time.monotonic() > end:
                raise self.failure(daemon, f"{problem} within {deadline_s:.0f} s")
            time.sleep(_POLL_S)


def log_tail(path: Path) -> str:
    """The last lines of a log, without the complaints that every sandbox has and that mean nothing."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return "  (nothing)"
    telling = [line for line in lines if "pmix" not in line.lower() and "MPI:" not in line]
    return "\n".join(f"  {line}" for line in telling[-_TAIL_LINES:]) or "  (nothing)"


def programs_first(root: SlurmRoot | None, environ: Mapping[str, str]) -> dict[str, str]:
    """PATH with the programs of a built Slurm in front; nothing where the installed one is used."""
    if root is None:
        return {}
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    return {"PATH": os.pathsep.join([str(root.programs), *(f for f in folders if f != str(root.programs))])}


def _accepts_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


class DaemonStatus(msgspec.Struct, frozen=True):
    name: str
    state: str  # running, frozen or dead
    pid: int | None


class NodeStatus(msgspec.Struct, frozen=True):
    name: str
    state: str  # Slurm's word; "unknown" when the controller does not answer


class SandboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is up, degraded (a daemon is dead or frozen), half-started (run down, or up again) or dead."""

    name: str
    state: str
    folder: str
    slurm_conf: str
    slurm_version: str
    programs: str | None  # where this Slurm's commands are, if it is not the installed one
    partitions: list[str]
    gpus_per_node: int
    gpu_type: str
    accounting: bool
    hosts: bool
    cgroups: bool
    daemons: list[DaemonStatus]
    nodes: list[NodeStatus]


def sandbox_status(state: SandboxState, layout: SandboxPaths) -> SandboxStatus:
    """Look at every process and ask Slurm about every node; takes at most the ten seconds that sinfo is given."""
    daemons = Daemons(state, layout)
    found = [_daemon_status(daemons, name) for name in daemons.names]
    frozen = any(daemon.name == "slurmctld" and daemon.state == "frozen" for daemon in found)
    known = {} if frozen else daemons.node_states()
    spec = state.spec
    return SandboxStatus(
        name=spec.name,
        state=_overall_state(state, found),
        folder=str(layout.folder),
        slurm_conf=str(layout.conf),
        slurm_version=state.slurm_version,
        programs=str(state.slurm_root.programs) if state.slurm_root is not None else None,
        partitions=[partition.name for partition in spec.partitions],
        gpus_per_node=spec.gpus,
        gpu_type=spec.gpu_type,
        accounting=spec.accounting,
        hosts=spec.hosts,
        cgroups=state.cgroups,
        daemons=found,
        nodes=[NodeStatus(node, known.get(node, "unknown")) for node in spec.node_names],
    )


def _daemon_status(daemons: Daemons, name: str) -> DaemonStatus:
    found = daemons.find(name)
    if found is None:
        return DaemonStatus(name, "dead", None)
    return DaemonStatus(name, "frozen" if process.is_frozen(found) else "running", found.pid)


def _overall_state(state: SandboxState, daemons: list[DaemonStatus]) -> str:
    states = {daemon.state for daemon in daemons}
    if not state.is_up:
        return "half-started"
    if states == {"dead"}:
        return "dead"
    return "up" if states == {"running"} else "degraded"
