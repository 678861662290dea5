"""Near-copies among the scripts of folders: reads the files and asks the doctor; the comparing is in `twins`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from shoal.doctor.check import examine_text, find_files
from shoal.doctor.text import read_text
from shoal.errors import InputError
from shoal.tidy.leftovers import Item, size_of
from shoal.tidy.twins import Candidate, find_twins


def near_copies(folders: Sequence[Path], root: Path) -> list[Item]:
    """Older variants of scripts. Experiment scripts are never among them: their names are the names of runs."""
    experiments = os.path.realpath(root / "experiments")
    candidates: list[Candidate] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder", hint="shoal clean scripts/")
        for path in find_files([folder]):
            where = os.path.realpath(path)
            if where.startswith(experiments + os.sep) or path.is_symlink():
                continue
            text = read_text(path)
            errors = sum(1 for one in examine_text(text.body, str(path)) if one.severity == "error")
            candidates.append(Candidate(os.path.abspath(path), text.body, path.stat().st_mtime, errors))
    found = []
    for twin in find_twins(candidates):
        newer = os.path.relpath(twin.kept, os.path.dirname(twin.path))
        reason = f"{int(twin.alike * 100)} % the same as {newer}, which is newer"
        found.append(Item(twin.path, "script", reason, size_of(twin.path)))
    return found
