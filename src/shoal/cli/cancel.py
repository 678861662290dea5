"""Stop runs that are queued or running. What they wrote stays; they can be resumed or submitted again.

shoal cancel 000_pretrain_0
shoal cancel 001_example --yes      every live run of an experiment
"""

from __future__ import annotations

import argparse
import os
import sys

from shoal.cli.options import add_output, add_request
from shoal.describe import home_here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.observe import RunView
    from shoal.submit import CancelResult


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", nargs="+", metavar="RUN_OR_EXPERIMENT")
    parser.add_argument("--yes", action="store_true", help="do not ask, even when it is several runs")
    parser.add_argument("--dry-run", action="store_true", help="show what would be cancelled, and stop")
    add_request(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal.submit import admit_waiting, cancel
    from shoal.views import select_runs

    home = home_here()
    views = cancel.active_runs(home, select_runs(home, args.which))
    if args.dry_run or not views or (len(views) > 1 and not args.yes and not _confirm_cancel(views)):
        cancelled = cancel.CancelResult([], {})
    else:
        cancelled = cancel.cancel_runs(home, views, os.environ, args.request)
        admit_waiting(home)
    _show_cancelled(args, views, cancelled)
    return 0


def _confirm_cancel(views: list[RunView]) -> bool:
    from shoal.errors import InputError
    from shoal.views import confirm, count_states

    counts = " and ".join(f"{count:,} {state}" for state, count in count_states(views).items())
    experiments = sorted({view.experiment for view in views})
    where = experiments[0] if len(experiments) == 1 else f"{len(experiments)} experiments"
    if not sys.stdin.isatty():
        raise InputError(f"this would cancel {counts} runs of {where}", hint="add --yes to cancel them all")
    return confirm(f"cancel {counts} runs of {where}?")


def _show_cancelled(args: argparse.Namespace, views: list[RunView], cancelled: CancelResult) -> None:
    from shoal.views import print_json

    if args.json:
        print_json(
            {
                "runs": [
                    {
                        "name": view.name,
                        "state": view.state,
                        "job_id": view.job_id,
                        "cancelled": view.name in cancelled.names,
                        "ends_itself": view.name in cancelled.end_themselves,
                    }
                    for view in views
                ]
            }
        )
        return
    for view in views:
        word = "cancelled" if view.name in cancelled.names else "would cancel" if args.dry_run else "left alone"
        print(view.name if args.quiet else f"{word} {view.name} ({view.state}{_job_text(view.job_id)})")
    if cancelled.end_themselves and not args.quiet:
        users = ", ".join(sorted(set(cancelled.end_themselves.values())))
        count = len(cancelled.end_themselves)
        print(f"{count} of these jobs belong to {users}: each stops at its next heartbeat, or when it starts")
    if not views and not args.quiet:
        print("nothing to cancel: none of these runs is queued or running")


def _job_text(job_id: str | None) -> str:
    return f", job {job_id}" if job_id else ""
