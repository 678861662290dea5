"""All parts of a report as one record, and that record as the JSON document."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from shoal.describe import PriceTable, select_runs, unselected_sentence
from shoal.job import format_value
from shoal.kernel import KIND_TEXTS, non_default_fields, read_metrics
from shoal.model import RunSpec
from shoal.observe import (
    AskQueue,
    NodeUsage,
    ResultGroup,
    RunCode,
    RunReader,
    Statistic,
    map_in_threads,
    observe,
    other_code_notes,
    read_code,
    run_output,
    tabulate,
)
from shoal.search import Search, read_searches
from shoal.units import plural
from shoal.views.columns import iso_time
from shoal.views.details import RunDetails, run_details, with_log_reason
from shoal.views.report import accounting, breakdowns, prices
from shoal.views.report.accounting import AttemptHistory, RunHistory, read_history
from shoal.views.report.advice import RequestAdvice, request_advice
from shoal.views.report.allocation_costs import (
    AllocationRow,
    AttemptCosts,
    Waits,
    allocation_rows,
    costs_of_attempts,
    tokens_of_runs,
)
from shoal.views.report.breakdowns import dataset_breakdown, layout_breakdown
from shoal.views.report.costs import Costs
from shoal.views.report.prices import Amounts, Payment
from shoal.views.report.search import search_document
from shoal.views.results import finite_or_none, run_metrics
from shoal.views.run_groups import count_states, group_key
from shoal.views.status import run_document
from shoal.views.timeline import Timeline, TimelineBar, attempts_timeline

#: Fields of Costs and the words for them, everywhere the same.
HOUR_WORDS = {
    "requested": "requested",
    "allocated": "allocated",
    "busy": "busy",
    "idle": "idle",
    "not_measured": "not measured",
    "wasted": "wasted",
}
#: What is allocated is made of these.
PART_WORDS = {
    "runs": "runs",
    "staging": "staging",
    "set_up": "set-up",
    "idle_slots": "idle slots",
    "tail": "tail",
}


#: What attempts wait for besides the queue: fields of Waits without _s, and the words for them.
WAIT_WORDS = {"dependency": "dependency wait", "set_up": "set-up wait", "turn": "wait for a turn in the pack"}


class CostReport(NamedTuple):
    title: str
    now: float
    histories: list[RunHistory]
    counts: dict[str, int]
    attempts: list[AttemptHistory]
    allocations: list[AllocationRow]
    gpu: Costs
    cpu: Costs
    wait: accounting.QueueWait | None
    waits: dict[str, accounting.AttemptDelay]
    makespan_s: float | None
    spreads: list[accounting.UsageSpread]
    advice: list[RequestAdvice]
    timeline: Timeline
    failures: list[accounting.FailureGroup]
    rows: list[ReportRow]
    notes: list[str]
    metrics: dict[str, dict[str, float]]
    details: dict[str, RunDetails]
    slurm_problem: str | None
    searches: list[Search]
    paid: list[Payment]

    @property
    def cost(self) -> Amounts:
        """Currency -> amount, of the selected runs; empty if no profile has a price."""
        return prices.total(self.paid, {history.view.name for history in self.histories})

    @property
    def retried(self) -> int:
        return sum(1 for history in self.histories if len(history.attempts) > 1)


def gather_report(
    home: str,
    which: Sequence[str],
    *,
    ask: AskQueue | None = None,
    clock: Callable[[], float] = time.time,
    price_of: Mapping[str, PriceTable] | None = None,
) -> CostReport:
    """Look at the selected runs once and add everything up. `price_of`: profile -> its price."""
    names = select_runs(home, which)
    found = observe(home, names, clock=clock, ask=ask)
    now = clock()
    reader, listed = RunReader(home), found.listed(which)
    details = {name: run_details(home, view, now) for name, view in listed.items()}
    views = {name: with_log_reason(view, details[name].fault) for name, view in listed.items()}
    histories = [read_history(home, view, reader, now) for view in views.values()]
    attempts = [one for history in histories for one in history.attempts]
    reasons = {name: KIND_TEXTS[one.cause.kind] for name, one in details.items() if one.cause is not None}
    python = {name: one.cause.line for name, one in details.items() if one.cause and one.cause.kind == "python"}
    metrics = dict(map_in_threads(_metrics, histories)) if histories else {}
    rows, notes = rows_over_seeds(histories, metrics)
    experiments = list(dict.fromkeys(view.experiment for view in views.values()))
    allocations = _allocations(home, reader, histories, now)
    gpu, cpu = costs_of(allocations, views)
    return CostReport(
        title=experiments[0] if len(experiments) == 1 else f"{len(experiments)} experiments",
        now=now,
        histories=histories,
        counts=count_states(list(views.values())),
        attempts=attempts,
        allocations=allocations,
        gpu=gpu,
        cpu=cpu,
        wait=accounting.queue_wait([wait for one in allocations if (wait := one.view.queue_wait_s) is not None]),
        waits=_attempt_waits(allocations, views),
        makespan_s=accounting.total_makespan_s(attempts),
        spreads=accounting.usage_spreads(attempts),
        advice=_advice_by_group(histories),
        timeline=attempts_timeline(attempts),
        failures=accounting.group_failures(histories, {**reasons, **python}, _paid_gpu_hours(allocations)),
        rows=rows,
        notes=[
            *unselected_sentence(home, names),
            *_code_notes(reader, histories, metrics),
            *notes,
            *prices.unpriced_notes(allocations, price_of or {}),
        ],
        metrics=metrics,
        details=details,
        slurm_problem=found.slurm_problem,
        paid=prices.payments(allocations, price_of or {}),
        searches=read_searches(home, [history.spec for history in histories if history.spec is not None]),
    )


def _allocations(home: str, reader: RunReader, histories: Sequence[RunHistory], now: float) -> list[AllocationRow]:
    """The allocations of the selected runs. Those of a pack are divided among all its runs, selected or not."""
    names = [history.view.name for history in histories]
    tokens = tokens_of_runs(home, names)
    packed = [one for token in tokens if (one := reader.submission(token).submission) is not None and one.layout]
    others = {run for submission in packed for run in submission.runs} - set(names)
    others_views = observe(home, sorted(others)).views.values() if others else ()
    attempts = [one for history in histories for one in history.attempts]
    attempts += [one for view in others_views for one in read_history(home, view, reader, now).attempts]
    rows = allocation_rows(reader, tokens, attempts, os.environ, now)
    return [row for row in rows if not set(names).isdisjoint({*row.gpu.by_run, *row.cpu.by_run})]


def costs_of(allocations: Sequence[AllocationRow], runs: Collection[str]) -> tuple[Costs, Costs]:
    """What these runs pay of all allocations, in GPU-hours and CPU-hours."""
    parts = [row.costs_of(runs) for row in allocations]
    return sum((gpu for gpu, _ in parts), Costs()), sum((cpu for _, cpu in parts), Costs())


def _attempt_waits(allocations: Sequence[AllocationRow], runs: Collection[str]) -> dict[str, accounting.AttemptDelay]:
    paid = costs_of_attempts(allocations)
    waits = [one.waits for run in runs for one in paid.get(run, ())]
    found: dict[str, accounting.AttemptDelay] = {}
    for name in WAIT_WORDS:
        known = [seconds for one in waits if (seconds := getattr(one, f"{name}_s")) is not None]
        if known:
            found[name] = accounting.AttemptDelay(median(known), max(known), len(known))
    return found


def _paid_gpu_hours(allocations: Sequence[AllocationRow]) -> dict[tuple[str, int], float]:
    found: dict[tuple[str, int], float] = {}
    for run, costs in costs_of_attempts(allocations).items():
        for one in costs:
            found[run, one.attempt] = found.get((run, one.attempt), 0.0) + one.gpu.allocated
    return found


def _metrics(history: RunHistory) -> tuple[str, dict[str, float]]:
    counts = history.view.output_dir and history.attempts
    return history.view.name, read_metrics(run_output(history.view, history.spec)) if counts else {}


def _code_notes(
    reader: RunReader, histories: Sequence[RunHistory], metrics: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """What to tell about results that stand beside each other, and that different code made."""
    found = [(one.view, one.spec) for one in histories if one.spec is not None and metrics.get(one.view.name)]
    return other_code_notes(
        RunCode(view.name, spec.step, read_code(reader, view, spec), view.submitted or view.started or 0.0)
        for view, spec in found
        if not spec.smoke and not spec.replacement
    )


def _advice_by_group(histories: Sequence[RunHistory]) -> list[RequestAdvice]:
    """For each kind of run by itself: what one kind needs says nothing about another."""
    kinds: dict[str, list[RunHistory]] = {}
    for history in histories:
        kinds.setdefault(group_key(history.view.name), []).append(history)
    found = []
    for key, members in kinds.items():
        spec = next((one.spec for one in members if one.spec is not None), None)
        attempts = [one for history in members for one in history.attempts]
        found += [(key, one) for one in request_advice(attempts, spec, _experiment_file(spec) if spec else None)]
    if len(kinds) == 1:
        return [advice for _, advice in found]
    return [advice._replace(sentence=f"{key}: {advice.sentence}") for key, advice in found]


def _experiment_file(spec: RunSpec) -> str | None:
    """The file that describes a run, below the project's root, where its name says which; None if it is not there."""
    for name in filter(None, (spec.sweep, spec.stem)):
        for ending in (".toml", ".sh", ".py"):
            path = os.path.join("experiments", spec.experiment, f"{name}{ending}")
            if os.path.isfile(os.path.join(spec.cwd, path)):
                return path
    return None


def report_document(report: CostReport) -> dict[str, Any]:
    """The JSON of a report: hours as numbers, times in Unix seconds and as text."""
    lanes, paid = report.timeline.by_lane(), costs_of_attempts(report.allocations)
    return {
        "title": report.title,
        "time": report.now,
        "counts": report.counts,
        "retried": report.retried,
        "gpu_hours": _hours_document(report.gpu),
        "cpu_hours": _hours_document(report.cpu),
        "cost": prices.rounded(report.cost),
        "queue_wait": report.wait._asdict() if report.wait else None,
        "waits": {name: one._asdict() for name, one in report.waits.items()},
        "makespan_s": report.makespan_s,
        "efficiency": [one._asdict() for one in report.spreads],
        "advice": [one._asdict() for one in report.advice],
        "timeline": [_bar(bar) for bars in lanes.values() for bar in bars],
        "layouts": [breakdowns.layout_document(layout) for layout in layout_breakdown(report.allocations)],
        "lanes": [_lane_document(report.timeline, lane, bars) for lane, bars in lanes.items()],
        "failures": [one._asdict() for one in report.failures],
        "nodes": [one._asdict() for one in breakdowns.node_breakdown(report.attempts)],
        "data": [one._asdict() for one in dataset_breakdown(report.attempts)],
        "results": [
            {**row._asdict(), "metrics": {key: _json_value(value) for key, value in row.metrics.items()}}
            for row in report.rows
        ],
        "searches": [search_document(one) for one in report.searches],
        "notes": report.notes,
        "allocations": [_allocation_document(row, report.paid) for row in report.allocations],
        "runs": [_run_document(report, one, paid.get(one.view.name, ())) for one in report.histories],
        "slurm_problem": report.slurm_problem,
    }


def _bar(bar: TimelineBar) -> dict[str, Any]:
    return {**bar._asdict(), "start_at": iso_time(bar.start), "end_at": iso_time(bar.end)}


def _lane_document(timeline: Timeline, lane: str, bars: list[TimelineBar]) -> dict[str, Any]:
    return {"name": lane, "occupied": timeline.occupied_fraction(bars), "busy": timeline.busy_fraction(bars)}


def _hours_document(hours: Costs) -> dict[str, float]:
    return {name: round(value, 6) for name, value in hours._asdict().items()}


def _run_document(report: CostReport, history: RunHistory, paid: Sequence[AttemptCosts]) -> dict[str, Any]:
    spec, name = history.spec, history.view.name
    waits = {one.attempt: one.waits for one in paid}
    return {
        **run_document(history.view, report.details.get(name)),
        "gpu_hours": _hours_document(sum((one.gpu for one in paid), Costs())),
        "cpu_hours": _hours_document(sum((one.cpu for one in paid), Costs())),
        "cost": prices.rounded(prices.total(report.paid, {name})),
        "seed": spec.seed if spec else None,
        "step": spec.step if spec else None,
        "params": spec.params if spec else {},
        "metrics": {key: finite_or_none(value) for key, value in report.metrics.get(name, {}).items()},
        "attempts": [
            _attempt_document(
                one, waits.get(one.attempt, Waits()), [cost for cost in paid if cost.attempt == one.attempt]
            )
            for one in history.attempts
        ],
    }


def _allocation_document(row: AllocationRow, paid: Sequence[Payment]) -> dict[str, Any]:
    view, grant = row.view, row.view.grant
    return {
        "job_id": grant.job_label or view.job_id,
        "restarts": view.restarts,
        "cluster": view.cluster,
        "layout": view.layout,
        "partition": grant.partition,
        "nodes": grant.node_list,
        "gpus": view.gpus,
        "cpus": view.cpus,
        "memory_mb": grant.memory_mb,
        "time_limit_s": grant.time_limit_s,
        "submitted": grant.submitted,
        "eligible": grant.eligible,
        "started": view.start,
        "ended": None if view.source == "now" else view.end,
        "end_source": view.source,
        "resizes": [one._asdict() for one in view.resizes],
        "queue_wait_s": view.queue_wait_s,
        "billing": grant.billing,
        "runs": sorted(row.gpu.by_run),
        "gpu_hours": _hours_document(row.gpu.whole.in_hours()),
        "cpu_hours": _hours_document(row.cpu.whole.in_hours()),
        "cost": prices.rounded(prices.total(paid, allocation=view.key)),
    }


def _json_value(value: Statistic) -> dict[str, Any]:
    return {"mean": finite_or_none(value.mean), "spread": finite_or_none(value.std), "runs": value.size}


def _attempt_document(one: AttemptHistory, waits: Waits, paid: Sequence[AttemptCosts]) -> dict[str, Any]:
    use, gpu = one.use, sum((cost.gpu for cost in paid), Costs())
    return {
        "attempt": one.attempt,
        "host": one.host,
        "state": one.state,
        "cause": one.cause,
        "reason": one.reason,
        "submitted": one.submitted,
        "started": one.begin,
        "ended": one.end,
        **waits_document(waits),
        "gpus": one.gpus,
        "gpu_hours": round(gpu.runs + gpu.staging, 6),
        "allocated_gpu_hours": round(gpu.allocated, 6),
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


def waits_document(waits: Waits) -> dict[str, float | None]:
    """dependency_wait_s, queue_wait_s, set_up_wait_s and turn_wait_s, to a thousandth."""
    return {
        f"{name.removesuffix('_s')}_wait_s": None if value is None else round(value, 3)
        for name, value in waits._asdict().items()
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


def hours_sentence(hours: Costs) -> Mapping[str, str]:
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
        run = run_metrics(spec, history.view, numbers) if numbers and history.view.state == "completed" else None
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
