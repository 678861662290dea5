"""Placeholders that nothing fills: a misspelt name must not reach a program with its braces."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches

from shoal.describe.steps import Step
from shoal.errors import InputError
from shoal.job import BUILT_IN_PLACEHOLDERS, placeholder_names
from shoal.model import LaunchSettings

#: Placeholders of a replica's words, and the shell variable that has each in a generated script.
REPLICA_PLACEHOLDERS = {
    "replica": '"$replica"',
    "replicas": '"$NUM_REPLICA_GROUPS"',
    "lighthouse": '"$TORCHFT_LIGHTHOUSE"',
}
#: Braces around something that is almost a placeholder: {seed:03d}, {lr!r}, {output-dir}, { seed }. JSON, YAML and
#: brace expansion ({"a": 1}, {lr: 1}, {a,b}) are not.
_NEAR_PLACEHOLDER = re.compile(
    r"(?<![{$])\{(?:(?P<formatted>[A-Za-z_][\w.]*)"
    r"(?:![rsa]|(?:![rsa])?:(?:0\d+|[<>=^+-]?#?\d*(?:\.\d+)?[bdeEfFgGnosxX%]))"
    r"|(?P<dashed>[A-Za-z_][\w.]*-[\w.-]*)|\s+(?P<spaced>[A-Za-z_][\w.]*)\s*|(?P<before>[A-Za-z_][\w.]*)\s+)\}",
    re.ASCII,
)
_UNCLOSED_BRACE = re.compile(r"(?<![{$])\{([A-Za-z_][\w.]*)(?![\w.])[^}]*$", re.ASCII)
_SHOAL_VARIABLE = re.compile(r"\$\{?(SHOAL_\w+)\}?", re.ASCII)
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})


def step_words(step: Step) -> Iterator[tuple[str, Iterable[str]]]:
    """The words of a step in which placeholders are filled, beside its command, each with what to call them."""
    yield f"`env` of step {step.name!r}", step.env.values()
    yield f"`smoke` of step {step.name!r}", [*step.smoke.args, *step.smoke.env.values()]
    yield f"`resume_args` of step {step.name!r}", step.resume_args or ()
    yield f"`survive.check` of step {step.name!r}", step.survive.get("check") or ()


def check_placeholders(
    words: Iterable[tuple[str, Iterable[str]]],
    params: Collection[str],
    *,
    launch: str = "process",
    settings: LaunchSettings | None = None,
    place: str | None = None,
    missing: str | None = None,
) -> None:
    """Refuse words with a placeholder that is neither a parameter nor filled in by shoal; name the nearest that is."""
    known = {*params, *BUILT_IN_PLACEHOLDERS}
    replica = known | set(REPLICA_PLACEHOLDERS) if launch == "replicas" else known
    command: Sequence[str] = ()
    for where, given in words:
        texts = list(given)
        command = texts if where == "the command" else command
        refuse_unknown_placeholders(where, texts, replica if where == "the command" else known, place, missing)
        for text in _without_inline_code(texts):
            _refuse_near_placeholders(where, text, known, place)
        if where.startswith("`env`") or not any(os.path.basename(word) in _SHELLS for word in command):
            _refuse_variables(where, _without_inline_code(texts), place)
    if settings is not None:
        refuse_unknown_placeholders(
            "the launch settings", [*settings.args, *settings.env.values()], replica, place, missing
        )


def refuse_unknown_placeholders(
    where: str, words: Iterable[str], known: Collection[str], place: str | None, missing: str | None = None
) -> None:
    for name in placeholder_names(words):
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


def _without_inline_code(words: Sequence[str]) -> list[str]:
    """The words less the program of `python -c`, whose braces are Python's."""
    python = bool(words) and os.path.basename(words[0]).startswith("python")
    return [word for at, word in enumerate(words) if not (python and at and words[at - 1] == "-c")]


def near_placeholder(text: str, known: Collection[str]) -> tuple[str, str] | None:
    """Braces in a text that are nearly a placeholder of these names, and the placeholder that is meant; or None."""
    for match in _NEAR_PLACEHOLDER.finditer(text):
        name = next(filter(None, match.groups())).replace("-", "_")
        meant = name if name in known else next(iter(get_close_matches(name, known, n=1, cutoff=0.8)), None)
        if meant is not None and (name in known or match["dashed"]):
            return match[0], meant
    match_open = _UNCLOSED_BRACE.search(text)
    return (match_open[0], match_open[1]) if match_open and match_open[1] in known else None


def _refuse_near_placeholders(where: str, text: str, known: Collection[str], place: str | None) -> None:
    if (found := near_placeholder(text, known)) is not None:
        raise InputError(
            f"{where} has {found[0]!r}, which would reach the program with its brace",
            hint=f"write {{{found[1]}}}; shoal fills in names alone, without a format",
            place=place,
        )


def _refuse_variables(where: str, words: Iterable[str], place: str | None) -> None:
    for word in words:
        if (match := _SHOAL_VARIABLE.search(word)) is not None:
            name = match[1].removeprefix("SHOAL_").lower()
            raise InputError(
                f"{where} has {match[0]}, which no shell reads: the program would get it as it is",
                hint=f"write {{{name}}}"
                if name in BUILT_IN_PLACEHOLDERS
                else 'let a shell read it: command = ["bash", "-c", "python train.py ..."]',
                place=place,
            )
