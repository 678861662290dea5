"""A report as Markdown for a pull request, and its runs as CSV for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from shoal.units import format_duration
from shoal.views.columns import iso_time
from shoal.views.render import safe_line
from shoal.views.report.gather import CostReport, hours_sentence
from shoal.views.report.text import results_notes, results_table


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
