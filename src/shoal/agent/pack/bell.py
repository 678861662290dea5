"""What wakes the loop: ended children, threads, sockets, or the time at which something is due."""

import os
import select
import signal
import time
from typing import Any, Iterable


class Bell:
    """Whoever writes to `rope` wakes the loop. Signals come through the guard's link, which is one of the others."""

    def __init__(self) -> None:
        self._read, self.rope = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self.rope, False)

    def listen(self) -> None:
        signal.set_wakeup_fd(self.rope, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def ring(self) -> None:
        try:
            os.write(self.rope, b"r")
        except BlockingIOError:
            pass  # The loop has plenty to wake up for.

    def wait(self, due: Iterable[float], others: Iterable[Any]) -> None:
        """Sleep until the bell rings, one of `others` can be read, or the first of the `due` times has come."""
        select.select([self._read, *others], [], [], max(0.0, min(due) - time.monotonic()))
        try:
            while os.read(self._read, 4096):
                pass
        except BlockingIOError:
            pass
