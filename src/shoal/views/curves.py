"""Curves of metrics: what a program wrote to metrics.jsonl in its output folder, fit for a plot."""

from __future__ import annotations

import json
import os
from typing import Any

from shoal.store.fold import RunView
from shoal.views.tail import read_slice

_MOST_POINTS = 600
_MOST_BYTES = 4 << 20


def read_series(view: RunView | None) -> dict[str, list[list[float]]]:
    """Metric -> [[step, value], ...] from the last megabytes of metrics.jsonl, thinned to what a plot can show."""
    if view is None or view.output_dir is None:
        return {}
    try:
        data, start, _ = read_slice(os.path.join(view.output_dir, "metrics.jsonl"), -_MOST_BYTES, _MOST_BYTES)
    except OSError:
        return {}
    found: dict[str, list[list[float]]] = {}
    for number, line in enumerate(data.split(b"\n")[1 if start else 0 :]):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict):
            continue
        step: Any = record.get("step", record.get("epoch", number))
        for key, value in record.items():
            if key not in ("step", "epoch", "t", "time") and _is_finite(value) and _is_finite(step) and len(found) < 40:
                found.setdefault(str(key)[:60], []).append([float(step), float(value)])
    return {key: thin(points) for key, points in found.items()}


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def thin(points: list[list[float]], most: int = _MOST_POINTS) -> list[list[float]]:
    """Every k-th point, and always the last."""
    step = -(-len(points) // most)
    return points if step <= 1 else [*points[::step], points[-1]]
