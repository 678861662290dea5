"""Runs -> groups over seeds: mean, standard deviation, count, and the seeds that are missing. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.errors import InputError
from shoal.units import listed


class RunResult(NamedTuple):
    """One run with what it left. `numbers` are empty for a run that has not ended well."""

    name: str
    step: str
    seed: int | None
    params: Mapping[str, Any]
    derived: Sequence[str]
    state: str
    numbers: Mapping[str, float]
    cause: str | None = None

    @property
    def group(self) -> str:
        """The name without the seed: the runs that differ in nothing else."""
        return self.name if self.seed is None else self.name.removesuffix(f"_{self.seed}")


class Statistic(NamedTuple):
    """Over the seeds that have the metric. `std` is that of a sample (n - 1), and None for fewer than two."""

    mean: float
    std: float | None
    size: int
    values: dict[str, float]


class Group(NamedTuple):
    name: str
    step: str
    params: Mapping[str, Any]
    runs: list[RunResult]
    metrics: dict[str, Statistic]
    missing: list[RunResult]


class Results(NamedTuple):
    """The table: which parameters vary, which metrics there are, and the groups in their order."""

    params: list[str]
    metrics: list[str]
    groups: list[Group]


def tabulate(
    runs: Sequence[RunResult],
    *,
    metrics: Sequence[str] = (),
    sort: str | None = None,
    descending: bool = False,
    all_params: bool = False,
    defaults: Mapping[str, Any] | None = None,
    over: Sequence[str] = (),
) -> Results:
    """Group runs over seeds. `metrics` chooses and orders columns; `sort` is one of them, or a parameter.

    `over` names parameters to average over as well, such as the routes of an evaluation.
    """
    by_group: dict[str, list[RunResult]] = {}
    _refuse_strangers(over, runs)
    for run in runs:
        by_group.setdefault(_key(run, over), []).append(run)
    known = dict.fromkeys(name for run in runs for name in run.numbers)
    _refuse_unknown([*metrics], known)
    columns = list(metrics) or list(known)
    groups = [_group(name, members, columns, defaults or {}) for name, members in by_group.items()]
    params = _varying(groups, all_params, defaults or {})
    if sort is not None:
        if sort not in params and sort not in known:
            _refuse_unknown([sort], {**known, **dict.fromkeys(params)})
        groups = _sorted(groups, sort, sort in known, descending)
    return Results(params, columns, groups)


def _group(name: str, runs: list[RunResult], columns: Sequence[str], defaults: Mapping[str, Any]) -> Group:
    statistics = {}
    for column in columns:
        values = {_label(run, runs): run.numbers[column] for run in runs if column in run.numbers}
        if values:
            statistics[column] = statistic(values)
    missing = [run for run in runs if not any(column in run.numbers for column in columns)]
    shared = {n: v for n, v in runs[0].params.items() if all(run.params.get(n) == v for run in runs)}
    return Group(name, runs[0].step, {**defaults, **shared}, runs, statistics, missing)


def statistic(values: dict[str, float]) -> Statistic:
    numbers = list(values.values())
    mean = math.fsum(numbers) / len(numbers) if all(map(math.isfinite, numbers)) else float("nan")
    std = None
    if len(numbers) > 1:
        std = math.sqrt(math.fsum((one - mean) ** 2 for one in numbers) / (len(numbers) - 1))
    return Statistic(mean, std, len(numbers), values)


def _varying(groups: Sequence[Group], all_params: bool, defaults: Mapping[str, Any]) -> list[str]:
    derived = {name for group in groups for run in group.runs for name in run.derived}
    names = dict.fromkeys(name for group in groups for name in group.params)
    found = []
    for name in sorted(names):
        values = {repr(group.params.get(name)) for group in groups}
        if (len(values) > 1 and name not in derived) or (all_params and name in names):
            found.append(name)
    return found


def _sorted(groups: list[Group], key: str, is_metric: bool, descending: bool) -> list[Group]:
    """By a metric's mean or a parameter; groups without it come last either way."""

    def value(group: Group) -> Any:
        if is_metric:
            return group.metrics[key].mean if key in group.metrics else None
        return group.params.get(key)

    there = [group for group in groups if value(group) is not None]
    rest = [group for group in groups if value(group) is None]
    numbers = all(isinstance(value(group), int | float) for group in there)
    there.sort(key=lambda group: value(group) if numbers else str(value(group)), reverse=descending)
    return there + rest


def _label(run: RunResult, group: Sequence[RunResult]) -> str:
    """What tells a run of a group: its seed, or its name where several share the seed."""
    if sum(1 for other in group if other.seed == run.seed) > 1:
        return run.name
    return "-" if run.seed is None else str(run.seed)


def _key(run: RunResult, over: Sequence[str]) -> str:
    """The group's name: without the seed, and without the parameters that are averaged over."""
    if not any(name in run.params for name in over):
        return run.group
    rest = {name: value for name, value in run.params.items() if name not in over and name not in run.derived}
    experiment = run.name.partition("/")[0]
    return f"{experiment}/{run.step}" + "".join(f"_{name}{value}" for name, value in sorted(rest.items()))


def _refuse_strangers(over: Sequence[str], runs: Sequence[RunResult]) -> None:
    known = {name for run in runs for name in run.params}
    for name in over:
        if name not in known:
            raise InputError(
                f"no run has a parameter {name!r}", hint=f"there are {', '.join(sorted(known))}", place="--over"
            )


def _refuse_unknown(asked: Sequence[str], known: Mapping[str, Any]) -> None:
    from difflib import get_close_matches

    for name in asked:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            have = f"; there are {listed(known, 10)}" if known and not near else ""
            raise InputError(
                f"no run has a metric {name!r}{guess}{have}",
                hint="a run writes its numbers to $SHOAL_OUTPUT_DIR/metrics.json",
            )
