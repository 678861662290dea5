"""Flags that several commands share, and the few steps that begin most of them."""

from __future__ import annotations

import argparse
import os

from shoal.cli.pack_flags import add_pack_flags, pack_options, refuse_pack_flags

TYPE_CHECKING = False  # typing itself takes longer to import than everything else here
if TYPE_CHECKING:
    from shoal.describe import Cluster, Project, SweepOptions
    from shoal.submit import SubmitOptions


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("-q", "--quiet", action="store_true", help="print names or nothing")


def add_profile_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--on", metavar="CLUSTER", help="a cluster profile, or local for this machine")


def add_request(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--request",
        metavar="NAME",
        help="Name of this order: given again under the same name, it continues and repeats nothing (default: random)",
    )


def add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", metavar="0-2,7", help="one run for each of these seeds")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUES",
        help="sweep a parameter: lr=0.1,0.01 or depth=4:80:4",
    )
    parser.add_argument("--zip", action="append", default=[], metavar="A,B", help="let set parameters walk together")


def sweep_options(args: argparse.Namespace) -> SweepOptions:
    from shoal.describe import SweepOptions

    refuse_unused_flags(args, not args.set, "without --set", "--zip")
    return SweepOptions(args.seeds, args.set, args.zip)


def add_submit_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape",
        choices=("auto", "job", "array", "pack", "pilots"),
        default="auto",
        help="one job each, an array, a queue in one allocation, or in several small ones",
    )
    parser.add_argument("--again", action="store_true", help="start over what is done; old results stay")
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--resume", action="store_true", default=None, help="Continue failed runs from their newest checkpoint"
    )
    either.add_argument(
        "--fresh", action="store_false", dest="resume", help="Start failed runs over in a new output directory"
    )
    parser.add_argument(
        "--at-once", type=_positive_integer, metavar="K", help="let at most K of these runs be under way together"
    )
    parser.add_argument("--no-snapshot", action="store_true", help="let jobs run the code as it is when they start")
    parser.add_argument("--force", action="store_true", help="submit even what the doctor refuses")
    smoke = parser.add_mutually_exclusive_group()
    smoke.add_argument(
        "--smoke", action="store_const", const="there", help="a few steps must pass before the runs start"
    )
    smoke.add_argument(
        "--smoke-here", action="store_const", const="here", dest="smoke", help="the same, on this machine and now"
    )
    add_pack_flags(parser)


def submit_options(args: argparse.Namespace) -> SubmitOptions:
    from shoal.errors import InputError
    from shoal.submit import SubmitOptions

    packed = args.shape in ("pack", "pilots") or args.pilots is not None
    pack = pack_options(args) if packed else None
    if not packed:
        refuse_pack_flags(args)
    refuse_unused_flags(args, packed, "on a pack; its slots say how many run at a time (--slots)", "--at-once")
    refuse_unused_flags(
        args, args.shape == "job", "on single jobs; an array limits its tasks (--shape array)", "--at-once"
    )
    refuse_unused_flags(
        args, args.pilots is not None and args.shape not in ("auto", "pilots"), "with --pilots", "--shape"
    )
    if args.again and args.resume:
        raise InputError("--resume cannot be used with --again", hint="remove --again to continue from a checkpoint")
    return SubmitOptions(
        args.shape,
        args.again,
        args.at_once,
        pack=pack,
        force=args.force,
        snapshot=not args.no_snapshot,
        smoke=args.smoke,
        resume=args.resume,
        sure=getattr(args, "yes", False),
    )


def _positive_integer(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs")
    return int(text)


def current_project() -> Project:
    from pathlib import Path

    from shoal.describe import find_project

    return find_project(Path.cwd(), os.environ)


def refuse_unused_flags(args: argparse.Namespace, idle: bool, because: str, *flags: str) -> None:
    """Refuse flags that would do nothing where they are given. `because` goes on after "has no effect".

    Not refused: `--json` and `-q`, and flags about what `--dry-run` leaves undone, because it is added to a whole
    command line to look first.
    """
    for flag in flags if idle else ():
        if flag in getattr(args, "given", ()):
            from shoal.errors import InputError

            raise InputError(f"{flag} has no effect {because}", hint=f"remove {flag}")


def chosen_cluster(project: Project, on: str | None) -> Cluster:
    from shoal.plan import choose_cluster

    return choose_cluster(project, on, os.environ, inside_job="SLURM_JOB_ID" in os.environ)
