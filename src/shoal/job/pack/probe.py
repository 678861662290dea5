"""Runs of unknown length start once for a few seconds, tell by their progress how long they would take, and wait again.

What they had done is kept like that of any run that was interrupted: with a checkpoint it goes on from there. A run
that ends meanwhile has simply ended; one that tells no progress comes after those that are known to be long.
"""

import time
from typing import Dict, List, Optional, Sequence, Tuple

from ...kernel import progress
from ..environment import complete, text_of
from .queue import Item
from .running import Running

_EVERY_S = 0.5


#: After so many seconds, this part of the way.
Sign = Tuple[float, float]


class Probes:
    """The short starts of one engine. `seconds` is None where none was asked for."""

    def __init__(self, seconds: Optional[float]) -> None:
        self._seconds = seconds
        #: Run -> its first and its last sign of progress.
        self._signs: Dict[str, Tuple[Sign, Sign]] = {}
        self._over: Dict[str, Optional[float]] = {}

    def wants(self, item: Item) -> bool:
        return self._seconds is not None and not item.cost and item.expect_s is None and item.name not in self._over

    def due_at(self, running: Sequence[Running]) -> List[float]:
        return [time.monotonic() + _EVERY_S] if any(self.wants(one.item) for one in running) else []

    def tend(self, now: float, running: Sequence[Running]) -> None:
        """Look how far those are that are being probed, and stop them when their time is over."""
        for one in running:
            if self._seconds is None or one.phase != "program" or one.stopped_by or not self.wants(one.item):
                continue
            elapsed = now - one.clock
            seen = progress.read(_output(one))
            if seen is not None and seen.fraction:
                sign = (elapsed, seen.fraction)
                self._signs[one.item.name] = (self._signs.get(one.item.name, (sign, sign))[0], sign)
            if elapsed >= self._seconds:
                expected = estimate(*self._signs.get(one.item.name, (None, None)))
                self._over[one.item.name] = expected
                words = "no progress to tell by" if expected is None else "about %.0f s in all" % expected
                one.ask_to_stop("probe", "probed for %.0f s: %s" % (elapsed, words))

    def expected_s(self, item: Item) -> Optional[float]:
        """What its probe told; one that told nothing is not asked again."""
        return self._over.get(item.name)


def _output(one: Running) -> progress.Output:
    spec = one.spec
    values = {name: text_of(value) for name, value in spec.get("params", {}).items()}
    words = complete([*spec["command"], *spec.get("args", [])], values)
    steps, epochs = progress.totals(words)
    return progress.Output(one.claim.output_dir, (one.log,), steps=steps, epochs=epochs)


def estimate(first: Optional[Sign], last: Optional[Sign]) -> Optional[float]:
    """Seconds for all of it: those until the last sign, and the rest at the pace between the first sign and that.

    What comes before the first sign (imports, data) is paid once and not in proportion. With a single sign there is
    no pace but that from the start, which is too slow rather than too fast.
    """
    if first is None or last is None:
        return None
    (then, before), (now, part) = first, last
    if part > before and now > then:
        return now + (1 - part) * (now - then) / (part - before)
    return now / part
