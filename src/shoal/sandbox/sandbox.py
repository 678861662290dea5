"""A sandbox as an object: start it, use it, stop it, and cause failures on purpose.

`with Sandbox(SandboxSpec(name="mine")) as sandbox: sandbox.run("srun", "-N2", "hostname")`
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from shoal.errors import ShoalError
from shoal.sandbox import hosts, machine, process
from shoal.sandbox.daemons import (
    Daemons,
    DatabaseEndedError,
    PortTakenError,
    SandboxStatus,
    programs_first,
    sandbox_status,
)
from shoal.sandbox.paths import (
    SandboxPaths,
    SandboxState,
    SlurmRoot,
    check_home,
    default_home,
    directory_lock,
    open_home,
)
from shoal.sandbox.process import SandboxProcess
from shoal.sandbox.slurm_root import ensure_slurm_root, find_slurm_root
from shoal.sandbox.spec import SandboxSpec
from shoal.sandbox.start import start_sandbox

_MAX_START_ATTEMPTS = 3
_FREEZE_DEADLINE_S = 5.0
_SLURM_VARIABLE_PREFIXES = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_")


_DEADLINE_S = 20.0


class Sandbox:
    """A real Slurm cluster of this user on this machine.

    Daemons are named "munged", "slurmctld", "slurmdbd", "mariadbd", and a node's slurmd by the node's name. `home` is
    the folder of all sandboxes (default: $SHOAL_SANDBOX_HOME, or one in the user's runtime folder).
    """

    def __init__(self, spec: SandboxSpec, *, home: Path | None = None) -> None:
        self.spec = spec
        self.layout = SandboxPaths(home or default_home(), spec.name)

    def __enter__(self) -> Sandbox:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def folder(self) -> Path:
        return self.layout.folder

    @property
    def conf_path(self) -> Path:
        return self.layout.conf

    @property
    def programs(self) -> str | None:
        """The folder of this Slurm's commands, for the front of PATH; None: the installed ones are used."""
        root = find_slurm_root(self.spec.slurm) if self.spec.slurm else None
        return str(root.programs) if root is not None else None

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.spec.node_names

    def up(self, *, deadline_s: float = 60.0, tell: Callable[[str], None] = lambda line: None) -> bool:
        """Start the cluster and wait until every node is idle; False when it was up already.

        After any error nothing of it is left. What an earlier, killed `up` left is cleaned first. A sandbox of the
        same name and another shape is refused, not replaced. A release of Slurm that is not built yet is built first,
        outside of the deadline; `tell` gets a line about it.
        """
        machine.check_programs(self.spec)
        machine.check_rights(self.spec)
        self.layout.check_length(self.nodes)
        root = ensure_slurm_root(self.spec.slurm, tell) if self.spec.slurm else None
        open_home(self.layout.home)
        try:
            with directory_lock(self.folder):
                if self._is_up_already():
                    return False
                stop_sandbox(self.layout, keep_folder=True)
                self._bring_up(root, deadline_s)
        finally:
            self._remove_empty_home()
        return True

    def down(self) -> bool:
        """Stop all that `up` started and remove its folder; False when there was nothing. Safe to repeat."""
        check_home(self.layout.home)
        if not self.folder.exists():
            return False
        with directory_lock(self.folder):
            stop_sandbox(self.layout)
        self._remove_empty_home()
        return True

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """`base` (default: this process's environment) made to speak to this cluster, without Slurm's own leftovers."""
        source = os.environ if base is None else base
        kept = {key: value for key, value in source.items() if not key.startswith(_SLURM_VARIABLE_PREFIXES)}
        root = find_slurm_root(self.spec.slurm) if self.spec.slurm else None
        return {**kept, **programs_first(root, kept), "SLURM_CONF": str(self.conf_path)}

    def run(
        self, *argv: str, check: bool = True, timeout_s: float = 60.0, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a client command against the cluster; with `check` a bad exit code is an error with its stderr."""
        done = subprocess.run(argv, env=self.env(), cwd=cwd, capture_output=True, text=True, timeout=timeout_s)
        if check and done.returncode != 0:
            raise ShoalError(f"{' '.join(argv)} ended with code {done.returncode}: {done.stderr.strip()}")
        return done

    def status(self) -> SandboxStatus:
        """Every daemon and node as it is now."""
        return sandbox_status(self._state(), self.layout)

    def wait_idle(self, deadline_s: float = 60.0) -> None:
        """Wait until every node is idle."""
        self._daemons().wait_idle(deadline_s)

    def pid(self, daemon: str) -> int:
        """The pid of a daemon that runs now."""
        return self._process(daemon).pid

    def stop_daemon(self, daemon: str, deadline_s: float = 20.0) -> None:
        """End a daemon as an administrator would, with SIGTERM; jobs of a node go on without its slurmd."""
        self._end(daemon, signal.SIGTERM, deadline_s)

    def start_daemon(self, daemon: str, deadline_s: float = 20.0) -> None:
        """Start a daemon again with the state it left behind, and wait until it answers."""
        self._daemons().start(daemon, deadline_s)

    def kill(self, daemon: str, *, with_steps: bool = False, deadline_s: float = 20.0) -> None:
        """SIGKILL a daemon; `with_steps` kills a node's running steps as well, as a power cut would."""
        self._end(daemon, signal.SIGKILL, deadline_s)
        if with_steps:
            steps = process.slurmstepd_processes(self.layout.log(daemon))
            for step in steps:
                process.send_signal(step, signal.SIGKILL)
            process.wait_gone(steps, deadline_s)

    def freeze(self, daemon: str) -> None:
        """SIGSTOP: the daemon is there and does not answer."""
        frozen = self._process(daemon)
        process.send_signal(frozen, signal.SIGSTOP)
        process.wait_frozen(frozen, _FREEZE_DEADLINE_S)

    def thaw(self, daemon: str) -> None:
        process.send_signal(self._process(daemon), signal.SIGCONT)

    def _end(self, daemon: str, number: signal.Signals, deadline_s: float) -> None:
        running = self._process(daemon)
        process.send_signal(running, number)
        if process.wait_gone([running], deadline_s):
            raise ShoalError(f"{daemon} of sandbox {self.spec.name!r} did not end within {deadline_s:.0f} s")

    def _process(self, daemon: str) -> SandboxProcess:
        return self._daemons().running(daemon)

    def _daemons(self) -> Daemons:
        return Daemons(self._state(), self.layout)

    def _state(self) -> SandboxState:
        state = self.layout.load()
        if state is None:
            raise ShoalError(
                f"there is no sandbox {self.spec.name!r}", hint=f"shoal sandbox up --name {self.spec.name}"
            )
        return state

    def _is_up_already(self) -> bool:
        state = self.layout.load()
        if state is None or not state.is_up:
            return False
        dead = Daemons(state, self.layout).dead()
        if len(dead) == len(Daemons(state, self.layout).names):
            return False  # the machine was restarted, or all were killed: nothing to keep
        if state.spec == self.spec and not dead:
            return True
        problem = f"without {', '.join(dead)}" if dead else "with another shape"
        raise ShoalError(
            f"sandbox {self.spec.name!r} is up already, {problem}",
            hint=f"shoal sandbox down --name {self.spec.name}",
        )

    def _remove_empty_home(self) -> None:
        with contextlib.suppress(OSError):
            self.layout.home.rmdir()  # refused by the kernel while another sandbox is in it

    def _bring_up(self, root: SlurmRoot | None, deadline_s: float) -> None:
        for attempt in range(1, _MAX_START_ATTEMPTS + 1):
            try:
                start_sandbox(self.spec, root, self.layout, deadline_s)
                return
            except (PortTakenError, DatabaseEndedError):
                stop_sandbox(self.layout, keep_folder=attempt < _MAX_START_ATTEMPTS)
                if attempt == _MAX_START_ATTEMPTS:
                    raise
            except BaseException:
                stop_sandbox(self.layout)
                raise


def load_sandbox(name: str, *, home: Path | None = None) -> Sandbox | None:
    """The sandbox of this name as it was started, or None."""
    check_home(home or default_home())
    state = SandboxPaths(home or default_home(), name).load()
    return Sandbox(state.spec, home=home) if state else None


def sandbox_names(home: Path | None = None) -> list[str]:
    """Names of all sandboxes of this user, half-started ones included."""
    folder = home or default_home()
    check_home(folder)
    entries = folder.iterdir() if folder.is_dir() else []
    return sorted(entry.name for entry in entries if SandboxPaths(folder, entry.name).is_ours())


def stop_sandbox(layout: SandboxPaths, *, keep_folder: bool = False) -> None:
    """Undo everything that the record speaks of; `keep_folder` leaves an empty folder to start again in.

    The folder goes last because it holds the record that names all the rest: a `down` that is killed can be repeated.
    """
    if not layout.is_ours():
        raise ShoalError(f"{layout.folder} is not the folder of a sandbox", hint="take another --name")
    state = layout.load()
    if state is not None:
        _end_processes(state, layout)
        if state.subnet is not None:
            hosts.remove_bridge(state)
        if state.cgroups:
            _remove_cgroups(state)
    for entry in list(layout.folder.iterdir()):
        if entry != layout.state:
            _remove_tree(entry)
    layout.state.unlink(missing_ok=True)
    if not keep_folder:
        layout.folder.rmdir()


def _end_processes(state: SandboxState, layout: SandboxPaths) -> None:
    """SIGKILL until none is left: while daemons and jobs die they may still start others."""
    end = time.monotonic() + _DEADLINE_S
    while left := _all_processes(state, layout):
        for found in left:
            process.send_signal(found, signal.SIGKILL)
        stubborn = process.wait_gone(left, 2.0)
        if time.monotonic() > end:
            pids = ", ".join(str(found.pid) for found in stubborn)
            raise ShoalError(
                f"processes of sandbox {state.spec.name!r} do not end: {pids}",
                hint=f"shoal sandbox down --name {state.spec.name}",
            )


def _all_processes(state: SandboxState, layout: SandboxPaths) -> list[SandboxProcess]:
    found = process.sandbox_processes(state.mark, layout.folder, layout.conf)
    if state.cgroups:
        pids = [pid for cgroup in machine.cgroups_of(state.spec.node_names) for pid in machine.pids_in(cgroup)]
        found += [known for pid in pids if (known := process.find_process(pid)) is not None and known not in found]
    return found


def _remove_cgroups(state: SandboxState) -> None:
    """Remove the nodes' cgroups; the kernel may need a moment to let go of the last process."""
    end = time.monotonic() + _DEADLINE_S
    while folders := machine.cgroups_of(state.spec.node_names):
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if time.monotonic() > end:
            raise ShoalError(f"the cgroup {folders[-1]} cannot be removed", hint=f"rmdir {folders[-1]}")
        time.sleep(0.02)


def _remove_tree(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
