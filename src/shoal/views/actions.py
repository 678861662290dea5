"""What a view may do to runs when the person says so: cancel, and start again. The same code as the commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from shoal.errors import InputError, ShoalError
from shoal.observe import observe
from shoal.store.reading import Reader
from shoal.views.why import restart_words

_SHOAL = (sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())")


def cancel(home: str, names: Sequence[str]) -> str:
    """Cancel those of the runs that are live, and say how many that were."""
    from shoal.submit import cancelling

    views = cancelling.live_among(home, list(names))
    done = cancelling.cancel(home, views, os.environ) if views else []
    return f"cancelled {len(done)} of {len(names)}"


def retry(home: str, names: Sequence[str], root: str | None = None) -> str:
    """Resume each run from its checkpoint, or submit it again where it has none; runs on Slurm only."""
    views = observe(home, names).views
    reader = Reader(home)
    told = []
    for name, view in views.items():
        origin = reader.run(name).origin
        if origin is not None and origin.submission is not None and origin.submission.backend != "slurm":
            raise InputError("runs on this machine are started in a terminal", hint=" ".join(restart_words(home, view)))
        words = restart_words(home, view)[1:]
        done = subprocess.run(
            [*_SHOAL, *words, "-q"], cwd=root or os.path.dirname(home), capture_output=True, timeout=120, check=False
        )
        if done.returncode != 0:
            text = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise ShoalError(text[0].removeprefix("error: ") if text else f"{name} could not be started again")
        told.append(name)
    return f"started {len(told)} again"
