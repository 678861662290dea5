"""kernel/slurm.py for commands that people type: what could not be asked is an error of shoal, with a hint.

SchedulerError
├── ProgramMissingError   the program is not on this machine: nothing was asked of Slurm
└── TimedOutError         no answer in time: Slurm may or may not have acted
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from shoal.errors import InputError, SchedulerError
from shoal.kernel import slurm


class ProgramMissingError(SchedulerError):
    """The program could not be started."""


class TimedOutError(SchedulerError):
    """The program was stopped by us; what Slurm did with the question is not known."""


def run_slurm(
    argv: Sequence[str], timeout_s: float, *, stdin: str | None = None, environ: Mapping[str, str] | None = None
) -> slurm.CommandResult:
    """Run `argv` to its end and return what it said; `environ` is the caller's environment before cleaning.

    Raises ProgramMissingError when nothing was started, TimedOutError when it was started and stopped, and InputError
    when an argument cannot be passed to any program (a NUL in it, or too long).
    """
    return check_completed(slurm.run_command(argv, timeout_s, os.environ if environ is None else environ, stdin))


def check_completed(done: slurm.CommandResult) -> slurm.CommandResult:
    """`done` if the program ran to its end, whatever it said; else the error for what happened to it."""
    if done.failure == slurm.TIMED_OUT:
        raise TimedOutError(done.stderr, hint="scontrol ping  # is the controller up?")
    if done.failure == slurm.PROGRAM_MISSING:
        raise ProgramMissingError(
            done.stderr, hint="put Slurm's programs on PATH, or run on this machine with --on local"
        )
    if done.failure:
        raise InputError(done.stderr)
    return done
