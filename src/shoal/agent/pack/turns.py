"""Whose turn it is: may this engine take a run's next attempt, and does a run that ended get another turn?

Decided from the records on disk alone, so that several engines of one queue, and one that comes later, decide alike.
"""

import time
from typing import Callable, Optional

from ...kernel.fence import INTERRUPTED
from ...kernel.records import End, Held
from .. import attempt
from . import claims
from .again import Again, again
from .books import Holding
from .node import Node
from .others import Others
from .queue import Item, Queue, Settings
from .running import Running
from .tally import Tally

_CLAIM_S = 0.01


class Turns:
    """Takes runs that may start, and puts those that go on back into the queue. `slots` share the node's memory."""

    def __init__(
        self,
        queue: Queue,
        settings: Settings,
        node: Node,
        slots: int,
        others: Others,
        tally: Tally,
        say: Callable[[str], None],
    ) -> None:
        self._queue, self._settings, self._node, self._slots = queue, settings, node, slots
        self._others, self._tally, self._say = others, tally, say
        #: When the next run in order may have been claimed, while they still are.
        self.claims_at: Optional[float] = None

    def take(self, item: Item, holding: Holding, held: Held) -> Optional[Running]:
        """Take the run's next attempt if it may still run; None if there is nothing (more) to do for it now."""
        all_claimed = self._node.all_claimed()
        standing = self._look(item)
        if standing.word == "taken" and self._others.is_gone(standing):
            self._others.write_off(standing)
            standing = self._look(item)
        if standing.word == "taken":
            self._others.leave(item)
            return None
        if standing.word == "done":
            self._tally.count("done")
            self._others.is_done(item.name)
            return None
        if standing.word == "ended":
            more = self._again(standing)
            if more is None:
                by_search = standing.end is not None and standing.end.stopped_by == "search"
                self._tally.count("by_search" if by_search else "failed")
                return None
            if more.slots > item.need.slots:
                self._put_back(item, more._replace(wait_s=0.0))
                return None
        if standing.word == "gone" and not all_claimed:
            # Claims are made in the queue's order: this one is next.
            self._queue.put_back(item)
            self.claims_at = time.monotonic() + _CLAIM_S
        if standing.word == "gone":
            return None
        running = self._begin(standing, item, holding, held)
        if running is None:
            self._others.leave(item)
        return running

    def _begin(self, standing: claims.Standing, item: Item, holding: Holding, held: Held) -> Optional[Running]:
        claim, node = claims.claim_of(standing), self._node
        spec = attempt.spec_of(node.home, claim, node.code, node.environ)
        own = attempt.begin(
            claim,
            standing.attempt + 1,
            node.me,
            spec,
            again=bool(standing.tried),
            environ=node.environ,
            failed_nodes=self._others.failed_with(standing),
            held=held,
        )
        return None if own is None else Running(claim, own, spec, item, holding, self._settings.grace_s)

    def after(self, item: Item, end: End, ours: bool) -> str:
        """An end is on disk: does the run go on? What became of it, in a word, counted and told."""
        why = end.stopped_by
        if not ours:
            self._others.leave(item)
            self._say("%s was taken over by another engine, which took this one for dead" % item.name)
            return "elsewhere"
        more = None
        if not end.success:
            standing = self._look(item)
            more = self._again(standing) if standing.word == "ended" else None
        if end.success:
            self._tally.count("done")
            self._queue.learn(item, end.duration_s)
            self._others.is_done(item.name)
            word = "done"
        elif why == "probe":
            self._queue.put_by_length(item._replace(expect_s=end.expect_s or 0.0))
            word = "waits:"
        elif why == "search":
            self._tally.count("by_search")
            word = "stopped"
        elif more is not None:
            stopped = why in INTERRUPTED and why != "lost"
            self._put_back(item, more)
            self._tally.count("stopped" if stopped else "again")
            word = "stopped" if stopped else "failed, will be tried again:"
        else:
            word = "cancelled" if why == "cancelled" else "failed"
            self._tally.count("stopped" if why == "cancelled" else "failed")
        self._tally.tell(item.name, word, end)
        return word

    def _look(self, item: Item) -> claims.Standing:
        return claims.look(self._node.home, item.name, self._node.token)

    def _again(self, standing: claims.Standing) -> Optional[Again]:
        return again(standing, self._settings, claims.policy_of(standing), self._slots)

    def _put_back(self, item: Item, how: Again) -> None:
        item = item._replace(need=item.need._replace(slots=how.slots))
        if how.wait_s:
            self._queue.put_off(item, time.monotonic() + how.wait_s)
        else:
            self._queue.put_back(item, last=True)
