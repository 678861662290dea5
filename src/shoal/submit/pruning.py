"""Runs of a sweep that its description no longer has: found by their specs, told always, cancelled only on request."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from shoal.describe import SweepNames
from shoal.model import ACTIVE_STATES
from shoal.observe import RunReader, RunView, observe, run_names


def removed_runs(
    home: str, grown: Sequence[SweepNames], described: Collection[str], environ: Mapping[str, str]
) -> list[RunView]:
    """Live runs that belong to these sweeps and are not among the described ones; what has ended stays as it is."""
    if not grown:
        return []
    bases = {(one.experiment, one.base) for one in grown}
    prefixes = tuple(f"{experiment}/{base}" for experiment, base in bases)
    known = set(described)
    reader = RunReader(home)
    names = []
    for name in run_names(home):
        if name in known or not name.startswith(prefixes):
            continue
        spec = reader.spec(name)
        if spec is not None and (spec.experiment, spec.sweep) in bases:
            names.append(name)
    views = observe(home, names, environ=environ).views if names else {}
    return [view for view in views.values() if view.state in ACTIVE_STATES]
