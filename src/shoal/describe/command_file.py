"""Runs without an experiment file: a command with {parameters} (`shoal run -- COMMAND`, `shoal pack -- COMMAND`), a
file of commands (`shoal pack FILE`), or a command with arguments that a Hydra sweep has chosen.

A run's name says what it is and not its position, so that the same command is the same run when it is requested again,
and completed runs stay completed: train/lr0.1_0 for `--set lr=0.1 --seeds 0 -- python train.py --lr {lr} --seed {seed}`
and for `--seeds 0 -- python train.py --lr 0.1 --seed {seed}`; for a line of a file, pack_jobs/python-train.py-a1b2c3.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shoal.batch import parse_flags
from shoal.describe.document import Given
from shoal.describe.experiment_files import FileRuns, SweepOptions, read_sweeps
from shoal.describe.expressions import parse_expression
from shoal.describe.parameters import Params
from shoal.describe.project import Project
from shoal.describe.steps import Step, check_step_name
from shoal.describe.sweep_file import SweepBlock, parse_sweep, with_flags
from shoal.describe.sweep_runs import Sweep
from shoal.errors import InputError
from shoal.job import escape_placeholders, placeholder_names
from shoal.model import Request, RunSpec
from shoal.names import ScriptName, check_length, make_slug

#: A word of a command line that says nothing about what it does.
_INTERPRETER = re.compile(r"(?:.*/)?(?:python[\d.]*|bash|sh|env|uv|run|torchrun|accelerate|-[\w-]+|\S+=\S*)")
#: A word that is a program by its name, whatever stands before it: torchrun --nproc-per-node 4 train.py.
_PROGRAM_FILE = re.compile(r"[\w./-]+\.(?:py|sh|jl|R)")
_MAX_STEM_LENGTH = 50


def read_command(options: SweepOptions, project: Project, cwd: str) -> FileRuns:
    """The runs of a command line: `options.words` once for each point of --set and --seeds, each with the request of
    the flags, started in `cwd`. Changes nothing."""
    words = options.words
    _refuse_missing_seeds(words, options)
    parse_flags(options.flags)
    word = command_step(words)
    experiment = make_slug(options.name or word)
    base = "_".join(filter(None, (word, argument_label(words[program_length(words) :]))))
    block = with_flags(SweepBlock(place="the command", step=word, command=words), *options.flag_words())
    sweep = Sweep(ScriptName(experiment, base, None, word, None, None), (block,))
    step = project.steps.get(word)
    remarks: tuple[str, ...] = ()
    if step is not None and project.toml is not None:
        remarks = (f"{experiment} uses [steps.{word}] of {project.toml.name}: its request, env and checkpoint pattern",)
    if options.checkpoint:
        step = step or Step(name=word, command=words, output=word, origin="the command")
        project = msgspec.structs.replace(
            project, steps={**project.steps, word: msgspec.structs.replace(step, checkpoint=options.checkpoint)}
        )
    reading = read_sweeps([sweep], project, names_all=True)
    subdir = os.path.relpath(cwd, project.code_root)
    asked = []
    for one in reading.asked:
        spec = one.run.spec
        stem = spec.stem.removeprefix(f"{word}_")
        changed = msgspec.structs.replace(
            spec,
            stem=spec.stem if stem[:1].isdigit() else stem,
            request=options.request.over(spec.request),
            flags=[*spec.flags, *options.flags],
            subdir="" if subdir == "." else subdir,
        )
        asked.append(one._replace(run=one.run._replace(spec=changed), remarks=remarks))
    return FileRuns(asked, [names._replace(is_file=False) for names in reading.grown])


def _refuse_missing_seeds(words: Sequence[str], options: SweepOptions) -> None:
    if not words or not words[0]:
        raise InputError("missing command after --", hint="shoal run -- python train.py --lr 0.1")
    if "seed" in placeholder_names(words) and options.seeds is None:
        raise InputError("the command has {seed}, but --seeds is not set", hint="add --seeds 0-2 before --")


def program_length(command: Sequence[str]) -> int:
    """How many words of a command name its program; the arguments are behind them."""
    return list(command).index(_program_word(command)) + 1


def argument_label(words: Sequence[str]) -> str:
    """Arguments in a name: --lr 0.1 --amp -> lr0.1_amp. Words with placeholders are left out, because their parameters
    are in the name. Different arguments with one label are told when they are submitted."""
    parts: list[str] = []
    flag = ""
    for word in words:
        name, equals, value = word.partition("=")
        if placeholder_names([word]):
            flag = ""
        elif word.startswith("-") and not re.fullmatch(r"-[\d.]+(?:e-?\d+)?", word):
            parts += [flag] if flag else []
            flag = "" if equals else _label(name)
            parts += [_label(name) + _joined(_label(value))] if equals else []
        else:
            parts.append(flag + _joined(_label(word)) if flag else _label(word))
            flag = ""
    text = "_".join(filter(None, [*parts, flag]))
    if len(text) <= _MAX_STEM_LENGTH:
        return text
    digest = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:6]
    return f"{text[:_MAX_STEM_LENGTH].rstrip('-._')}-{digest}"


def _label(word: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-._")


def _joined(value: str) -> str:
    return f"-{value}" if value[:1].isalpha() else value


def command_sweep(command: Sequence[str], name: str | None, cost: str | None) -> Sweep:
    """A command of a pack and its parameters (put in by `with_flags`) as a sweep with a single block."""
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
    word = _safe_word(_program_word(command))
    try:
        check_step_name(word)
    except InputError:
        return f"run_{word}"
    return word


def _program_word(command: Sequence[str]) -> str:
    """The word of a command that names its program."""
    file = next((word for word in command if _PROGRAM_FILE.fullmatch(word)), None)
    if file is not None:
        return file
    if "-m" in command[:-1]:
        return command[list(command).index("-m") + 1]
    words = (word for word in command if not _INTERPRETER.fullmatch(word) and re.fullmatch(r"[\w./-]+", word))
    return next(words, command[0])


def read_command_file(path: Path, project: Project, name: str | None) -> list[RunSpec]:
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
                number=len(specs),
                step="command",
                step_kind="command",
                seed=None,
                command=_line_words(stripped, f"{path}:{number}"),
                cwd=str(project.root),
                output=experiment,
                request=Request(),
                title=stripped if len(stripped) <= 200 else None,
            )
        )
    if not specs:
        raise InputError(f"there is no command in {path}", hint="one command on each line")
    return specs


def _line_words(line: str, place: str) -> list[str]:
    """A line as a program's words; one that uses the shell (pipes, &&, $x) is handed to bash as it is."""
    if re.search(r"[|&;<>$`*?()~]", line):
        return ["bash", "-c", *escape_placeholders([line])]
    try:
        return escape_placeholders(shlex.split(line))
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


class CommandPoint(NamedTuple):
    """One point: its arguments, which reach the program as they are; its parameters, which only name and describe the
    run; its position among all points; and keys of a sweep file that hold for it alone, such as `request`."""

    args: tuple[str, ...]
    params: Params
    seed: int | None
    number: int
    settings: Mapping[str, Any]


def read_command_points(
    command: Sequence[str], points: Sequence[CommandPoint], project: Project, *, experiment: str, place: str, cwd: str
) -> FileRuns:
    """A run for each point, in their order, started in `cwd`. Changes nothing. All parameters are part of the name, so
    that it does not depend on the other points. A step of shoal.toml with the program's name gives what the points
    leave open: request, env, checkpoint pattern."""
    word = command_step(command)
    words = tuple(escape_placeholders(command))
    step = project.steps.get(word) or Step(name=word, command=words, output=word, origin=place)
    silent = msgspec.structs.replace(step, params="")
    blocks = [
        parse_sweep(Given(place, {"step": word, **point.settings}))._replace(
            command=words,
            args=tuple(escape_placeholders(point.args)),
            params=point.params,
            seeds=None if point.seed is None else (point.seed,),
        )
        for point in points
    ]
    sweep = Sweep(ScriptName(make_slug(experiment), word, None, word, None, None), tuple(blocks))
    with_step = msgspec.structs.replace(project, steps={**project.steps, word: silent})
    reading = read_sweeps([sweep], with_step, names_all=True)
    subdir = os.path.relpath(cwd, project.code_root)
    asked = []
    for one, point in zip(reading.asked, points, strict=True):
        spec = one.run.spec
        stem = spec.stem.removeprefix(f"{word}_")
        changed = msgspec.structs.replace(
            spec,
            stem=spec.stem if stem[:1].isdigit() else stem,
            number=point.number,
            subdir="" if subdir == "." else subdir,
        )
        asked.append(one._replace(run=one.run._replace(spec=changed)))
    return FileRuns(asked, [names._replace(is_file=False) for names in reading.grown])
