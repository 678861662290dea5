"""When will it all be over? From the progress of what runs, the durations of what is done, and nothing else. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from shoal.store.fold import RunView
from shoal.views.family import family_key

#: Below this part of the way, progress tells more about the start-up than about the speed.
_TELLING = 0.02


def median(numbers: Sequence[float]) -> float:
    """Of at least one number. The statistics module takes longer to import than the whole forecast."""
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def remaining_s(view: RunView, fraction: float | None, usual_s: float | None, now: float) -> float | None:
    """How much longer a running run takes: by its progress, else by what its kind usually takes, else its limit."""
    if view.started is None:
        return None
    elapsed = max(0.0, now - view.started)
    if fraction is not None and fraction >= _TELLING:
        return elapsed / fraction - elapsed
    if usual_s is not None and usual_s > elapsed:
        return usual_s - elapsed
    return max(0.0, view.time_limit_s - elapsed) if view.time_limit_s else None


def expected_end(views: Sequence[RunView], fractions: Mapping[str, float | None], now: float) -> float | None:
    """When the last run ends if as many run side by side as now; None when nothing allows a guess.

    Runs that wait are taken to last as long as the median of those of their kind that are done (else of those that
    run), one after the other on the places that are in use.
    """
    durations: dict[str, list[float]] = {}
    for view in views:
        if view.state == "done" and view.started is not None and view.ended is not None:
            durations.setdefault(family_key(view.name), []).append(view.ended - view.started)
    usual = {key: median(found) for key, found in durations.items()}
    places = []
    for view in views:
        if view.state == "running":
            left = remaining_s(view, fractions.get(view.name), usual.get(family_key(view.name)), now)
            if left is None:
                return None
            places.append(left)
            if family_key(view.name) not in usual and view.started is not None:
                durations.setdefault(family_key(view.name), []).append(now - view.started + left)
    waiting = [view for view in views if view.state in ("pending", "queued", "unknown")]
    if not places or any(view.state == "stuck" for view in views):
        return None
    typical = {key: median(found) for key, found in durations.items()}
    heapq.heapify(places)
    for view in waiting:
        lasts = typical.get(family_key(view.name))
        if lasts is None:
            return None
        heapq.heapreplace(places, places[0] + lasts)
    return now + max(places)
