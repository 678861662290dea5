"""A run that has a process: its clock, its limit, its beat, and how it is asked to stop."""

import os
import signal
import time
from typing import Optional, Tuple

from .. import fence, files, layout
from .books import Holding
from .children import Child
from .claims import Begun
from .queue import Item

_BEAT_S = 30.0
#: stopped_by values after which the same generation may go on: the run was interrupted, it did not fail.
INTERRUPTED = ("SIGTERM", "SIGINT", "SIGHUP", "walltime", "lost")


class Running:
    """One attempt from its start to its end. `stopped_by` says who asked it to stop, if anybody did, and
    `stopped_words` why, if there is more to say."""

    def __init__(self, item: Item, begun: Begun, holding: Holding, child: Child) -> None:
        self.item, self.begun, self.holding, self.child = item, begun, holding, child
        self.began, self.clock = time.time(), time.monotonic()
        self.stopped_by: Optional[str] = None
        self.stopped_words: Optional[str] = None
        self._kill_at: Optional[float] = None
        self._beat_at = self.clock + _BEAT_S
        self._limit_at = None if item.limit_s is None else self.clock + item.limit_s

    @property
    def identity(self) -> Tuple[str, str]:
        return (self.item.name, str(self.begun.number))

    @property
    def due_at(self) -> float:
        """When `tend` has something to do."""
        times = (self._beat_at, self._kill_at if self.stopped_by else self._limit_at)
        return min(time for time in times if time is not None)

    def tend(self, now: float, grace_s: float) -> None:
        """What the clock asks for: the run's time limit, the end of its grace time, a sign of life."""
        if self._limit_at is not None and now >= self._limit_at and self.stopped_by is None:
            self.ask_to_stop("time limit", grace_s)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self.child.signal(signal.SIGKILL)
        if now >= self._beat_at:
            self._beat_at = now + _BEAT_S
            self._beat()

    def ask_to_stop(self, why: str, grace_s: float, words: Optional[str] = None) -> None:
        """The first to ask is the one who is remembered; after the grace time it is killed."""
        if self.stopped_by is None:
            self.stopped_by, self.stopped_words = why, words
            self._kill_at = time.monotonic() + grace_s
            self.child.signal(signal.SIGTERM)

    def unwanted(self) -> Optional[str]:
        """Was it cancelled, or are we taken for dead? A file server that is away ends nothing."""
        try:
            return fence.superseded(self.begun.claim, self.begun.number)
        except OSError:
            return None

    def _beat(self) -> None:
        path = os.path.join(self.begun.claim.run_dir, layout.attempt_file(self.begun.number, "beat"))
        try:
            files.replace(path, files.to_json({"t": time.time(), "every_s": _BEAT_S}), sync=False)
        except OSError:
            pass  # A full disk must not end a run.
