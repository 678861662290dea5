"""Write a batch script from flags, for plain sbatch: header, set-up part, launch part, every value quoted.

    shoal generate --config-file config/ddp/muon.py --qos normal --nodes 4 --use-ddp --output-file job.sh
    sbatch job.sh
    shoal generate --step train --nodes 2 --output-file job.sh

Values that no flag gives come from the step (--step) and from the cluster's profile (shoal clusters show).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.options import refuse_unused_flags

if TYPE_CHECKING:
    from shoal.describe import Cluster, Project
    from shoal.plan import GeneratedScript


def configure(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to run")
    what.add_argument("--config-file", metavar="CONFIG", help="training config, passed on as --job.config_file")
    what.add_argument("--extra-args", metavar="ARGS", default="", help="config overrides, split as a shell would")
    what.add_argument("--step", metavar="NAME", help="take command, request and launch from this step of shoal.toml")
    what.add_argument("--command", metavar="WORDS", help="the program (default: python ./torchtitan/train.py)")
    how = parser.add_argument_group("how to launch it")
    how.add_argument("--use-ddp", action="store_true", help="torchrun on every node")
    how.add_argument("--launch", metavar="MODE", help="process, torchrun, srun, accelerate, deepspeed or replicas")
    how.add_argument("--container", metavar="IMAGE", help="image, RUNTIME:IMAGE, or none (default: the step's)")
    how.add_argument(
        "--num-ft-replicas-per-node", metavar="N", type=int, help="fault-tolerant replicas on slices of a node's GPUs"
    )
    how.add_argument("--nodes-per-replica", metavar="N", type=int, help="fault-tolerant replicas over several nodes")
    where = parser.add_argument_group("resources")
    where.add_argument("--on", metavar="CLUSTER", help="cluster profile (default: the one that fits here)")
    where.add_argument("--qos", help="QOS, and what the profile says under it")
    where.add_argument("--partition")
    where.add_argument("--account")
    where.add_argument("--nodes", help="default: the step's, or 1")
    where.add_argument("--gpus-per-node", metavar="GPUS", help="default: the step's, or 8")
    where.add_argument("--cpus-per-node", metavar="CPUS", help="default: the share of the profile's node")
    where.add_argument("--mem", help="memory per node (default: the share of the profile's node)")
    where.add_argument("--time", help="time limit as sbatch reads it (default: the step's, the profile's, or 36:00:00)")
    job = parser.add_argument_group("the job")
    job.add_argument("--job-name", metavar="NAME", help="default: the step, or the config file's name")
    job.add_argument("--mail-user", metavar="EMAIL")
    job.add_argument("--mail-type", metavar="TYPES", help="default with --mail-user: BEGIN,END,FAIL")
    job.add_argument("--output", metavar="PATH", help="log of the job, %%j is its id (default: logs/%%j.out)")
    job.add_argument("--error", metavar="PATH", help="errors of the job (default: logs/%%j.err)")
    parser.add_argument("--output-file", metavar="FILE", type=Path, help="write the script here instead of printing it")
    parser.add_argument("--force", action="store_true", help="overwrite FILE when it differs")
    parser.add_argument("--json", action="store_true", help="script, options and notes as one document")
    parser.add_argument("-q", "--quiet", action="store_true", help="no notes")


def run(args: argparse.Namespace) -> None:
    from shoal.describe import project_or_bare
    from shoal.plan import GenerateOptions, generate_script

    refuse_unused_flags(args, args.output_file is None, "without --output-file", "--force")
    project = project_or_bare(Path.cwd(), os.environ)
    cluster = _cluster(project, args.on)
    replicas = {"replicas_per_node": args.num_ft_replicas_per_node}
    wish = GenerateOptions(
        **{name: getattr(args, name) for name in GenerateOptions.__struct_fields__ if name not in replicas}, **replicas
    )
    generated = generate_script(wish, project, cluster)
    check_shell(generated.script, cluster)
    written = None if args.output_file is None else write_script(args.output_file, generated.script, args.force)
    _render(generated, args, written)


def _cluster(project: Project, on: str | None) -> Cluster:
    """The chosen profile. A script is for Slurm wherever it is written, so "this machine" means "some Slurm" here."""
    from shoal.describe import LOCAL, UNNAMED
    from shoal.plan import choose_cluster, named_cluster

    cluster = choose_cluster(project, on, os.environ, inside_job=False)
    written = [profile for profile in project.clusters.values() if not profile.is_local]
    if cluster.name in (LOCAL, UNNAMED) and not on and not os.environ.get("SHOAL_ON"):
        # The only profile there is must be meant: the machine that writes the script need not be the cluster.
        return written[0] if len(written) == 1 else named_cluster(project, UNNAMED)
    return cluster


def check_shell(script: str, cluster: Cluster) -> None:
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


def write_script(path: Path, script: str, force: bool) -> str:
    """Write in one step; "written" or "unchanged". Another content is only replaced with `force`."""
    from shoal.errors import InputError
    from shoal.observe import create_exclusive, replace

    data = script.encode("utf-8", "surrogateescape")
    if path.is_dir() or not path.parent.is_dir():
        missing = f"the folder {path.parent} does not exist" if not path.is_dir() else f"{path} is a folder"
        raise InputError(missing, hint=f"mkdir -p {path.parent}", place="--output-file")
    if force:
        replace(str(path), data)
    elif not create_exclusive(str(path), data):
        if path.read_bytes() == data:
            return "unchanged"
        raise InputError(f"{path} exists and differs", hint="add --force to overwrite it", place="--output-file")
    return "written"


def _render(generated: GeneratedScript, args: argparse.Namespace, written: str | None) -> None:
    notes = list(generated.notes)
    missing = [folder for folder in generated.log_folders if "%" not in folder and not Path(folder).is_dir()]
    if missing:
        notes.append(f"logs go to {', '.join(missing)}, which must exist before the job starts: mkdir -p {missing[0]}")
    if args.json:
        print(json.dumps(_document(generated, args, written, notes)))
        return
    if written is None:
        sys.stdout.write(generated.script)
    elif not args.quiet:
        print(f"{args.output_file}\t{written}\tsbatch {args.output_file}")
    if not args.quiet:
        sys.stderr.writelines(f"note: {note}\n" for note in notes)


def _document(
    generated: GeneratedScript, args: argparse.Namespace, written: str | None, notes: list[str]
) -> dict[str, object]:
    from msgspec import to_builtins

    return {
        "schema": 1,
        "job_name": generated.job_name,
        "cluster": generated.resolved.cluster.name,
        "launch": generated.launch,
        "command": list(generated.command),
        "request": to_builtins(generated.resolved.request),
        "options": [list(option) for option in generated.resolved.options],
        "log_folders": list(generated.log_folders),
        "output_file": None if written is None else str(args.output_file),
        "written": written == "written",
        "notes": notes,
        "script": generated.script,
    }
