"""Results over seeds: runs that differ only in their seed are one row, with mean and spread of every metric. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.model import RunSpec
from shoal.results.table import statistic
from shoal.views.report.history import RunHistory


class Value(NamedTuple):
    mean: float
    spread: float | None
    runs: int


class Row(NamedTuple):
    """`settings` holds only what differs between rows."""

    label: str
    settings: dict[str, str]
    seeds: list[int]
    metrics: dict[str, Value]


def over_seeds(histories: Sequence[RunHistory], metrics: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Rows of finished runs with metrics, in the order of the runs."""
    groups: dict[tuple[Any, ...], list[tuple[RunHistory, Mapping[str, float]]]] = {}
    for history in histories:
        found = metrics.get(history.view.name)
        if found and history.spec is not None and history.view.state == "done":
            groups.setdefault(_same(history.spec), []).append((history, found))
    different = differing([dict(_settings(members[0][0].spec)) for members in groups.values()])
    rows = []
    for members in groups.values():
        spec = members[0][0].spec
        assert spec is not None  # noqa: S101 (grouped by it above)
        settings = {key: value for key, value in _settings(spec) if key in different}
        keys = dict.fromkeys(key for _, found in members for key in found)
        values = {key: _value([found[key] for _, found in members if key in found]) for key in keys}
        seeds = sorted(one.spec.seed for one, _ in members if one.spec is not None and one.spec.seed is not None)
        rows.append(Row(_label(spec), settings, seeds, values))
    return rows


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys whose value is not the same everywhere."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({one.get(key) for one in settings}) > 1]


def _settings(spec: RunSpec | None) -> list[tuple[str, str]]:
    if spec is None:
        return []
    found = [(key, str(value)) for key, value in spec.params.items()]
    found += [(key, value) for key, value in spec.env.items() if key not in dict(found)]
    return found + ([("arguments", " ".join(spec.args))] if spec.args else [])


def _same(spec: RunSpec) -> tuple[Any, ...]:
    return (spec.experiment, spec.step, *sorted(_settings(spec)))


def _label(spec: RunSpec) -> str:
    stem = spec.stem
    tail = f"_{spec.seed}"
    return stem[: -len(tail)] if spec.seed is not None and stem.endswith(tail) else stem


def _value(numbers: Sequence[float]) -> Value:
    """As `shoal results` has it: a run that diverged makes the mean no number."""
    found = statistic({str(place): number for place, number in enumerate(numbers)})
    return Value(found.mean, found.std, found.size)
