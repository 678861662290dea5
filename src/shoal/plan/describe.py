"""A call of a step function, or a recorded run to resume, as a run to submit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.backends.slurm.flags import DASHES, parse_flags
from shoal.config.containers import over, parse_word
from shoal.config.data_sets import resolve_data
from shoal.config.launches import change_mode
from shoal.config.project import Project
from shoal.errors import InputError
from shoal.kernel import checkpoints
from shoal.model import RunSpec
from shoal.names import check_length, parse_script_path, stem_with_seed
from shoal.plan.calls import Call
from shoal.plan.inputs import Source, find_run, find_source, output_folders
from shoal.plan.submissions import PlannedRun
from shoal.store.reading import Reader
from shoal.sweep.values import parse_seeds

#: Flags of shoal among a step function's words; the others are sbatch's. `plan/doors.py` reads --seeds.
_VALUE_FLAGS = ("--on", "--launch", "--container", "--seeds")
_PLAIN_FLAGS = ("--again", "--dry-run", "--smoke", "--json", "--quiet-run")


class Asked(NamedTuple):
    """A run that somebody asked for, with what they said about how."""

    run: PlannedRun
    on: str | None = None
    again: bool = False
    dry_run: bool = False
    note: str | None = None
    by_name: bool = False
    smoke: bool = False


class _Words(NamedTuple):
    source: str | None
    flags: list[str]
    args: list[str]
    own: dict[str, str]


def describe(call: Call, project: Project) -> Asked:
    """The run that a call asks for; a mistake is an InputError that names the script."""
    words = _split(call)
    script = Path(call.script)
    named = parse_script_path(script, project.root)
    if call.function == "resume":
        if words.args:
            raise InputError("a resumed run keeps its arguments", place=call.script)
        asked = resume(words.source or named.stem, project, words.flags, named.experiment)
        return asked._replace(on=words.own.get("--on"), dry_run="--dry-run" in words.own)
    step = project.step(call.function)
    parse_flags(words.flags, nodes=step.request.nodes)
    seed, stem = named.seed, named.stem
    if call.seed is not None and call.seed != seed:
        seed, stem = call.seed, stem_with_seed(stem, call.seed)
        check_length(named.experiment, stem)
    source = _source(words.source, project, named.experiment, step.checkpoint, seed)
    launch, settings = change_mode(words.own.get("--launch", step.launch), step.launch, step.launch_settings)
    flag = words.own.get("--container")
    spec = RunSpec(
        experiment=named.experiment,
        stem=stem,
        order=named.order,
        step=named.step,
        step_kind=step.name,
        seed=seed,
        command=list(step.command),
        args=words.args,
        cwd=str(project.root),
        output=step.output,
        env={**step.env, **call.env},
        checkpoint=step.checkpoint,
        metrics=list(step.metrics),
        start_from=source.checkpoint,
        parents=[source.parent] if source.parent else [],
        start_parent=source.parent,
        launch=launch,
        launch_settings=settings,
        title=named.title,
        request=step.request,
        flags=words.flags,
        survive=step.survive,
        data=resolve_data(step.data, project.root),
        container=over(parse_word(flag, "--container"), step.container) if flag is not None else step.container,
    )
    note = f"starts from {with_step(source.checkpoint)}" if source.checkpoint else None
    said = {key: f"--{key.replace('_', '-')}" in words.own for key in ("again", "dry_run", "smoke")}
    return Asked(PlannedRun(spec), words.own.get("--on"), note=note, **said)


def resume(word: str, project: Project, flags: Sequence[str], experiment: str | None = None) -> Asked:
    """A recorded run, to be continued in its own folder from its newest checkpoint; refused when there is none.

    `flags` win over those that it was asked for with.
    """
    home = str(project.home)
    name = find_run(home, word, experiment)
    reader = Reader(home)
    spec = reader.spec(name)
    if spec is None:
        raise InputError(f"{name} was never described", hint=f"shoal submit experiments/{name}.sh")
    if spec.checkpoint is None:
        raise InputError(
            f"nothing says how checkpoints of {name} are named",
            hint=f'checkpoint = "model_*.pth"   # in [steps.{spec.step_kind}] of shoal.toml',
        )
    folders = output_folders(home, name)
    as_folder = os.path.abspath(os.path.join(project.root, word))
    wanted = [folder for folder in folders if folder == as_folder.rstrip("/")] or folders
    for folder in wanted:
        newest = checkpoints.newest(folder, spec.checkpoint)
        if newest is not None:
            spec = msgspec.structs.replace(spec, flags=[*reader.flags(spec), *flags])
            return Asked(PlannedRun(spec, resume_in=folder), note=f"continues from {with_step(newest)}")
    raise InputError(
        f"{name} has no checkpoint {spec.checkpoint} to continue from" + (f" in {wanted[0]}" if wanted else ""),
        hint=f"shoal retry {name} --fresh   # starts it from the beginning",
    )


def refuse_doubles(asked: Sequence[Asked]) -> None:
    """Two calls with one name would be two different runs under it."""
    seen: dict[str, Asked] = {}
    for one in asked:
        name = one.run.spec.name
        if name in seen:
            raise InputError(
                f"{name} is asked for twice: one script is one run", hint="put the second step into a script of its own"
            )
        seen[name] = one


def seeds_in(call: Call) -> list[int] | None:
    """The seeds that a call names itself: posttrain 000_pretrain_0 --seeds=0-2."""
    return parse_seeds(_split(call).own.get("--seeds"))


def _split(call: Call) -> _Words:
    words, args = list(call.words), []
    if "--" in words:
        cut = words.index("--")
        words, args = words[:cut], words[cut + 1 :]
    own: dict[str, str] = {}
    rest: list[str] = []
    source = words.pop(0) if words and not words[0].startswith(("-", *DASHES)) else None
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if flag in _VALUE_FLAGS:
            if not equals and not words:
                raise InputError(f"{flag} needs a value", hint=f"{flag} NAME", place=call.script)
            own[flag] = value if equals else words.pop(0)
        elif word in _PLAIN_FLAGS:
            own[word] = ""
        else:
            rest.append(word)
    return _Words(source, rest, args, own)


def _source(word: str | None, project: Project, experiment: str, pattern: str | None, seed: int | None) -> Source:
    if word is None:
        return Source()
    return find_source(project.root, word.replace("{seed}", "" if seed is None else str(seed)), experiment, pattern)


def with_step(checkpoint: str) -> str:
    step = checkpoints.step_of(checkpoint)
    shown = os.path.relpath(checkpoint)
    return shown if step is None else f"{shown} (step {step})"
