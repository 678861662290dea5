"""Curves of metrics, fit for a plot: from metrics.jsonl, W&B's offline files and TensorBoard's events."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.results.metrics import tensorboard_files, wandb_files
from shoal.results.records import tensorboard_points, wandb_rows
from shoal.store.fold import RunView
from shoal.views.tail import read_slice

Series = dict[str, list[list[float]]]
_MOST_POINTS = 600
_MOST_CURVES = 40
#: Of metrics.jsonl the last so many bytes are read; a tracker's file cannot be read from the middle, and is left out
#: when it is larger.
_MOST_BYTES = 4 << 20
_MOST_TRACKER_BYTES = 16 << 20
#: Keys that say when a line was written, the best first; never curves themselves.
STEPS = ("step", "_step", "epoch")
TIMES = ("t", "time", "timestamp", "_timestamp", "_runtime")


def read_series(view: RunView | None) -> Series:
    """Metric -> [[step, value], ...], thinned to what a plot can show. What somebody wrote on purpose wins."""
    if view is None or view.output_dir is None:
        return {}
    found: Series = {}
    for points in (_jsonl(view.output_dir), _wandb(Path(view.output_dir)), _tensorboard(Path(view.output_dir))):
        fresh: Series = {}
        for name, step, value in points:
            if name not in found and (name in fresh or len(found) + len(fresh) < _MOST_CURVES):
                fresh.setdefault(name[:60], []).append([step, value])
        found.update(fresh)
    return {name: thin(points) for name, points in found.items()}


def _jsonl(folder: str) -> Iterator[tuple[str, float, float]]:
    try:
        data, start, _ = read_slice(os.path.join(folder, "metrics.jsonl"), -_MOST_BYTES, _MOST_BYTES)
    except OSError:
        return
    for number, line in enumerate(data.split(b"\n")[1 if start else 0 :]):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield from _row(record, number)


def _wandb(root: Path) -> Iterator[tuple[str, float, float]]:
    for path in wandb_files(root):
        for number, (logged, row) in enumerate(wandb_rows(_whole(path))):
            if logged:
                yield from _row(row, number)


def _tensorboard(root: Path) -> Iterator[tuple[str, float, float]]:
    for path in tensorboard_files(root):
        yield from ((tag, step, value) for tag, step, value in tensorboard_points(_whole(path)) if _is_finite(value))


def _row(record: dict[str, Any], number: int) -> Iterator[tuple[str, float, float]]:
    step = next((record[key] for key in STEPS if _is_finite(record.get(key))), number)
    for key, value in record.items():
        if key not in STEPS and key not in TIMES and _is_finite(value):
            yield str(key), float(step), float(value)


def _whole(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.stat().st_size <= _MOST_TRACKER_BYTES else b""
    except OSError:
        return b""


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def thin(points: list[list[float]], most: int = _MOST_POINTS) -> list[list[float]]:
    """Every k-th point, and always the last."""
    step = -(-len(points) // most)
    return points if step <= 1 else [*points[::step], points[-1]]
