"""Is a run that was tried tried again? Pure: decided from its records, the pack's settings and the step's policy."""

import math
from typing import Any, Mapping, NamedTuple, Optional

from ...kernel.fence import INTERRUPTED
from ..survival import GOES_ON
from .claims import Standing
from .queue import Settings

_LONGEST_BACKOFF_S = 3600.0


class Again(NamedTuple):
    """After `wait_s`, and with so many slots' part of the node's memory."""

    wait_s: float = 0.0
    slots: int = 1


def again(standing: Standing, settings: Settings, policy: Mapping[str, Any], slots: int) -> Optional[Again]:
    """How a run that ended goes on, or None if it does not. `slots` are what the node has.

    An interruption always continues, a lost engine twice; then the step's policy for the cause counts, and --retries.
    The memory of a node is divided among its slots: to have twice as much is to keep a second slot empty.
    """
    end = standing.end
    why, cause = (end.stopped_by, str(end.cause)) if end is not None else (None, "None")
    width = _width(standing.causes.get("oom", 0), float(policy.get("memory") or 1), slots)
    if why == "lost":
        return Again(slots=width) if standing.lost <= settings.losses else None
    if why in INTERRUPTED:
        return Again(slots=width)
    if why in ("cancelled", "superseded", "search"):
        return None
    before = standing.causes.get(cause, 1) - 1
    allowed = int(policy.get("follow_ups") or 0) if cause in GOES_ON else int((policy.get("retry") or {}).get(cause, 0))
    if before < allowed and not (cause == "oom" and width == _width(before, float(policy.get("memory") or 1), slots)):
        wait_s = 0.0 if cause in GOES_ON else float(policy.get("backoff_s") or 0) * 2**before
        return Again(min(wait_s, _LONGEST_BACKOFF_S), width)
    return Again(slots=width) if standing.tried <= settings.retries else None


def _width(times: int, factor: float, slots: int) -> int:
    """Slots of a run that lacked memory so many times, at most all of them."""
    return min(slots, math.ceil(factor ** min(times, 16)))
