"""A report for a terminal (numbers, bars, and flags that can be pasted), as Markdown, and its runs as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from shoal.units import format_duration, plural, shorten_list
from shoal.views.columns import iso_time
from shoal.views.render import paint_state, print_json, safe_line, table_lines, text_bar, wrap_line
from shoal.views.report import breakdowns
from shoal.views.report.accounting import UsageSpread
from shoal.views.report.breakdowns import DATASET_HEADER, dataset_breakdown, dataset_rows
from shoal.views.report.gather import CostReport, hours_sentence, metric_names, report_document, setting_names
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
        ("GPUs over time" if report.gpu.held else "runs over time", _timeline(report, screen)),
        ("nodes", _nodes(report, screen)),
        ("the same runs in other shapes, by their measured lengths", _shapes(report, screen)),
        ("data", _data(report, screen)),
        ("failures", _failures(report, screen)),
        ("stopped by search", _stopped(report, screen)),
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
        parts.append(f"{report.retried:,} tried more than once")
    if report.makespan_s is not None:
        parts.append(f"{format_duration(report.makespan_s)} from first submission to last end")
    if report.wait is not None:
        wait = report.wait
        parts.append(
            f"queue wait {format_duration(wait.median_s)} (median), {format_duration(wait.longest_s)} (longest)"
        )
    lines = [parts[0], *([f"  {', '.join(parts[1:])}"] if parts[1:] else [])]
    return [part for line in lines for part in wrap_line(line, screen)]


def _hours(report: CostReport, screen: Screen) -> list[str]:
    lines = []
    for name, hours in (("GPU-hours", report.gpu), ("CPU-hours", report.cpu)):
        if not hours.held:
            continue
        words = hours_sentence(hours)
        seen = f"used {words['used']}   idle {words['idle']}" if hours.sampled else "used and idle: no data"
        part = (
            f", sampled in {hours.sampled / hours.held:.0%} of them" if 0 < hours.sampled < 0.995 * hours.held else ""
        )
        line = f"  {name}   requested {words['requested']}   held {words['held']}   {seen}"
        lines += wrap_line(f"{line}   lost to failures {words['lost']}{part}", screen)
    return lines


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
        problem = next((one.use.gpu_problem for one in report.tries if one.use and one.use.gpu_problem), None)
        lines.append(f"gpu: no data{f' ({safe_line(problem)})' if problem else ''}")
    return [f"  {line}" for line in lines] if screen.tty else lines


def _histogram(one: UsageSpread, screen: Screen) -> str:
    if not screen.unicode or screen.accessible or not screen.tty:
        return ",".join(map(str, one.bins))
    most = max(one.bins)
    return "".join(_HISTOGRAM_BARS[0 if not count else 1 + round(7 * count / most)] for count in one.bins)


def _advice(report: CostReport, screen: Screen) -> list[str]:
    lines = (f"  {one.sentence}" + (f"   next time: {one.flag}" if one.flag else "") for one in report.advice)
    return [part for line in lines for part in wrap_line(line, screen)]


def _timeline(report: CostReport, screen: Screen) -> list[str]:
    by_lane = report.timeline.by_lane()
    if not by_lane:
        return []
    mean = sum(map(report.timeline.busy_fraction, by_lane.values())) / len(by_lane)
    return [
        *(f"  {line}" for line in text_lines(report.timeline, screen.width - 2, _MAX_LANES)),
        f"  {mean:.0%} busy over all; # and = are attempts, x a bad end, . nothing",
    ]


def _shapes(report: CostReport, screen: Screen) -> list[str]:
    found = breakdowns.layout_rows(breakdowns.layout_breakdown(report.tries))
    lines = table_lines(breakdowns.layout_header(report.tries), found, _indented_screen(screen)) if found else []
    return [f"  {line}" if screen.tty else line for line in lines]


def _stopped(report: CostReport, screen: Screen) -> list[str]:
    found = stopped_rows(report)
    if not found:
        return []
    lines = table_lines(("RUN", "STOPPED"), found[:_MAX_LANES], _indented_screen(screen))
    more = [f"and {len(found) - _MAX_LANES} more; --json names them all"] if len(found) > _MAX_LANES else []
    return [f"  {line}" if screen.tty else line for line in [*lines, *more]]


def stopped_rows(report: CostReport) -> list[tuple[str, str]]:
    """What each run had when a search stopped it; their numbers are in no mean."""
    stopped = [history.view for history in report.histories if history.view.state == "stopped"]
    return [(view.name, (view.cause or "").removeprefix("stopped by search ")) for view in stopped]


def _nodes(report: CostReport, screen: Screen) -> list[str]:
    found = breakdowns.node_rows(breakdowns.node_breakdown(report.tries))
    lines = table_lines(breakdowns.NODE_HEADER, found[:_MAX_LANES], _indented_screen(screen)) if len(found) > 1 else []
    if len(found) > _MAX_LANES:
        lines.append(f"and {len(found) - _MAX_LANES} more; --html shows them all")
    return [f"  {line}" for line in lines] if screen.tty else lines


def _data(report: CostReport, screen: Screen) -> list[str]:
    found = dataset_rows(dataset_breakdown(report.tries))
    lines = table_lines(DATASET_HEADER, found, screen) if found else []
    return [f"  {line}" for line in lines] if screen.tty else lines


def _failures(report: CostReport, screen: Screen) -> list[str]:
    rows = [
        (
            safe_line(one.cause),
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
        if hours.held:
            used, idle = (words[key] if hours.sampled else "no data" for key in ("used", "idle"))
            facts += [[f"{name} requested", words["requested"]], [f"{name} held", words["held"]]]
            facts += [[f"{name} used", used], [f"{name} idle", idle], [f"{name} lost", words["lost"]]]
    parts.append(_markdown_table(["what", "how much"], facts))
    if report.advice:
        parts.append("## Next time")
        parts.append("\n".join(f"- {one.sentence}" + (f": `{one.flag}`" if one.flag else "") for one in report.advice))
    if report.failures:
        rows = [[one.cause, str(one.times), f"{one.gpu_hours:.2f}"] for one in report.failures]
        parts += ["## Failures", _markdown_table(["cause", "times", "GPU-hours"], rows)]
    header, rows = results_table(report)
    if rows:
        parts += [
            "## Results",
            _markdown_table(header, rows),
            "\n".join(f"- {_markdown_cell(note)}" for note in results_notes(report)),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_markdown_cell(cell) for cell in line)} |" for line in lines) if rows else ""


def _markdown_cell(text: str) -> str:
    """Names and causes are other people's text: nothing in them may begin a tag, a column or a link."""
    escaped = safe_line(text).replace("\\", "\\\\")
    for letter in "|<>[]`*_":
        escaped = escaped.replace(letter, f"\\{letter}") if letter in "|[]`*<>" else escaped
    return escaped


def report_csv(report: CostReport) -> str:
    """One line per attempt, with the run's parameters and metrics behind it."""
    params = list(dict.fromkeys(key for one in report.histories if one.spec for key in one.spec.params))
    metrics = list(dict.fromkeys(key for found in report.metrics.values() for key in found))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    fixed = ["run", "experiment", "seed", "attempt", "state", "cause", "host", "submitted", "started", "ended"]
    fixed += ["gpus", "gpu_hours", "kept", "peak_memory_mb", "mean_cpus", "mean_gpu_percent"]
    writer.writerow([*fixed, *(f"param.{key}" for key in params), *(f"metric.{key}" for key in metrics)])
    for history in report.histories:
        view, spec = history.view, history.spec
        tail = [spec.params.get(key) if spec else None for key in params]
        tail += [report.metrics.get(view.name, {}).get(key) for key in metrics]
        for one in history.tries:
            use = one.use
            row: list[object] = [
                view.name,
                view.experiment,
                spec.seed if spec else None,
                one.attempt,
                one.state,
                view.cause,
                one.host,
            ]
            row += [iso_time(moment) if moment else None for moment in (one.submitted, one.begin, one.end)]
            row += [one.gpus, round(one.gpus * one.hours, 6), one.kept]
            row += [use.peak_memory_mb, use.mean_cpus, use.mean_gpu_percent] if use else [None, None, None]
            writer.writerow([_csv_safe(value) for value in [*row, *tail]])
    return out.getvalue()


def _csv_safe(value: object) -> object:
    """A spreadsheet runs what begins with = + - @; a quote before it makes it text."""
    if isinstance(value, str):
        text = safe_line(value)
        return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
    return value
