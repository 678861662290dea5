"""A batch script or a command as files of a project, for `shoal init --from`: step, sweep file, profile values."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from shoal.batch import SbatchFlags, parse_flags
from shoal.describe.command_file import command_step, program_length
from shoal.describe.experiment_files import SweepOptions
from shoal.describe.project import Project
from shoal.describe.script_runs import read_batch_script
from shoal.describe.steps import check_step_name
from shoal.describe.sweep_file import SweepBlock, with_flags
from shoal.errors import InputError
from shoal.model import Request

#: Flags that say how many processes start, which a step computes from its launch mode.
_TASK_FLAGS = ("--ntasks=", "--ntasks-per-node=", "--gpus-per-task=", "--tres-per-task=")


class DescribedFiles(NamedTuple):
    """What the files of a project say about a script or a command. `step` and `sweep` are TOML; `profile` are values
    for [clusters.X] that a step cannot hold."""

    name: str
    step: str
    sweep_path: str
    sweep: str
    profile: dict[str, Any]


def describe_script(path: Path, project: Project, options: SweepOptions) -> DescribedFiles:
    """The files for a batch script: its step executes it as it is, and has the request of its #SBATCH lines."""
    asked = read_batch_script(path, project, options, str(project.root)).asked
    spec = asked[0].run.spec
    flags = parse_flags(spec.flags)
    name = _step_name(spec.stem.partition("_task")[0])
    word = os.path.relpath(os.path.abspath(path), project.root)
    command = [os.path.basename(spec.command[0]), *spec.command[1 : spec.script["word"]], word]
    tasks = [one.run.spec.script["array"]["index"] for one in asked if "array" in one.run.spec.script]
    comments = [f"# {word} as a step: its #SBATCH lines are `request` and the profile, its body runs as it is."]
    comments += [
        f"# {flag} is not part of a request: processes follow from `launch` (docs/launch.md)."
        for flag in flags.other
        if flag.startswith(_TASK_FLAGS)
    ]
    sweep = [f"step = {json.dumps(name)}"]
    if options.words:
        sweep.append(f"args = {json.dumps(list(options.words))}")
    env = {"SLURM_ARRAY_TASK_ID": "{task}"} if tasks else {}
    env.update({name: f"{{{name}}}" for name in spec.params if name in spec.env})
    if env:
        sweep.append(f"env = {{ {', '.join(f'{name} = {json.dumps(value)}' for name, value in env.items())} }}")
    sweep += _sweep_lines(options, {"task": tasks} if tasks else {})
    params = ['params = "none"'] if tasks or options.sets else []
    return _files(name, comments, command, flags.request, params, sweep, _profile_values(flags))


def describe_command(options: SweepOptions) -> DescribedFiles:
    """The files for a command: its program is the step, its arguments are those of the sweep file."""
    words = options.words
    if not words:
        raise InputError("missing command after --", hint="shoal init -- python train.py --lr 0.1")
    name, length = command_step(words), program_length(words)
    sweep = [f"step = {json.dumps(name)}"]
    if words[length:]:
        sweep.append(f"args = {json.dumps(list(words[length:]))}")
    sweep += _sweep_lines(options, {})
    flags = parse_flags(options.flags)
    request = flags.request.over(options.request)
    return _files(name, [], list(words[:length]), request, [], sweep, _profile_values(flags))


def _files(
    name: str,
    comments: list[str],
    command: list[str],
    request: Request,
    more: list[str],
    sweep: list[str],
    profile: dict[str, Any],
) -> DescribedFiles:
    lines = [f"[steps.{name}]", *comments, f"command = {json.dumps(command)}", f"request = {_request_text(request)}"]
    path = f"experiments/001_{name}/000_{name}.toml"
    return DescribedFiles(name, "\n".join([*lines, *more]) + "\n", path, "\n".join(sweep) + "\n", profile)


def _step_name(word: str) -> str:
    """A name that a step can have, after a script's."""
    name = re.sub(r"\W+", "_", word, flags=re.ASCII).strip("_").lstrip("0123456789_") or "job"
    try:
        check_step_name(name)
    except InputError:
        return f"run_{name}"
    return name


def _request_text(request: Request) -> str:
    values = {
        "nodes": request.nodes,
        "gpus": request.gpus,
        "gpu_type": request.gpu_type,
        "cpus": request.cpus,
        "memory": request.memory,
        "time": request.time,
    }
    pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items() if value is not None)
    return f"{{ {pairs} }}" if pairs else "{}"


def _sweep_lines(options: SweepOptions, more: dict[str, list[int]]) -> list[str]:
    """Seeds and swept values, as a sweep file has them."""
    block = with_flags(SweepBlock(place="--set"), *options.flag_words())
    lines = [] if block.seeds is None else [f"seeds = {json.dumps(list(block.seeds))}"]
    axes = {name: [row[name] for row in axis] for axis in block.axes for name in axis[0]}
    values = {**axes, **more}
    if values:
        lines += ["", "[sweep]", *(f"{_key(name)} = {json.dumps(rows)}" for name, rows in values.items())]
    return lines


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name, re.ASCII) else json.dumps(name)


def _profile_values(flags: SbatchFlags) -> dict[str, Any]:
    """What belongs to a cluster and not to the work: partition, account, QOS, and options that only Slurm knows."""
    other = [flag for flag in flags.other if not flag.startswith(_TASK_FLAGS)]
    found = {"partition": flags.partition, "account": flags.account, "qos": flags.qos, "flags": other or None}
    return {name: value for name, value in found.items() if value is not None}


def profile_comments(profile: dict[str, Any]) -> str:
    """The values as lines that a person moves into [clusters.X]."""
    lines = [f"# {name} = {json.dumps(value)}" for name, value in profile.items()]
    return "\n".join(["# Of the script, for the profile of its cluster ([clusters.X]):", *lines, ""]) if lines else ""
