"""Output errors that do not end the command: a reader that closed the pipe, a terminal that hung up, a full disk.

`shoal submit ... | head -1` closes our output after one line; the other runs are submitted all the same. Commands that
only print do not use this: for them a closed output is the end.
"""

import contextlib
import os
import signal
import sys
from typing import Any, Iterator, cast


class FailsafeStream:
    """A text stream that drops what it cannot write, from the first failure on."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.broken = stream, False

    def write(self, text: str) -> int:
        self._do("write", text)
        return len(text)

    def flush(self) -> None:
        self._do("flush")

    def _do(self, what: str, *values: Any) -> None:
        if self.broken:
            return
        try:
            getattr(self.stream, what)(*values)
        except (OSError, ValueError):  # ValueError: somebody has closed it
            self.broken = True
            discard_buffer(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def discard_buffer(stream: Any) -> None:
    """Let what is still in a broken stream's buffer go nowhere, so that Python's own last flush does not fail."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        pass


@contextlib.contextmanager
def failsafe_output() -> Iterator[None]:
    """While this lasts, printing cannot fail."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(Any, FailsafeStream(before[0])), cast(Any, FailsafeStream(before[1]))
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def ignoring_hangup() -> Iterator[None]:
    """While this lasts, a terminal that hangs up (a dropped ssh connection) ends neither us nor programs we start.

    Only where nobody has said otherwise, and only in the main thread, where Python lets signals be set.
    """
    try:
        before = signal.getsignal(signal.SIGHUP)
        if before is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
    except ValueError:
        before = None
    try:
        yield
    finally:
        if before is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
