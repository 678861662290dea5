"""A report for a terminal (numbers, bars, and flags that can be pasted), as Markdown, and its runs as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from shoal.observe import AllocationView
from shoal.units import format_duration, plural, shorten_list
from shoal.views.columns import iso_time
from shoal.views.render import paint_state, print_json, safe_line, table_lines, text_bar, wrap_line
from shoal.views.report import breakdowns
from shoal.views.report.accounting import AttemptHistory, RunHistory, UsageSpread
from shoal.views.report.advice import RequestAdvice, advice_text
from shoal.views.report.allocation_costs import AttemptCosts, Waits, costs_of_attempts
from shoal.views.report.breakdowns import DATASET_HEADER, dataset_breakdown, dataset_rows
from shoal.views.report.gather import (
    HOUR_WORDS,
    PART_WORDS,
    WAIT_WORDS,
    CostReport,
    hours_sentence,
    metric_names,
    report_document,
    setting_names,
    waits_document,
)
from shoal.views.report.prices import format_amounts
from shoal.views.report.search import search_lines
from shoal.views.results import format_mean
from shoal.views.terminal import Screen
from shoal.views.timeline import text_lines

_MAX_LANES = 24
_MAX_METRICS = 12
_HISTOGRAM_BARS = " ▁▂▃▄▅▆▇█"


def show_report(report: CostReport, screen: Screen, *, as_json: bool = False, quiet: bool = False) -> None:
    if as_json:
        print_json(report_document(report))
    elif quiet:
        print("\n".join(history.view.name for history in report.histories))
    else:
        print("\n".join(report_lines(report, screen)))


def report_lines(report: CostReport, screen: Screen) -> list[str]:
    lines = _summary(report, screen)
    for title, part in (
        ("hours", _hours(report, screen)),
        ("efficiency", _efficiency(report, screen)),
        ("next time", _advice(report, screen)),
        ("GPUs over time" if report.gpu.allocated else "runs over time", _timeline(report, screen)),
        ("nodes", _nodes(report, screen)),
        ("the same runs in other layouts, by their measured lengths", _layouts(report, screen)),
        ("data", _data(report, screen)),
        ("failures", _failures(report, screen)),
        ("stopped early", _stopped(report, screen)),
        ("search", _searches(report, screen)),
        ("results", _results(report, screen)),
    ):
        if part:
            lines += ["", screen.paint(title, "1"), *part]
    return lines


def _summary(report: CostReport, screen: Screen) -> list[str]:
    total = sum(report.counts.values())
    states = "  ".join(paint_state(f"{n:,} {state}", state, screen) for state, n in report.counts.items())
    parts = [f"{screen.paint(safe_line(report.title), '1')}   {plural(total, 'run')}   {states}"]
    if report.retried:
        parts.append(f"{report.retried:,} retried")
    if report.makespan_s is not None:
        parts.append(f"{format_duration(report.makespan_s)} from first submission to last end")
    if report.wait is not None:
        wait = report.wait
        parts.append(f"queue wait {format_duration(wait.median_s)} (median), {format_duration(wait.max_s)} (max)")
    parts += wait_sentences(report)
    lines = [parts[0], *([f"  {', '.join(parts[1:])}"] if parts[1:] else [])]
    return [part for line in lines for part in wrap_line(line, screen)]


def wait_sentences(report: CostReport) -> list[str]:
    """What attempts waited for besides the queue, if it took a second or longer."""
    return [
        f"{WAIT_WORDS[name]} {format_duration(one.median_s)} (median), {format_duration(one.max_s)} (max)"
        for name, one in report.waits.items()
        if one.max_s >= 1
    ]


def _hours(report: CostReport, screen: Screen) -> list[str]:
    lines = []
    for name, hours in (("GPU-hours", report.gpu), ("CPU-hours", report.cpu)):
        if not hours.allocated:
            continue
        words = hours_sentence(hours)
        head = "   ".join(f"{title} {words[key]}" for key, title in HOUR_WORDS.items())
        lines += wrap_line(f"  {name}   {head}", screen)
        parts = ", ".join(f"{title} {words[key]}" for key, title in PART_WORDS.items() if getattr(hours, key) > 0)
        if any(getattr(hours, key) > 0.005 * hours.allocated for key in PART_WORDS if key != "runs"):
            lines += wrap_line(f"    allocated = {parts}", screen)
    return [*lines, *([f"  cost   {format_amounts(report.cost)}"] if report.cost else [])]


def _efficiency(report: CostReport, screen: Screen) -> list[str]:
    if not report.spreads:
        return []
    rows = [
        (
            one.name,
            f"{one.low:.0%}",
            f"{one.middle:.0%}",
            f"{one.high:.0%}",
            text_bar(one.middle),
            _histogram(one, screen),
        )
        for one in report.spreads
    ]
    lines = table_lines(("OF WHAT WAS ASKED", "LEAST", "MEDIAN", "MOST", "", "0-100%"), rows, _indented_screen(screen))
    if not any(one.name == "gpu" for one in report.spreads):
        problem = next((one.use.gpu_problem for one in report.attempts if one.use and one.use.gpu_problem), None)
        lines.append(f"gpu: no data{f' ({safe_line(problem)})' if problem else ''}")
    return [f"  {line}" for line in lines] if screen.tty else lines


def _histogram(one: UsageSpread, screen: Screen) -> str:
    if not screen.unicode or screen.accessible or not screen.tty:
        return ",".join(map(str, one.bins))
    most = max(one.bins)
    return "".join(_HISTOGRAM_BARS[0 if not count else 1 + round(7 * count / most)] for count in one.bins)


def _advice(report: CostReport, screen: Screen) -> list[str]:
    lines = (f"  {one.sentence}   {advice_text(one)}".rstrip() for one in report.advice)
    return [part for line in lines for part in wrap_line(line, screen)]


def _timeline(report: CostReport, screen: Screen) -> list[str]:
    by_lane = report.timeline.by_lane()
    if not by_lane:
        return []
    mean = sum(map(report.timeline.occupied_fraction, by_lane.values())) / len(by_lane)
    return [
        *(f"  {line}" for line in text_lines(report.timeline, screen.width - 2, _MAX_LANES)),
        f"  {mean:.0%} occupied over all; # and = are attempts, x a failure, . no attempt",
    ]


def _layouts(report: CostReport, screen: Screen) -> list[str]:
    found = breakdowns.layout_rows(breakdowns.layout_breakdown(report.allocations))
    lines = table_lines(breakdowns.layout_header(report.attempts), found, _indented_screen(screen)) if found else []
    return [f"  {line}" if screen.tty else line for line in lines]


def _stopped(report: CostReport, screen: Screen) -> list[str]:
    found = stopped_rows(report)
    if not found:
        return []
    lines = table_lines(("RUN", "STOPPED"), found[:_MAX_LANES], _indented_screen(screen))
    more = [f"and {len(found) - _MAX_LANES} more; --json names them all"] if len(found) > _MAX_LANES else []
    return [f"  {line}" if screen.tty else line for line in [*lines, *more]]


def stopped_rows(report: CostReport) -> list[tuple[str, str]]:
    """What each run had when early stopping ended it; their numbers are in no mean."""
    stopped = [history.view for history in report.histories if history.view.state == "stopped"]
    return [(view.name, (view.reason or "").removeprefix("stopped early ")) for view in stopped]


def _searches(report: CostReport, screen: Screen) -> list[str]:
    lines = [line for one in report.searches for line in search_lines(one, report.metrics)]
    return [f"  {line}" for line in lines] if screen.tty else lines


def _nodes(report: CostReport, screen: Screen) -> list[str]:
    found = breakdowns.node_rows(breakdowns.node_breakdown(report.attempts))
    lines = table_lines(breakdowns.NODE_HEADER, found[:_MAX_LANES], _indented_screen(screen)) if len(found) > 1 else []
    if len(found) > _MAX_LANES:
        lines.append(f"and {len(found) - _MAX_LANES} more; --html shows them all")
    return [f"  {line}" for line in lines] if screen.tty else lines


def _data(report: CostReport, screen: Screen) -> list[str]:
    found = dataset_rows(dataset_breakdown(report.attempts))
    lines = table_lines(DATASET_HEADER, found, screen) if found else []
    return [f"  {line}" for line in lines] if screen.tty else lines


def _failures(report: CostReport, screen: Screen) -> list[str]:
    rows = [
        (
            safe_line(one.reason),
            str(one.times),
            f"{one.gpu_hours:.2f}",
            shorten_list(one.runs, 3),
        )
        for one in report.failures
    ]
    lines = (
        table_lines(("CAUSE", "TIMES", "GPU-HOURS", "RUNS"), rows, _indented_screen(screen), widest=3) if rows else []
    )
    return [f"  {line}" for line in lines] if screen.tty else lines


def _results(report: CostReport, screen: Screen) -> list[str]:
    header, rows = results_table(report)
    lines = table_lines(header, rows, _indented_screen(screen), widest=0) if rows else []
    lines += [f"note: {safe_line(note)}" for note in results_notes(report)]
    return [f"  {line}" for line in lines] if screen.tty else lines


def _indented_screen(screen: Screen) -> Screen:
    """What is left of it behind the indentation."""
    return screen._replace(width=screen.width - 2)


def results_notes(report: CostReport) -> list[str]:
    cut = len(metric_names(report.rows)) - _MAX_METRICS
    more = [f"{plural(cut, 'more metric')}; shoal results shows all"] if cut > 0 else []
    return [*report.notes, *more]


def results_table(report: CostReport) -> tuple[list[str], list[list[str]]]:
    """(header, rows) of the results; also for Markdown, CSV and the page."""
    settings, metrics = setting_names(report.rows), metric_names(report.rows)[:_MAX_METRICS]
    header = ["RUN", *settings, "SEEDS", *metrics]
    rows = [
        [
            safe_line(row.label),
            *(safe_line(row.settings.get(key, "-")) for key in settings),
            _seeds(row.seeds),
            *(format_mean(row.metrics.get(key)) for key in metrics),
        ]
        for row in report.rows
    ]
    return header, rows


def _seeds(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds)) or "-"


def report_markdown(report: CostReport) -> str:
    parts = [
        f"# {_markdown_cell(report.title)}",
        ", ".join(f"{count} {state}" for state, count in report.counts.items()),
    ]
    facts = []
    if report.makespan_s is not None:
        facts.append(["from first submission to last end", format_duration(report.makespan_s)])
    if report.wait is not None:
        facts.append(["queue wait, median", format_duration(report.wait.median_s)])
    for name, hours in (("GPU-hours", report.gpu), ("CPU-hours", report.cpu)):
        words = hours_sentence(hours)
        if hours.allocated:
            facts += [[f"{name} {title}", words[key]] for key, title in HOUR_WORDS.items()]
    facts += [["cost", format_amounts(report.cost)]] if report.cost else []
    parts.append(_markdown_table(["what", "how much"], facts))
    if report.advice:
        parts.append("## Next time")
        parts.append("\n".join(f"- {_advice_markdown(one)}" for one in report.advice))
    if report.failures:
        rows = [[one.reason, str(one.times), f"{one.gpu_hours:.2f}"] for one in report.failures]
        parts += ["## Failures", _markdown_table(["reason", "times", "GPU-hours"], rows)]
    for one in report.searches:
        found = search_lines(one, report.metrics)
        parts += ["## Search", "\n".join(f"- {_markdown_cell(line.strip())}" for line in found)]
    header, rows = results_table(report)
    if rows:
        parts += [
            "## Results",
            _markdown_table(header, rows),
            "\n".join(f"- {_markdown_cell(note)}" for note in results_notes(report)),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _advice_markdown(one: RequestAdvice) -> str:
    line, place = one.line or one.flag, f" in {one.place}" if one.place else ""
    return _markdown_cell(one.sentence) + (f": `{line}`{_markdown_cell(place)}" if line else "")


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_markdown_cell(cell) for cell in line)} |" for line in lines) if rows else ""


def _markdown_cell(text: str) -> str:
    """Names and reasons are other people's text: nothing in them may begin a tag, a column or a link."""
    escaped = safe_line(text).replace("\\", "\\\\")
    for letter in "|<>[]`*_":
        escaped = escaped.replace(letter, f"\\{letter}") if letter in "|[]`*<>" else escaped
    return escaped


#: Columns of the CSV before parameters and metrics.
_CSV_RUN = ("run", "experiment", "seed")
_CSV_ATTEMPT = ("attempt", "state", "cause", "reason", "submitted", "started", "ended", "kept")
_CSV_WAITS = tuple(waits_document(Waits()))
_CSV_USE = ("peak_memory_mb", "mean_cpus", "mean_gpu_percent")
_CSV_JOB = ("job_id", "node", "gpus", "time_limit_s")
_CSV_HOURS = ("gpu_hours", "overhead_gpu_hours", "allocated_gpu_hours", "wasted_gpu_hours", "cpu_hours")
_CSV_COST = ("cost", "currency")


def report_csv(report: CostReport) -> str:
    """One line per attempt, with the run's parameters and metrics behind it. A job in which a run did not begin has a
    line too, so that hours add up to the report's."""
    params = list(dict.fromkeys(key for one in report.histories if one.spec for key in one.spec.params))
    metrics = list(dict.fromkeys(key for found in report.metrics.values() for key in found))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    fixed = [*_CSV_RUN, *_CSV_ATTEMPT, *_CSV_WAITS, *_CSV_USE, *_CSV_JOB, *_CSV_HOURS, *_CSV_COST]
    writer.writerow([*fixed, *(f"param.{key}" for key in params), *(f"metric.{key}" for key in metrics)])
    paid = costs_of_attempts(report.allocations)
    money = {(one.allocation, one.run, one.attempt): [round(one.amount, 6), one.currency] for one in report.paid}
    for history in report.histories:
        view, spec = history.view, history.spec
        tail = [spec.params.get(key) if spec else None for key in params]
        tail += [report.metrics.get(view.name, {}).get(key) for key in metrics]
        head = [view.name, view.experiment, spec.seed if spec else None]
        attempts = {one.attempt: one for one in history.attempts}
        for costs in paid.get(view.name, ()):
            one = attempts.get(costs.attempt)
            about = _csv_attempt(one) if one is not None else _csv_unbegun(history, costs.view)
            cost = money.get((costs.view.key, view.name, costs.attempt), [None, None])
            use = (
                (one.use.peak_memory_mb, one.use.mean_cpus, one.use.mean_gpu_percent) if one and one.use else [None] * 3
            )
            waits = waits_document(costs.waits).values()
            row = [*head, *about, *waits, *use, *_csv_costs(one, costs), *cost, *tail]
            writer.writerow([_csv_safe(value) for value in row])
    return out.getvalue()


def _csv_attempt(one: AttemptHistory) -> list[object]:
    times = (one.submitted, one.begin, None if one.state == "running" else one.end)
    return [one.attempt, one.state, one.cause, one.reason, *map(_csv_time, times), one.kept]


def _csv_unbegun(history: RunHistory, job: AllocationView) -> list[object]:
    """A job in which a run did not begin: its times, and the run's state if no other job has tried."""
    run = history.view if not history.attempts else None
    about = (run.state, run.cause, run.reason) if run else ("new", None, "it did not begin in this job")
    times = (job.grant.submitted, job.start, None if job.source == "now" else job.end)
    return [None, *about, *map(_csv_time, times), None]


def _csv_time(moment: float | None) -> str | None:
    return iso_time(moment) if moment else None


def _csv_costs(one: AttemptHistory | None, costs: AttemptCosts) -> list[object]:
    """Job, and hours: the attempt's own and its part of the overhead are what was allocated."""
    view, gpu = costs.view, costs.gpu
    node, gpus = view.grant.node_list, float(view.gpus)
    if one is not None:
        node, gpus = (one.host, one.gpus) if one.held is not None else (node or one.host, gpus)
    hours = (gpu.runs + gpu.staging, gpu.overhead, gpu.allocated, gpu.wasted, costs.cpu.allocated)
    job = (view.grant.job_label or view.job_id, node, f"{gpus:g}", view.grant.time_limit_s)
    return [*job, *(round(value, 6) for value in hours)]


def _csv_safe(value: object) -> object:
    """A spreadsheet runs what begins with = + - @; a quote before it makes it text."""
    if isinstance(value, str):
        text = safe_line(value)
        return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
    return value
