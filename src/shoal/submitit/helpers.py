"""submitit's helpers: callables that continue in another job, several calls in one job, jobs as they end.

    class Training(submitit.helpers.Checkpointable):
        def __call__(self, epochs): ...

Before the time limit and at a preemption `checkpoint(*args)` is called, and what it returns is the call of the next
attempt (job/function_call.py). Objects of submitit's own classes work as well: only their attributes count.
"""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from shoal.submitit.executor import Job

__all__ = ["Checkpointable", "CommandFunction", "DelayedSubmission", "FunctionSequence", "as_completed"]


class DelayedSubmission:
    """A call for later; its result is kept with it."""

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self._result: Any = None
        self._done = False

    def result(self) -> Any:
        if not self._done:
            self._result, self._done = self.function(*self.args, **self.kwargs), True
        return self._result

    def done(self) -> bool:
        return self._done


class Checkpointable:
    """A callable that continues with its attributes as they are, and the same arguments, unless a subclass's
    `checkpoint` says otherwise; one that returns None ends there."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} needs a __call__ method")

    def checkpoint(self, *args: Any, **kwargs: Any) -> DelayedSubmission | None:
        return DelayedSubmission(self, *args, **kwargs)


class FunctionSequence(Checkpointable):
    """Several calls in one job; those that were done before an interruption are not repeated."""

    def __init__(self, verbose: bool = False) -> None:
        self.verbose = verbose
        self.delayed_functions: list[DelayedSubmission] = []

    def add(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.delayed_functions.append(DelayedSubmission(function, *args, **kwargs))

    def __len__(self) -> int:
        return len(self.delayed_functions)

    def __iter__(self) -> Iterator[DelayedSubmission]:
        return iter(self.delayed_functions)

    def __call__(self) -> list[Any]:
        if self.verbose:
            print(f"{sum(one.done() for one in self)} of {len(self)} calls are done", flush=True)
        return [one.result() for one in self.delayed_functions]


class CommandFunction:
    """A command as a function: returns what it printed; RuntimeError with its errors if its exit code is not 0."""

    def __init__(
        self,
        command: list[str],
        verbose: bool = True,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(command, list):
            raise TypeError(f"a command is a list of words (got {command!r})")
        self.command, self.verbose, self.cwd, self.env = command, verbose, cwd, env

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        words = [*self.command, *map(str, args), *(f"--{name}={value}" for name, value in kwargs.items())]
        done = subprocess.run(words, cwd=self.cwd, env=self.env, capture_output=True, text=True, check=False)
        if self.verbose:
            print(done.stdout, end="", flush=True)
        if done.returncode != 0:
            raise RuntimeError(f"{words} ended with exit code {done.returncode}:\n{done.stderr}")
        return done.stdout.strip()


def as_completed(jobs: Sequence[Job], timeout: float | None = None, poll_frequency: float = 10) -> Iterator[Job]:
    """Jobs as they end; TimeoutError after `timeout` seconds. One thread watches all, whatever the frequency."""
    futures = {job.run.future(): job for job in jobs}
    for future in concurrent.futures.as_completed(futures, timeout):
        yield futures[future]
