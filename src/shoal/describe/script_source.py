"""A batch script as it is on disk: whether a file is one, its interpreter, its #SBATCH lines and its body.

A file that neither sbatch nor its interpreter could use is an InputError with its line.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from pathlib import Path
from typing import NamedTuple

from shoal.batch import (
    SLURM_MAX_BYTES,
    ParsedScript,
    ScriptDirectives,
    decode_text,
    is_template,
    parse_shell,
    read_directives,
)
from shoal.describe.script_text import read_script, sources_functions
from shoal.errors import InputError

SCRIPT_SUFFIXES = (".sbatch", ".slurm")
#: Where `shoal init` looks for #SBATCH lines.
_SCRIPT_NAMES = (*SCRIPT_SUFFIXES, ".sh", ".bash", ".job", ".sub")
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})


class ScriptSource(NamedTuple):
    """A batch script as it was read. `shell` is the parsed body, or None for another interpreter."""

    path: Path
    shown: str
    data: bytes
    interpreter: tuple[str, ...]
    directives: ScriptDirectives
    shell: ParsedScript | None

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()[:16]

    def place(self, line: int) -> str:
        return f"{self.shown}:{line}" if line else "command line"


def is_batch_script(path: Path) -> bool:
    """Whether a file is for sbatch: by its suffix, or by a #! line with #SBATCH lines below it, unless it sources
    shoal's functions."""
    if path.suffix in SCRIPT_SUFFIXES:
        return True
    if path.suffix == ".toml" or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(64 * 1024)
    except OSError:
        return False
    if not head.startswith(b"#!") or b"\n#SBATCH" not in head:
        return False
    return path.suffix == ".py" or not sources_functions(read_script(path, {}))


def find_batch_scripts(root: Path) -> list[Path]:
    """Batch scripts in a directory and up to two levels below it, sorted."""
    found = [path for depth in ("*", "*/*", "*/*/*") for path in root.glob(depth) if path.suffix in _SCRIPT_NAMES]
    return sorted(path for path in found if not {".git", ".shoal", ".venv"} & {*path.parts} and is_batch_script(path))


def load_batch_script(path: Path) -> ScriptSource:
    """Read a script; InputError for what neither sbatch nor bash could use."""
    shown = os.path.relpath(path)
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= SLURM_MAX_BYTES else b""
    except FileNotFoundError:
        raise InputError(f"no such file: {shown}", hint=f"ls {shlex.quote(os.path.dirname(shown) or '.')}") from None
    except OSError as error:
        raise InputError(f"cannot read {shown}: {(error.strerror or '').lower()}", hint=f"ls -l {shown}") from None
    if size > SLURM_MAX_BYTES:
        raise InputError(
            f"{shown} has {size / 1e6:.1f} MB, but Slurm accepts batch scripts of up to {SLURM_MAX_BYTES / 1e6:.1f} MB",
            hint=f"head -c 300 {shlex.quote(shown)}   # is it a script?",
        )
    text = decode_text(data)
    if text.encoding == "binary" or text.has_nul:
        raise InputError(f"{shown} is not a text file", hint=f"file {shlex.quote(shown)}")
    if text.crlf:
        raise InputError(
            "the line ends with a carriage return (CRLF), which sbatch and bash misread",
            hint=f"sed -i 's/\\r$//' {shlex.quote(shown)}",
            place=f"{shown}:{text.first_crlf}",
        )
    if not data.startswith(b"#!"):
        raise InputError(
            "the first line does not name an interpreter, so sbatch refuses the script",
            hint=f"sed -i '1i #!/bin/bash' {shlex.quote(shown)}",
            place=f"{shown}:1",
        )
    interpreter = _interpreter(text.lines[0], shown)
    is_shell = any(os.path.basename(word) in _SHELLS for word in interpreter[0:1] + tuple(interpreter[-1].split()))
    shell = parse_shell(text.body) if is_shell else None
    directives = read_directives(text.lines, shell.heredocs if shell else ())
    _refuse_directives(directives, shown)
    return ScriptSource(path, shown, data, interpreter, directives, shell)


def _interpreter(first_line: str, shown: str) -> tuple[str, ...]:
    """The words of the #! line as the kernel splits them: a program, and one argument at most."""
    words = first_line[2:].strip().split(None, 1)
    if not words:
        raise InputError("the #! line is empty", hint="write #!/bin/bash", place=f"{shown}:1")
    return tuple(words)


def _refuse_directives(found: ScriptDirectives, shown: str) -> None:
    if found.is_het:
        raise InputError(
            "heterogeneous jobs (#SBATCH hetjob) are not supported", hint=f"sbatch {shlex.quote(shown)}", place=shown
        )
    for stray in found.strays:
        raise InputError(
            f"{stray.word!r} belongs to no option of sbatch",
            hint="remove it; a value with blanks needs quotes",
            place=f"{shown}:{stray.line}",
        )
    for option in found.options:
        if is_template(option.value or ""):
            raise InputError(
                f"--{option.name}={option.value} has a placeholder that was not filled in",
                hint="write the value",
                place=f"{shown}:{option.line}",
            )
