"""Write a batch script from options, for plain sbatch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from shoal.api.projects import ProjectPath, project_or_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.describe import Cluster, Project
    from shoal.plan import GeneratedScript, GenerateOptions


class GenerateReport(NamedTuple):
    """A script; whether its file is "written" or "unchanged" (None: no file was named); and remarks."""

    generated: GeneratedScript
    written: str | None
    notes: list[str]


def generate(
    options: GenerateOptions,
    *,
    on: str | None = None,
    output_file: Path | None = None,
    force: bool = False,
    project: ProjectPath = None,
) -> GenerateReport:
    """The batch script that options, a step and the profile of a cluster describe, written to a file if one is named.
    A file that was edited, or is not ours, needs `force`."""
    from shoal.plan import generate_script

    settings = project_or_directory(project)
    cluster = _choose_cluster(settings, on)
    generated = generate_script(options, settings, cluster)
    _check_shell(generated.script, cluster)
    written = None if output_file is None else _write_script(output_file, generated.script, force)
    return GenerateReport(generated, written, _notes(generated, options))


def _notes(generated: GeneratedScript, options: GenerateOptions) -> list[str]:
    notes = list(generated.notes)
    missing = [folder for folder in generated.log_folders if "%" not in folder and not Path(folder).is_dir()]
    if options.config_file and not Path(options.config_file).exists():
        notes.append(f"config file {options.config_file} not found in {Path.cwd()}")
    if missing:
        notes.append(f"logs go to {', '.join(missing)}, which must exist before the job starts: mkdir -p {missing[0]}")
    return notes


def _choose_cluster(project: Project, on: str | None) -> Cluster:
    """The chosen profile. A script is for Slurm wherever it is written, so "this machine" means "some Slurm" here."""
    from shoal.describe import LOCAL, UNNAMED
    from shoal.plan import choose_cluster, named_cluster

    cluster = choose_cluster(project, on, os.environ, inside_job=False)
    written = [profile for profile in project.clusters.values() if not profile.is_local]
    if cluster.name in (LOCAL, UNNAMED) and not on and not os.environ.get("SHOAL_ON"):
        # The only profile there is must be meant: the machine that writes the script need not be the cluster.
        return written[0] if len(written) == 1 else named_cluster(project, UNNAMED)
    return cluster


def _check_shell(script: str, cluster: Cluster) -> None:
    """Only the profile's own setup lines can be wrong shell; say so before the job does."""
    from shoal.clusters import ProgramMissingError
    from shoal.clusters import run as run_program
    from shoal.errors import InputError

    try:
        answer = run_program(["bash", "-n"], 10.0, stdin=script)
    except ProgramMissingError:
        return
    if answer.returncode != 0:
        message = answer.stderr.strip().splitlines()[:1] or ["syntax error"]
        raise InputError(f"the setup lines are not valid bash: {message[0]}", place=cluster.origin("setup"))


def _write_script(path: Path, script: str, force: bool) -> str:
    """Write in one step; "written" or "unchanged". A file that was edited, or is not ours, needs `force`."""
    from shoal.errors import InputError
    from shoal.observe import create_exclusive, replace
    from shoal.plan import is_unedited, with_checksum

    data = with_checksum(script)
    if path.is_dir() or not path.parent.is_dir():
        missing = f"directory {path.parent} not found" if not path.is_dir() else f"{path} is a directory"
        raise InputError(missing, hint=f"mkdir -p {path.parent}", place="--output-file")
    if not force and create_exclusive(str(path), data):
        return "written"
    present = path.read_bytes() if path.exists() else b""
    if present == data:
        return "unchanged"
    if present and not force and not is_unedited(present):
        raise InputError(
            f"{path} was edited, or was not written by shoal generate",
            hint="add --force to overwrite it",
            place="--output-file",
        )
    replace(str(path), data)
    return "written"
