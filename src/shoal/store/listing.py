"""Which runs a project has: folder names alone, with nothing imported, so that an empty project answers at once."""

from __future__ import annotations

import os


def run_names(home: str) -> list[str]:
    """Every run that has a folder, sorted."""
    root = os.path.join(home, "runs")
    return [
        f"{experiment}/{stem}" for experiment in _folders(root) for stem in _folders(os.path.join(root, experiment))
    ]


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
