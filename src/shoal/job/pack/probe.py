"""Runs of unknown length start once for a few seconds, tell by their progress how long they would take, and wait again.

What they had done is kept like that of any run that was interrupted: with a checkpoint it goes on from there. A run
that ends meanwhile has simply ended; one that tells no progress comes after those that are known to be long.
"""

import time
from typing import Dict, List, Optional, Sequence, Tuple

from ...kernel import progress
from ..environment import fill_all, format_value
from .queue import QueuedRun
from .running import PackAttempt

_PROBE_CHECK_S = 0.5


#: After so many seconds, this part of the way.
ProgressSample = Tuple[float, float]


class DurationProbes:
    """The short starts of one engine. `seconds` is None where none was asked for."""

    def __init__(self, seconds: Optional[float]) -> None:
        self._seconds = seconds
        #: Run -> its first and its last sign of progress.
        self._signs: Dict[str, Tuple[ProgressSample, ProgressSample]] = {}
        self._close_oldest: Dict[str, Optional[float]] = {}

    def wants(self, item: QueuedRun) -> bool:
        return (
            self._seconds is not None
            and not item.cost
            and item.expect_s is None
            and item.name not in self._close_oldest
        )

    def due_at(self, running: Sequence[PackAttempt]) -> List[float]:
        return [time.monotonic() + _PROBE_CHECK_S] if any(self.wants(one.item) for one in running) else []

    def tend(self, now: float, running: Sequence[PackAttempt]) -> None:
        """Look how far those are that are being probed, and stop them when their time is over."""
        for one in running:
            if self._seconds is None or one.phase != "program" or one.stopped_by or not self.wants(one.item):
                continue
            elapsed = now - one.clock
            seen = progress.read_progress(_run_output(one))
            if seen is not None and seen.fraction:
                sign = (elapsed, seen.fraction)
                self._signs[one.item.name] = (self._signs.get(one.item.name, (sign, sign))[0], sign)
            if elapsed >= self._seconds:
                expected = estimate_duration_s(*self._signs.get(one.item.name, (None, None)))
                self._close_oldest[one.item.name] = expected
                words = "no progress to tell by" if expected is None else "about %.0f s in all" % expected
                one.ask_to_stop("probe", "probed for %.0f s: %s" % (elapsed, words))

    def expected_s(self, item: QueuedRun) -> Optional[float]:
        """What its probe told; one that told nothing is not asked again."""
        return self._close_oldest.get(item.name)


def _run_output(one: PackAttempt) -> progress.RunOutput:
    spec = one.spec
    values = {name: format_value(value) for name, value in spec.get("params", {}).items()}
    words = fill_all([*spec["command"], *spec.get("args", [])], values)
    steps, epochs = progress.totals_of_command(words)
    return progress.RunOutput(one.claim.output_dir, (one.log,), steps=steps, epochs=epochs)


def estimate_duration_s(first: Optional[ProgressSample], last: Optional[ProgressSample]) -> Optional[float]:
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
