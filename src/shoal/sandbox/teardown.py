"""Taking a sandbox apart, whole or half-started: processes first, then network and cgroups, the folder last.

The folder goes last because it holds the record that names all the rest: a `down` that is killed can be repeated.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from pathlib import Path

from shoal.errors import ShoalError
from shoal.sandbox import hosts, machine, process
from shoal.sandbox.layout import Layout, SandboxState
from shoal.sandbox.process import Process

_DEADLINE_S = 20.0


def tear_down(layout: Layout, *, keep_folder: bool = False) -> None:
    """Undo everything that the record speaks of; `keep_folder` leaves an empty folder to start again in."""
    if not layout.is_ours():
        raise ShoalError(f"{layout.folder} is not the folder of a sandbox", hint="take another --name")
    state = layout.load()
    if state is not None:
        _end_processes(state, layout)
        if state.subnet is not None:
            hosts.remove(state)
        if state.cgroups:
            _remove_cgroups(state)
    for entry in list(layout.folder.iterdir()):
        if entry != layout.state:
            _remove(entry)
    layout.state.unlink(missing_ok=True)
    if not keep_folder:
        layout.folder.rmdir()


def _end_processes(state: SandboxState, layout: Layout) -> None:
    """SIGKILL until none is left: while daemons and jobs die they may still start others."""
    end = time.monotonic() + _DEADLINE_S
    while left := _all_processes(state, layout):
        for found in left:
            process.send(found, signal.SIGKILL)
        stubborn = process.wait_gone(left, 2.0)
        if time.monotonic() > end:
            pids = ", ".join(str(found.pid) for found in stubborn)
            raise ShoalError(
                f"processes of sandbox {state.spec.name!r} do not end: {pids}",
                hint=f"shoal sandbox down --name {state.spec.name}",
            )


def _all_processes(state: SandboxState, layout: Layout) -> list[Process]:
    found = process.of_sandbox(state.mark, layout.folder, layout.conf)
    if state.cgroups:
        pids = [pid for cgroup in machine.cgroups_of(state.spec.node_names) for pid in machine.pids_in(cgroup)]
        found += [known for pid in pids if (known := process.find(pid)) is not None and known not in found]
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


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
