"""This machine as an allocation: a run, or the engine of a pack, is a process that executes the same script."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from shoal.describe import Project
from shoal.job import CLAIMED_FILE, family
from shoal.kernel import accept_locally, files, refuse_untrusted, tree
from shoal.submit.transaction import ClaimedSubmission


def run_locally(claimed: ClaimedSubmission, project: Project, environ: Mapping[str, str], *, follow: bool) -> int:
    """Execute the only run of a claimed submission and return its exit code; Ctrl-C and SIGTERM reach the run.

    With `follow` its output appears on ours as well as in its log; it goes to standard error, because standard output
    belongs to what the command itself reports.
    """
    accept_locally(str(project.home), claimed.token)
    env = {**environ, "SHOAL_TOKEN": claimed.token, "SHOAL_FOLLOW": "1" if follow else "0"}
    script = os.path.join(claimed.folder, "script.sh")
    refuse_untrusted(script)
    agent: subprocess.Popen[bytes] | None = None

    def end(number: int, frame: object) -> None:
        if agent is not None:
            agent.terminate()

    # The terminal sends Ctrl-C to the agent as well, which passes it on to the program; we only wait for both.
    handlers = {signal.SIGINT: lambda *_: None, signal.SIGTERM: end}
    # What comes while it is started is heard when there is somebody to tell.
    signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    unblock = functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, handlers)
    try:
        agent = subprocess.Popen(["bash", script], env=env, cwd=project.root, stdout=sys.stderr, preexec_fn=unblock)
        unblock()
        return agent.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        unblock()


class LocalPackEngine:
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
        files.refuse_untrusted(argv[1])
        engine = subprocess.Popen(argv, env=env, cwd=self._project.root, stdout=sys.stderr)
        self._before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, lambda number, _: engine.send_signal(number))
        self._engine = engine

    def wait(self) -> int:
        """Every run is claimed by now, or somebody else's."""
        if self._engine is None:
            return 0
        files.create_exclusive(os.path.join(self._folder, CLAIMED_FILE), b"", sync=False)
        code = self._engine.wait()
        tree.kill_descendants()
        return family.shell_exit_code(code)

    def __enter__(self) -> LocalPackEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is not None and self._engine is not None and self._engine.poll() is None:
            self._engine.terminate()
            self._engine.wait()
            tree.kill_descendants()
        for number, handler in self._before.items():
            signal.signal(number, handler)
