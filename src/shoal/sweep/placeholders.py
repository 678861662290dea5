"""Placeholders that nothing fills: a misspelt name must not reach a program with its braces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches

from shoal.agent.environment import BUILT_IN, placeholders
from shoal.backends.slurm.replica_lines import OF_REPLICA
from shoal.config.steps import Step
from shoal.errors import InputError
from shoal.model import LaunchSettings


def step_words(step: Step) -> Iterator[tuple[str, Iterable[str]]]:
    """The words of a step in which placeholders are filled, beside its command, each with what to call them."""
    yield f"`env` of step {step.name!r}", step.env.values()
    yield f"`smoke` of step {step.name!r}", [*step.smoke.args, *step.smoke.env.values()]
    yield f"`resume_args` of step {step.name!r}", step.resume_args or ()
    yield f"`survive.check` of step {step.name!r}", step.survive.get("check") or ()


def check_filled(
    words: Iterable[tuple[str, Iterable[str]]],
    params: Collection[str],
    *,
    launch: str = "process",
    settings: LaunchSettings | None = None,
    place: str | None = None,
    missing: str | None = None,
) -> None:
    """Refuse words with a placeholder that is neither a parameter nor filled in by shoal; name the nearest that is."""
    known = {*params, *BUILT_IN}
    replica = known | set(OF_REPLICA) if launch == "replicas" else known
    for where, texts in words:
        refuse_unknown(where, texts, replica if where == "the command" else known, place, missing)
    if settings is not None:
        refuse_unknown("the launch settings", [*settings.args, *settings.env.values()], replica, place, missing)


def refuse_unknown(
    where: str, words: Iterable[str], known: Collection[str], place: str | None, missing: str | None = None
) -> None:
    for name in placeholders(words):
        if name in known:
            continue
        if name.startswith("_"):
            raise InputError(
                f"{where} has {{{name}}}, but values whose names begin with _ are not passed on",
                hint=f"rename it to {name.lstrip('_') or 'value'}",
                place=place,
            )
        near = get_close_matches(name, known, n=1)
        but = missing or "no parameter has this name"
        raise InputError(
            f"{where} has {{{name}}}, but {but}" + (f"; did you mean {{{near[0]}}}?" if near else ""),
            hint=f"write {{{{{name}}}}} for the braces themselves, or set it: --set {name}=VALUE",
            place=place,
        )
