"""How each fault is done. A function returns what undoes it, or None; a fault that finds no victim is not counted."""

from __future__ import annotations

import contextlib
import heapq
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from chaos.launchers import Launcher
from chaos.plan import FREEZES, Fault
from chaos.world import World, pids_with
from disks import fill
from shoal.errors import ShoalError
from shoal.sandbox import process

MAX_OVERTIME_S = 12.0
Undo = Callable[[], None]


class NoVictimError(Exception):
    """Nothing is there to be hit: no job runs, the daemon is down already."""


def inject_all(world: World, launcher: Launcher, faults: list[Fault], duration_s: float) -> None:
    """Carry out the plan; each fault is undone when its time is over, or by the healing soon after the duration."""
    began = time.monotonic()
    undos: list[tuple[float, int, Undo]] = []
    waiting = list(faults)
    while waiting or undos:
        now = time.monotonic() - began
        if undos and undos[0][0] <= now:
            _, _, undo = heapq.heappop(undos)
            with contextlib.suppress(ShoalError, OSError):
                undo()
        elif waiting and waiting[0].at_s <= now:
            fault = waiting.pop(0)
            healing = inject(world, launcher, fault)
            if healing is not None:
                heapq.heappush(undos, (now + fault.hold_s, len(waiting), healing))
        elif now > duration_s + MAX_OVERTIME_S:
            return
        else:
            world.over.wait(0.05)


def inject(world: World, launcher: Launcher, fault: Fault) -> Undo | None:
    """Do it and return what undoes it, if anything does."""
    try:
        undo = FUNCTIONS[fault.kind](world, launcher, fault)
    except (NoVictimError, ShoalError, OSError, subprocess.TimeoutExpired):
        return None
    if fault.kind not in WITH_VICTIMS:
        world.hit(fault.kind, hold_s=fault.hold_s)
    return undo


def _freeze_controller(world: World, _: Launcher, __: Fault) -> Undo:
    world.sandbox.freeze("slurmctld")
    return lambda: world.sandbox.thaw("slurmctld")


def _kill_controller(world: World, _: Launcher, __: Fault) -> Undo:
    world.sandbox.kill("slurmctld")
    return lambda: world.sandbox.start_daemon("slurmctld")


def _replay_controller(world: World, _: Launcher, fault: Fault) -> Undo:
    with world.guard:
        if not world.saves:
            raise NoVictimError
        save = world.saves[-1 - fault.pick % min(3, len(world.saves))]
        world.sandbox.kill("slurmctld")
        shutil.rmtree(world.sandbox.layout.save)
        shutil.copytree(save, world.sandbox.layout.save)
    return lambda: world.sandbox.start_daemon("slurmctld")


def _kill_slurmd(world: World, _: Launcher, fault: Fault) -> Undo:
    node = _node(world, fault)
    world.sandbox.kill(node)
    return lambda: world.sandbox.start_daemon(node)


def _freeze_slurmd(world: World, _: Launcher, fault: Fault) -> Undo:
    node = _node(world, fault)
    world.sandbox.freeze(node)
    return lambda: world.sandbox.thaw(node)


def _power_cut(world: World, _: Launcher, fault: Fault) -> Undo:
    node = _node(world, fault)
    with contextlib.suppress(ShoalError):  # its slurmd may be dead already
        world.sandbox.kill(node)
    steps = process.slurmstepd_processes(world.sandbox.layout.log(node))
    for step in steps:
        process.send_signal(step, signal.SIGKILL)
    world.hit(fault.kind, [step.pid for step in steps])
    return lambda: world.sandbox.start_daemon(node)


def _node(world: World, fault: Fault) -> str:
    """A node on which something runs, by its processes: the controller may not be there to ask."""
    nodes = [node for node in world.sandbox.nodes if process.slurmstepd_processes(world.sandbox.layout.log(node))]
    if not nodes:
        raise NoVictimError
    return nodes[fault.pick % len(nodes)]


def _pair(world: World, launcher: Launcher, fault: Fault) -> tuple[int, int]:
    """An execution's outer process and the one below it: guard and agent."""
    parents = _parents()
    pids = [pid for pid in pids_with(launcher.agent_word) if pid in parents]
    outer = [pid for pid in pids if parents[pid] not in pids]
    if not outer:
        raise NoVictimError
    guard = outer[fault.pick % len(outer)]
    return guard, next((pid for pid in pids if parents[pid] == guard), guard)


def _kill(world: World, fault: Fault, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    world.hit(fault.kind, [pid])


def _freeze(world: World, fault: Fault, pids: list[int]) -> Undo:
    world.hit(fault.kind, pids, fault.hold_s)
    return world.freeze(pids)


def _kill_agent(world: World, launcher: Launcher, fault: Fault) -> None:
    _kill(world, fault, _pair(world, launcher, fault)[1])


def _kill_guard(world: World, launcher: Launcher, fault: Fault) -> None:
    _kill(world, fault, _pair(world, launcher, fault)[0])


def _freeze_agent(world: World, launcher: Launcher, fault: Fault) -> Undo:
    return _freeze(world, fault, [_pair(world, launcher, fault)[1]])


def _freeze_guard(world: World, launcher: Launcher, fault: Fault) -> Undo:
    return _freeze(world, fault, [_pair(world, launcher, fault)[0]])


def _freeze_all(world: World, launcher: Launcher, fault: Fault) -> Undo:
    """A suspended job, a closed laptop: guard, agent and program stand still together."""
    guard, _ = _pair(world, launcher, fault)
    parents, family = _parents(), [guard]
    for pid in family:
        family += [child for child, parent in parents.items() if parent == pid]
    return _freeze(world, fault, family)


def _full_disk(world: World, _: Launcher, __: Fault) -> Undo:
    fill(world.disk)
    return lambda: (world.disk / "ballast").unlink(missing_ok=True)


def _requeue(world: World, _: Launcher, fault: Fault) -> None:
    world.sandbox.run("scontrol", "requeue", _job(world, fault), timeout_s=4)


def _foreign_scancel(world: World, _: Launcher, fault: Fault) -> None:
    world.sandbox.run("scancel", _job(world, fault), timeout_s=4)


def _job(world: World, fault: Fault) -> str:
    answer = world.sandbox.run("squeue", "-h", "-r", "-t", "R", "-o", "%i", check=False, timeout_s=3)
    jobs = answer.stdout.split()
    if not jobs:
        raise NoVictimError
    return jobs[fault.pick % len(jobs)]


def _clock_jump(world: World, _: Launcher, fault: Fault) -> None:
    world.clock.write_text(str(fault.pick % 7200 - 3600))


def _parents() -> dict[int, int]:
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            found[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    return {pid: parent for pid, parent in found.items() if process.find_process(pid) is not None}


#: These note their victims themselves.
WITH_VICTIMS = ("power cut", "kill agent", "kill guard", *FREEZES)
FUNCTIONS: dict[str, Callable[[World, Launcher, Fault], Undo | None]] = {
    "freeze controller": _freeze_controller,
    "kill controller": _kill_controller,
    "replay controller": _replay_controller,
    "kill agent": _kill_agent,
    "kill guard": _kill_guard,
    "freeze agent": _freeze_agent,
    "freeze guard": _freeze_guard,
    "freeze all of a run": _freeze_all,
    "kill slurmd": _kill_slurmd,
    "freeze slurmd": _freeze_slurmd,
    "power cut": _power_cut,
    "full disk": _full_disk,
    "requeue": _requeue,
    "foreign scancel": _foreign_scancel,
    "clock jump": _clock_jump,
}
