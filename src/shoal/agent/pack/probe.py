"""Runs of unknown length start once for a few seconds, tell by their progress how long they would take, and wait again.

What they had done is kept like that of any run that was interrupted: with a checkpoint it goes on from there. A run
that ends meanwhile has simply ended; one that tells no progress comes after those that are known to be long.
"""

import time
from typing import Dict, List, Optional, Sequence, Tuple

from .. import progress
from .queue import Item
from .running import Running

_EVERY_S = 0.5


class Probes:
    """The short starts of one engine. `seconds` is None where none was asked for."""

    def __init__(self, seconds: Optional[float]) -> None:
        self._seconds = seconds
        #: Run -> its first sign of progress: when, and how far.
        self._first: Dict[str, Tuple[float, float]] = {}
        self._over: Dict[str, Optional[float]] = {}

    def wants(self, item: Item) -> bool:
        return self._seconds is not None and not item.cost and item.expect_s is None and item.name not in self._over

    def due_at(self, running: Sequence[Running]) -> List[float]:
        return [time.monotonic() + _EVERY_S] if any(self.wants(one.item) for one in running) else []

    def tend(self, now: float, running: Sequence[Running], grace_s: float) -> None:
        """Look how far those are that are being probed, and stop them when their time is over."""
        for one in running:
            if self._seconds is None or one.phase != "program" or one.stopped_by or not self.wants(one.item):
                continue
            elapsed = now - one.clock
            seen = progress.read(one.begun.claim.output_dir, (one.begun.out, one.begun.err))
            part = seen.fraction if seen else None
            if part:
                self._first.setdefault(one.item.name, (elapsed, part))
            if elapsed >= self._seconds:
                expected = estimate(self._first.get(one.item.name), elapsed, part)
                self._over[one.item.name] = expected
                words = "no progress to tell by" if expected is None else "about %.0f s in all" % expected
                one.ask_to_stop("probe", grace_s, "probed for %.0f s: %s" % (elapsed, words))

    def expected_s(self, item: Item) -> Optional[float]:
        """What its probe told; one that told nothing is not asked again."""
        return self._over.get(item.name)


def estimate(first: Optional[Tuple[float, float]], elapsed: float, part: Optional[float]) -> Optional[float]:
    """Seconds for all of it: what has passed, and the rest at the pace between the first sign and now.

    What comes before the first sign (imports, data) is paid once and not in proportion. With a single sign there is
    no pace but that from the start, which is too slow rather than too fast.
    """
    if not part or first is None:
        return None
    then, before = first
    if part > before and elapsed > then:
        return elapsed + (1 - part) * (elapsed - then) / (part - before)
    return elapsed / part
