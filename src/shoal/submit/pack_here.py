"""A pack on this machine: the engine is a process of ours, and whatever it leaves behind when it is killed is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from shoal.agent.launch import family
from shoal.agent.pack.node import CLAIMED
from shoal.config.project import Project
from shoal.kernel import files, tree


class EngineHere:
    """An engine that begins as soon as the queue can be read, while its runs are still being claimed; `wait` returns
    its exit code.

    Ctrl-C reaches the engine from the terminal; SIGTERM and SIGHUP are passed on; if this command is killed the engine
    hears of it and stops. If the engine is killed, its runs' processes come to us and are killed too.
    """

    def __init__(self, project: Project, environ: Mapping[str, str], *, follow: bool) -> None:
        self._project, self._environ, self._follow = project, environ, follow
        self._engine: subprocess.Popen[bytes] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._folder = ""

    def begin(self, token: str, folder: str) -> None:
        tree.become_subreaper()
        own = {"SHOAL_TOKEN": token, "SHOAL_FOLLOW": "1" if self._follow else "0", "SHOAL_CLAIMING": "1"}
        env = {**self._environ, **own, "SHOAL_PARENT": str(os.getpid())}
        self._folder = folder
        argv = ["bash", os.path.join(folder, "script.sh")]
        files.refuse_foreign(argv[1])
        engine = subprocess.Popen(argv, env=env, cwd=self._project.root, stdout=sys.stderr)
        self._before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, lambda number, _: engine.send_signal(number))
        self._engine = engine

    def wait(self) -> int:
        """Every run is claimed by now, or somebody else's."""
        if self._engine is None:
            return 0
        files.create_exclusive(os.path.join(self._folder, CLAIMED), b"", sync=False)
        code = self._engine.wait()
        tree.kill_below()
        return family.exit_code(code)

    def __enter__(self) -> EngineHere:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is not None and self._engine is not None and self._engine.poll() is None:
            self._engine.terminate()
            self._engine.wait()
            tree.kill_below()
        for number, handler in self._before.items():
            signal.signal(number, handler)
