"""A run that holds a slot: its data arrives, its program runs, its result is checked, and it may be asked to stop."""

import os
import signal
import time
from typing import Any, Dict, List, Optional, Tuple

from ...kernel import fence, layout, process
from .. import survival
from ..children import Child
from .books import Holding
from .claims import Begun
from .queue import Item

#: Nothing is due: no limit, no warning, no end of a grace time.
_NEVER = float("inf")


class Running:
    """One attempt from its start to its end. `stopped_by` says who asked it to stop, if anybody did, and
    `stopped_words` why, if there is more to say.

    `child` is what it waits for: its data, its program, or the check of its result, as `phase` says.
    """

    def __init__(self, item: Item, begun: Begun, holding: Holding, argv: List[str], env: Dict[str, str]) -> None:
        self.item, self.begun, self.holding, self.argv = item, begun, holding, argv
        self.env = dict(env, **{process.MARK: str(begun.lease.start["mark"])})
        self.began, self.clock = time.time(), time.monotonic()
        self.child, self.phase = Child(0), "data"
        self.end: Dict[str, Any] = {}
        self.stopped_by: Optional[str] = None
        self.stopped_words: Optional[str] = None
        self.warned = False
        self._kill_at: Optional[float] = None
        self._limit_at: Optional[float] = None
        self._warn_at: Optional[float] = None

    @property
    def identity(self) -> Tuple[str, str]:
        return (self.item.name, str(self.begun.number))

    @property
    def streams(self) -> Tuple[str, str]:
        return (self.begun.out, self.begun.err)

    @property
    def use_file(self) -> str:
        return os.path.join(self.begun.claim.run_dir, layout.attempt_file(self.begun.number, "use"))

    def begin_program(self, child: Child, left_s: Optional[float]) -> None:
        """The program runs, for as long as it may: its own limit, and what is left of the allocation's time."""
        self.child, self.phase = child, "program"
        self.began, self.clock = time.time(), time.monotonic()
        self._limit_at = None if self.item.limit_s is None else self.clock + self.item.limit_s
        ends = [at for at in (self._limit_at, None if left_s is None else self.clock + left_s) if at is not None]
        if self.item.warn_s and ends:
            self._warn_at = min(ends) - self.item.warn_s

    def begin_check(self, child: Child) -> None:
        self.child, self.phase = child, "check"
        self._limit_at, self._warn_at = time.monotonic() + survival.CHECK_TIMEOUT_S, None

    @property
    def due_at(self) -> float:
        """When `tend` has something to do."""
        if self.stopped_by is not None:
            times: Tuple[Optional[float], ...] = (self._kill_at,)
        else:
            times = (self._limit_at, self._warn_at)
        return min((time for time in times if time is not None), default=_NEVER)

    def tend(self, now: float, grace_s: float) -> None:
        """What the clock asks for: a warning, the run's time limit, the end of its grace time."""
        if self.stopped_by is None and self._warn_at is not None and now >= self._warn_at:
            self.warn()
        if self.stopped_by is None and self._limit_at is not None and now >= self._limit_at:
            self._limit_at = None
            if self.phase == "check":
                self.child.signal(signal.SIGKILL)
            else:
                self.ask_to_stop("time limit", grace_s)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self.child.signal(signal.SIGKILL)

    def warn(self) -> None:
        """Its time is nearly up: tell the program in the way that its step chose, once."""
        self._warn_at = None
        if self.warned:
            return
        self.warned = True
        survival.warn(self.env, lambda: self.child.signal(signal.SIGUSR1))

    def pass_on(self, number: int) -> None:
        """A signal for the program. SIGUSR1 is the warning, where its step wants to be warned."""
        if number == signal.SIGUSR1 and self.item.warn_s:
            self.warn()
        else:
            self.child.signal(number)

    def ask_to_stop(self, why: str, grace_s: float, words: Optional[str] = None) -> None:
        """The first to ask is the one who is remembered; after the grace time it is killed."""
        if self.stopped_by is None:
            self.stopped_by, self.stopped_words = why, words
            self._kill_at = time.monotonic() + grace_s
            self.child.signal(signal.SIGTERM)

    def unwanted(self) -> Optional[str]:
        """Was it cancelled, or are we taken for dead? A file server that is away ends nothing."""
        try:
            return fence.unwanted(self.begun.claim, self.begun.number)
        except OSError:
            return None

    def was_closed(self) -> None:
        """Somebody else has closed the lease and may go on with the run: nothing of it may run here any more."""
        self.stopped_by = self.stopped_by or "lost"
        self.child.signal(signal.SIGKILL)
