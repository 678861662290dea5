"""How fast a running run is, from how far it came in which time. `status` and `switch` count with the same pace."""

from __future__ import annotations

import msgspec

from shoal.kernel import Progress, checkpoints
from shoal.observe.run_state import RunView

#: Less of the way than this tells mostly how long a start takes.
_START_UP = 0.02


class ProgressRate(msgspec.Struct, frozen=True, kw_only=True):
    """`since` is the part of the way at which this attempt began, `measured_s` how long it took from there to
    `fraction`, which was seen `age_s` ago."""

    fraction: float
    since: float = 0.0
    measured_s: float
    age_s: float = 0.0

    @property
    def rate(self) -> float:
        """Part of the way per second."""
        return max(1e-12, (self.fraction - self.since) / max(1.0, self.measured_s))

    @property
    def is_start_up(self) -> bool:
        """Whether it has come so little of the way that its rate cannot be told yet."""
        return self.fraction - self.since < _START_UP

    @property
    def now(self) -> float:
        return min(1.0, self.fraction + self.rate * self.age_s)

    @property
    def left_s(self) -> float:
        return (1.0 - self.now) / self.rate


def progress_rate(view: RunView, seen: Progress, now: float) -> ProgressRate:
    """The pace since this attempt's program began."""
    moment = min(now, seen.t)
    return ProgressRate(
        fraction=seen.fraction or 0.0,
        since=_since(view, seen) or 0.0,
        measured_s=max(1.0, moment - (view.program_started or now)),
        age_s=max(0.0, now - moment),
    )


def known_pace(view: RunView, seen: Progress | None, now: float) -> ProgressRate | None:
    """The pace of an attempt that is past its start-up; None where that cannot be told."""
    if seen is None or seen.fraction is None or _since(view, seen) is None or view.program_started is None:
        return None
    pace = progress_rate(view, seen, now)
    return None if pace.is_start_up else pace


def remaining_s(view: RunView, seen: Progress | None, now: float) -> float | None:
    """How much longer a running run takes at its own pace; None where that cannot be told."""
    pace = known_pace(view, seen, now)
    return pace.left_s if pace is not None else None


def _since(view: RunView, seen: Progress | None) -> float | None:
    """The part of the way at which the attempt began; None if that cannot be told."""
    if not view.resume_from:
        return 0.0
    step = checkpoints.step_of(view.resume_from)
    if step is None or seen is None or not seen.total or step > (seen.step or 0):
        return None
    return step / seen.total
