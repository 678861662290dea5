"""Scripts that are nearly the same, such as variants that accumulate while a person looks for the right settings.

Scripts that start different programs are never variants of each other, however many lines they share. Which of two is
newer comes from git's history, because a checkout gives every file the time of the checkout.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

from shoal.actions import GitIndex
from shoal.batch import read_text
from shoal.cleanup.leftovers import CleanupItem, disk_size
from shoal.doctor import check_text, find_files, started_programs
from shoal.errors import InputError

#: Two scripts are variants when this share of their lines is the same.
MIN_SIMILARITY = 0.8


def list_near_duplicates(folders: Sequence[Path], root: Path, environ: Mapping[str, str]) -> list[CleanupItem]:
    """Older variants of scripts. Experiment scripts are never among them: their names are the names of runs."""
    inside = os.path.realpath(root) + os.sep
    candidates: list[ScriptCandidate] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder", hint="shoal clean scripts/")
        committed_at = _commit_times(folder, environ)
        for path in find_files([folder]):
            where = os.path.realpath(path)
            is_experiment = where.startswith(inside) and "experiments" in where.removeprefix(inside).split(os.sep)
            if is_experiment or path.is_symlink():
                continue
            text = read_text(path)
            errors = sum(1 for one in check_text(text.body, str(path)) if one.severity == "error")
            changed_at = committed_at.get(where, path.stat().st_mtime)
            programs = started_programs(text, str(path))
            candidates.append(ScriptCandidate(os.path.abspath(path), text.body, changed_at, errors, programs))
    found = []
    for twin in find_near_duplicates(candidates):
        newer = os.path.relpath(twin.kept, os.path.dirname(twin.path))
        age = "which is newer" if twin.is_older else "which is as old"
        reason = f"{int(twin.alike * 100)} % the same as {newer}, {age}"
        found.append(CleanupItem(twin.path, "script", reason, disk_size(twin.path)))
    return found


def _commit_times(folder: Path, environ: Mapping[str, str]) -> dict[str, float]:
    """Real path -> time of the last commit that changed it, of files that are as git has them. A file with changes that
    are not committed, and one that git does not know, is missing here: its own time tells when it changed."""
    git = GitIndex(folder, environ)
    top = git.ask("rev-parse", "--show-toplevel")
    log = git.ask("-c", "core.quotePath=off", "log", "--format=:%ct", "--name-only", "--no-renames", "--", ".")
    changed = git.ask("diff", "--name-only", "--no-renames", "-z", "HEAD", "--", ".")
    found: dict[str, float] = {}
    committed_at = 0.0
    for line in (log or "").splitlines() if top else ():
        if line.startswith(":"):
            committed_at = float(line[1:])
        elif line:
            found.setdefault(os.path.realpath(os.path.join(top or "", line)), committed_at)
    for name in (changed or "").split("\0"):
        found.pop(os.path.realpath(os.path.join(top or "", name)), None)
    return found


class ScriptCandidate(NamedTuple):
    """A script; `changed_at` says when, `errors` how many the doctor finds in it, `programs` what it starts."""

    path: str
    text: str
    changed_at: float
    errors: int = 0
    programs: frozenset[str] = frozenset()


class NearDuplicate(NamedTuple):
    """A script that can go, because `kept` is nearly the same and newer; or as old, as in one commit."""

    path: str
    kept: str
    alike: float
    is_older: bool


def find_near_duplicates(candidates: Sequence[ScriptCandidate]) -> list[NearDuplicate]:
    """Older near-copies, in the order of their names.

    Only scripts that start the same programs are compared. Of a group the newest is kept. An older one that the doctor
    has no errors for is kept as well when the newer one has some: the last attempt is not always the best.
    """
    found: list[NearDuplicate] = []
    kept: list[tuple[ScriptCandidate, list[str]]] = []
    for candidate in sorted(candidates, key=lambda one: (-one.changed_at, one.path)):
        lines = significant_lines(candidate.text)
        best: NearDuplicate | None = None
        for other, other_lines in kept:
            alike = similarity(lines, other_lines) if other.programs == candidate.programs else 0.0
            better_here = other.errors > 0 and candidate.errors == 0
            if alike >= MIN_SIMILARITY and not better_here and (best is None or alike > best.alike):
                best = NearDuplicate(candidate.path, other.path, alike, candidate.changed_at < other.changed_at)
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
