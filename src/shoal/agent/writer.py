"""Records reach the disk in the background: the loop goes on while the file system commits several at once.

What a record decides is decided when its name appears, by link, in the loop itself; only waiting for the disk is done
here. A run counts as finished when its end is on disk, not before.
"""

import os
import queue
import threading
from typing import Any, Callable, List, Optional, Tuple

_THREADS = 4
#: work -> its result, or the OSError that it raised
Done = Callable[[Any, Optional[OSError]], None]


class Writer:
    """A few threads that wait for the disk. `collect` runs the callbacks in the caller's own thread."""

    def __init__(self, wake: int) -> None:
        self._wake = wake
        self._work: "queue.SimpleQueue[Optional[Tuple[Callable[[], Any], Optional[Done]]]]" = queue.SimpleQueue()
        self._done: "queue.SimpleQueue[Tuple[Done, Any, Optional[OSError]]]" = queue.SimpleQueue()
        self._threads: List[threading.Thread] = []
        self.pending = 0

    def submit(self, work: Callable[[], Any], done: Optional[Done] = None) -> None:
        """Do something that waits for the disk; `done` hears of it. Without one nobody does, and an error is lost."""
        if len(self._threads) < _THREADS:
            self._threads.append(threading.Thread(target=self._run, daemon=True))
            self._threads[-1].start()
        if done is not None:
            self.pending += 1
        self._work.put((work, done))

    def collect(self) -> None:
        """Tell of everything that is done."""
        while True:
            try:
                done, result, error = self._done.get_nowait()
            except queue.Empty:
                return
            self.pending -= 1
            done(result, error)

    def close(self) -> None:
        """Return when all work is done."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            entry = self._work.get()
            if entry is None:
                return
            work, done = entry
            result, problem = None, None
            try:
                result = work()
            except OSError as error:
                problem = error
            if done is not None:
                self._done.put((done, result, problem))
                try:
                    os.write(self._wake, b"w")
                except BlockingIOError:
                    pass  # The loop has plenty to wake up for.
