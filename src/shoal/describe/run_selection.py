"""Which runs a person means: an experiment, a run, its stem alone, a pattern, `last`, or numbers such as exp/3-7."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from shoal.describe.run_lookup import find_run
from shoal.errors import InputError
from shoal.kernel import layout
from shoal.model import ACTIVE_STATES, CAUSES, RUN_STATES, STATE_GROUPS
from shoal.observe import RunView, run_names
from shoal.units import plural

_NUMBERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*", re.ASCII)


def select_runs(home: str, words: Sequence[str]) -> list[str]:
    """The names that words stand for, in order; all runs without words. InputError for a word that matches nothing.

    `last` is the experiment with the newest submission; `last:20` the twenty runs submitted last; `EXP/3-7,9` the runs
    at these places (from 0) of an experiment's list.
    """
    names = run_names(home)
    if not words:
        return names
    found: dict[str, None] = {}
    for word in words:
        found.update(dict.fromkeys(_matches(home, names, word)))
    return list(found)


def unselected_sentence(home: str, names: Sequence[str]) -> list[str]:
    """What a selection leaves out of the experiments that it is about, in words."""
    chosen = set(names)
    missing: dict[str, list[bool]] = {}
    for name in run_names(home):
        missing.setdefault(name.partition("/")[0], []).append(name not in chosen)
    return [
        f"{sum(left):,} of {plural(len(left), 'run')} of {experiment} not selected"
        for experiment, left in missing.items()
        if any(left) and not all(left)
    ]


def _matches(home: str, names: Sequence[str], word: str) -> list[str]:
    wanted = word.rpartition("experiments/")[2].rstrip("/")
    if wanted == "last" or re.fullmatch(r"last:\d+", wanted, re.ASCII):
        return _newest(home, names, wanted)
    matches = [
        name
        for name in names
        if wanted in (name, name.split("/")[0]) or fnmatchcase(name, wanted) or fnmatchcase(name.split("/")[1], wanted)
    ]
    experiment, slash, numbers = wanted.partition("/")
    if not matches and slash and _NUMBERS.fullmatch(numbers):
        inside = [name for name in names if name.split("/")[0] == experiment]
        matches = [inside[index] for index in _parse_indices(numbers, len(inside))]
    return matches or [find_run(home, word)]


def _parse_indices(text: str, size: int) -> Iterable[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), min(int(last or first) + 1, size))


def _newest(home: str, names: Sequence[str], word: str) -> list[str]:
    """By the time of the newest claim, which is when a person submitted it."""
    if not names:
        raise InputError("there are no runs yet", hint="shoal submit experiments/001_example")
    times = {name: _claimed_at(home, name) for name in names}
    if word == "last":
        experiment = max(names, key=lambda name: (times[name], name)).split("/")[0]
        return [name for name in names if name.split("/")[0] == experiment]
    count = int(word.partition(":")[2])
    newest = set(sorted(names, key=lambda name: (times[name], name))[-count:] if count else ())
    return [name for name in names if name in newest]


def _claimed_at(home: str, name: str) -> float:
    folder = layout.run_dir(home, name)
    generation = layout.parse_names(os.listdir(folder)).generation
    try:
        return os.stat(os.path.join(folder, layout.submit_file(generation, "claim"))).st_mtime
    except OSError:
        return 0.0


def parse_states(text: str | None) -> frozenset[str] | None:
    """Comma-separated states, or the groups active, ended and failed."""
    if text is None:
        return None
    found = _known_words(text, tuple(dict.fromkeys((*RUN_STATES, *STATE_GROUPS))), "state")
    return frozenset().union(*(STATE_GROUPS.get(state, {state}) for state in found))


def parse_causes(text: str | None) -> frozenset[str] | None:
    """Comma-separated causes: the classes of failure that a run has as its `cause`."""
    return None if text is None else frozenset(_known_words(text, CAUSES, "cause"))


def _known_words(text: str, known: Sequence[str], kind: str) -> list[str]:
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise InputError(f"unknown {kind} {word!r}", hint=f"use one of {', '.join(known)}", place=f"--{kind}")
    return words


def active_since(view: RunView, since: float) -> bool:
    """Whether anything happened to a run since a moment: submitted, started or ended; an active run always counts."""
    moments = (view.submitted, view.started, view.ended)
    return view.state in ACTIVE_STATES or any(moment is not None and moment >= since for moment in moments)
