"""A copy of the page without a server: the scripts as one, and the answers that its plots ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.views.curves import AXES
from shoal.views.web.api import DashboardData
from shoal.views.web.experiment import MAX_CURVES

_MAX_METRICS = 8
#: Points of all curves together, so that the file stays small enough for a mail.
_MAX_ALL_POINTS = 120_000
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) ?\*? ?(\w+))", re.MULTILINE)
_IMPORT = re.compile(r'^import (\{.*?\}) from "\./([\w.]+)";$', re.MULTILINE)


def join_scripts(scripts: Mapping[str, str]) -> str:
    """Modules as one script, because browsers load none from a file: each in a function that returns its exports."""
    parts = ["const modules = {};"]
    for name, text in scripts.items():
        exports = ", ".join(_EXPORT.findall(text))
        body = _EXPORT.sub("", _IMPORT.sub(lambda match: f'const {match[1]} = modules["{match[2]}"];', text))
        parts.append(f'modules["{name}"] = (() => {{\n{body}\nreturn {{{exports}}};\n}})();')
    return "\n".join(parts)


def experiment_responses(
    feed: DashboardData, experiments: Sequence[str], runs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What the page asks for groups, values and curves: under the keys that app.js looks for."""
    kept: dict[str, Any] = {}
    curves: dict[str, dict[str, Any]] = {axis: {} for axis in AXES}
    for experiment in experiments:
        about = feed.experiment(experiment)
        kept[f"/api/experiment {experiment}".strip()] = about
        metrics = [one[0] for one in about["metrics"]]
        for metric in metrics[: 3 * _MAX_METRICS]:
            kept[" ".join(filter(None, ("/api/values", experiment, metric)))] = feed.values(experiment, metric)
        if experiment or len(experiments) == 1:
            ids = [run["id"] for run in runs if run["experiment"] == experiment][:MAX_CURVES]
            groups = {group["id"]: group["runs"] for group in about["groups"]}
            size = max(1, len(runs) * min(_MAX_METRICS, len(metrics)))
            _add_curves(feed, curves, ids, groups, metrics[:_MAX_METRICS], min(300, _MAX_ALL_POINTS // size))
    kept["/api/curves"] = {axis: list(found.values()) for axis, found in curves.items()}
    return kept


def _add_curves(
    feed: DashboardData,
    curves: dict[str, dict[str, Any]],
    ids: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    metrics: Sequence[str],
    points: int,
) -> None:
    """Of each axis that the runs tell; a look that took too long is followed by the next."""
    for axis in AXES:
        query = {"metrics": metrics, "runs": ids, "groups": groups, "x": axis, "points": points}
        while True:
            answer = feed.curves(json.dumps(query))
            if not answer["unread"]:
                break
        curves[axis].update((f"{one['id']} {one['metric']}", one) for one in answer["curves"])
