"""A batch script as runs: its #SBATCH lines are the request, its body is neither changed nor executed by planning.

The script is named after its directory and its --job-name (or file name). Each task of --array is a run, and so
is each point of --set and --seeds: a parameter is {name} in the arguments after --, or a variable that the script
reads. Options of the command line count as if they came after the script's own. What the job makes of all this is in
job/batch_step.py; `script` of the RunSpec is what it needs to know.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shoal.batch import (
    SbatchOption,
    option_name,
    parse_flags,
    parse_option_words,
)
from shoal.describe.command_file import argument_label
from shoal.describe.experiment_files import FileRuns, SweepOptions, read_sweeps
from shoal.describe.parameters import MAX_RUNS
from shoal.describe.program_source import find_reader
from shoal.describe.project import Project
from shoal.describe.script_source import ScriptSource, load_batch_script
from shoal.describe.steps import Step
from shoal.describe.sweep_file import SweepBlock, with_flags
from shoal.describe.sweep_runs import Sweep
from shoal.errors import InputError
from shoal.job import escape_placeholders, placeholder_names
from shoal.model import ContainerSettings, Request, RunSpec
from shoal.names import ScriptName, check_length, make_slug

#: Not a name that a step of shoal.toml can have.
SCRIPT_STEP = "batch script"
_ARRAY_PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)
#: Options that change what sbatch prints or when it returns, and nothing about the job.
_PRINT_OPTIONS = frozenset({"parsable", "quiet", "verbose", "wait"})
#: Options that this module reads itself; all others are flags of the job.
_OWN_OPTIONS = frozenset({"job-name", "output", "error", "open-mode", "array", "chdir", "export"})
_MAX_PATH_NAME = 60
#: Where a script may name its GPUs.
_SIZE_OPTIONS = ("nodes", "gres", "gpus", "gpus-per-node")
#: What --gpus of the command line replaces.
_GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")


class _Header(NamedTuple):
    """The options of a script and of the command line, sorted by who uses them."""

    own: dict[str, SbatchOption]
    flags: list[str]
    remarks: list[str]


def read_batch_script(path: Path, project: Project, options: SweepOptions, cwd: str) -> FileRuns:
    """The runs of a batch script that is submitted in `cwd`. Changes nothing and executes nothing."""
    script = load_batch_script(path)
    header = _read_header(script, options)
    named = _script_name(script, project, options, header.own)
    sets = [word.partition("=")[0].strip() for word in options.sets]
    env = _parameter_variables(script, sets, options.words, cwd)
    if "seed" in placeholder_names(options.words) and options.seeds is None:
        raise InputError("an argument has {seed}, but --seeds is not set", hint="add --seeds 0-2 before --")
    chdir = header.own["chdir"].value if "chdir" in header.own else None
    folder = os.path.normpath(os.path.join(cwd, chdir or ""))
    # From a directory that this machine may not have, no relative path leads back.
    file = os.path.abspath(path)
    path_word = file if chdir else os.path.relpath(file, folder)
    block = SweepBlock(
        place=script.shown,
        step=SCRIPT_STEP,
        command=tuple(escape_placeholders([*script.interpreter, path_word])),
        args=options.words,
        env=env,
    )
    step = Step(
        name=SCRIPT_STEP,
        command=block.command or (),
        output="scripts",
        checkpoint=options.checkpoint,
        params="",
        origin=script.shown,
    )
    with_step = msgspec.structs.replace(project, steps={**project.steps, SCRIPT_STEP: step})
    sweep = Sweep(named, (with_flags(block, *options.flag_words()),))
    reading = read_sweeps([sweep], with_step, names_all=True)
    tasks = _array_tasks(header.own.get("array"), script, len(reading.asked))
    record = _script_record(script, header.own, header.flags, project, cwd)
    if options.flags or options.request != Request():
        record["overridden"] = True
    if options.words:
        record["args"] = list(options.words)
    if own := [flag for flag in options.flags if option_name(flag) in _OWN_OPTIONS - {"array"}]:
        record["options"] = own
    asked = [
        one._replace(
            run=one.run._replace(spec=_script_spec(one.run.spec, header.flags, record, task, folder)),
            remarks=tuple(header.remarks),
        )
        for one in reading.asked
        for task in tasks
    ]
    return FileRuns(asked, [names._replace(is_file=False) for names in reading.grown])


def _script_spec(
    spec: RunSpec, flags: list[str], record: dict[str, Any], task: dict[str, int] | None, folder: str
) -> RunSpec:
    return msgspec.structs.replace(
        spec,
        stem=spec.stem if task is None else f"{spec.stem}_task{task['index']}",
        cwd=folder,
        request=Request(),
        flags=flags,
        container=ContainerSettings(runtime="none"),
        script={**record, **({} if task is None else {"array": task})},
    )


def _read_header(script: ScriptSource, options: SweepOptions) -> _Header:
    """All options, later ones over earlier ones. InputError with its line for what shoal or Slurm cannot use."""
    given = parse_option_words(options.flags)[0]
    own: dict[str, SbatchOption] = {}
    flags: list[str] = []
    remarks = [
        f"{script.place(line.line)}: {line.text.strip()!r} is not read as an #SBATCH line"
        + (" (sbatch stops at the first command)" if line.why == "late" else "")
        for line in script.directives.ignored
        if line.why != "disabled" and not _in_text(script, line.line)
    ]
    for option in (*_without_replaced(script.directives.options, options.request, given), *given):
        flag = f"--{option.name}" if option.value is None else f"--{option.name}={option.value}"
        if option.name in _OWN_OPTIONS:
            if not option.value:
                raise InputError(f"--{option.name} needs a value", hint="remove it", place=script.place(option.line))
            own[option.name] = option
        elif option.name not in _PRINT_OPTIONS:
            _check_flag(flag, script.place(option.line))
            flags.append(flag)
    before = parse_flags(
        [f"--{one.name}={one.value}" for one in script.directives.options if one.name in _SIZE_OPTIONS]
    ).request
    return _Header(own, [*flags, *_request_flags(options.request, before)], remarks)


def _in_text(script: ScriptSource, line: int) -> bool:
    """Whether a line is inside a quoted argument of a command, which writes another script."""
    commands = script.shell.commands if script.shell else ()
    texts = [(word.line, word.raw) for command in commands for word in command.words]
    texts += [(one.line, one.raw) for command in commands for one in command.assigns]
    return any(first < line <= first + raw.count("\n") for first, raw in texts)


def _check_flag(flag: str, place: str) -> None:
    try:
        parse_flags([flag])
    except InputError as error:
        message = error.message.removeprefix(f"{error.place}: ")
        raise InputError(f"{flag}: {message}", hint=error.hint or "remove it", place=place) from None


def _without_replaced(
    options: Sequence[SbatchOption], request: Request, given: Sequence[SbatchOption]
) -> list[SbatchOption]:
    """The script's options less those that the command line replaces under another name: --gpus 2 over --gres=gpu:4."""
    names = {option.name for option in given}
    has_gpus = request.gpus is not None or request.gpu_type is not None or bool(names & {*_GPU_OPTIONS})
    kept: list[SbatchOption] = []
    for option in options:
        if has_gpus and option.name in _GPU_OPTIONS:
            continue
        if has_gpus and option.name == "gres" and option.value:
            items = option.value.split(",")
            rest = [item for item in items if re.split("[:=]", item)[0] not in ("gpu", "gres/gpu")]
            if not rest:
                continue
            option = option._replace(value=",".join(rest))
        if (request.memory is not None or "mem" in names) and option.name in ("mem-per-cpu", "mem-per-gpu"):
            continue
        kept.append(option)
    return kept


def _request_flags(request: Request, before: Request) -> list[str]:
    """The request of the command line as sbatch flags, which win over the script's; a number of GPUs keeps the type
    that the script asks for, and a type its number."""
    gpus = None
    if request.gpus is not None or request.gpu_type is not None:
        count, kind = request.gpus if request.gpus is not None else before.gpus, request.gpu_type or before.gpu_type
        gpus = f"{kind}:{count or 1}" if kind else str(count)
    pairs = [
        ("nodes", request.nodes),
        ("gpus-per-node", gpus),
        ("cpus-per-task", request.cpus),
        ("mem", request.memory),
        ("time", request.time),
    ]
    return [f"--{name}={value}" for name, value in pairs if value is not None]


def _script_name(
    script: ScriptSource, project: Project, options: SweepOptions, own: dict[str, SbatchOption]
) -> ScriptName:
    """Experiment: the script's directory in the project; stem: --job-name or the name of the file, and arguments."""
    folder = Path(os.path.realpath(script.path.parent))
    root = Path(os.path.realpath(project.code_root))
    parts = folder.relative_to(root).parts if folder.is_relative_to(root) else (folder.name,)
    if "experiments" in parts[:-1]:  # as for experiment scripts, which may stand beside it
        parts = parts[parts.index("experiments") + 1 :]
    experiment = make_slug(options.name or _shorten("_".join(parts)) or root.name or "scripts")
    job_name = own["job-name"].value if "job-name" in own else None
    stem = make_slug((job_name or script.path.stem).strip("-. ") or script.path.stem)
    stem = "_".join(filter(None, (stem, argument_label(options.words))))
    check_length(experiment, stem)
    return ScriptName(experiment, stem, None, "script", None, None)


def _shorten(name: str) -> str:
    """A long path as a name: its end, and a hash of all of it."""
    if len(name) <= _MAX_PATH_NAME:
        return name
    return f"{name[-_MAX_PATH_NAME + 9 :].lstrip('-._')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _local_variables(words: Sequence[str]) -> dict[str, str]:
    """The SLURM_ variables of the request, for a job without Slurm; most exist only where they were asked for."""
    flags = parse_flags(words)
    request, other = flags.request, {option.name: option.value for option in parse_option_words(flags.other)[0]}
    asked = other.get("ntasks") or other.get("ntasks-per-node")
    tasks = int(asked) if asked and asked.isdigit() else 1
    cpus = (request.cpus or 1) * tasks
    gpus = request.gpus or 0
    found = {
        "SLURM_NTASKS": asked,
        "SLURM_NPROCS": asked,
        "SLURM_NTASKS_PER_NODE": other.get("ntasks-per-node"),
        "SLURM_TASKS_PER_NODE": str(tasks),
        "SLURM_CPUS_PER_TASK": request.cpus,
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        "SLURM_MEM_PER_NODE": request.memory_mb,
        "SLURM_GPUS_ON_NODE": gpus or None,
        "SLURM_GPUS": gpus or None,
        "SLURM_GPUS_PER_NODE": gpus or None,
        "SLURM_JOB_GPUS": ",".join(map(str, range(gpus))) or None,
        "SLURM_JOB_PARTITION": flags.partition or "local",
        "SLURM_JOB_ACCOUNT": flags.account,
        "SLURM_JOB_QOS": flags.qos,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _script_record(
    script: ScriptSource, own: dict[str, SbatchOption], flags: Sequence[str], project: Project, cwd: str
) -> dict[str, Any]:
    """What the job needs to know of the script."""

    def value(name: str) -> str | None:
        return own[name].value if name in own else None

    record = {
        "path": os.path.relpath(os.path.realpath(script.path), os.path.realpath(project.code_root)),
        "file": script.path.name,
        "digest": script.digest,
        "word": len(script.interpreter),
        "job_name": value("job-name") or script.path.name,
        "submit_dir": cwd,
        "output": value("output"),
        "error": value("error"),
        "append": True if value("open-mode") in ("append", "a") else None,
        "export": value("export"),
        "variables": _local_variables(flags),
        "max_parallel": _array_limit(own.get("array"), script),
    }
    return {name: one for name, one in record.items() if one is not None}


def _array_limit(option: SbatchOption | None, script: ScriptSource) -> int | None:
    if option is None or "%" not in (option.value or ""):
        return None
    text = (option.value or "").rpartition("%")[2]
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise InputError(
            f"invalid --array={option.value}: expected a number of at least 1 after %",
            hint="--array=0-9%4",
            place=script.place(option.line),
        )
    return int(text)


def _array_tasks(option: SbatchOption | None, script: ScriptSource, runs: int) -> list[dict[str, int] | None]:
    """The tasks of --array=1-9:2,12%4, each with what its SLURM_ARRAY_ variables say; [None] without an array."""
    if option is None:
        return [None]
    known: set[int] = set()
    step = 1
    for part in (option.value or "").partition("%")[0].split(","):
        match = _ARRAY_PART.fullmatch(part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])) or match[3] == "0":
            raise InputError(
                f"invalid --array={option.value}: expected indices such as 0-9, 1,3,5 or 0-15:4%2",
                hint="--array=0-9",
                place=script.place(option.line),
            )
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        known.update(range(first, min(last, first + step * MAX_RUNS) + 1, step))
        if len(known) * runs > MAX_RUNS:
            raise InputError(
                f"--array={option.value} describes more than {MAX_RUNS:,} runs",
                hint=f"--array=0-{MAX_RUNS - 1}",
                place=script.place(option.line),
            )
    indices = sorted(known)
    common = {"min": indices[0], "max": indices[-1], "step": step, "count": len(indices)}
    return [{"index": index, **common} for index in indices]


def _parameter_variables(script: ScriptSource, sets: Sequence[str], words: Sequence[str], cwd: str) -> dict[str, str]:
    """Parameters that reach the script as variables; InputError for one that reaches it in no way."""
    mentioned = set(placeholder_names(words))
    found: dict[str, str] = {}
    for name in sets:
        if name in mentioned or not name:
            continue
        line = _assignment_line(script, name)
        if line is not None:
            raise InputError(
                f"--set {name} has no effect: the script sets {name} itself",
                hint=f"write {name}=${{{name}:-VALUE}} there",
                place=script.place(line),
            )
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or not _reads_variable(script, name, cwd):
            raise InputError(
                f"--set {name} has no effect: {script.shown} does not read ${name}, and no argument has {{{name}}}",
                hint=f"add -- --{name} {{{name}}}, or read ${name} in the script",
            )
        found[name] = f"{{{name}}}"
    return found


def _reads_variable(script: ScriptSource, name: str, cwd: str) -> bool:
    return bool(find_reader(name, Path(cwd), [os.path.abspath(script.path)]))


def _assignment_line(script: ScriptSource, name: str) -> int | None:
    """The line on which a shell script sets a variable without its value from outside."""
    for command in script.shell.commands if script.shell else ():
        if command.function is not None or command.nested:
            continue
        texts = [(one.line, one.raw) for one in command.assigns if one.name == name and not command.words]
        if command.name in ("export", "declare", "readonly", "typeset"):
            texts += [(word.line, word.raw) for word in command.words[1:] if word.raw.startswith(f"{name}=")]
        for line, raw in texts:
            if not re.search(rf"\$\{{?{re.escape(name)}(?!\w)", raw):
                return line
    return None
