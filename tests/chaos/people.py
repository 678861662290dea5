"""Several people at once: each gives one command after another, and some of the commands are killed or frozen."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
import time
from typing import NamedTuple

from chaos.launchers import RUNS, Launcher, Said
from chaos.plan import Command
from chaos.world import World, uptime

#: Longer than any command needs that waits for a frozen controller; a run on this machine is part of its command.
PATIENCE_S = 90.0
WATCH_EVERY_S = 1.0


class Look(NamedTuple):
    """What a status command said, and between which times (seconds of uptime) it looked."""

    began: float
    ended: float
    said: dict[str, Said]


class People:
    def __init__(self, world: World, launcher: Launcher) -> None:
        self.world = world
        self.launcher = launcher
        self.looks: list[Look] = []
        self.crashes: list[str] = []

    def begin(self) -> None:
        """A thread: everything is submitted once, before the first fault if the machine is fast enough."""
        for argv in self.launcher.submit_argv(RUNS):
            self.command(argv)

    def give(self, orders: list[Command]) -> None:
        """A thread: orders until the world is over."""
        for order in orders:
            if self.world.over.wait(order.pause_s):
                return
            self.command(self.launcher.argv(order.kind, order.pick), order)

    def watch(self) -> None:
        """A thread: look at the states all the time."""
        while not self.world.over.wait(WATCH_EVERY_S):
            self.look()

    def look(self) -> dict[str, Said] | None:
        began = uptime()
        code, out = self.command(self.launcher.argv("status", 0))
        if code != 0:
            return None
        with contextlib.suppress(json.JSONDecodeError, KeyError):
            said = self.launcher.parse_status(out)
            self.looks.append(Look(began, uptime(), said))
            return said
        return None

    def command(self, argv: list[str], order: Command | None = None) -> tuple[int, str]:
        """Run one command to its end, hurt it on the way if the order says so; its exit code and output."""
        harm = order.harm if order else ""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            command = subprocess.Popen(
                argv,
                cwd=self.launcher.root,
                env={**self.launcher.env, **self._clock(harm, order)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
            self.world.commands.append(command)
            if order and harm in ("kill command", "freeze command"):
                self._hurt(command, order)
            elif harm:
                self.world.injected[harm] += 1
            self._wait(command)
            self.world.commands.remove(command)
            out.seek(0)
            err.seek(0)
            told = err.read()
            if "Traceback" in told or "shoal broke" in told:
                self.crashes.append(f"{' '.join(argv[1:3])}: {told.strip().splitlines()[-1]}")
            return command.returncode, out.read()

    def _clock(self, harm: str, order: Command | None) -> dict[str, str]:
        if order is None or harm != "clock of command":
            return {}
        clock = self.world.folder / f"clock-{order.pick}"
        clock.write_text(str(order.pick % 7200 - 3600))
        return self.world.clock_env(clock)

    def _hurt(self, command: subprocess.Popen[bytes], order: Command) -> None:
        try:
            command.wait(order.harm_after_s)
            return  # it was faster
        except subprocess.TimeoutExpired:
            self.world.injected[order.harm] += 1
        if order.harm == "kill command":
            command.kill()
            return
        command.send_signal(signal.SIGSTOP)
        self.world.over.wait(order.harm_for_s)
        command.send_signal(signal.SIGCONT)

    def _wait(self, command: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + PATIENCE_S
        while command.poll() is None:
            if time.monotonic() > end:
                command.kill()
                self.crashes.append(f"no end after {PATIENCE_S:g} s: {command.args!r}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(0.5)
