"""A call of a step function, or a recorded run to resume, as a run to submit."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.batch import DASHES, parse_flags
from shoal.describe.launches import change_mode, over, parse_word
from shoal.describe.parameters import parse_seeds
from shoal.describe.program_source import with_current_step
from shoal.describe.project import Project
from shoal.describe.run_lookup import StartSource, find_run, find_source, output_directories
from shoal.describe.script_text import ScriptRequest, script_request
from shoal.describe.shell_functions import MODIFIERS, StepCall, with_run_values
from shoal.describe.steps import Step, resolve_data
from shoal.describe.sweep_runs import check_placeholders, step_words
from shoal.errors import InputError
from shoal.job import escape_placeholders
from shoal.kernel import checkpoints
from shoal.model import EXPERIMENT_VARIABLES, RunSpec
from shoal.names import ScriptName, check_length, parse_script_path, stem_with_seed
from shoal.observe import RunReader, run_names

#: Flags of shoal among a step function's words; the others are sbatch's. `describe/experiment_files.py` reads --seeds.
_VALUE_FLAGS = ("--on", "--launch", "--container", "--seeds")
_SWITCHES = ("--rerun", "--dry-run", "--smoke", "--resume", "--fresh", "--yes")
#: Flags of `shoal submit` that sbatch does not have: it would refuse them, and a run on this machine would ignore them.
_SUBMIT_ONLY_FLAGS = (
    "--set", "--zip", "--layout", "--max-parallel", "--no-snapshot", "--force", "--smoke-here", "--budget", "--prune",
    "--command-id", "--json", "--slots", "--pilots",
)  # fmt: skip


class PlannedRun(NamedTuple):
    """A run to submit. `resume_in` is the output folder that it continues in, if it does; `needs` are runs that it
    waits for; `avoid` are nodes that it shall not use.
    """

    spec: RunSpec
    resume_in: str | None = None
    needs: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()


class RequestedRun(NamedTuple):
    """A run that somebody asked for, with what they said about how."""

    run: PlannedRun
    on: str | None = None
    rerun: bool = False
    dry_run: bool = False
    note: str | None = None
    by_name: bool = False
    smoke: bool = False
    remarks: tuple[str, ...] = ()
    resume: bool | None = None
    sure: bool = False


class _CallWords(NamedTuple):
    source: str | None
    flags: list[str]
    args: list[str]
    own: dict[str, str]


class _Script(NamedTuple):
    """What a script says about each of its calls: its #SBATCH lines, the name in its path, how messages call it."""

    header: ScriptRequest
    named: ScriptName
    place: str


def requested_runs(calls: Iterable[StepCall], project: Project, swept: Collection[str] = ()) -> list[RequestedRun]:
    """The runs that calls ask for; a mistake is an InputError that names the script. `swept` are parameters that their
    words may mention, because flags beside the script give them. A script is read once for all seeds."""
    scripts: dict[str, _Script] = {}
    asked = []
    for call in calls:
        words = _split_call(call)
        if call.script not in scripts:
            header, named = script_request(call.script), parse_script_path(Path(call.script), project.code_root)
            scripts[call.script] = _Script(header, named, os.path.relpath(call.script))
        asked.append(_requested_run(call, words, scripts[call.script], project, swept))
    return asked


def _requested_run(
    call: StepCall, words: _CallWords, script: _Script, project: Project, swept: Collection[str]
) -> RequestedRun:
    header, named = script.header, script.named
    flags = [*header.flags, *words.flags]
    resumed = _run_to_resume(call, words, project, script.place)
    unrecorded = _unrecorded_directory(resumed, project) if resumed and call.function != "resume" else None
    if resumed is not None and unrecorded is None:
        asked = resumed_run(resumed or named.stem, project, flags, named.experiment)
        return _resume_call(asked, call, words, project, header.remarks)
    step = project.step(call.function)
    if unrecorded is not None:
        named = _named_after(unrecorded, step, project)
    parse_flags(flags, nodes=step.request.nodes)
    seed, stem = named.seed, named.stem
    if call.seed is not None and call.seed != seed:
        seed, stem = call.seed, stem_with_seed(stem, call.seed)
        check_length(named.experiment, stem)
    started_with = call.modifier[1] if call.modifier else words.source
    source = (
        StartSource()
        if unrecorded is not None
        else _start_source(started_with, project, named.experiment, step.checkpoint, seed)
    )
    launch, settings = step.launch, step.launch_settings
    if "--launch" in words.own:
        launch, settings = change_mode(words.own["--launch"], launch, settings)
    flag = words.own.get("--container")
    spec = RunSpec(
        experiment=named.experiment,
        stem=stem,
        number=named.number,
        step=named.step,
        step_kind=step.name,
        seed=seed,
        command=list(step.command),
        args=words.args,
        cwd=str(project.root),
        output=step.output,
        env={**step.env, **_exported(call)},
        checkpoint=step.checkpoint,
        resume_args=None if step.resume_args is None else list(step.resume_args),
        metrics=list(step.metrics),
        start_from=source.checkpoint,
        parents=[source.parent] if source.parent else [],
        start_parent=source.parent,
        launch=launch,
        launch_settings=settings,
        title=named.title,
        request=step.request,
        flags=flags,
        recovery=step.recovery,
        data=resolve_data(step.data, project.root),
        container=over(parse_word(flag, "--container"), step.container) if flag is not None else step.container,
    )
    check_placeholders(
        [("the command", spec.command), ("an argument", spec.args), *step_words(step)],
        {*swept, *step.sweep},
        launch=launch,
        settings=settings,
        place=script.place,
    )
    note = f"starts from {with_training_step(source.checkpoint)}" if source.checkpoint else None
    return _as_requested(PlannedRun(spec, resume_in=unrecorded), words.own, note, header.remarks, call.script)


def _as_requested(
    planned: PlannedRun, own: Mapping[str, str], note: str | None, remarks: tuple[str, ...], place: str
) -> RequestedRun:
    """A run with what the flags of its call (`own`) say about how it is submitted."""
    if {"--resume", "--fresh"} <= set(own):
        raise InputError("--resume cannot be used with --fresh", place=place)
    resume = True if "--resume" in own else False if "--fresh" in own else None
    switches = {key: f"--{key.replace('_', '-')}" in own for key in ("rerun", "dry_run", "smoke")}
    return RequestedRun(
        planned, own.get("--on"), note=note, remarks=remarks, resume=resume, sure="--yes" in own, **switches
    )


def _exported(call: StepCall) -> dict[str, str]:
    """What the script exported, as words for the job: taken as they are, but for what only the run knows."""
    values = [with_run_values(value, is_escaped=True) for value in escape_placeholders(call.env.values())]
    return dict(zip(call.env, values, strict=True))


def _run_to_resume(call: StepCall, words: _CallWords, project: Project, place: str) -> str | None:
    """The run that a call continues: of `resume RUN`, or where that stands before it. Empty: the script's own. None:
    it continues none. Refuses a modifier that modifies nothing."""
    name = call.function
    if call.modifier and (words.source is not None or name in MODIFIERS):
        earlier, this = " ".join(call.modifier), " ".join([name, *filter(None, [words.source])])
        raise InputError(
            f"{this!r} stands after {earlier!r}: a run has one start", hint=f"remove {earlier!r}", place=place
        )
    if name in MODIFIERS and name != "resume" and name not in project.steps:
        raise InputError(
            f"{name} {words.source} is not followed by a step"
            if words.source is not None and len(call.words) == 1
            else f"shoal.toml has no step {name!r}, so {name} takes a checkpoint or a run and nothing else",
            hint=f"{name} {words.source or 'RUN'}; train --gres=gpu:4 --time=1-0   # in two lines",
            place=place,
        )
    if name == "resume":
        return words.source or ""
    if not call.modifier or call.modifier[0] != "resume":
        return None
    return call.modifier[1].replace("{seed}", "" if call.seed is None else str(call.seed))


def _unrecorded_directory(word: str, project: Project) -> str | None:
    """The output directory that a word names, if it is one of before shoal: EXPERIMENT/SCRIPT/TIME with no run of that
    name recorded."""
    folder = os.path.abspath(os.path.join(project.root, os.path.expanduser(word)))
    name = "/".join(Path(folder).parts[-3:-1])
    return folder if os.path.isdir(folder) and name not in run_names(str(project.home)) else None


def _named_after(folder: str, step: Step, project: Project) -> ScriptName:
    """The run of an output directory, by its path, as its script was called. Refused without a checkpoint in it."""
    experiment, stem = Path(folder).parts[-3:-1]
    if step.checkpoint is None or checkpoints.newest_checkpoint(folder, step.checkpoint) is None:
        raise InputError(
            f"cannot resume {folder}: no checkpoint matches {step.checkpoint!r}"
            if step.checkpoint
            else f"cannot resume {folder}: step {step.name!r} sets no `checkpoint` pattern",
            hint=f"ls {folder}" if step.checkpoint else f'checkpoint = "model_*.pth"   # in [steps.{step.name}]',
        )
    return parse_script_path(Path(project.root, "experiments", experiment, f"{stem}.sh"), project.root)


def _resume_call(
    asked: RequestedRun, call: StepCall, words: _CallWords, project: Project, remarks: tuple[str, ...]
) -> RequestedRun:
    """A resumed run keeps what it was; what a call says beside its resources is refused, or noted where it differs."""
    spec, place = asked.run.spec, os.path.relpath(call.script)
    changed = [flag for flag in words.own if flag not in ("--on", "--dry-run", "--yes")]
    if words.args or changed:
        what = changed[0] if changed else "an argument for the program"
        raise InputError(
            f"{what} has no effect on {spec.name}, which is resumed as it was", hint="remove it", place=place
        )
    if call.function != "resume" and project.step(call.function).name != spec.step_kind:
        raise InputError(
            f"{spec.name} is a run of step {spec.step_kind!r} and cannot be resumed by {call.function}",
            hint=f"call {spec.step_kind} after resume",
            place=place,
        )
    settings = {name: value for name, value in _exported(call).items() if name not in EXPERIMENT_VARIABLES}
    differing = ", ".join(sorted(name for name, value in settings.items() if spec.env.get(name) != value))
    remark = f"{spec.name} keeps {differing} as it was, and not as {place} sets it"
    return asked._replace(
        on=words.own.get("--on"),
        dry_run="--dry-run" in words.own,
        sure="--yes" in words.own,
        remarks=(*remarks, *([remark] if differing else [])),
    )


def resumed_run(word: str, project: Project, flags: Sequence[str], experiment: str | None = None) -> RequestedRun:
    """A recorded run, to be continued in its own folder from its newest checkpoint; refused when there is none.

    `flags` win over those that it was asked for with.
    """
    home = str(project.home)
    if _unrecorded_directory(word, project) is not None:
        raise InputError(
            f"cannot resume {word}: no run is recorded for this directory, so its command is not known",
            hint=f"write an experiment script with the lines: resume {word}; train",
        )
    name = find_run(home, word, experiment)
    reader = RunReader(home)
    spec = reader.spec(name)
    if spec is None:
        raise InputError(f"{name} was never described", hint=f"shoal submit experiments/{name}.sh")
    spec = with_current_step(spec, project)
    if spec.checkpoint is None and spec.adopted:
        raise InputError(
            f"{name} is an adopted job, whose checkpoints shoal does not know: it can only start over",
            hint=f"shoal retry {name}",
        )
    if spec.checkpoint is None:
        raise InputError(
            f"nothing says how checkpoints of {name} are named",
            hint=f'checkpoint = "model_*.pth"   # in [steps.{spec.step_kind}] of shoal.toml',
        )
    folders = output_directories(home, name, spec.revision)
    as_folder = os.path.abspath(os.path.join(project.root, word))
    wanted = [folder for folder in folders if folder == as_folder.rstrip("/")] or folders
    for folder in wanted:
        newest = checkpoints.newest_checkpoint(folder, spec.checkpoint)
        if newest is not None:
            spec = msgspec.structs.replace(spec, flags=[*reader.flags(spec), *flags])
            return RequestedRun(PlannedRun(spec, resume_in=folder), by_name=True)
    raise InputError(
        f"{name} has no checkpoint {spec.checkpoint} to continue from" + (f" in {wanted[0]}" if wanted else ""),
        hint=f"shoal retry {name} --fresh   # starts it from the beginning",
    )


def refuse_duplicate_runs(asked: Sequence[RequestedRun]) -> None:
    """Two calls, or two batch scripts, with one name would be two different runs under it."""
    seen: dict[str, RunSpec] = {}
    for one in asked:
        spec = one.run.spec
        name, path = spec.name, spec.script.get("path")
        other = seen.setdefault(name, spec)
        if other is spec:
            continue
        if path and other.script.get("path", path) != path:
            raise InputError(
                f"{other.script['path']} and {path} would both be named {name}",
                hint=f"submit them one by one, with --name: shoal submit {shlex.quote(path)} --name NAME",
            )
        raise InputError(
            f"{name} is asked for twice: one script is one run",
            hint="put the second step into a script of its own"
            + (
                "; to let posttrain change the next step, remove [steps.posttrain] from shoal.toml"
                if other.step_kind == "posttrain"
                else ""
            ),
        )


def seeds_in(call: StepCall) -> list[int] | None:
    """The seeds that a call names itself: posttrain 000_pretrain_0 --seeds=0-2."""
    seeds = _split_call(call).own.get("--seeds")
    return None if seeds is None else parse_seeds(seeds)


def _split_call(call: StepCall) -> _CallWords:
    words, args = list(call.words), []
    if "--" in words:
        cut = words.index("--")
        words, args = words[:cut], [with_run_values(word) for word in words[cut + 1 :]]
    if (unknown := next((word for word in words if with_run_values(word) != word), None)) is not None:
        raise InputError(
            f"{unknown!r} has the run's output directory or its time, which is known only when the run starts",
            hint="use it in exported variables, or behind -- among the arguments of the program",
            place=os.path.relpath(call.script),
        )
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
        elif word in _SWITCHES:
            own[word] = ""
        elif flag in _SUBMIT_ONLY_FLAGS:
            raise InputError(
                f"{flag} is a flag of shoal submit, not of {call.function}",
                hint=f"shoal submit {os.path.relpath(call.script)} {word}",
                place=os.path.relpath(call.script),
            )
        else:
            rest.append(word)
    return _CallWords(source, rest, args, own)


def _start_source(
    word: str | None, project: Project, experiment: str, pattern: str | None, seed: int | None
) -> StartSource:
    if word is None:
        return StartSource()
    return find_source(project.root, word.replace("{seed}", "" if seed is None else str(seed)), experiment, pattern)


def with_training_step(checkpoint: str) -> str:
    step = checkpoints.step_of(checkpoint)
    shown = os.path.relpath(checkpoint)
    return shown if step is None else f"{shown} (step {step})"
