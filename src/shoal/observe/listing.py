"""Which runs a project has: folder names alone, with little imported, so that an empty project answers at once."""

from __future__ import annotations

import os

from shoal.units import natural


def run_names(home: str) -> list[str]:
    """Every run that has a folder, in natural order: every view shows them so."""
    root = os.path.join(home, "runs")
    return [
        f"{experiment}/{stem}" for experiment in _folders(root) for stem in _folders(os.path.join(root, experiment))
    ]


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted((entry.name for entry in entries if entry.is_dir()), key=natural)
    except (FileNotFoundError, NotADirectoryError):
        return []
