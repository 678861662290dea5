"""What a view may do to runs after confirmation: cancel, and start again. The same code as the commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from shoal.errors import InputError, ShoalError
from shoal.observe import RunReader, observe

_SHOAL_COMMAND = (sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())")
#: What a retry may ask for more of -> flags of `shoal retry`.
RETRY_INCREASES = {"memory": ("--mem", "x2"), "time": ("--time", "x2")}


def cancel_active(home: str, names: Sequence[str]) -> str:
    """Cancel those of the runs that are active, and say how many that were."""
    from shoal import actions

    done = actions.cancel_active(home, names, os.environ).runs
    return f"cancelled {len(done)} of {len(names)}"


def retry_runs(home: str, names: Sequence[str], more: str | None = None, root: str | None = None) -> str:
    """`shoal retry` these runs, from a checkpoint if there is one; `more` is a key of RETRY_INCREASES. Slurm only."""
    states = {view.state for view in observe(home, names).views.values()}
    words = ["retry", *names, "--state", ",".join(sorted(states)), *(RETRY_INCREASES[more] if more else ())]
    reader = RunReader(home)
    for name in names:
        origin = reader.run(name).origin
        if origin is not None and origin.submission is not None and origin.submission.backend != "slurm":
            raise InputError("runs on this machine are started in a terminal", hint=f"shoal retry {name}")
    done = subprocess.run(
        [*_SHOAL_COMMAND, *words, "-q"],
        cwd=root or os.path.dirname(home),
        capture_output=True,
        timeout=600,
        check=False,
    )
    if done.returncode != 0:
        text = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ShoalError(text[0].removeprefix("error: ") if text else f"{names[0]} could not be started again")
    return f"started {len(names)} again" + (f" with twice the {more}" if more else "")
