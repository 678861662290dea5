"""Scripts that are nearly the same, such as variants that accumulate while a person looks for the right settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

from shoal.batch import read_text
from shoal.cleanup.leftovers import CleanupItem, disk_size
from shoal.doctor import check_text, find_files
from shoal.errors import InputError

#: Two scripts are variants when this share of their lines is the same.
MIN_SIMILARITY = 0.8


def list_near_duplicates(folders: Sequence[Path], root: Path) -> list[CleanupItem]:
    """Older variants of scripts. Experiment scripts are never among them: their names are the names of runs."""
    experiments = os.path.realpath(root / "experiments")
    candidates: list[ScriptCandidate] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder", hint="shoal clean scripts/")
        for path in find_files([folder]):
            where = os.path.realpath(path)
            if where.startswith(experiments + os.sep) or path.is_symlink():
                continue
            text = read_text(path)
            errors = sum(1 for one in check_text(text.body, str(path)) if one.severity == "error")
            candidates.append(ScriptCandidate(os.path.abspath(path), text.body, path.stat().st_mtime, errors))
    found = []
    for twin in find_near_duplicates(candidates):
        newer = os.path.relpath(twin.kept, os.path.dirname(twin.path))
        reason = f"{int(twin.alike * 100)} % the same as {newer}, which is newer"
        found.append(CleanupItem(twin.path, "script", reason, disk_size(twin.path)))
    return found


class ScriptCandidate(NamedTuple):
    """A script; `errors` is how many the doctor finds in it."""

    path: str
    text: str
    modified: float
    errors: int = 0


class NearDuplicate(NamedTuple):
    """A script that can go, because `kept` is newer and nearly the same."""

    path: str
    kept: str
    alike: float


def find_near_duplicates(candidates: Sequence[ScriptCandidate]) -> list[NearDuplicate]:
    """Older near-copies, in the order of their names.

    Of a group the newest is kept. An older one that the doctor has no errors for is kept as well when the newer one has
    some: the last try is not always the best.
    """
    found: list[NearDuplicate] = []
    kept: list[tuple[ScriptCandidate, list[str]]] = []
    for candidate in sorted(candidates, key=lambda one: (-one.modified, one.path)):
        lines = significant_lines(candidate.text)
        best: NearDuplicate | None = None
        for other, other_lines in kept:
            alike = similarity(lines, other_lines)
            better_here = other.errors > 0 and candidate.errors == 0
            if alike >= MIN_SIMILARITY and not better_here and (best is None or alike > best.alike):
                best = NearDuplicate(candidate.path, other.path, alike)
        if best is None:
            kept.append((candidate, lines))
        else:
            found.append(best)
    return sorted(found)


def significant_lines(text: str) -> list[str]:
    """The lines that do something: directives and commands, without blanks and comments."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and (not line.startswith("#") or line.startswith(("#SBATCH", "#!")))]


def similarity(one: Sequence[str], other: Sequence[str]) -> float:
    """Share of lines that two scripts have in common, in order."""
    if not one or not other:
        return 0.0
    # No more lines than both have can be the same; this bound spares most of the comparing.
    common = len(set(one) & set(other))
    if (
        2 * min(len(one), len(other)) / (len(one) + len(other)) < MIN_SIMILARITY
        or common / max(len(set(one)), 1) < MIN_SIMILARITY / 2
    ):
        return 0.0
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
