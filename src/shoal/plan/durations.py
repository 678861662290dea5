"""How long runs took before: durations of earlier good attempts, read from their records."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.kernel import layout, list_names
from shoal.observe import DamagedRecord, run_files


def past_durations(home: str, names: Sequence[str]) -> dict[int, float]:
    """Place -> seconds of the newest attempt that ended well, or was a probe, for the named runs that have one.

    A run of the same sweep that is not asked for this time still tells what its neighbours take, but only costs say
    by how much they differ; it is left to `order.expected`.
    """
    found = {}
    for place, name in enumerate(names):
        folder = layout.run_dir(home, name)
        names_there = layout.parse_names(list_names(folder))
        for number in reversed(names_there.attempts.get("end", [])):
            try:
                end = run_files.read_end(folder, names_there, number)
            except DamagedRecord:
                continue
            told = None if end is None else end.duration_s if end.success else end.expect_s
            if told is not None:
                found[place] = told
                break
    return found
