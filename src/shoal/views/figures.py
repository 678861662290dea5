"""Curves of a metric over steps: one line for each setting, the mean over its seeds with a band of one deviation.

As a matplotlib figure for notebooks (`exp.plot("val_loss")`, `runs.plot("val_loss")`) and as SVG for the report.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from shoal.errors import InputError
from shoal.kernel import read_series
from shoal.observe import RunSummaries, RunSummary, RunView, find_output
from shoal.units import shorten_list
from shoal.views.curves import mean_curve
from shoal.views.run_table import (
    choose_metric,
    format_number,
    format_param,
    group_table,
    short_param_names,
    shorten_names,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Of one plot in a report: more lines cannot be told apart.
MAX_LINES = 12
#: Runs whose curves one report reads.
MAX_RUNS = 400
_MAX_LABEL = 40
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 240, 64, 24


class SettingCurve(NamedTuple):
    """A setting: at each x the mean over seeds, and the deviation of a sample where two of them reach so far."""

    label: str
    x: list[float]
    mean: list[float]
    std: list[float | None]
    seeds: int
    #: The mean of the last value of each seed: the curve's own end has only the seeds that came so far.
    last: float


class MetricCurves(NamedTuple):
    """The curves of one metric of one experiment. `left_out` settings are not drawn."""

    experiment: str
    metric: str
    lines: list[SettingCurve]
    left_out: int = 0


def setting_curves(
    home: str, views: Sequence[RunView], summaries: Mapping[str, RunSummary], metric: str
) -> tuple[list[SettingCurve], list[str]]:
    """A curve for each setting that has the metric; and the metrics that these runs have."""
    series = {view.name: read_series(find_output(home, view)) for view in views if view.output_dir}
    table = group_table(views, summaries, None)
    short = short_param_names(table.params)
    labels = {
        group.name: " ".join(f"{short[name]}={format_param(group.params.get(name))}" for name in table.params)
        or group.name.rpartition("/")[2]
        for group in table.groups
    }
    cut = shorten_names(list(labels.values()), _MAX_LABEL)
    lines = []
    for group in table.groups:
        found = [points for run in group.runs if (points := series.get(run.name, {}).get(metric))]
        if found:
            label = cut[labels[group.name]] + (f" (n={len(found)})" if len(group.runs) > 1 else "")
            seeds = [_by_step(points) for points in found]
            over_seeds, last = mean_curve(seeds), statistics.fmean(values[-1] for _, values in seeds)
            lines.append(SettingCurve(label, over_seeds.x, over_seeds.mean, over_seeds.std, len(found), last))
    return lines, sorted({name for one in series.values() for name in one})


def _by_step(points: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Sorted by step; of a step that was written twice, as after a restart, the later value."""
    latest = {point[0]: point[1] for point in points}
    steps = sorted(latest)
    return steps, [latest[step] for step in steps]


def plot_metric(home: str, views: Sequence[RunView], metric: str, title: str) -> Figure:
    """A matplotlib Figure, which a notebook shows by itself; InputError if no run has a curve of the metric."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("matplotlib is not installed", hint="pip install 'shoal[plots]'") from None
    lines, known = setting_curves(home, views, RunSummaries(home).read(views).runs, metric)
    if not lines:
        hint = f"use one of: {shorten_list(known, 20)}" if known else "a run writes its numbers to metrics.jsonl"
        raise InputError(f"no run of {title} has a curve of {metric!r}", hint=hint)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel=_plain(metric), title=_plain(title))
    for line in lines:
        # Lines of one point would be invisible without a marker.
        (drawn,) = axes.plot(line.x, line.mean, label=_plain(line.label), marker="o" if len(line.x) == 1 else None)
        low, high = _band(line)
        if any(a < b for a, b in zip(low, high, strict=True)):
            axes.fill_between(line.x, low, high, alpha=0.2, color=drawn.get_color(), linewidth=0)
    axes.legend(fontsize="small", ncols=2 if len(lines) > 8 else 1)
    return figure


def _plain(text: str) -> str:
    """Without matplotlib's formulas, and without characters that it cannot draw."""
    return "".join(char if char.isprintable() else "?" for char in text).replace("$", r"\$").lstrip("_") or "-"


def _band(line: SettingCurve) -> tuple[list[float], list[float]]:
    low = [mean - (std or 0.0) for mean, std in zip(line.mean, line.std, strict=True)]
    high = [mean + (std or 0.0) for mean, std in zip(line.mean, line.std, strict=True)]
    return low, high


def experiment_curves(
    home: str, views: Sequence[RunView], setting: Mapping[str, str] | None = None
) -> list[MetricCurves]:
    """For a report: of each experiment the metric that its table shows, the best settings first where that is known."""
    experiments: dict[str, list[RunView]] = {}
    for view in views[:MAX_RUNS]:
        experiments.setdefault(view.experiment, []).append(view)
    found = []
    for experiment, members in experiments.items():
        summaries = RunSummaries(home).read(members).runs
        metric = choose_metric(summaries.values(), setting)
        if metric is None:
            continue
        lines, _ = setting_curves(home, members, summaries, metric.name)
        lines = [line for line in lines if len(line.x) > 1]
        if metric.mode is not None and len(lines) > MAX_LINES:
            lines.sort(key=lambda line: metric.sign * line.last)
        if lines:
            found.append(MetricCurves(experiment, metric.name, lines[:MAX_LINES], len(lines[MAX_LINES:])))
    return found


def curves_svg(curves: MetricCurves) -> str:
    """A plot without script: axes with their ends, a line and a band for each setting, and a legend in HTML."""
    bands = [_band(line) for line in curves.lines]
    xs = [x for line in curves.lines for x in line.x]
    ys = [y for low, high in bands for y in (*low, *high)]
    left, right, bottom, top = min(xs), max(xs), min(ys), max(ys)
    top = top if top > bottom else bottom + (abs(bottom) or 1.0)

    def at(x: float, y: float) -> str:
        across = _LEFT + (x - left) / ((right - left) or 1.0) * (_WIDTH - _LEFT - 8)
        return f"{across:.1f},{8 + (top - y) / (top - bottom) * (_HEIGHT - _BOTTOM - 8):.1f}"

    parts, legend = [], []
    for number, (line, (low, high)) in enumerate(zip(curves.lines, bands, strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        dash = ' stroke-dasharray="5 3"' if number >= len(_COLOURS) else ""
        if any(std for std in line.std):
            edge = [at(*point) for point in zip(line.x, high, strict=True)]
            edge += [at(*point) for point in reversed(list(zip(line.x, low, strict=True)))]
            parts.append(f'<polygon points="{" ".join(edge)}" fill="{colour}" opacity="0.15"/>')
        points = " ".join(at(*point) for point in zip(line.x, line.mean, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>')
        key = f'<svg class=key viewBox="0 0 24 8"><path d="M0 4H24" stroke="{colour}" stroke-width="2.5"{dash}/></svg>'
        last = format_number(line.last)
        legend.append(f"<li>{key}{escape(line.label)} <b>{escape(last)}</b></li>")
    marks = [
        f'<text x="{_LEFT - 6}" y="14" text-anchor="end">{format_number(top)}</text>',
        f'<text x="{_LEFT - 6}" y="{_HEIGHT - _BOTTOM}" text-anchor="end">{format_number(bottom)}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{format_number(left)}</text>',
        f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 6}" text-anchor="end">step {format_number(right)}</text>',
    ]
    frame = f'<path class=axis d="M{_LEFT} 8V{_HEIGHT - _BOTTOM}H{_WIDTH - 8}"/>'
    name = escape(f"{curves.experiment}: {curves.metric}")
    more = f"<p class=sub>{curves.left_out:,} more settings not drawn</p>" if curves.left_out else ""
    return (
        f'<h3>{name}</h3><svg class=curves viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">'
        f"{frame}{''.join(marks)}{''.join(parts)}</svg><ul class=curvekey>{''.join(legend)}</ul>{more}"
    )
