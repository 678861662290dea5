"""Every error that shoal shows, and its exit code.

ShoalError                    1
├── InputError                2   bad usage, configuration, name, script or value; carries its place
├── RefusedError              3   checks refuse the submission
├── RunsFailedError           4   the command worked, some runs failed
├── SchedulerError            5   Slurm does not answer; nothing is known to be wrong with the run
├── DiskError                74   no space, no quota, read-only, I/O error
└── InterruptError          130   Ctrl-C

A message is one sentence without the word "error". A hint is a command that works when pasted, or one short sentence.
"""

from __future__ import annotations


class ShoalError(Exception):
    """Base of all errors meant for people; anything else that escapes is a bug in shoal."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(ShoalError):
    """Something that a person wrote is wrong; `place` is "file:line" or a flag."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None, place: str | None = None) -> None:
        super().__init__(f"{place}: {message}" if place else message, hint=hint)
        self.place = place


class RefusedError(ShoalError):
    exit_code = 3


class RunsFailedError(ShoalError):
    exit_code = 4


class SchedulerError(ShoalError):
    exit_code = 5


class DiskError(ShoalError):
    exit_code = 74


class InterruptError(ShoalError):
    exit_code = 130
