"""The runs of `shoal pack`: a command with {parameters}, or a file of commands.

A run's name says what it is and not its position, so that the same command is the same run when it is requested again,
and completed runs stay completed: pack_train/train_depth4; for a line of a file,
pack_jobs/python-train.py-depth-4-a1b2c3.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from shoal.describe.expressions import parse_expression
from shoal.describe.project import Project
from shoal.describe.steps import check_step_name
from shoal.describe.sweep_file import SweepBlock
from shoal.describe.sweep_runs import Sweep
from shoal.errors import InputError
from shoal.job import escape_placeholders
from shoal.model import Request, RunSpec
from shoal.names import ScriptName, check_length, make_slug

#: A word of a command line that says nothing about what it does.
_INTERPRETER = re.compile(r"(?:.*/)?(?:python[\d.]*|bash|sh|env|uv|run|torchrun|accelerate|-[\w-]+|\S+=\S*)")
_MAX_STEM_LENGTH = 50


def command_sweep(command: Sequence[str], name: str | None, cost: str | None, request: Request) -> Sweep:
    """A command and its parameters (put in by `with_flags`) as a sweep with a single block."""
    word = command_step(command)
    experiment = make_slug(name or f"pack_{word}")
    block = SweepBlock(
        place="shoal pack",
        step=word,
        command=tuple(command),
        cost=parse_expression(cost, {}, place="--cost") if cost else None,
    )
    return Sweep(ScriptName(experiment, word, 0, word, None, None), (block,))


def command_step(command: Sequence[str]) -> str:
    """A word for what a command does: the script or module it runs, else its program."""
    said = next(
        (word for word in command if not _INTERPRETER.fullmatch(word) and re.fullmatch(r"[\w./-]+", word)), None
    )
    word = _safe_word(said or command[0])
    try:
        check_step_name(word)
    except InputError:
        return f"run_{word}"
    return word


def read_command_file(path: Path, project: Project, name: str | None, request: Request) -> list[RunSpec]:
    """One run for each line of a file of commands; empty lines and lines that begin with # are passed over."""
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {(error.strerror or '').lower()}", hint=f"ls -l {path}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file", hint=f"file {path}") from None
    experiment = make_slug(name or f"pack_{_safe_word(path.stem)}")
    specs: list[RunSpec] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        stem = _line_stem(stripped)
        if stem in seen:
            raise InputError(
                f"{path}:{number} is the same command as line {seen[stem]}, and would be the same run",
                hint="let the two differ, if only by a seed",
            )
        seen[stem] = number
        check_length(experiment, stem)
        specs.append(
            RunSpec(
                experiment=experiment,
                stem=stem,
                order=len(specs),
                step="command",
                step_kind="command",
                seed=None,
                command=_line_words(stripped, f"{path}:{number}"),
                cwd=str(project.root),
                output=experiment,
                request=request,
                title=stripped if len(stripped) <= 200 else None,
            )
        )
    if not specs:
        raise InputError(f"there is no command in {path}", hint="one command on each line")
    return specs


def _line_words(line: str, place: str) -> list[str]:
    """A line as a program's words; one that uses the shell (pipes, &&, $x) is handed to bash as it is."""
    if re.search(r"[|&;<>$`*?()~]", line):
        return ["bash", "-c", escape_placeholders(line)]
    try:
        return [escape_placeholders(word) for word in shlex.split(line)]
    except ValueError as error:
        raise InputError(f"the line cannot be split into words: {str(error).lower()}", place=place) from None


def _line_stem(line: str) -> str:
    words = re.sub(r"[^A-Za-z0-9._]+", "-", line).strip("-._")[:_MAX_STEM_LENGTH].strip("-._") or "command"
    return f"{words}-{hashlib.sha256(line.encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"


def _safe_word(word: str) -> str:
    """A name that bash, Slurm and folders take: letters, digits and _."""
    base = os.path.basename(word.rstrip("/"))
    base = base.rpartition(".")[0] or base if base.endswith((".py", ".sh")) else base.rpartition(".")[2]
    return re.sub(r"\W+", "_", base, flags=re.ASCII).strip("_")[:30].lstrip("0123456789_") or "command"
