"""Errors of a disk that say where: what the kernel reports when a disk is full names no file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shoal.errors import DiskError, ShoalError
from shoal.observe import full_disk_hint


@contextmanager
def disk_errors_at(path: str) -> Iterator[None]:
    """Whatever fails in here for lack of room failed at `path`."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or path) from None


def run_writer(argv: Sequence[str], goal: str) -> None:
    """Run a program that writes below `goal`; its first complaint as an error if it fails."""
    done = subprocess.run(list(argv), check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        first = next(iter(done.stderr.splitlines()), f"exit code {done.returncode}")
        raise writer_error(first if first.startswith(argv[0]) else f"{argv[0]}: {first}", goal)


def writer_error(text: str, goal: str) -> ShoalError:
    """An error of another program that wrote below `goal`: of a full disk if that is what it complains about."""
    full = "no space left" in text.lower()
    return DiskError(text, hint=full_disk_hint(goal)) if full else ShoalError(text)
