"""A search in a report: its best trial, the best value so far, how much each parameter matters, and all points."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from shoal.job import format_value
from shoal.kernel import Trial, signed
from shoal.model import RUN_STATES
from shoal.search import Search, best_so_far, importances
from shoal.units import format_indices, plural, shorten_list

_BAR_WIDTH = 20
_WIDTH, _HEIGHT, _LEFT, _TOP = 920, 240, 60, 18


def search_document(search: Search) -> dict[str, Any]:
    """The JSON of a search; trials that are not bound yet are only counted."""
    best = search.best
    settings = search.settings
    return {
        "name": search.name,
        **{key: settings[key] for key in ("metric", "direction", "sampler")},
        "planned": search.planned,
        "best": best.name if best else None,
        "importance": importances(search.trials, settings["direction"]),
        "trials": [
            {
                "name": trial.name,
                "trial": trial.number,
                "state": trial.state,
                "value": trial.value if trial.value is not None and math.isfinite(trial.value) else None,
                "params": {**trial.bound.params, **trial.bound.derived},
                "sampler": trial.bound.sampler,
                "known": trial.bound.known,
                "note": trial.bound.note,
            }
            for trial in search.trials
        ],
    }


def search_lines(search: Search, metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """`metrics` are those of all runs, to name the ones that there are where the search's own is missing."""
    settings, best = search.settings, search.best
    metric, direction = settings["metric"], settings["direction"]
    counts = Counter(trial.state for trial in search.trials)
    totals = ", ".join(f"{counts[state]} {state}" for state in RUN_STATES if counts[state])
    lines = [
        f"{search.name}: sampler {settings['sampler']}, {plural(search.planned, 'trial')}" + (totals and f", {totals}")
    ]
    lines += _samplers(search)
    if best is None or best.value is None:
        return [*lines, *_missing_metric(search, metrics)]
    params = ", ".join(f"{name} = {format_value(value)}" for name, value in best.bound.params.items())
    lines.append(f"best: {best.name} {metric} = {best.value:.4g}   {params}")
    steps = [(trial, value) for trial, value in best_so_far(search.trials, direction) if trial.value == value]
    path = [f"{trial.name.rpartition('_')[2]} {value:.4g}" for trial, value in steps]
    lines.append("best so far: " + " > ".join(path if len(path) <= 8 else [*path[:3], "...", *path[-4:]]))
    for name, share in importances(search.trials, direction).items():
        lines.append(f"importance: {share:4.0%} {'#' * round(share * _BAR_WIDTH):<{_BAR_WIDTH}} {name}")
    return [*lines, *_drawn_at_random(search)]


def _samplers(search: Search) -> list[str]:
    """Which trials each sampler chose: a search with tpe or gp begins with random ones."""
    numbers: dict[str, list[int]] = {}
    for trial in sorted(search.trials, key=lambda trial: trial.number):
        numbers.setdefault(trial.bound.sampler, []).append(trial.number)
    names = {"points": "[[points]] of the file"}
    return [
        f"chosen by {names.get(sampler, sampler)}: {plural(len(mine), 'trial')} ({format_indices(mine, 't%03d')})"
        for sampler, mine in numbers.items()
    ]


def _missing_metric(search: Search, metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not any(trial.state == "failed" for trial in search.trials):
        return []
    mine = [names for run, names in metrics.items() if run.startswith(f"{search.name}_t")]
    others = sorted({name for names in mine for name in names})
    have = f"; there are {shorten_list(others, 10)}" if others else ""
    return [f"note: no trial wrote the metric {search.settings['metric']}, so none counts as completed{have}"]


def _drawn_at_random(search: Search) -> list[str]:
    """Why trials were drawn at random though a sampler was asked, each reason once."""
    notes: dict[str, int] = {}
    for trial in search.trials:
        if trial.bound.note:
            notes[trial.bound.note] = notes.get(trial.bound.note, 0) + 1
    return [f"note: {plural(count, 'trial')} drawn at random: {note}" for note, count in notes.items()]


def search_page(search: Search, metrics: Mapping[str, Mapping[str, float]]) -> str:
    """The same as HTML, with two pictures."""
    items = "".join(f"<li>{escape(line)}</li>" for line in search_lines(search, metrics))
    pictures = _curve(search) + _parallel_coordinates(search)
    return f"<ul class=advice>{items}</ul>{pictures}"


def _curve(search: Search) -> str:
    """Values of trials in order of their end as dots, and the best so far as a line."""
    found = best_so_far(search.trials, search.settings["direction"])
    values = [trial.value or 0.0 for trial, _ in found]
    if len(found) < 2 or not all(map(math.isfinite, values)):
        return ""
    low, high = min(values), max(values)
    x = _scale(0, len(found) - 1, _LEFT, _WIDTH - 20)
    y = _scale(low, high, _HEIGHT - 20, _TOP)
    parts = [f'<text x="{_LEFT - 6}" y="{y(value) + 4:.0f}" class=lane>{value:.3g}</text>' for value in {low, high}]
    parts += [
        f'<circle cx="{x(at):.1f}" cy="{y(trial.value or 0.0):.1f}" r="3" class="s-idle">'
        f"<title>{escape(trial.name)} {trial.value:.4g}</title></circle>"
        for at, (trial, _) in enumerate(found)
    ]
    line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, (_, value) in enumerate(found))
    parts.append(f'<polyline points="{line}" fill="none" stroke="var(--completed)" stroke-width="2"/>')
    metric = escape(str(search.settings["metric"]))
    return f"<h3>{metric}: trials in order of their end, and the best so far</h3>" + _svg(parts, "best so far")


def _parallel_coordinates(search: Search) -> str:
    """A line for each completed trial through its parameters to its value; the best tenth in colour."""
    settings = search.settings
    done = [trial for trial in search.trials if trial.state == "completed" and math.isfinite(trial.value or 0.0)]
    if len(done) < 2:
        return ""
    done.sort(key=lambda trial: -signed(trial.value, settings["direction"]))
    names = [*settings["space"], settings["metric"]]
    x = _scale(0, len(names) - 1, _LEFT, _WIDTH - 60)
    axes = [_axis(done, name, settings) for name in names]
    parts = [
        f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{_TOP}" y2="{_HEIGHT - 20}" stroke="var(--line)"/>'
        f'<text x="{x(at):.1f}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(name)}</text>'
        for at, name in enumerate(names)
    ]
    good = max(1, len(done) // 10)
    for place, trial in enumerate(done):
        line = " ".join(f"{x(at):.1f},{axis[trial.number]:.1f}" for at, axis in enumerate(axes))
        is_good = place >= len(done) - good
        colour, width = ("var(--completed)", 2) if is_good else ("var(--line)", 1)
        title = f"<title>{escape(trial.name)} {trial.value:.4g}</title>"
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{width}">{title}</polyline>'
        )
    return "<h3>parameters and value of each trial; the best tenth in colour</h3>" + _svg(parts, "parallel coordinates")


def _axis(done: Sequence[Trial], name: str, settings: Mapping[str, Any]) -> dict[int, float]:
    """Trial -> its height on the axis of a parameter, or of the metric."""
    draw = settings["space"].get(name)
    values: dict[int, float] = {}
    for trial in done:
        value = trial.value if draw is None else trial.bound.params.get(name)
        if draw is not None and "choice" in draw:
            choices = [repr(one) for one in draw["choice"]]
            values[trial.number] = float(choices.index(repr(value))) if repr(value) in choices else 0.0
        else:
            values[trial.number] = float(value if isinstance(value, int | float) else 0.0)
    if draw is not None and "log_uniform" in draw:
        values = {number: math.log(max(value, 1e-300)) for number, value in values.items()}
    y = _scale(min(values.values()), max(values.values()), _HEIGHT - 20, _TOP)
    return {number: y(value) for number, value in values.items()}


def _scale(low: float, high: float, first: float, last: float) -> Any:
    span = (high - low) or 1.0
    return lambda value: first + (last - first) * (value - low) / span


def _svg(parts: Sequence[str], label: str) -> str:
    return f'<svg class=gantt viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
