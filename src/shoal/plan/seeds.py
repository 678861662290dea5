"""Seeds that no program hears of: three runs with the same numbers, taken for three seeds, are found here."""

from __future__ import annotations

import os
from collections.abc import Iterable

from shoal.model import RunSpec

#: Enough of a program to see whether it reads the environment; a data file among the words is not read whole.
_MOST_BYTES = 1 << 20


def unread_seeds(specs: Iterable[RunSpec]) -> list[str]:
    """A remark for each sweep whose seeds are in no argument, and whose program does not seem to read them itself."""
    first: dict[tuple[object, ...], int] = {}
    settled: dict[str, str | None] = {}
    for spec in specs:
        if spec.sweep is None or spec.seed is None or spec.sweep in settled:
            continue
        words = (*spec.command, *spec.args, *spec.env.values())
        if first.setdefault((spec.sweep, words, repr(spec.params)), spec.seed) == spec.seed:
            continue
        heard = any("{seed}" in word or _reads_it(word, spec.cwd) for word in words)
        remark = f"no argument of {spec.sweep} has the seed: put {{seed}} into its command, or read $SHOAL_SEED"
        settled[spec.sweep] = None if heard else remark
    return [remark for remark in settled.values() if remark]


def _reads_it(word: str, cwd: str) -> bool:
    if "SHOAL_SEED" in word:
        return True
    try:
        with open(os.path.join(cwd, word), "rb") as program:  # noqa: PTH123
            return b"SHOAL_SEED" in program.read(_MOST_BYTES)
    except (OSError, ValueError):
        return False
