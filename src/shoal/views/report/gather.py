"""All parts of a report as one record, and that record as the JSON document."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.job import format_value
from shoal.kernel import KIND_TEXTS, non_default_fields, read_metrics
from shoal.model import RunSpec
from shoal.observe import (
    AskQueue,
    NodeUsage,
    ResultGroup,
    RunReader,
    Statistic,
    map_in_threads,
    observe,
    run_output,
    tabulate,
)
from shoal.units import plural
from shoal.views.columns import iso_time
from shoal.views.details import RunDetails, run_details, with_log_reason
from shoal.views.report import accounting, breakdowns
from shoal.views.report.accounting import AttemptHistory, RunHistory, read_history
from shoal.views.report.breakdowns import dataset_breakdown, layout_breakdown
from shoal.views.results import finite_or_none, run_metrics
from shoal.views.run_groups import count_states, group_key
from shoal.views.select import select_runs, unselected_sentence
from shoal.views.status import run_document
from shoal.views.timeline import Timeline, TimelineBar, attempts_timeline


class CostReport(NamedTuple):
    title: str
    now: float
    histories: list[RunHistory]
    counts: dict[str, int]
    tries: list[AttemptHistory]
    gpu: accounting.ResourceHours
    cpu: accounting.ResourceHours
    wait: accounting.QueueWait | None
    makespan_s: float | None
    spreads: list[accounting.UsageSpread]
    advice: list[accounting.RequestAdvice]
    timeline: Timeline
    failures: list[accounting.FailureGroup]
    rows: list[ReportRow]
    notes: list[str]
    metrics: dict[str, dict[str, float]]
    details: dict[str, RunDetails]
    slurm_problem: str | None

    @property
    def retried(self) -> int:
        return sum(1 for history in self.histories if len(history.tries) > 1)


def gather_report(
    home: str, which: Sequence[str], *, ask: AskQueue | None = None, clock: Callable[[], float] = time.time
) -> CostReport:
    """Look at the selected runs once and add everything up."""
    names = select_runs(home, which)
    found = observe(home, names, clock=clock, ask=ask)
    now = clock()
    reader, listed = RunReader(home), found.listed(which)
    details = {name: run_details(home, view, now) for name, view in listed.items()}
    views = {name: with_log_reason(view, details[name].fault) for name, view in listed.items()}
    histories = [read_history(home, view, reader, now) for view in views.values()]
    tries = [one for history in histories for one in history.tries]
    causes = {name: KIND_TEXTS[one.cause.kind] for name, one in details.items() if one.cause is not None}
    python = {name: one.cause.line for name, one in details.items() if one.cause and one.cause.kind == "python"}
    metrics = dict(map_in_threads(_metrics, histories)) if histories else {}
    rows, notes = rows_over_seeds(histories, metrics)
    experiments = list(dict.fromkeys(view.experiment for view in views.values()))
    return CostReport(
        title=experiments[0] if len(experiments) == 1 else f"{len(experiments)} experiments",
        now=now,
        histories=histories,
        counts=count_states(list(views.values())),
        tries=tries,
        gpu=accounting.gpu_hours(tries),
        cpu=accounting.cpu_hours(tries),
        wait=accounting.queue_wait(tries),
        makespan_s=accounting.total_makespan_s(tries),
        spreads=accounting.usage_spreads(tries),
        advice=_advice_by_group(tries),
        timeline=attempts_timeline(tries),
        failures=accounting.group_failures(histories, {**causes, **python}),
        rows=rows,
        notes=[*unselected_sentence(home, names), *notes],
        metrics=metrics,
        details=details,
        slurm_problem=found.slurm_problem,
    )


def _metrics(history: RunHistory) -> tuple[str, dict[str, float]]:
    counts = history.view.output_dir and history.tries
    return history.view.name, read_metrics(run_output(history.view, history.spec)) if counts else {}


def _advice_by_group(tries: Sequence[AttemptHistory]) -> list[accounting.RequestAdvice]:
    """For each kind of run by itself: what one kind needs says nothing about another."""
    kinds: dict[str, list[AttemptHistory]] = {}
    for one in tries:
        kinds.setdefault(group_key(one.run), []).append(one)
    found = [(key, advice) for key, members in kinds.items() for advice in accounting.request_advice(members)]
    if len(kinds) == 1:
        return [advice for _, advice in found]
    return [advice._replace(sentence=f"{key}: {advice.sentence}") for key, advice in found]


def report_document(report: CostReport) -> dict[str, Any]:
    """The JSON of a report: hours as numbers, times in Unix seconds and as text."""
    lanes = report.timeline.by_lane()
    return {
        "title": report.title,
        "time": report.now,
        "counts": report.counts,
        "retried": report.retried,
        "gpu_hours": _hours_document(report.gpu),
        "cpu_hours": _hours_document(report.cpu),
        "queue_wait": report.wait._asdict() if report.wait else None,
        "makespan_s": report.makespan_s,
        "efficiency": [one._asdict() for one in report.spreads],
        "advice": [one._asdict() for one in report.advice],
        "timeline": [_bar(bar) for bars in lanes.values() for bar in bars],
        "shapes": [shape._asdict() for shape in layout_breakdown(report.tries)],
        "lanes": [{"name": lane, "busy": report.timeline.busy_fraction(bars)} for lane, bars in lanes.items()],
        "failures": [one._asdict() for one in report.failures],
        "nodes": [one._asdict() for one in breakdowns.node_breakdown(report.tries)],
        "data": [one._asdict() for one in dataset_breakdown(report.tries)],
        "results": [
            {**row._asdict(), "metrics": {key: _json_value(value) for key, value in row.metrics.items()}}
            for row in report.rows
        ],
        "notes": report.notes,
        "runs": [_run_document(report, history) for history in report.histories],
        "slurm_problem": report.slurm_problem,
    }


def _bar(bar: TimelineBar) -> dict[str, Any]:
    """Without its share: in a report runs that shared a GPU have a lane each."""
    record = {name: value for name, value in bar._asdict().items() if name != "share"}
    return {**record, "start_at": iso_time(bar.start), "end_at": iso_time(bar.end)}


def _hours_document(hours: accounting.ResourceHours) -> dict[str, float]:
    return {name: round(value, 6) for name, value in hours._asdict().items()}


def _run_document(report: CostReport, history: RunHistory) -> dict[str, Any]:
    spec, name = history.spec, history.view.name
    return {
        **run_document(history.view, report.details.get(name)),
        "seed": spec.seed if spec else None,
        "step": spec.step if spec else None,
        "params": spec.params if spec else {},
        "metrics": {key: finite_or_none(value) for key, value in report.metrics.get(name, {}).items()},
        "attempts": [_attempt_document(one) for one in history.tries],
    }


def _json_value(value: Statistic) -> dict[str, Any]:
    return {"mean": finite_or_none(value.mean), "spread": finite_or_none(value.std), "runs": value.size}


def _attempt_document(one: AttemptHistory) -> dict[str, Any]:
    use = one.use
    return {
        "attempt": one.attempt,
        "host": one.host,
        "state": one.state,
        "submitted": one.submitted,
        "started": one.begin,
        "ended": one.end,
        "gpus": one.gpus,
        "gpu_hours": round(one.gpus * one.hours, 6),
        "time_limit_s": one.time_limit_s,
        "asked": non_default_fields(one.asked),
        "kept": one.kept,
        "peak_memory_mb": use.peak_memory_mb if use else None,
        "mean_cpus": use.mean_cpus if use else None,
        "mean_gpu_percent": use.mean_gpu_percent if use else None,
        "gpu_problem": use.gpu_problem if use else None,
        "nodes": [_node_document(node) for node in use.nodes] if use else [],
        "data": list(one.data),
    }


def _node_document(node: NodeUsage) -> dict[str, Any]:
    """What one node of an attempt used."""
    return {
        "host": node.host,
        "peak_memory_mb": node.peak_memory_mb,
        "mean_cpus": node.mean_cpus,
        "mean_gpu_percent": node.mean_gpu_percent,
        "gpu_idle_s": sum(gpu.idle_s for gpu in node.gpus) if node.gpus else None,
    }


def metric_names(rows: Sequence[ReportRow]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row.metrics))


def setting_names(rows: Sequence[ReportRow]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row.settings))


def hours_sentence(hours: accounting.ResourceHours) -> Mapping[str, str]:
    return {name: f"{value:.2f}" if value < 100 else f"{value:,.0f}" for name, value in hours._asdict().items()}


class ReportRow(NamedTuple):
    """`settings` holds only what differs between rows."""

    label: str
    settings: dict[str, str]
    seeds: list[int]
    metrics: dict[str, Statistic]


def rows_over_seeds(
    histories: Sequence[RunHistory], metrics: Mapping[str, Mapping[str, float]]
) -> tuple[list[ReportRow], list[str]]:
    """Rows of finished runs with metrics, in the order of the runs; and notes on what looks wrong or is in no row."""
    runs = []
    for history in histories:
        numbers, spec = metrics.get(history.view.name), history.spec
        run = run_metrics(spec, history.view, numbers) if numbers and history.view.state == "done" else None
        if run is not None and spec is not None:
            runs.append(run._replace(params=_settings(spec)))
    table = tabulate(runs)
    experiments = {run.name.partition("/")[0] for run in runs}
    left_out = len([one for one in histories if one.spec is not None]) - len(runs)
    notes = [f"{plural(left_out, 'run')} without results left out"] if runs and left_out else []
    return [_make_row(group, table.params, len(experiments) > 1) for group in table.groups], [*notes, *table.notes]


def _make_row(group: ResultGroup, differing: Sequence[str], full_name: bool) -> ReportRow:
    settings = {name: format_value(group.params[name]) for name in differing if name in group.params}
    seeds = sorted(run.seed for run in group.runs if run.seed is not None)
    return ReportRow(group.name if full_name else group.name.partition("/")[2], settings, seeds, group.metrics)


def _settings(spec: RunSpec) -> dict[str, Any]:
    """Parameters, and what a script set in its other ways: variables and arguments. Those of a sweep repeat its own."""
    arguments = {"arguments": " ".join(spec.args)} if spec.args and not spec.params else {}
    return {**spec.env, **spec.params, **arguments}
