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

#: Of a question about the cluster: a command goes on without the answer.
QUESTION_TIMEOUT_S = 10.0


class ProgramMissingError(SchedulerError):
    """The program could not be started."""


class TimedOutError(SchedulerError):
    """The program was stopped by us; what Slurm did with the question is not known."""


def run(
    argv: Sequence[str], timeout_s: float, *, stdin: str | None = None, environ: Mapping[str, str] | None = None
) -> slurm.CommandResult:
    """Run `argv` to its end and return what it said; `environ` is the caller's environment before cleaning.

    Raises ProgramMissingError when nothing was started, TimedOutError when it was started and stopped, and InputError
    when an argument cannot be passed to any program (a NUL in it, or too long).
    """
    return checked(slurm.run_command(argv, timeout_s, os.environ if environ is None else environ, stdin))


def checked(done: slurm.CommandResult) -> slurm.CommandResult:
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


def ask(
    argv: Sequence[str],
    environ: Mapping[str, str],
    timeout_s: float = QUESTION_TIMEOUT_S,
    silent: list[str] | None = None,
) -> str | None:
    """What a program prints; None where it cannot be asked, and then `silent` gets a sentence about it."""
    try:
        done = run(argv, timeout_s, environ=environ)
    except SchedulerError as error:
        problem = error.message
    else:
        if done.ok:
            return done.stdout
        problem = (done.stderr.strip().splitlines() or ["failed"])[-1].removeprefix(f"{argv[0]}: ")
    if silent is not None:
        silent.append(f"{argv[0]}: {problem}")
    return None
