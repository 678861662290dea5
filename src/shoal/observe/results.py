"""Runs -> rows over seeds: mean, standard deviation, number of seeds, and the runs that are missing. Pure.

A row's statistics are over seeds. Where a seed has several runs, such as the routes of an evaluation, they are averaged
first: what differs between routes says nothing about how sure a result is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.errors import InputError
from shoal.model import ENDED_STATES, have_same_start
from shoal.units import shorten_list

#: Numbers that differ from run to run whatever the seed does.
_TIMING_METRIC = re.compile(r"time|second|speed|throughput|duration|memory|/s\b", re.IGNORECASE)


class RunMetrics(NamedTuple):
    """One run with what it left. `numbers` are empty for a run that has not completed.

    `script` is the file it comes from and `number` that file's number; runs of the same `work` differ in the seed
    alone, and in what they start from. `code` is the word of run_code.py.
    """

    name: str
    step: str
    seed: int | None
    params: Mapping[str, Any]
    derived: Sequence[str]
    state: str
    numbers: Mapping[str, float]
    cause: str | None = None
    reason: str | None = None
    script: str = ""
    number: int | None = None
    work: str = ""
    starts: tuple[str, str] = ("", "")
    code: str = ""
    submitted: float = 0.0

    @property
    def group(self) -> str:
        """The name without the seed: the runs that differ in nothing else."""
        return self.name if self.seed is None else self.name.removesuffix(f"_{self.seed}")


class Statistic(NamedTuple):
    """Over the seeds that have the metric: `values` has the mean of each. `std` is that of a sample (n - 1), and None
    for fewer than two."""

    mean: float
    std: float | None
    size: int
    values: dict[str, float]


class ResultGroup(NamedTuple):
    name: str
    step: str
    params: Mapping[str, Any]
    runs: list[RunMetrics]
    metrics: dict[str, Statistic]
    missing: list[RunMetrics]


class ResultTable(NamedTuple):
    """The table: which parameters vary, which metrics there are, and the groups in their order.

    `missing_value` is what a missing run that has ended counts as, if it does; `notes` tell what looks wrong.
    """

    params: list[str]
    metrics: list[str]
    groups: list[ResultGroup]
    missing_value: float | None = None
    notes: list[str] = []  # noqa: RUF012 (a constant)


def tabulate(
    runs: Sequence[RunMetrics],
    *,
    metrics: Sequence[str] = (),
    sort: str | None = None,
    descending: bool = False,
    all_params: bool = False,
    defaults: Mapping[str, Any] | None = None,
    over: Sequence[str] = (),
    missing_value: float | None = None,
) -> ResultTable:
    """Group runs over seeds. `metrics` chooses and orders columns; `sort` is one of them, or a parameter.

    `over` names parameters to average over for each seed, such as the routes of an evaluation. `missing_value` stands
    for the metrics of runs that have ended without them.
    """
    _refuse_unknown_parameters(over, runs)
    by_group = _group_runs(runs, over)
    known = dict.fromkeys(name for run in runs for name in run.numbers)
    _refuse_unknown_metrics([*metrics], known)
    given = {name for run in runs for name in run.params}
    # timm logs the learning rate as well: a number that is a parameter is shown once, unless it is asked for.
    columns = list(metrics) or [name for name in known if name not in given]
    groups = [_group(name, members, columns, defaults or {}, missing_value) for name, members in by_group.items()]
    params = _varying(groups, all_params, defaults or {})
    if sort is not None:
        if sort not in params and sort not in known:
            _refuse_unknown_metrics([sort], {**known, **dict.fromkeys(params)})
        groups = _sort_groups(groups, sort, sort in known, descending)
    return ResultTable(params, columns, groups, missing_value, _notes(groups, columns, over, missing_value))


def _group_runs(runs: Sequence[RunMetrics], over: Sequence[str]) -> dict[str, list[RunMetrics]]:
    """The runs of each row under its name. A script whose number grows with its seed, as 010_x_0, 011_x_1, 012_x_2, is
    one row; other scripts never share one."""
    rows: dict[str, list[RunMetrics]] = {}
    for run in runs:
        rows.setdefault(_group_name(run, over), []).append(run)
    rows = _apart_from_seeds(rows)
    numbered: dict[tuple[Any, ...], list[str]] = {}
    for name, members in rows.items():
        run = members[0]
        if len(members) == 1 and run.work and run.number is not None and run.seed is not None:
            key = (run.name.partition("/")[0], run.step, run.number - run.seed, run.work)
            numbered.setdefault(key, []).append(name)
    joined = {
        names[0]: names
        for names in numbered.values()
        if len(names) > 1 and have_same_start([rows[name][0].starts for name in names])
    }
    taken = {name for names in joined.values() for name in names[1:]}
    return {
        _number_range_name(name, joined[name], rows) if name in joined else name: [
            run for one in joined.get(name, [name]) for run in rows[one]
        ]
        for name in rows
        if name not in taken
    }


def _apart_from_seeds(rows: Mapping[str, list[RunMetrics]]) -> dict[str, list[RunMetrics]]:
    """A run without a seed is no further seed of the runs that are called like it: those are then the row `name_*`."""
    found: dict[str, list[RunMetrics]] = {}
    for name, members in rows.items():
        seeded = [run for run in members if run.seed is not None]
        if not seeded or len(seeded) == len(members):
            found[name] = members
        else:
            found[name] = [run for run in members if run.seed is None]
            found[f"{name}_*"] = seeded
    return found


def _number_range_name(name: str, names: Sequence[str], rows: Mapping[str, list[RunMetrics]]) -> str:
    """001_x/010_train -> 001_x/010-012_train."""
    last = max(rows[one][0].number or 0 for one in names)
    return re.sub(r"/(\d+)", lambda match: f"/{match[1]}-{last:0{len(match[1])}}", name, count=1)


def _group(
    name: str,
    runs: list[RunMetrics],
    columns: Sequence[str],
    defaults: Mapping[str, Any],
    missing_value: float | None,
) -> ResultGroup:
    statistics = {}
    for column in columns:
        values = _by_seed(runs, column, missing_value)
        if values:
            statistics[column] = statistic(values)
    missing = [run for run in runs if not any(column in run.numbers for column in columns)]
    shared = {n: v for n, v in runs[0].params.items() if all(run.params.get(n) == v for run in runs)}
    return ResultGroup(name, runs[0].step, {**defaults, **shared}, runs, statistics, missing)


def _by_seed(runs: Sequence[RunMetrics], column: str, missing_value: float | None) -> dict[str, float]:
    """Seed -> the mean of its runs."""
    return {seed: _mean(values) for seed, values in _values_by_seed(runs, column, missing_value).items()}


def _values_by_seed(runs: Sequence[RunMetrics], column: str, missing_value: float | None) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in runs:
        value = run.numbers.get(column)
        if value is None and missing_value is not None and run.state in ENDED_STATES:
            value = missing_value
        if value is not None:
            found.setdefault("-" if run.seed is None else str(run.seed), []).append(value)
    return found


def _incomplete(group: ResultGroup, over: Sequence[str], missing_value: float | None) -> list[str]:
    """Seeds whose mean is over fewer runs than there are, such as routes: they are not comparable with the others."""
    whole = len({tuple(str(run.params.get(name)) for name in over) for run in group.runs})
    columns_of: dict[str, list[str]] = {}
    for column in group.metrics:
        counts = {seed: len(values) for seed, values in _values_by_seed(group.runs, column, missing_value).items()}
        what = f"values of {over[0]}" if len(over) == 1 else f"combinations of {', '.join(over)}"
        few = [
            f"{'' if seed == '-' else f'seed {seed} '}has {count} of {whole} {what}"
            for seed, count in counts.items()
            if count < whole
        ]
        if few:
            columns_of.setdefault(shorten_list(few, 10), []).append(column)
    return [
        f"{group.name}: {text if len(columns) == len(group.metrics) else f'{shorten_list(columns, 5)}: {text}'}"
        for text, columns in columns_of.items()
    ]


def _notes(
    groups: Sequence[ResultGroup], columns: Sequence[str], over: Sequence[str], missing_value: float | None
) -> list[str]:
    """What looks wrong: a seed that changes nothing, or has a part of its runs, and a metric of a completed run
    that is no number."""
    notes = []
    for group in groups:
        notes += _incomplete(group, over, missing_value) if over else []
        done = [run for run in group.runs if run.numbers]
        by_seed = {run.seed: run for run in done if run.seed is not None}
        kept = [
            {k: v for k, v in run.numbers.items() if math.isfinite(v) and not _TIMING_METRIC.search(k)}
            for run in by_seed.values()
        ]
        if len(by_seed) > 1 and len(by_seed) == len(done) and kept[0] and all(one == kept[0] for one in kept):
            seeds = ", ".join(map(str, sorted(by_seed)))
            notes.append(
                f"{group.name}: seeds {seeds} have the same metrics to the last digit; does the program use its seed?"
            )
        for run in done:
            odd = [name for name in columns if not math.isfinite(run.numbers.get(name, 0.0))]
            if odd and run.state == "completed":
                values = ", ".join(f"{name} = {run.numbers[name]:g}" for name in odd)
                notes.append(f"{run.name} completed with {values}")
    return notes


def _mean(numbers: Sequence[float]) -> float:
    if not all(map(math.isfinite, numbers)):
        return math.nan
    try:
        return math.fsum(numbers) / len(numbers)
    except OverflowError:
        return math.fsum(one / len(numbers) for one in numbers)


def statistic(values: dict[str, float]) -> Statistic:
    numbers = list(values.values())
    mean, std = _mean(numbers), None
    if len(numbers) > 1:
        std = math.hypot(*(one - mean for one in numbers)) / math.sqrt(len(numbers) - 1)
    return Statistic(mean, std, len(numbers), values)


def _varying(groups: Sequence[ResultGroup], all_params: bool, defaults: Mapping[str, Any]) -> list[str]:
    derived = {name for group in groups for run in group.runs for name in run.derived}
    names = dict.fromkeys(name for group in groups for name in group.params)
    found = []
    for name in sorted(names):
        values = {repr(group.params.get(name)) for group in groups}
        if (len(values) > 1 and name not in derived) or (all_params and name in names):
            found.append(name)
    return found


def _sort_groups(groups: list[ResultGroup], key: str, is_metric: bool, descending: bool) -> list[ResultGroup]:
    """By a metric's mean or a parameter; groups without it, or with NaN, come last either way."""

    def value(group: ResultGroup) -> Any:
        if is_metric:
            return group.metrics[key].mean if key in group.metrics else None
        return group.params.get(key)

    def is_there(group: ResultGroup) -> bool:
        return value(group) is not None and value(group) == value(group)  # NaN is not itself

    there = [group for group in groups if is_there(group)]
    rest = [group for group in groups if not is_there(group)]
    numbers = all(isinstance(value(group), int | float) for group in there)
    there.sort(key=lambda group: value(group) if numbers else str(value(group)), reverse=descending)
    return there + rest


def _group_name(run: RunMetrics, over: Sequence[str]) -> str:
    """The group's name: without the seed, and without the parameters that are averaged over."""
    if not any(name in run.params for name in over):
        return run.group
    rest = {name: value for name, value in run.params.items() if name not in over and name not in run.derived}
    script = run.script or f"{run.name.partition('/')[0]}/{run.step}"
    return script + "".join(f"_{name}{value}" for name, value in sorted(rest.items()))


def _refuse_unknown_parameters(over: Sequence[str], runs: Sequence[RunMetrics]) -> None:
    known = {name for run in runs for name in run.params}
    for name in over:
        if name not in known:
            raise InputError(
                f"no run has a parameter {name!r}", hint=f"there are {', '.join(sorted(known))}", place="--over"
            )


def _refuse_unknown_metrics(asked: Sequence[str], known: Mapping[str, Any]) -> None:
    from difflib import get_close_matches

    for name in asked:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            have = f"; there are {shorten_list(known, 10)}" if known and not near else ""
            raise InputError(
                f"no run has a metric {name!r}{guess}{have}",
                hint="a run writes its numbers to $SHOAL_OUTPUT_DIR/metrics.json",
            )
