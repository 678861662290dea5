"""Seeds that no program hears of: three runs with the same numbers, taken for three seeds, are found here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from shoal.model import RunSpec
from shoal.plan.sources import file_that_reads


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
        heard = any("{seed}" in word or "SHOAL_SEED" in word for word in words)
        heard = heard or bool(file_that_reads("SHOAL_SEED", Path(spec.cwd), words))
        remark = f"no argument of {spec.sweep} has the seed: put {{seed}} into its command, or read $SHOAL_SEED"
        settled[spec.sweep] = None if heard else remark
    return [remark for remark in settled.values() if remark]
