"""What the experiment view of the page shows beside its table, as JSON: groups over seeds, metrics, curves.

Curves are drawn from at most a thousand points each (views/curves.py). A page that has them asks with the version that
it got, and receives the curves that have grown since.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from shoal.observe import RunSummary, RunView
from shoal.views.curves import AXES, MAX_POINTS, Curve, CurveReader, CurvesLook, mean_curve
from shoal.views.render import finite_or_none
from shoal.views.results import missing_seeds
from shoal.views.run_groups import count_states
from shoal.views.run_table import choose_metric, format_param, group_table, guess_mode, value_key
from shoal.views.seed_groups import best_group

#: So many curves are drawn at once: more cannot be told apart, and say so.
MAX_CURVES = 200
_MAX_METRICS = 24
_MIN_POINTS = 50


class CurvesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """`groups`: id -> runs whose mean is drawn. `since`: what the page has already."""

    metrics: list[str]
    runs: list[str] = []
    groups: dict[str, list[str]] = {}
    x: str = "step"
    points: int = MAX_POINTS
    since: int = 0


def group_id(name: str) -> str:
    return "g" + hashlib.sha256(name.encode()).hexdigest()[:15]


def experiment_document(
    views: Sequence[RunView],
    summaries: Mapping[str, RunSummary],
    setting: Mapping[str, str] | None,
    run_id: Callable[[str], str],
) -> dict[str, Any]:
    """Runs that differ in the seed alone as groups, and every metric with the number of runs that have it."""
    known = [summaries[view.name] for view in views]
    metric = choose_metric(known, setting)
    table = group_table(views, summaries, metric)
    best = best_group(table.groups, metric)
    by_name = {view.name: view for view in views}
    groups = []
    for group in table.groups:
        found = group.metrics.get(metric.name) if metric is not None else None
        groups.append({
            "id": group_id(group.name), "name": group.name, "is_best": group is best,
            "params": {name: [format_param(group.params.get(name)), *value_key(group.params.get(name))]
                       for name in table.params},
            "runs": [run_id(run.name) for run in group.runs],
            "states": dict(count_states([by_name[run.name] for run in group.runs])),
            "mean": finite_or_none(found.mean) if found else None, "std": finite_or_none(found.std) if found else None,
            "n": found.size if found else 0, "missing": missing_seeds(group),
        })  # fmt: skip
    counts = Counter(name for one in known for name in one.metrics)
    first = metric.name if metric is not None else ""
    names = sorted(counts, key=lambda name: (name != first, guess_mode(name) is None, -counts[name], name))
    return {
        "groups": groups,
        "metrics": [[name, counts[name], guess_mode(name)] for name in names],
        "metric": metric._asdict() if metric is not None else None,
    }


def values_document(
    views: Sequence[RunView], summaries: Mapping[str, RunSummary], metric: str, run_id: Callable[[str], str]
) -> dict[str, Any]:
    """The last value of one metric of each run; null where it is no number."""
    values = {
        run_id(view.name): finite_or_none(found.last)
        for view in views
        if (found := summaries[view.name].metrics.get(metric)) is not None
    }
    return {"metric": metric, "mode": guess_mode(metric), "values": values}


def curves_document(
    reader: CurveReader, query: CurvesQuery, view_of: Callable[[str], RunView | None]
) -> dict[str, Any]:
    """Curves of runs, and means of groups. A run that has gone has none; `without_x` names runs that do not tell such
    an x; `left_out` counts what is beyond the limits."""
    if query.x not in AXES:
        raise ValueError("no such axis")
    metrics = query.metrics[:_MAX_METRICS]
    runs, groups = query.runs[:MAX_CURVES], dict(list(query.groups.items())[:MAX_CURVES])
    ids = dict.fromkeys([*runs, *(one for members in groups.values() for one in members)])
    views = {one: view for one in ids if (view := view_of(one)) is not None}
    look = reader.read(list(views.values()), metrics)
    most = max(_MIN_POINTS, min(MAX_POINTS, query.points))
    answer: dict[str, Any] = {
        "version": max([query.since, *look.versions.values()]),
        "x": query.x,
        "unread": look.unread,
        "left_out": len(query.runs) - len(runs) + len(query.groups) - len(groups),
        "curves": [],
        "without_x": [],
    }
    for one in runs:
        if one in views and look.versions.get(views[one].name, 0) > query.since:
            for metric, curve in look.runs[views[one].name].items():
                drawn = _curve(curve, query.x, views[one], most)
                if drawn is not None:
                    answer["curves"].append({"id": one, "metric": metric, **drawn})
                elif one not in answer["without_x"]:
                    answer["without_x"].append(one)
    for key, members in groups.items():
        inside = [views[one] for one in members if one in views]
        if any(look.versions.get(view.name, 0) > query.since for view in inside):
            answer["curves"] += _group_curves(key, inside, metrics, look, query.x, answer["without_x"])
    return answer


def _curve(curve: Curve, axis: str, view: RunView, most: int) -> dict[str, Any] | None:
    xs, ys = curve.points(axis, view.started, most)
    if not xs:
        return None
    return {"x": _short(xs), "y": _short(ys), "count": curve.count, "stretch": curve.stretch}


def _group_curves(
    key: str, views: Sequence[RunView], metrics: Sequence[str], look: CurvesLook, axis: str, without: list[str]
) -> list[dict[str, Any]]:
    found = []
    for metric in metrics:
        curves = [(view, look.runs.get(view.name, {}).get(metric)) for view in views]
        lines = [curve.means(axis, view.started) for view, curve in curves if curve is not None]
        if not any(xs for xs, _ in lines):
            if lines and key not in without:
                without.append(key)
            continue
        mean = mean_curve(lines)
        found.append({
            "id": key, "metric": metric, "x": _short(mean.x), "y": _short(mean.mean), "std": _short(mean.std),
            "n": mean.size, "runs": len(lines), "count": sum(curve.count for _, curve in curves if curve is not None),
            "stretch": max(curve.stretch for _, curve in curves if curve is not None),
        })  # fmt: skip
    return found


def _short(values: Sequence[float | None]) -> list[float | None]:
    """Six digits are more than a screen has; times keep their seconds."""
    return [
        None if value is None else int(value) if value == math.floor(value) and abs(value) < 1e15
        else round(value, 1) if abs(value) > 1e8 else float(f"{value:.6g}")
        for value in values
    ]  # fmt: skip
