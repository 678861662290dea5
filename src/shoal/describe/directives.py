"""The #SBATCH lines of an experiment script: they are its request, below the flags of its call."""

from __future__ import annotations

import os
import shlex
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from shoal.batch import RESERVED_OPTIONS, parse_flags
from shoal.errors import InputError

#: Where shoal has its own way and nothing is lost by it; told, because old scripts have them in nearly every header.
_IGNORED_DIRECTIVES = ("job-name", "output", "error", "open-mode", "parsable", "quiet", "verbose")


class ScriptRequest(NamedTuple):
    """sbatch flags, as a call of a step takes them, and remarks on lines that are not among them."""

    flags: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def script_request(script: str) -> ScriptRequest:
    """What the directives of a script ask for. InputError for what cannot be taken over, with its line."""
    from shoal.batch import read_text

    text = read_text(Path(script))
    return (
        _read_directive_flags(text.lines, os.path.relpath(script)) if "sbatch" in text.body.lower() else ScriptRequest()
    )


@lru_cache(maxsize=8)  # a script is described once for each seed
def _read_directive_flags(lines: tuple[str, ...], shown: str) -> ScriptRequest:
    from shoal.batch import parse_shell, read_directives

    parsed = parse_shell("\n".join(lines))
    found = read_directives(lines, parsed.heredocs)
    texts = [(word.line, word.raw) for command in parsed.commands for word in command.words]
    texts += [(one.line, one.raw) for command in parsed.commands for one in command.assigns]
    quoted = {line + offset for line, raw in texts for offset in range(1, raw.count("\n") + 1)}
    if found.is_het:
        raise InputError(
            "#SBATCH lines of a heterogeneous job are not supported", hint=f"sbatch {shlex.quote(shown)}", place=shown
        )
    flags: list[str] = []
    remarks: list[str] = []
    for line in found.ignored:
        if line.line in quoted:  # the text of an argument
            continue
        if line.why == "late":
            raise InputError(
                f"{line.text.strip()!r} stands after the first command, where sbatch does not read it",
                hint=f"move the line above line {found.first_command}, or remove it",
                place=f"{shown}:{line.line}",
            )
        if line.why != "disabled":
            remarks.append(f"{shown}:{line.line}: {line.text.strip()!r} is not read as an #SBATCH line")
    for stray in found.strays:
        raise InputError(
            f"{stray.word!r} belongs to no option of sbatch",
            hint="remove it; a value with blanks needs quotes",
            place=f"{shown}:{stray.line}",
        )
    for option in found.options:
        flag = f"--{option.name}" if option.value is None else f"--{option.name}={option.value}"
        if option.name in _IGNORED_DIRECTIVES or flag == "--export=ALL":
            why = (
                RESERVED_OPTIONS[option.name][0]
                if option.name in RESERVED_OPTIONS
                else "it only changes what sbatch prints"
            )
            remarks.append(f"{shown}:{option.line}: #SBATCH {flag} is not used: {why}")
            continue
        try:
            parse_flags([flag])
        except InputError as error:
            message = error.message.removeprefix(f"{error.place}: ")
            raise InputError(f"#SBATCH {flag}: {message}", hint=error.hint, place=f"{shown}:{option.line}") from None
        flags.append(flag)
    return ScriptRequest(tuple(flags), tuple(remarks))
