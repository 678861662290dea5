"""Many similar runs as one row (an array, a sweep, the seeds of a script), and when all runs will have ended. Pure.

The estimate uses the speed of running runs, the durations of completed ones, when Slurm expects to start those that are
pending, and, where none of them has a place yet, the GPUs of the cluster.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.kernel import error_signature
from shoal.model import ACTIVE_STATES, RUN_STATES
from shoal.observe import RunView

#: Up to this many runs of a kind are shown one by one.
MAX_UNGROUPED = 8


class RunGroup(NamedTuple):
    """Runs that share experiment, number and step; `key` ends in * because it stands for several names."""

    key: str
    views: list[RunView]


def count_states(views: Sequence[RunView]) -> dict[str, int]:
    """State -> how many, in the order of RUN_STATES."""
    counts = Counter(view.state for view in views)
    return {state: counts[state] for state in RUN_STATES if counts[state]}


def group_key(name: str) -> str:
    """001_sweep/000_train_lr0.1_0 -> 001_sweep/000_train_*; a name without such parts is a kind of its own."""
    experiment, _, stem = name.partition("/")
    parts = stem.split("_")
    return f"{experiment}/{'_'.join(parts[:2])}_*" if len(parts) > 2 else name


def group_runs(views: Sequence[RunView], fold_above: int = MAX_UNGROUPED) -> list[RunGroup | RunView]:
    """The runs in order, with every kind of more than `fold_above` runs as one family at the place of its first."""
    kinds: dict[str, list[RunView]] = {}
    for view in views:
        kinds.setdefault(group_key(view.name), []).append(view)
    rows: list[RunGroup | RunView] = []
    for key, members in kinds.items():
        if len(members) > fold_above:
            rows.append(RunGroup(key, members))
        else:
            rows.extend(members)
    return rows


def group_by_reason(views: Sequence[RunView]) -> list[list[RunView]]:
    """Runs grouped by state and by the same reason but for numbers and paths; the largest group first."""
    groups: dict[tuple[str, str], list[RunView]] = {}
    for view in views:
        groups.setdefault((view.state, error_signature(view.reason or "")), []).append(view)
    return sorted(groups.values(), key=len, reverse=True)


def median(numbers: Sequence[float]) -> float:
    """Of at least one number. The statistics module takes longer to import than the whole forecast."""
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def remaining_s(view: RunView, left_s: float | None, usual_s: float | None, now: float) -> float | None:
    """How much longer a running run takes: by its own pace, else by what its kind usually takes. A time limit is no
    estimate."""
    if view.started is None or left_s is not None:
        return left_s
    elapsed = max(0.0, now - view.started)
    return usual_s - elapsed if usual_s is not None and usual_s > elapsed else None


def latest_end(views: Sequence[RunView]) -> float | None:
    """When the time limits end the last of the running runs; None if others wait, or one has no limit."""
    if any(view.state in ACTIVE_STATES - {"running"} for view in views):
        return None
    ends = [
        view.started + view.time_limit_s if view.started is not None and view.time_limit_s else None
        for view in views
        if view.state == "running"
    ]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


class ExpectedEnd(NamedTuple):
    """When the last run ends. `if_gpus`: so many GPUs have to be free now; None if runs have their places already."""

    t: float
    if_gpus: int | None = None


def expected_end(views: Sequence[RunView], left: Mapping[str, float | None], now: float) -> ExpectedEnd | None:
    """When the last run ends; None when nothing allows a guess. `left` holds how many seconds a run still takes at its
    own pace.

    Runs that wait are taken to last as long as the median of those of their kind that completed (else of those that
    run). They start when Slurm expects it, or one after the other on places that become free.
    """
    waiting = [view for view in views if view.state in ACTIVE_STATES - {"running"}]
    running = [view for view in views if view.state == "running"]
    if any(view.state == "blocked" for view in views) or not (waiting or running):
        return None
    durations: dict[str, list[float]] = {}
    for view in views:
        if view.state == "completed" and view.started is not None and view.ended is not None:
            durations.setdefault(group_key(view.name), []).append(view.ended - view.started)
    usual = {key: median(found) for key, found in durations.items()}
    places = []
    for view in running:
        key = group_key(view.name)
        left_s = remaining_s(view, left.get(view.name), usual.get(key), now)
        if left_s is None:
            return None
        places.append(now + left_s)
        if key not in usual and view.started is not None:
            durations.setdefault(key, []).append(now - view.started + left_s)
    typical = {key: median(found) for key, found in durations.items()}
    return _after_waiting(waiting, places, typical, now)


def _after_waiting(
    waiting: Sequence[RunView], places: list[float], typical: Mapping[str, float], now: float
) -> ExpectedEnd | None:
    """The end of all, if those that wait follow on the `places` that become free at these times."""
    if any(group_key(view.name) not in typical for view in waiting):
        return None
    # Runs of a pack do not start together when their job starts.
    sizes = Counter(view.job_id for view in waiting if view.job_id is not None)
    unplaced = []
    for view in waiting:
        if view.expected_start is not None and sizes[view.job_id or ""] < 2:
            places.append(max(now, view.expected_start) + typical[group_key(view.name)])
        else:
            unplaced.append(view)
    if_gpus = None
    if unplaced and not places:
        room = 0 if max(sizes.values(), default=0) > 1 else _places_of_cluster(unplaced)
        if not room:
            return None
        places, if_gpus = [now] * room, room * (unplaced[0].gpus or 0)
    heapq.heapify(places)
    for view in unplaced:
        heapq.heapreplace(places, places[0] + typical[group_key(view.name)])
    return ExpectedEnd(max(places), if_gpus)


def _places_of_cluster(waiting: Sequence[RunView]) -> int:
    """How many of these runs fit on their cluster at a time; 0 if that is not known."""
    gpus = max(view.gpus or 0 for view in waiting)
    total = min(view.cluster_gpus or 0 for view in waiting)
    return min(len(waiting), total // gpus) if gpus else 0
