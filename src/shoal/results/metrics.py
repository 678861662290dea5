"""The numbers that a run left in its output folder; the last value of each wins.

    metrics.json      one object; nested ones become dotted names
    metrics.jsonl     one object per line, as trainings write them while they run
    wandb/            offline runs (run-*.wandb), or the summary that an online run leaves
    events.out.tfevents.*   TensorBoard, in the folder or one below

Numbers of metrics.json and metrics.jsonl win over those of trackers, because somebody wrote them on purpose.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shoal.results.records import tensorboard_numbers, wandb_numbers

Numbers = dict[str, float]
_LARGEST = 512 << 20
_DEEPEST = 4


def read_metrics(folder: str) -> Numbers:
    """Every number in a run's output folder; damaged or half-written files give what is whole in them."""
    root = Path(folder)
    found: Numbers = {}
    for path in tensorboard_files(root):
        found.update(_numbers(tensorboard_numbers(_bytes(path))))
    for path in _newest_last(root.glob("wandb/*run-*/files/wandb-summary.json"), root):
        found.update(_flat(_json(path)))
    for path in wandb_files(root):
        found.update(_flat(dict(wandb_numbers(_bytes(path)))))
    found = {name: value for name, value in found.items() if not name.startswith("_")}
    found.update(_lines(root / "metrics.jsonl"))
    found.update(_flat(_json(root / "metrics.json")))
    return found


def tensorboard_files(root: Path) -> list[Path]:
    return _newest_last(root.glob("**/*.tfevents.*"), root)


def wandb_files(root: Path) -> list[Path]:
    return _newest_last(root.glob("wandb/*run-*/run-*.wandb"), root)


def _lines(path: Path) -> Numbers:
    found: Numbers = {}
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    found.update(_flat(json.loads(line)))
                except ValueError:
                    continue  # the line that is being written, or somebody's print
    except OSError:
        pass
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(_bytes(path) or b"{}")
    except ValueError:
        return {}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.stat().st_size <= _LARGEST else b""
    except OSError:
        return b""


def _flat(value: Any, prefix: str = "", depth: int = 0) -> Numbers:
    """The numbers of nested objects, under dotted names; true and false are 1 and 0."""
    if isinstance(value, dict) and depth < _DEEPEST:
        found: Numbers = {}
        for name, inner in value.items():
            found.update(_flat(inner, f"{prefix}.{name}" if prefix else str(name), depth + 1))
        return found
    if isinstance(value, int | float) and prefix:
        try:
            return {prefix: float(value)}
        except OverflowError:
            return {}
    return {}


def _numbers(pairs: Iterable[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    return ((name, float(value)) for name, value in pairs)


def _newest_last(paths: Iterable[Path], root: Path) -> list[Path]:
    """Names carry the time at which a tracker began, so that a resumed run's later file comes last."""
    return sorted(paths, key=lambda path: (os.path.basename(path.parent.name), path.name))
