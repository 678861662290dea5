"""Write the records of attempts in the background: the executor's loop continues while the file system commits them.

What a record decides is decided when its name appears, in the loop itself; only waiting for the disk is done here. A
run counts as finished when its end is on disk, not before. Ends need no new space there and are tried as long as it
takes: they are the results. Starts wait for space for a limited time.
"""

import functools
import os
import queue
import threading
import time
from typing import Any, Callable, Generic, List, Mapping, Optional, Tuple, TypeVar

from ..kernel import End, files, layout, lease
from .attempt import Attempt

A = TypeVar("A", bound=Attempt)

_DISK_WAIT_VARIABLE = "SHOAL_DISK_S"
DISK_RETRY_S = 2.0
_THREADS = 4
#: So many ends may wait for the disk before no more runs are started.
_MAX_PENDING = 64
#: work -> its result, or the OSError that it raised
_OnDone = Callable[[Any, Optional[OSError]], None]


def max_disk_wait_s(environ: Mapping[str, str]) -> float:
    """For how long room on the disk is waited for."""
    return float(environ.get(_DISK_WAIT_VARIABLE) or 60.0)


class RecordWriter(Generic[A]):
    """Writes starts and ends, and tells `kept` of each end that is on disk: is it ours, or had somebody else taken us
    for dead and closed the attempt?"""

    def __init__(
        self,
        wake: int,
        say: Callable[[str], None],
        kept: Callable[[A, lease.Lease, End, bool], None],
        environ: Mapping[str, str],
    ) -> None:
        self._writer, self._say, self._tell_kept = _WriterThreads(wake), say, kept
        self._patience_s = max_disk_wait_s(environ)
        self._unwritten: List[Tuple[A, End]] = []
        self._full_since: Optional[float] = None
        self._retry_at = 0.0

    @property
    def is_full(self) -> bool:
        return self._full_since is not None

    @property
    def has_waited_too_long(self) -> bool:
        return self._full_since is not None and time.monotonic() - self._full_since > self._patience_s

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way."""
        return not self._unwritten and not self._writer.pending

    @property
    def accepts_more(self) -> bool:
        """Whether a run may be started as far as the disk is concerned."""
        return time.monotonic() >= self._retry_at and self._writer.pending < _MAX_PENDING

    def due_at(self, now: float) -> List[float]:
        return [max(self._retry_at, now + 0.1)] if self.is_full or self._unwritten else []

    def wait_for_disk(self, error: OSError) -> None:
        """Something could not be written: it is tried again."""
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
            self._say("cannot write %s: %s; no run is started until there is room" % (error.filename, error.strerror))
        self._retry_at = now + DISK_RETRY_S

    def clear_disk_full(self) -> None:
        self._full_since = None

    def write_start(self, attempt: A) -> None:
        record = os.path.join(attempt.claim.run_dir, layout.attempt_file(attempt.number, "start"))
        self._writer.submit(functools.partial(files.sync_records, [record]))
        search = attempt.spec.get("search")
        if search:
            home = layout.state_dir_of(attempt.claim.run_dir)
            trial = layout.trial_file(home, attempt.spec["experiment"], search["name"])
            self._writer.submit(functools.partial(files.sync_records, [trial]))

    def ended(self, attempt: A, end: End) -> None:
        """Write an end in the background, again and again until it is written."""
        held = attempt.held

        def written(ours: Any, error: Optional[OSError]) -> None:
            if error is None:
                self._tell_kept(attempt, held, end, bool(ours))
            else:
                if not self._unwritten:
                    self._say("cannot write down the end of %s yet: %s" % (attempt.name, error))
                self._retry_at = time.monotonic() + DISK_RETRY_S
                self._unwritten.append((attempt, end))

        self._writer.submit(lambda: held.end(end), written)

    def note_stopping(self, attempt: A, why: str) -> None:
        """From here on this process may be killed at any moment, and nothing is wrong with its node."""
        self._writer.submit(functools.partial(attempt.held.note, {"stopping": why}))

    def collect(self) -> None:
        """Tell of what is written, and try what is not once more."""
        self._writer.collect()
        if self._unwritten and time.monotonic() >= self._retry_at:
            again, self._unwritten = self._unwritten, []
            for attempt, end in again:
                self.ended(attempt, end)

    def close(self) -> None:
        self._writer.close()


class _WriterThreads:
    """A few threads that wait for the disk. `collect` runs the callbacks in the caller's own thread."""

    def __init__(self, wake: int) -> None:
        self._wake = wake
        self._work: "queue.SimpleQueue[Optional[Tuple[Callable[[], Any], Optional[_OnDone]]]]" = queue.SimpleQueue()
        self._done: "queue.SimpleQueue[Tuple[_OnDone, Any, Optional[OSError]]]" = queue.SimpleQueue()
        self._threads: List[threading.Thread] = []
        self.pending = 0

    def submit(self, work: Callable[[], Any], done: Optional[_OnDone] = None) -> None:
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
                except OSError:
                    pass  # The loop has plenty to wake up for, or is over.
