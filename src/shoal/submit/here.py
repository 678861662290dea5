"""This machine as an allocation: the run is a process, executed by the same script, followed to its end."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from shoal.config.project import Project
from shoal.kernel.files import refuse_foreign
from shoal.submit.transaction import Claimed, accept_here


def run_here(claimed: Claimed, project: Project, environ: Mapping[str, str], *, follow: bool) -> int:
    """Execute the only run of a claimed submission and return its exit code; Ctrl-C and SIGTERM reach the run.

    With `follow` its output appears on ours as well as in its log; it goes to standard error, because standard output
    belongs to what the command itself reports.
    """
    accept_here(str(project.home), claimed.token)
    env = {**environ, "SHOAL_TOKEN": claimed.token, "SHOAL_FOLLOW": "1" if follow else "0"}
    script = os.path.join(claimed.folder, "script.sh")
    refuse_foreign(script)
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
