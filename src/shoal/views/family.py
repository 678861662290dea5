"""Many runs of one kind as one row: an array, a sweep, the seeds of a script. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from shoal.kernel import error_signature
from shoal.model import RUN_STATES
from shoal.observe import RunView

#: Up to this many runs of a kind are shown one by one.
MAX_UNGROUPED = 8


class RunGroup(NamedTuple):
    """Runs that share experiment, number and step; `key` ends in * because it stands for several names."""

    key: str
    views: list[RunView]


def count_states(views: Sequence[RunView]) -> dict[str, int]:
    """State -> how many, in the order of STATES."""
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
    """Runs grouped by state and by the same cause but for numbers and paths; the largest group first."""
    groups: dict[tuple[str, str], list[RunView]] = {}
    for view in views:
        groups.setdefault((view.state, error_signature(view.cause or "")), []).append(view)
    return sorted(groups.values(), key=len, reverse=True)
