"""A pack on this machine: the engine is a process of ours, and whatever it leaves behind when it is killed is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from shoal.agent.launch import family
from shoal.config.project import Project
from shoal.store import writing
from shoal.store.records import Outcome
from shoal.submit.failpoints import reach
from shoal.submit.transaction import Claimed


def run_pack_here(claimed: Claimed, project: Project, environ: Mapping[str, str], *, follow: bool) -> int:
    """Work through a claimed queue on this machine and return the engine's exit code.

    Ctrl-C reaches the engine from the terminal; SIGTERM and SIGHUP are passed on; if this command is killed the engine
    hears of it and stops. If the engine is killed, its runs' processes come to us and are killed too.
    """
    home = str(project.home)
    reach("before-sending")
    writing.mark_sending(home, claimed.token)
    reach("after-sending")
    writing.settle(home, claimed.token, Outcome(kind="accepted"))
    reach("after-outcome")
    family.adopt_orphans()
    env = {
        **environ,
        "SHOAL_TOKEN": claimed.token,
        "SHOAL_FOLLOW": "1" if follow else "0",
        "SHOAL_PARENT": str(os.getpid()),
    }
    script = os.path.join(claimed.folder, "script.sh")
    engine = subprocess.Popen(["bash", script], env=env, cwd=project.root, stdout=sys.stderr)
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, lambda number, _: engine.send_signal(number))
    try:
        code = engine.wait()
        family.end_orphans()
        return family.exit_code(code)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
