"""The dependency graph of runs: runs name their parents, and are ordered so that parents come first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from shoal.describe.run_specs import PlannedRun, RequestedRun
from shoal.errors import InputError
from shoal.model import ACTIVE_STATES, RunSpec, state_verb
from shoal.names import SMOKE_SUFFIX
from shoal.units import natural_sort_key


class BlockedRun(NamedTuple):
    """A run that cannot be submitted now, and why."""

    run: PlannedRun
    reason: str


def expand_parent_patterns(
    asked: Sequence[RequestedRun], recorded: Callable[[], Iterable[str]]
) -> Sequence[RequestedRun]:
    """Each run with the runs that patterns among its parents stand for: `020_b2d_*`, of those asked for and of those
    recorded before. A pattern that matches none is an InputError."""
    if not any(is_pattern(parent) for one in asked for parent in one.run.spec.parents):
        return asked
    names = sorted({*recorded(), *(one.run.spec.name for one in asked)}, key=natural_sort_key)
    names = [name for name in names if not name.endswith(SMOKE_SUFFIX)]
    return [_with_expanded_parents(one, names) for one in asked]


def _with_expanded_parents(one: RequestedRun, names: Sequence[str]) -> RequestedRun:
    spec = one.run.spec
    parents: dict[str, None] = {}
    for parent in spec.parents:
        matches = [name for name in names if fnmatchcase(name, parent) and name != spec.name]
        if is_pattern(parent) and not matches:
            raise InputError(
                f"{spec.name}: no run matches {parent!r} in `after`",
                hint="submit the files that describe these runs together with this one",
            )
        parents.update(dict.fromkeys(matches if is_pattern(parent) else [parent]))
    spec = msgspec.structs.replace(spec, parents=list(parents))
    return one._replace(run=one.run._replace(spec=spec))


def is_pattern(name: str) -> bool:
    return any(letter in name for letter in "*?[")


def check_dependencies(specs: Sequence[RunSpec], known: Collection[str]) -> None:
    """Refuse a parent that nobody describes, and a circle; both name the run. `known` are runs recorded before."""
    by_name = {spec.name: spec for spec in specs}
    for spec in specs:
        for name in spec.parents:
            if name not in by_name and name not in known:
                near = [one.removeprefix(f"{spec.experiment}/") for one in get_close_matches(name, [*by_name, *known])]
                raise InputError(
                    f"{spec.name} builds on {name}, which does not exist"
                    + (f"; did you mean {near[0]}?" if near else ""),
                    hint="submit the file that describes it together with this one",
                )
    _refuse_cycles(by_name)


def _refuse_cycles(by_name: Mapping[str, RunSpec]) -> None:
    done: set[str] = set()
    for first in by_name:
        path: dict[str, None] = {}
        walk = [(first, iter(by_name[first].parents))] if first not in done else []
        path[first] = None
        while walk:
            name, rest = walk[-1]
            following = next((one for one in rest if one in by_name and one not in done), None)
            if following is None:
                walk.pop()
                path.pop(name, None)
                done.add(name)
            elif following in path:
                names = list(path)
                circle = " -> ".join([*names[names.index(following) :], following])
                raise InputError(f"runs build on each other in a circle: {circle}")
            else:
                path[following] = None
                walk.append((following, iter(by_name[following].parents)))


def order_runs(start: Sequence[PlannedRun], states: Mapping[str, str]) -> tuple[list[PlannedRun], list[BlockedRun]]:
    """Parents first, each run with the parents it still has to wait for (`needs`); and the runs that are held.

    `states` are those of parents that are not started by this command. One that failed holds its own branch alone.
    """
    by_name = {run.spec.name: run for run in start}
    placed: dict[str, PlannedRun] = {}
    held: dict[str, BlockedRun] = {}

    def place(name: str) -> None:
        walk = [name]
        while walk:
            run = by_name[walk[-1]]
            first = next((p for p in run.spec.parents if p in by_name and p not in placed and p not in held), None)
            if first is not None:
                walk.append(first)
                continue
            walk.pop()
            if run.spec.name in placed or run.spec.name in held:
                continue
            reason = next(
                (why for p in run.spec.parents if (why := _block_run(p, placed, held, states)) is not None), None
            )
            if reason is not None:
                held[run.spec.name] = BlockedRun(run, reason)
                continue
            needs = tuple(p for p in run.spec.parents if p in placed or states.get(p) != "completed")
            placed[run.spec.name] = run._replace(needs=needs)

    for run in start:
        place(run.spec.name)
    return list(placed.values()), list(held.values())


def _block_run(
    name: str, placed: Mapping[str, object], held: Mapping[str, BlockedRun], states: Mapping[str, str]
) -> str | None:
    if name in placed:
        return None
    if name in held:
        return f"its parent {name} waits itself"
    state = states.get(name, "new")
    return None if state == "completed" or state in ACTIVE_STATES else f"its parent {name} {state_verb(state)}"
