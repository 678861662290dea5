"""Which runs a project has: folder names alone, with little imported, so that an empty project answers at once."""

from __future__ import annotations

import os

from shoal.units import natural_sort_key


def run_names(home: str) -> list[str]:
    """Every run that has a folder, in natural order: every view shows them so."""
    root = os.path.join(home, "runs")
    return [
        f"{experiment}/{stem}"
        for experiment in _subdirectories(root)
        for stem in _subdirectories(os.path.join(root, experiment))
    ]


def _subdirectories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted((entry.name for entry in entries if entry.is_dir()), key=natural_sort_key)
    except (FileNotFoundError, NotADirectoryError):
        return []
