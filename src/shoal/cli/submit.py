"""Submit batch scripts, a command or experiment files; without Slurm they run here, one after another.

  shoal submit job.sbatch
  shoal submit job.sbatch --time 4h --gpus 2 --set LR=0.1,0.01 -- --epochs 3
  shoal submit --gpus 1 --time 2h --set lr=0.1,0.01 --seeds 0-2 -- python train.py --lr {lr} --seed {seed}
  shoal submit experiments/001_example/000_pretrain_0.sh
  shoal submit experiments/001_example --on local
  shoal submit experiments/001_example/000_pretrain.sh --seeds 0-2
  shoal submit experiments/002_depth/000_train.toml --set lr=0.1,0.01 --set depth=4:80:4
  shoal submit experiments/003_muon/sweep.py --smoke

Batch scripts and commands need no shoal.toml (docs/from-sbatch.md).

An active or completed run is left alone: submitting twice is safe. One that failed is started again: from
its newest checkpoint if its program is known to continue from one, else from the beginning in a new folder; --resume
and --fresh choose, and a terminal is asked. On a terminal, several runs that would go to a cluster are counted first
and sent after a yes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.cli.options import (
    add_command_id,
    add_output,
    add_profile_flag,
    add_sources,
    add_submit_flags,
    add_sweep,
    submit_options,
    sweep_options,
)

if TYPE_CHECKING:
    from shoal.api import SubmitResult
    from shoal.views import SubmitPrinter


def configure(parser: argparse.ArgumentParser) -> None:
    add_sources(parser)
    add_profile_flag(parser)
    add_sweep(parser)
    add_submit_flags(parser)
    parser.add_argument(
        "--budget",
        metavar="jobs=20,gpus=32",
        help="what this project may hold on the cluster from now on; the rest waits",
    )
    parser.add_argument("--prune", action="store_true", help="Cancel active runs that a sweep no longer describes")
    parser.add_argument("--dry-run", action="store_true", help="show what would be submitted, and stop")
    parser.add_argument(
        "--yes", action="store_true", help="Skip all questions; resume even if the program is not known to continue"
    )
    add_command_id(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    if args.dry_run:
        from shoal.cli.plan import run_plan

        return run_plan(args)
    with result_printer(args, ask=not args.yes) as say:
        return exit_code(submit_files(args, say))


def submit_files(args: argparse.Namespace, say: SubmitPrinter) -> list[SubmitResult]:
    """What `submit` and `run` do with their files."""
    from shoal import api

    return api.submit(
        args.file,
        sweep=sweep_options(args),
        options=submit_options(args),
        budget=args.budget,
        on=args.on,
        tell=say,
        command=api.CommandOptions(follow=not args.quiet, prune=args.prune, command_id=args.command_id),
    )


def exit_code(results: Sequence[SubmitResult]) -> int:
    """A single run on this machine lends its exit code; several are 0, or 4 if one failed, or 130 if interrupted. A run
    that is held because of its parent counts as failed."""
    from shoal.model import SUCCESSFUL_STATES

    ran = [result for result in results if result.did == "ran"]
    if any(result.state == "cancelled" for result in ran):
        return 130
    if any(result.did == "held" for result in results):
        return 4
    if len(ran) == 1:
        return ran[0].exit_code or (0 if ran[0].state == "completed" else 4)
    return 4 if any(result.state not in SUCCESSFUL_STATES for result in ran) else 0


def result_printer(args: argparse.Namespace, *, next_steps: bool = True, ask: bool = False) -> SubmitPrinter:
    from shoal.views import SubmitPrinter

    ask = ask and not args.json and not args.quiet and sys.stdin.isatty() and sys.stdout.isatty()
    return SubmitPrinter(as_json=args.json, quiet=args.quiet, next_steps=next_steps, ask=ask)
