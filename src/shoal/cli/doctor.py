"""Check batch scripts before they cost a place in the queue: any sbatch script, an experiment of ours, or a folder.

  shoal doctor train.sh
  shoal doctor scripts/ --fix
  shoal doctor train.sh --explain --batch-size 22 --lr 1e-4 --workers 8
  shoal doctor --explain --framework lightning --nodes 2 --gpus 8 --batch-size 22

Where Slurm answers, the request is tried against it as well, and a refused one comes with the nearest that is accepted.
Exit code 3 when there are errors (with --strict: or warnings). docs/doctor.md explains every code.
"""

from __future__ import annotations

import argparse
import getpass
import os
from pathlib import Path

from shoal.cli.options import add_output, refuse_unused_flags


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="*", type=Path, help="a batch script, an experiment script, or a folder of them")
    parser.add_argument("--fix", action="store_true", help="write NAME.fixed.sh beside each script, where that is safe")
    parser.add_argument("--strict", action="store_true", help="warnings count as errors for the exit code")
    parser.add_argument("--no-cluster", action="store_true", help="do not ask Slurm")
    parser.add_argument("--explain", action="store_true", help="show processes, devices, batch size and memory")
    parser.add_argument("--batch-size", type=int, metavar="N", help="the batch of one process")
    parser.add_argument("--workers", type=int, metavar="N", help="loader workers of one process")
    parser.add_argument("--lr", type=float, metavar="RATE", help="the learning rate")
    parser.add_argument(
        "--framework", metavar="NAME", help="with --explain and no file: lightning, native, torchrun ..."
    )
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="with --framework")
    parser.add_argument("--gpus", type=int, metavar="N", help="with --framework: GPUs per node")
    parser.add_argument("--cpus", type=int, metavar="N", help="with --framework: CPUs per node")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal.doctor import TrainingInputs, check_scripts, explain_facts, find_files, write_fixed
    from shoal.views import doctor as view

    about = ("--framework", "--nodes", "--gpus", "--cpus")
    refuse_unused_flags(args, bool(args.file), "with a file, which says it itself", *about)
    refuse_unused_flags(args, not args.explain, "without --explain", *about)
    refuse_unused_flags(args, not args.file, "without a file", "--fix", "--strict", "--no-cluster")
    inputs = TrainingInputs(args.batch_size, args.lr, args.workers)
    if not args.file:
        return _construct_launch(args, inputs)
    ask = not args.no_cluster
    examined, cluster = check_scripts(
        find_files(args.file), os.environ, user=getpass.getuser(), ask=ask, inputs=inputs, steps=_project_steps()
    )
    explained = (
        [(one.script.path, found) for one in examined for found in explain_facts(one.facts)] if args.explain else []
    )
    fixed = [found for one in examined if (found := write_fixed(one)) is not None] if args.fix else []
    if args.json:
        view.show_document(view.findings_document(examined, cluster, explained, fixed))
    else:
        view.show_geometry(explained)
        view.show_findings(examined, quiet=args.quiet, fixed=fixed)
    bad = ("error", "warning") if args.strict else ("error",)
    return 3 if any(finding.severity in bad for one in examined for finding in one.findings) else 0


def _construct_launch(args: argparse.Namespace, inputs: object) -> int:
    from shoal.doctor import TrainingInputs, construct_launch, facts_without_script
    from shoal.errors import InputError
    from shoal.views import doctor as view

    if not args.explain or args.framework is None or args.gpus is None or not isinstance(inputs, TrainingInputs):
        raise InputError("name a script or a folder", hint="shoal doctor train.sh")
    found = construct_launch(args.framework, args.nodes, args.gpus, facts_without_script(inputs), args.cpus)
    if args.json:
        view.show_document(view.findings_document([], None, [("", found)]))
    else:
        view.show_geometry([(args.framework, found)])
    return 0


def _project_steps() -> frozenset[str]:
    """The step functions of the project that we stand in, if any; its mistakes are not the doctor's business here."""
    from shoal.cli.options import current_project
    from shoal.errors import ShoalError

    try:
        return frozenset(current_project().steps)
    except ShoalError:
        return frozenset()
