"""Every error that shoal shows, and its exit code.

ShoalError                    1
├── InputError                2   bad usage, configuration, name, script or value; carries its place
├── RefusedError              3   checks refuse the submission
├── SchedulerError            5   Slurm does not answer; nothing is known to be wrong with the run
├── RunFailed                 4   a run did not complete; carries the run
│   ├── RunOOM                    it ran out of memory
│   ├── RunTimeout                it reached its time limit
│   ├── RunCancelled              a person cancelled it
│   ├── RunStopped                early stopping ended it
│   ├── RunLost                   its job was preempted, or it, its node or its process was lost
│   └── ResultNotKept             it returned, but its result could not be kept or loaded
├── DiskError                74   no space, no quota, read-only, I/O error
└── InterruptError          130   Ctrl-C

RemoteError is no ShoalError: it stands for an exception inside a run that cannot be rebuilt here.

A message is one sentence without the word "error". A hint is a command that works when pasted, or one short sentence.
"""

from __future__ import annotations


def add_note(error: BaseException, note: str) -> None:
    """Text that Python shows below the error, from 3.11 on: as `BaseException.add_note`, which Python 3.10 lacks."""
    vars(error).setdefault("__notes__", []).append(note)


class ShoalError(Exception):
    """Base of all errors meant for people; anything else that escapes is a bug in shoal."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint is not None:  # shown below the error by Python; commands print the hint themselves
            add_note(self, f"hint: {hint}")


class InputError(ShoalError):
    """Something that a person wrote is wrong; `place` is "file:line" or a flag."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None, place: str | None = None) -> None:
        super().__init__(f"{place}: {message}" if place else message, hint=hint)
        self.place = place


class RefusedError(ShoalError):
    exit_code = 3


class SchedulerError(ShoalError):
    exit_code = 5


class DiskError(ShoalError):
    exit_code = 74


class InterruptError(ShoalError):
    exit_code = 130


class RunFailed(ShoalError):
    """A run did not complete. `run` is its handle (functions/run_handle.py); `__cause__` is the exception of its
    function, or a RemoteError."""

    exit_code = 4

    def __init__(self, run: object, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.run = run


class RunOOM(RunFailed):
    pass


class RunTimeout(RunFailed):
    pass


class RunCancelled(RunFailed):
    pass


class RunStopped(RunFailed):
    pass


class RunLost(RunFailed):
    pass


class ResultNotKept(RunFailed):
    pass


class RemoteError(Exception):
    """An exception of a function in a run, where the original cannot be rebuilt: its type, message and traceback."""

    def __init__(self, type_name: str, message: str, traceback: str) -> None:
        super().__init__(type_name, message, traceback)
        self.type_name, self.message, self.traceback = type_name, message, traceback

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"
