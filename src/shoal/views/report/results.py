"""Results over seeds, grouped as `shoal results` groups them; each row tells what differs between rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.agent.environment import text_of
from shoal.model import RunSpec
from shoal.results.table import Group, Statistic, tabulate
from shoal.units import plural
from shoal.views.report.history import RunHistory
from shoal.views.results import result_of


class Row(NamedTuple):
    """`settings` holds only what differs between rows."""

    label: str
    settings: dict[str, str]
    seeds: list[int]
    metrics: dict[str, Statistic]


def over_seeds(
    histories: Sequence[RunHistory], metrics: Mapping[str, Mapping[str, float]]
) -> tuple[list[Row], list[str]]:
    """Rows of finished runs with metrics, in the order of the runs; and notes on what looks wrong or is in no row."""
    runs = []
    for history in histories:
        numbers, spec = metrics.get(history.view.name), history.spec
        run = result_of(spec, history.view, numbers) if numbers and history.view.state == "done" else None
        if run is not None and spec is not None:
            runs.append(run._replace(params=_settings(spec)))
    table = tabulate(runs)
    experiments = {run.name.partition("/")[0] for run in runs}
    left_out = len([one for one in histories if one.spec is not None]) - len(runs)
    notes = [f"{plural(left_out, 'run')} without results left out"] if runs and left_out else []
    return [_row(group, table.params, len(experiments) > 1) for group in table.groups], [*notes, *table.notes]


def _row(group: Group, differing: Sequence[str], full_name: bool) -> Row:
    settings = {name: text_of(group.params[name]) for name in differing if name in group.params}
    seeds = sorted(run.seed for run in group.runs if run.seed is not None)
    return Row(group.name if full_name else group.name.partition("/")[2], settings, seeds, group.metrics)


def _settings(spec: RunSpec) -> dict[str, Any]:
    """Parameters, and what a script set in its other ways: variables and arguments. Those of a sweep repeat its own."""
    arguments = {"arguments": " ".join(spec.args)} if spec.args and not spec.params else {}
    return {**spec.env, **spec.params, **arguments}
