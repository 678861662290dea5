"""Check batch scripts before they cost a place in the queue: any sbatch script, an experiment of ours, or a folder.

  shoal doctor train.sh
  shoal doctor scripts/ --ignore N01,R09 --baseline known.json
  shoal doctor train.sh --fix --smoke
  shoal doctor train.sh --explain --batch-size 22 --lr 1e-4 --workers 8
  shoal doctor --explain --framework lightning --nodes 2 --gpus 8 --batch-size 22

Where Slurm answers, the request is tried against it as well, and a refused one comes with the nearest that is accepted.
Exit code 3 when there are errors (with --strict: or warnings). docs/doctor.md explains every code.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.options import add_output, add_profile_flag, refuse_unused_flags

if TYPE_CHECKING:
    from shoal.api import DoctorReport, TrainingInputs


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="*", type=Path, help="a batch script, an experiment script, or a folder of them")
    parser.add_argument("--fix", action="store_true", help="Write a corrected copy NAME.fixed.sh beside each script")
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="With --fix: run the copy as a Slurm job for a few steps and compare its world size with its GPUs",
    )
    parser.add_argument(
        "--select", action="append", default=[], metavar="CODES", help="Report only these codes, such as G,S02"
    )
    parser.add_argument("--ignore", action="append", default=[], metavar="CODES", help="Do not report these codes")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="Do not report the findings in this file")
    parser.add_argument("--write-baseline", type=Path, metavar="FILE", help="Write all findings to this file as known")
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
    add_profile_flag(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal import api
    from shoal.views import doctor as view

    _refuse_flags_without_effect(args)
    inputs = api.TrainingInputs(args.batch_size, args.lr, args.workers)
    if not args.file:
        return _explain_launch(args, inputs)
    options = api.DoctorOptions(
        args.select, args.ignore, args.baseline, not args.no_cluster, args.explain, args.fix, args.smoke
    )
    report = api.doctor(args.file, options, inputs)
    if args.write_baseline is not None:
        return _write_baseline(args.write_baseline, report)
    if args.json:
        view.show_document(view.findings_document(*report))
    else:
        view.show_geometry(report.explained)
        view.show_findings(report.checked, quiet=args.quiet, fixed=report.fixed)
    return 3 if report.is_bad(strict=args.strict) else 0


def _refuse_flags_without_effect(args: argparse.Namespace) -> None:
    about = ("--framework", "--nodes", "--gpus", "--cpus")
    files = ("--fix", "--strict", "--no-cluster", "--select", "--ignore", "--baseline", "--write-baseline", "--smoke")
    refuse_unused_flags(args, bool(args.file), "with a file, which says it itself", *about)
    refuse_unused_flags(args, not args.explain, "without --explain", *about)
    refuse_unused_flags(args, not args.file, "without a file", *files)
    refuse_unused_flags(args, not args.fix, "without --fix", "--smoke")
    refuse_unused_flags(args, args.no_cluster, "with --no-cluster", "--smoke")
    refuse_unused_flags(args, args.write_baseline is not None, "with --write-baseline", "--fix", "--baseline")


def _write_baseline(path: Path, report: DoctorReport) -> int:
    from shoal import api
    from shoal.units import plural

    print(f"wrote {path} with {plural(api.write_baseline(path, report), 'finding')}")
    return 0


def _explain_launch(args: argparse.Namespace, inputs: TrainingInputs) -> int:
    from shoal import api
    from shoal.errors import InputError
    from shoal.views import doctor as view

    if not args.explain or args.framework is None or args.gpus is None:
        raise InputError("name a script or a folder", hint="shoal doctor train.sh")
    found = api.explain_launch(args.framework, nodes=args.nodes, gpus=args.gpus, cpus=args.cpus, inputs=inputs)
    if args.json:
        view.show_document(view.findings_document([], None, [("", found)]))
    else:
        view.show_geometry([(args.framework, found)])
    return 0
