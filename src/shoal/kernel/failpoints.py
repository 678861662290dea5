"""Marked points of the transaction. With SHOAL_FAILPOINT=NAME the process kills itself there, as a crash would."""

import os
import signal

FAILPOINTS = (
    "before-spec",
    "after-spec",
    "before-submission",
    "after-submission",
    "between-claims",
    "after-claims",
    "before-sending",
    "after-sending",
    "after-sbatch",
    "before-outcome",
    "after-outcome",
    "before-report",
)


def failpoint(point: str) -> None:
    if os.environ.get("SHOAL_FAILPOINT") == point:
        os.kill(os.getpid(), signal.SIGKILL)
