"""Run one Slurm program: an argument list, a time limit, and an environment that cannot change its meaning.

Nothing here reads the answer. A program that ran and failed is a `Completed` with its return code, because only the
caller knows what that means (for sbatch it does not mean "not submitted", reliability fact M1).

SchedulerError
├── ProgramMissingError   the program is not on this machine: nothing was asked of Slurm
└── TimedOutError         no answer in time: Slurm may or may not have acted
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.errors import InputError, SchedulerError

#: Variables of these families are options in disguise: SBATCH_PARTITION moves a job, SQUEUE_STATES hides one (M21).
_OPTION_FAMILIES = ("SBATCH_", "SLURM_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_", "SCONTROL_", "SPRIO_")
#: These say which cluster to talk to and who we are; without them there is no answer at all.
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_JWKS", "SLURM_SACK_KEY"})


class ProgramMissingError(SchedulerError):
    """The program could not be started."""


class TimedOutError(SchedulerError):
    """The program was stopped by us; what Slurm did with the question is not known."""


class Completed(NamedTuple):
    """What a program said. Text is decoded with replacement: Slurm passes on bytes that other users chose."""

    returncode: int
    stdout: str
    stderr: str


def run(
    argv: Sequence[str],
    timeout_s: float,
    *,
    stdin: str | None = None,
    environ: Mapping[str, str] | None = None,
    keep_locale: bool = False,
) -> Completed:
    """Run `argv` to its end and return what it said; `environ` is the caller's environment before cleaning.

    `keep_locale` is for sbatch, whose environment becomes the job's.

    Raises ProgramMissingError when nothing was started, TimedOutError when it was started and stopped, and InputError
    when an argument cannot be passed to any program (a NUL in it, or too long).
    """
    words = list(argv)
    try:
        done = subprocess.run(
            words,
            input=b"" if stdin is None else stdin.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=timeout_s,
            env=clean_environ(os.environ if environ is None else environ, keep_locale=keep_locale),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimedOutError(
            f"{words[0]} did not answer within {timeout_s:g} s", hint="scontrol ping  # is the controller up?"
        ) from None
    except (FileNotFoundError, PermissionError) as error:
        raise ProgramMissingError(
            f"cannot run {words[0]}: {error.strerror}",
            hint="put Slurm's programs on PATH, or run on this machine with --on local",
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot pass these arguments to {words[0]}: {error}") from None
    return Completed(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def clean_environ(environ: Mapping[str, str], *, keep_locale: bool = False) -> dict[str, str]:
    """The environment without Slurm's option variables, and with messages in English unless the locale is to stay."""
    kept = {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_OPTION_FAMILIES)}
    return kept if keep_locale else {**kept, "LC_ALL": "C"}
