"""Submit an experiment script, or every script of a folder in order; on this machine they run here, one after another.

  shoal submit experiments/001_example/000_pretrain_0.sh
  shoal submit experiments/001_example --on local
  shoal submit experiments/001_example/000_pretrain.sh --seeds 0-2
  shoal submit experiments/002_depth/000_train.toml --set lr=0.1,0.01 --set depth=4:80:4
  shoal submit experiments/003_muon/sweep.py --smoke

A run that is queued, running or done is left alone: submitting twice is safe. One that failed is started again: from
its newest checkpoint if its program is known to continue from one, else from the beginning in a new folder; --resume
and --fresh choose, and a terminal is asked. On a terminal, several runs that would go to a cluster are counted first
and sent after a yes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.options import (
    add_output,
    add_profile_flag,
    add_request,
    add_submit_flags,
    add_sweep,
    chosen_cluster,
    current_project,
    submit_options,
    sweep_options,
)

if TYPE_CHECKING:
    from shoal.describe import StepCall
    from shoal.submit import SubmitResult
    from shoal.views import SubmitPrinter


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="+", type=Path, help="an experiment (.sh, .toml, .py), or a folder of them")
    add_profile_flag(parser)
    add_sweep(parser)
    add_submit_flags(parser)
    parser.add_argument(
        "--budget",
        metavar="jobs=20,gpus=32",
        help="what this project may hold on the cluster from now on; the rest waits",
    )
    parser.add_argument("--prune", action="store_true", help="cancel live runs that a sweep no longer describes")
    parser.add_argument("--dry-run", action="store_true", help="show what would be submitted, and stop")
    parser.add_argument(
        "--yes", action="store_true", help="Skip all questions; resume even if the program is not known to continue"
    )
    add_request(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    if args.dry_run:
        from shoal.cli.plan import run_plan

        return run_plan(args)
    with result_printer(args, ask=not args.yes) as say:
        return exit_code(submit_files(args, say))


def submit_files(args: argparse.Namespace, say: SubmitPrinter) -> list[SubmitResult]:
    """What `submit` and `run` do with their files."""
    from shoal.observe import open_state_dir
    from shoal.submit import set_limits, submit_scripts

    project = current_project()
    cluster = chosen_cluster(project, args.on)
    if args.budget:
        set_limits(open_state_dir(project.home, project.shared_by), cluster, args.budget)
    return submit_scripts(
        args.file,
        project,
        cluster,
        os.environ,
        tell=say,
        follow=not args.quiet,
        wish=sweep_options(args),
        how=submit_options(args),
        prune=args.prune,
        on=args.on,
        request_id=args.request,
    )


def submit_calls(calls: Sequence[StepCall], *, secret: Sequence[str] = ()) -> int:
    """One call of a step function in a script that a person runs with bash."""
    from shoal.describe import find_project
    from shoal.submit import submit_call

    project = find_project(Path(calls[0].script).parent, os.environ)
    with result_printer(argparse.Namespace(json=False, quiet=False)) as say:
        results = submit_call(calls, project, os.environ, secret=secret, tell=say)
    return exit_code(results)


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
        return ran[0].exit_code or (0 if ran[0].state == "done" else 4)
    return 4 if any(result.state not in SUCCESSFUL_STATES for result in ran) else 0


def result_printer(args: argparse.Namespace, *, next_steps: bool = True, ask: bool = False) -> SubmitPrinter:
    from shoal.views import SubmitPrinter

    ask = ask and not args.json and not args.quiet and sys.stdin.isatty() and sys.stdout.isatty()
    return SubmitPrinter(as_json=args.json, quiet=args.quiet, next_steps=next_steps, ask=ask)
