"""Scripts that are nearly the same: the variants that pile up while somebody looks for the right one. Pure.

Of a group the newest is kept. An older one that the doctor has no errors for is kept as well when the newer one has
some: the last try is not always the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

#: Two scripts are variants when this share of their lines is the same.
ALIKE = 0.8


class Candidate(NamedTuple):
    """A script; `errors` is how many the doctor finds in it."""

    path: str
    text: str
    modified: float
    errors: int = 0


class Twin(NamedTuple):
    """A script that can go, because `kept` is newer and nearly the same."""

    path: str
    kept: str
    alike: float


def find_twins(candidates: Sequence[Candidate]) -> list[Twin]:
    """Older near-copies, in the order of their names."""
    found: list[Twin] = []
    kept: list[tuple[Candidate, list[str]]] = []
    for candidate in sorted(candidates, key=lambda one: (-one.modified, one.path)):
        lines = meaningful(candidate.text)
        best: Twin | None = None
        for other, other_lines in kept:
            alike = likeness(lines, other_lines)
            better_here = other.errors > 0 and candidate.errors == 0
            if alike >= ALIKE and not better_here and (best is None or alike > best.alike):
                best = Twin(candidate.path, other.path, alike)
        if best is None:
            kept.append((candidate, lines))
        else:
            found.append(best)
    return sorted(found)


def meaningful(text: str) -> list[str]:
    """The lines that do something: directives and commands, without blanks and comments."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and (not line.startswith("#") or line.startswith(("#SBATCH", "#!")))]


def likeness(one: Sequence[str], other: Sequence[str]) -> float:
    """Share of lines that two scripts have in common, in order."""
    if not one or not other:
        return 0.0
    # No more lines than both have can be the same; this bound spares most of the comparing.
    common = len(set(one) & set(other))
    if 2 * min(len(one), len(other)) / (len(one) + len(other)) < ALIKE or common / max(len(set(one)), 1) < ALIKE / 2:
        return 0.0
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
