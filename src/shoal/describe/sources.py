"""What a command line names, as requested runs: files and directories, a command, a script that bash runs, a pack."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.describe.command_file import command_sweep, read_command, read_command_file
from shoal.describe.experiment_files import (
    FILE_SUFFIXES,
    FileRuns,
    SweepOptions,
    expand_step_sweeps,
    read_experiment_file,
    read_sweeps,
)
from shoal.describe.project import Project
from shoal.describe.run_specs import PlannedRun, RequestedRun, requested_runs, seeds_in
from shoal.describe.script_runs import read_batch_script
from shoal.describe.script_source import SCRIPT_SUFFIXES, is_batch_script
from shoal.describe.shell_functions import StepCall
from shoal.describe.sweep_file import check_set_flags, with_flags
from shoal.errors import InputError
from shoal.names import parse_script_path
from shoal.units import natural_sort_key

#: What a command line says about its parameters: --set, --zip, --seeds.
SweepFlags = tuple[Sequence[str], Sequence[str], str | None]


def _find_files(paths: Sequence[Path], project: Project) -> dict[Path, bool]:
    """The files that paths stand for, directories in the order of their numbers, and whether each is a batch script;
    checks every name first."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = _scripts_in(path, "*", project) or _scripts_in(path, "*/*", project)
            if not inside:
                raise InputError(f"no experiment file and no batch script in {path}", hint=f"ls {path}")
            found += inside
        elif path.exists() and not path.is_file():
            raise InputError(f"{path} is not a regular file", hint=f"ls -l {shlex.quote(str(path))}")
        elif path.suffix not in FILE_SUFFIXES and not is_batch_script(path):
            raise InputError(
                f"{path} is neither an experiment file (.toml, .sh, .py) nor a batch script with #SBATCH lines",
                hint=f"shoal run -- {shlex.join(map(str, paths))}   # a command begins after --",
            )
        elif not path.is_file() and path.suffix in FILE_SUFFIXES:
            raise InputError(f"no such file: {path}", hint=f"ls {shlex.quote(str(path.parent))}")
        else:
            found.append(path)
    is_batch = {path: is_batch_script(path) for path in found}
    for path in (path for path in is_batch if not is_batch[path]):
        if path.suffix != ".py":  # a Python file names its experiment itself
            parse_script_path(path, project.code_root)
        elif _is_program(path):
            raise InputError(
                f"{path} does not use shoal, so it is a program and not an experiment file",
                hint=f"shoal run -- python {shlex.quote(str(path))}",
            )
    return is_batch


def _scripts_in(folder: Path, pattern: str, project: Project) -> list[Path]:
    """Experiment files, which are below a directory called experiments, and batch scripts, which are anywhere."""
    inner = os.path.relpath(os.path.realpath(folder), os.path.realpath(project.code_root))
    is_experiment = inner == "." or "experiments" in Path(inner).parts
    suffixes = (*(FILE_SUFFIXES if is_experiment else (".sh",)), *SCRIPT_SUFFIXES)
    inside = [path for suffix in suffixes for path in folder.glob(pattern + suffix)]
    return sorted((path for path in inside if is_experiment or is_batch_script(path)), key=natural_sort_key)


def _is_program(path: Path) -> bool:
    """Whether a Python file outside of experiments/ is a program; an experiment file would be executed."""
    is_inside = "experiments" in Path(os.path.realpath(path)).parts
    return path.suffix == ".py" and not is_inside and b"shoal" not in path.read_bytes()


def is_experiment_source(path: Path) -> bool:
    """Whether a path stands for experiment files, which are part of a project."""
    if not path.is_dir():
        return path.suffix in FILE_SUFFIXES and path.is_file() and not is_batch_script(path) and not _is_program(path)
    return not any(is_batch_script(one) for one in (*path.glob("*.*"), *path.glob("*/*.*")))


def read_scripts(
    paths: Sequence[Path], project: Project, environ: Mapping[str, str], sweep: SweepOptions | None = None
) -> FileRuns:
    """Read every file, or the command if there is none; a mistake in any of them is raised."""
    read, sweep = FileRuns([], []), sweep or SweepOptions()
    if sweep.sets:
        check_set_flags(sweep.sets)
    if not paths:
        return read_command(sweep, project, os.getcwd())
    for path, is_batch in _find_files(paths, project).items():
        if sweep.words and not is_batch:
            raise InputError(
                f"{path} is an experiment file, which takes no arguments after --",
                hint=f"shoal submit -- {shlex.join(sweep.words)}   # or leave them out",
            )
        if is_batch:
            found = read_batch_script(path, project, sweep, os.getcwd())
        else:
            found = read_experiment_file(path, project, environ, sweep)
        read.asked.extend(found.asked)
        read.grown.extend(found.grown)
    return read


def read_calls(calls: Sequence[StepCall], project: Project) -> FileRuns:
    """The runs of a script that a person runs with bash, by the calls of steps in it."""
    asked = requested_runs((call for one in calls for call in _call_per_seed(one)), project)
    return expand_step_sweeps(asked, SweepOptions(), project, Path(calls[0].script))


def _call_per_seed(call: StepCall) -> list[StepCall]:
    """A call that names its seeds, once for each. The script has run already, so it cannot have used them itself."""
    seeds = seeds_in(call)
    if seeds is None:
        return [call]
    if "SHOAL_SEED" in Path(call.script).read_text("utf-8", "replace"):
        raise InputError(f"{call.script} uses $SHOAL_SEED and names several seeds", hint=f"shoal submit {call.script}")
    return [call._replace(seed=seed) for seed in seeds]


def read_pack(
    words: Sequence[str],
    flags: SweepFlags,
    project: Project,
    *,
    name: str | None = None,
    cost: str | None = None,
    is_local: bool = False,
) -> FileRuns:
    """The runs of a file of commands, or of one command and its parameters."""
    if not words:
        raise InputError("there is no command to run", hint="shoal pack --slots 4 -- python train.py")
    path = Path(words[0])
    if len(words) == 1 and is_local and not path.exists() and shutil.which(words[0]) is None:
        raise InputError(f"{path} is no file of commands, and no program", hint="shoal pack --slots 4 commands.txt")
    if len(words) == 1 and path.is_file() and not path.stat().st_mode & 0o111:
        if any(flags) or cost:
            raise InputError("a file of commands has no parameters", hint="leave --set and --cost out", place=str(path))
        specs = read_command_file(path, project, name)
        return FileRuns([RequestedRun(PlannedRun(spec)) for spec in specs], [])
    whole = command_sweep(words, name, cost)
    whole = whole._replace(blocks=tuple(with_flags(block, *flags) for block in whole.blocks))
    asked, grown = read_sweeps([whole], project)
    return FileRuns(list(asked), list(grown))
