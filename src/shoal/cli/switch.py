"""Keep a running job, or switch to more GPUs? Measures its progress, asks Slurm, and recommends with numbers.

shoal switch 000_train_0 --gpus 8
shoal switch 000_train_0 --gpus 8 --nodes 2 --efficiency 0.7
shoal switch 000_train_0 --gpus 8 --apply --after-step 100
shoal switch 003_prepare_0 --nodes 4          a run without GPUs

With --apply the other job is submitted beside the first. It starts from the newest checkpoint, takes the run over when
it has done the given steps itself, and cancels the first job then. If it fails, the first one goes on.
"""

from __future__ import annotations

import argparse
import sys

from shoal.cli.options import add_command_id, add_output, add_profile_flag, refuse_unused_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.api import SwitchComparison


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("flags", nargs="*", metavar="-- SBATCH_FLAGS", help="what else the other job asks for")
    parser.add_argument("--gpus", type=_count, metavar="N", help="GPUs per node of the new job (default: as now)")
    parser.add_argument(
        "--nodes", type=_count, metavar="N", help="Nodes of the new job (default: 1 with --gpus, else as now)"
    )
    parser.add_argument("--time", metavar="12h", help="time limit of the other job, if not the same")
    parser.add_argument(
        "--efficiency", type=_share, metavar="0.8", help="how well it scales: 1 is twice as fast on twice as many"
    )
    parser.add_argument("--progress", metavar="300/1000", help="how far it is, where that cannot be seen")
    parser.add_argument("--apply", action="store_true", help="submit the other job, and switch when it is healthy")
    parser.add_argument(
        "--after-step",
        type=_count,
        default=1,
        metavar="N",
        help="with --apply: steps that it does before it takes over",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before an adopted job is replaced")
    add_profile_flag(parser)
    add_command_id(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal import api
    from shoal.views import switch

    refuse_unused_flags(args, not args.apply, "without --apply", "--after-step", "--command-id", "--yes")
    options = api.SwitchOptions(
        args.gpus, args.nodes, args.time, args.flags, args.efficiency, args.progress, args.after_step
    )
    agrees = None if args.yes else _confirm
    found = api.switch(args.run, options, apply=args.apply, agrees=agrees, command_id=args.command_id)
    switch.show(found.comparison, found.applied, as_json=args.json, quiet=args.quiet, now=found.now)
    return 0


def _confirm(comparison: SwitchComparison) -> bool:
    from shoal.errors import InputError
    from shoal.views import confirm

    job = comparison.view.job_id
    what = (
        f"shoal did not submit job {job}: its script runs a second time in the same directory, and job {job} is "
        "cancelled when the replacement is healthy"
    )
    if not sys.stdin.isatty():
        raise InputError(what, hint="add --yes to submit the replacement")
    return confirm(f"{what}; submit it?")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 upwards")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not an efficiency, such as 0.8")
    return value
