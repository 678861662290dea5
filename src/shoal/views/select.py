"""Which runs a person means: an experiment, a run, its stem alone, or a pattern with * in it."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from shoal.errors import InputError
from shoal.model import STATES
from shoal.plan.inputs import find_run
from shoal.store.listing import run_names


def select_runs(home: str, words: Sequence[str]) -> list[str]:
    """The names that words stand for, in order; all runs without words. InputError for a word that matches nothing."""
    names = run_names(home)
    if not words:
        return names
    found: dict[str, None] = {}
    for word in words:
        plain = word.removeprefix("experiments/").rstrip("/")
        matches = [
            name
            for name in names
            if plain in (name, name.split("/")[0]) or fnmatchcase(name, plain) or fnmatchcase(name.split("/")[1], plain)
        ]
        found.update(dict.fromkeys(matches or [find_run(home, word)]))
    return list(found)


def parse_states(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    states = [word.strip().lower() for word in text.split(",") if word.strip()]
    for state in states:
        if state not in STATES:
            raise InputError(f"{state!r} is not a state", hint=f"one of {', '.join(STATES)}", place="--state")
    return frozenset(states)
