"""While a script is read: a small program named `shoal` that answers its step functions without starting Python.

A script starts shoal three times: for the path of shoal.sh, for the definitions of its functions, and for each call of
a step. Whoever reads it knows the first two answers beforehand, and can work out a call from its words and its
environment. So the recorder gives the answers and keeps the words; everything else is left to the real shoal.

The definitions rest on the environment in which the functions are sourced: if the script has changed it by then, the
recorder lets the real shoal give them. A script is never executed twice for that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from shoal.batch import shell_quote

_PROGRAM = """#!/bin/sh
if [ "$1" = shell ] && [ "$#" -eq 1 ]; then
    echo {functions}
    exit
fi
if [ "$1" = shell ] && [ "$2" = --define ] && [ "$3" = {script} ] && [ "$#" -eq 3 ]; then
    if LC_ALL=C grep -zvE {shell_variables} "/proc/$$/environ" | LC_ALL=C sort -z | cmp -s - {folder}/environ; then
        exec cat {folder}/definitions
    fi
fi
if [ "$1" = shell ] && [ "$2" = --call ] && [ "$4" = --script ] && [ "${{SHOAL_COLLECT:-}}" = {calls} ]; then
    if [ ! -e {folder}/call.$$ ] && printf '%s\\0' "$(pwd -P)" "$@" > {folder}/call.$$ &&
        cat "/proc/$$/environ" > {folder}/env.$$ && echo '{{"recorded": "'$$'"}}' >> {calls}; then
        exit
    fi
fi
exec {real} "$@"
"""
#: What bash sets for itself; functions that it passes on may come back with other spaces.
_SHELL_VARIABLES = r"^(_|SHLVL|PWD|OLDPWD|BASHOPTS|SHELLOPTS)=|^BASH_FUNC_"


class RecordedCall(NamedTuple):
    """A call of a step function as the script made it."""

    function: str
    words: list[str]
    script: str
    modifier: list[str]
    environ: dict[str, str]


def write_recorder(
    programs: Path, folder: Path, script: Path, definitions: str, environ: Mapping[str, str], calls: str, real: str
) -> None:
    """Put the recorder among `programs`; what it keeps is in `folder`, in the order of the lines in `calls`.

    `definitions` are those for `environ`.
    """
    (folder / "definitions").write_bytes(os.fsencode(definitions + "\n"))
    entries = [f"{name}={value}" for name, value in environ.items()]
    kept = sorted(os.fsencode(entry) + b"\0" for entry in entries if re.match(_SHELL_VARIABLES, entry) is None)
    (folder / "environ").write_bytes(b"".join(kept))
    text = _PROGRAM.format(
        functions=shell_quote(str(Path(__file__).with_name("shoal.sh"))),
        script=shell_quote(str(script)),
        shell_variables=shell_quote(_SHELL_VARIABLES),
        folder=shell_quote(str(folder)),
        calls=shell_quote(calls),
        real=shell_quote(real),
    )
    path = programs / "shoal"
    path.write_bytes(os.fsencode(text))
    path.chmod(0o755)


def read_recorded(folder: Path, key: str) -> RecordedCall:
    """The call that a line {"recorded": KEY} stands for."""
    directory, _, _, function, _, script, *rest = _parts(folder / f"call.{key}")
    modifier = rest[1:3] if rest[:1] == ["--modifier"] else []
    words = rest[len(modifier) + 2 :] if modifier else rest[1:]
    return RecordedCall(
        function, words, os.path.join(directory, script), modifier, _read_environ(folder / f"env.{key}")
    )


def _read_environ(path: Path) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in _parts(path))
    return {name: value for name, equals, value in pairs if equals}


def _parts(path: Path) -> list[str]:
    return os.fsdecode(path.read_bytes()).split("\0")[:-1]
