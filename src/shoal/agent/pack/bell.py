"""What wakes the loop: signals, ended children, threads, sockets, or the time at which something is due."""

import os
import select
import signal
import time
from typing import Any, Iterable, List


class Bell:
    """Signals are kept until the loop asks for them; whoever writes to `rope` wakes it."""

    def __init__(self) -> None:
        self._read, self.rope = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self.rope, False)
        self._heard: List[int] = []

    def listen(self) -> None:
        signal.set_wakeup_fd(self.rope, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, frame: self._heard.append(number))
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def heard(self) -> List[int]:
        heard, self._heard = self._heard, []
        return heard

    def wait(self, due: Iterable[float], others: Iterable[Any]) -> None:
        """Sleep until the bell rings, one of `others` can be read, or the first of the `due` times has come."""
        select.select([self._read, *others], [], [], max(0.0, min(due) - time.monotonic()))
        try:
            while os.read(self._read, 4096):
                pass
        except BlockingIOError:
            pass
