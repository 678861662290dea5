"""Write a batch script from flags, for plain sbatch: header, set-up part, launch part, every value quoted.

    shoal generate --config-file config/ddp/muon.py --qos normal --nodes 4 --use-ddp --output-file job.sh
    sbatch job.sh
    shoal generate --step train --nodes 2 --output-file job.sh
    shoal generate -- python jobs/sweep.py        # a script that calls python generate_job_file.py

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
    from shoal.api import GenerateReport


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
        "--num-ft-replicas-per-node",
        metavar="N",
        type=int,
        help="fault-tolerant replicas on slices of a node's GPUs (default without --step and --use-ddp: 8)",
    )
    how.add_argument("--nodes-per-replica", metavar="N", type=int, help="fault-tolerant replicas over several nodes")
    where = parser.add_argument_group("resources")
    where.add_argument("--on", metavar="CLUSTER", help="cluster profile (default: the one that fits here)")
    where.add_argument("--qos", help="QOS, and what the profile says under it")
    where.add_argument("--partition")
    where.add_argument("--account")
    where.add_argument("--nodes", help="default: the step's, or 2")
    where.add_argument("--gpus-per-node", metavar="GPUS", help="default: the step's, or 8")
    where.add_argument(
        "--ntasks-per-node", metavar="N", type=int, help="accepted and not used: the launch mode sets the tasks"
    )
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
    parser.add_argument("--force", action="store_true", help="overwrite FILE though it was edited")
    parser.add_argument(
        "--dry-run", action="store_true", help="with -- COMMAND: print its sbatch calls, submit nothing"
    )
    parser.add_argument(
        "flags",
        nargs="*",
        metavar="-- COMMAND",
        help="run COMMAND with `python generate_job_file.py` replaced by shoal generate; flags before -- win",
    )
    parser.add_argument("--json", action="store_true", help="script, options and notes as one document")
    parser.add_argument("-q", "--quiet", action="store_true", help="no notes")


def run(args: argparse.Namespace) -> int | None:
    if args.flags:
        return _run_command(args)
    refuse_unused_flags(args, True, "without -- COMMAND", "--dry-run")
    _generate(args)
    return None


def _run_command(args: argparse.Namespace) -> int:
    from shoal.api import run_with_generator

    refuse_unused_flags(args, True, "with -- COMMAND, which names its files itself", "--output-file", "--json")
    own = argparse.ArgumentParser(add_help=False)
    configure(own)
    words = []
    for action in own._actions:
        if action.option_strings and action.option_strings[-1] in args.given and action.dest != "dry_run":
            value = getattr(args, action.dest)
            words += [action.option_strings[-1]] if value is True else [f"{action.option_strings[-1]}={value}"]
    return run_with_generator(args.flags, words, os.environ, dry_run=args.dry_run)


def _generate(args: argparse.Namespace) -> None:
    from shoal import api

    refuse_unused_flags(args, args.output_file is None, "without --output-file", "--force")
    replicas = {"replicas_per_node": args.num_ft_replicas_per_node}
    fields = [name for name in api.GenerateOptions.__struct_fields__ if name not in replicas]
    options = api.GenerateOptions(**{name: getattr(args, name) for name in fields}, **replicas)
    _render(api.generate(options, on=args.on, output_file=args.output_file, force=args.force), args)


def _render(report: GenerateReport, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(_document(report, args)))
        return
    if report.written is None:
        sys.stdout.write(report.generated.script)
    elif not args.quiet:
        print(f"{args.output_file}\t{report.written}\tsbatch {args.output_file}")
    if not args.quiet:
        sys.stderr.writelines(f"note: {note}\n" for note in report.notes)


def _document(report: GenerateReport, args: argparse.Namespace) -> dict[str, object]:
    from msgspec import to_builtins

    generated, written, notes = report
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
