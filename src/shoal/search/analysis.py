"""What a search has found, from its trials alone: the best value so far, and which parameters matter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.kernel import Trial, TrialReader, best_trial, signed
from shoal.model import RunSpec

#: A parameter's values are compared in so many groups of equal size.
_GROUPS = 4


class Search(NamedTuple):
    """A search with its bound trials; `settings` are those of its newest trial (`search` of its spec)."""

    experiment: str
    base: str
    settings: Mapping[str, Any]
    planned: int
    trials: list[Trial]

    @property
    def name(self) -> str:
        return f"{self.experiment}/{self.base}"

    @property
    def best(self) -> Trial | None:
        return best_trial(self.trials, self.settings["direction"])


def read_searches(home: str, specs: Sequence[RunSpec]) -> list[Search]:
    """The searches that these runs belong to."""
    members: dict[tuple[str, str], list[RunSpec]] = {}
    for spec in specs:
        if spec.search:
            members.setdefault((spec.experiment, spec.search["base"]), []).append(spec)
    found = []
    for (experiment, base), runs in members.items():
        newest = max(runs, key=lambda spec: int(spec.search["trial"]))
        reader = TrialReader(home, experiment, base, newest.search["metric"], newest.metrics)
        planned = len({spec.search["trial"] for spec in runs})
        found.append(Search(experiment, base, newest.search, planned, reader.read()))
    return found


def best_so_far(trials: Sequence[Trial], direction: str) -> list[tuple[Trial, float]]:
    """The trials that completed, in order of their end, each with the best value until then."""
    done = [trial for trial in trials if trial.state == "completed" and trial.value is not None]
    done = [trial for trial in done if not math.isnan(trial.value or 0.0)]
    found: list[tuple[Trial, float]] = []
    for trial in sorted(done, key=lambda one: (one.ended or 0.0, one.number)):
        value = trial.value or 0.0
        best = found[-1][1] if found else value
        found.append((trial, min(best, value, key=lambda one: signed(one, direction))))
    return found


def importances(trials: Sequence[Trial], direction: str) -> dict[str, float]:
    """Parameter -> the share of the variance of the trials' ranks that its groups of values explain, the largest
    first. Groups are values of a choice, or quarters of the trials by the parameter's size. Empty below 8 trials."""
    done = [trial for trial in trials if trial.state == "completed" and trial.value is not None]
    if len(done) < 2 * _GROUPS:
        return {}
    order = sorted(range(len(done)), key=lambda index: signed(done[index].value, direction))
    ranks = [0.0] * len(done)
    for rank, index in enumerate(order):
        ranks[index] = float(rank)
    found = {
        name: _explained(ranks, _groups([trial.bound.params.get(name) for trial in done]))
        for name in done[0].bound.params
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _groups(values: Sequence[Any]) -> list[Any]:
    """The group of each value."""
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    if len(numbers) < len(values) or len(set(numbers)) <= _GROUPS:
        return [repr(value) for value in values]
    order = sorted(range(len(values)), key=lambda index: numbers[index])
    groups = [0] * len(values)
    for place, index in enumerate(order):
        groups[index] = place * _GROUPS // len(values)
    return groups


def _explained(ranks: Sequence[float], groups: Sequence[Any]) -> float:
    """Variance between groups over the whole variance, less what as many groups explain by chance."""
    mean = math.fsum(ranks) / len(ranks)
    whole = math.fsum((rank - mean) ** 2 for rank in ranks)
    members: dict[Any, list[float]] = {}
    for rank, group in zip(ranks, groups, strict=True):
        members.setdefault(group, []).append(rank)
    between = math.fsum(len(one) * (math.fsum(one) / len(one) - mean) ** 2 for one in members.values())
    by_chance = (len(members) - 1) / (len(ranks) - 1)
    if whole == 0 or by_chance >= 1:
        return 0.0
    return max(0.0, (between / whole - by_chance) / (1 - by_chance))
