"""This machine as an allocation: the run is a process, executed by the same script, followed to its end."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from shoal.config.project import Project
from shoal.submit.transaction import Claimed, accept_here


def run_here(claimed: Claimed, project: Project, environ: Mapping[str, str], *, follow: bool) -> int:
    """Execute the only run of a claimed submission and return its exit code; Ctrl-C and SIGTERM reach the run.

    With `follow` its output appears on ours as well as in its log; it goes to standard error, because standard output
    belongs to what the command itself reports.
    """
    accept_here(str(project.home), claimed.token)
    env = {**environ, "SHOAL_TOKEN": claimed.token, "SHOAL_FOLLOW": "1" if follow else "0"}
    script = os.path.join(claimed.folder, "script.sh")
    ours = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, ours)  # What comes now is heard when there is somebody to tell.
    unblock = functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, ours)
    agent = subprocess.Popen(["bash", script], env=env, cwd=project.root, stdout=sys.stderr, preexec_fn=unblock)
    # The terminal sends Ctrl-C to the agent as well, which passes it on to the program; we only wait for both.
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: agent.terminate()),
    }
    unblock()
    try:
        return agent.wait()
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
