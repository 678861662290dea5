"""`status --group`: runs that differ in the seed alone as one row, with the mean of the metric and what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.observe import ResultGroup, RunView
from shoal.views.render import table_lines
from shoal.views.results import format_mean, missing_seeds
from shoal.views.run_groups import count_states
from shoal.views.run_table import MetricChoice, format_param, group_table, metric_key, short_param_names, shorten_names
from shoal.views.status import StatusReport
from shoal.views.terminal import Screen


def seed_group_lines(
    report: StatusReport, shown: Sequence[RunView], screen: Screen, sort: str | None = None
) -> list[str]:
    """A row for each group; on a terminal the best one is marked, and names give way to the rest."""
    table, metric = group_table(shown, report.summaries, report.metric, sort), report.metric
    if not table.groups:
        return ["no runs with parameters or seeds to group"]
    views = {view.name: view for view in shown}
    best = best_group(table.groups, metric)
    short = short_param_names(table.params)
    header = ["GROUP", "STATES", *(short[name] for name in table.params)]
    header += [metric.name, "N"] if table.metrics and metric is not None else []
    rows = []
    for group in table.groups:
        counts = count_states([views[run.name] for run in group.runs])
        row = [group.name, " ".join(f"{count} {state}" for state, count in counts.items())]
        row += [format_param(group.params.get(name)) for name in table.params]
        if table.metrics and metric is not None:
            found = group.metrics.get(metric.name)
            mark = " *" if group is best and screen.tty else ""
            row += [format_mean(found) + mark, f"{found.size if found else 0}/{len(group.runs)}"]
        rows.append([*row, missing_seeds(group) or "-"])
    if screen.tty:
        names = shorten_names([row[0] for row in rows], max(20, screen.width // 4))
        rows = [[names[row[0]], *row[1:]] for row in rows]
    return table_lines([*header, "MISSING"], rows, screen, widest=len(header))


def best_group(groups: Sequence[ResultGroup], metric: MetricChoice | None) -> ResultGroup | None:
    """The group with the best mean; None where the direction is not known or nothing can be compared."""
    if metric is None or metric.mode is None:
        return None
    means = {at: metric_key(one.metrics[metric.name].mean, metric) for at, one in enumerate(groups) if one.metrics}
    known = {at: key for at, key in means.items() if not key[0]}
    return groups[min(known, key=lambda at: known[at])] if len(known) > 1 else None
