"""Stop runs that are waiting, pending or running. What they wrote stays; they can be resumed or submitted again.

shoal cancel 000_pretrain_0
shoal cancel 001_example --yes      every active run of an experiment
"""

from __future__ import annotations

import argparse
import sys

from shoal.cli.options import add_command_id, add_output, add_profile_flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.api import CancelReport, RunView


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", nargs="+", metavar="RUN_OR_EXPERIMENT")
    parser.add_argument("--yes", action="store_true", help="do not ask, even when it is several runs or an adopted job")
    parser.add_argument("--dry-run", action="store_true", help="show what would be cancelled, and stop")
    add_profile_flag(parser)
    add_command_id(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal import api

    agrees = None if args.yes else _confirm_cancel
    report = api.cancel(args.which, agrees=agrees, dry_run=args.dry_run, command_id=args.command_id)
    _show_cancelled(args, report)
    return 0


def _confirm_cancel(views: Sequence[RunView]) -> bool:
    from shoal.errors import InputError
    from shoal.views import confirm, count_states

    counts = " and ".join(f"{count:,} {state}" for state, count in count_states(views).items())
    experiments = sorted({view.experiment for view in views})
    where = experiments[0] if len(experiments) == 1 else f"{len(experiments)} experiments"
    adopted = [view.job_id or view.name for view in views if view.adopted]
    if len(adopted) == len(views) == 1:
        counts, where = f"job {adopted[0]}", "which shoal did not submit"
        if not sys.stdin.isatty():
            raise InputError(f"this would cancel {counts}, {where}", hint="add --yes to cancel it")
        return confirm(f"cancel {counts}, {where}?")
    where += f", {len(adopted)} of them jobs that shoal did not submit" if adopted else ""
    if not sys.stdin.isatty():
        raise InputError(f"this would cancel {counts} runs of {where}", hint="add --yes to cancel them all")
    return confirm(f"cancel {counts} runs of {where}?")


def _show_cancelled(args: argparse.Namespace, report: CancelReport) -> None:
    if args.json:
        from shoal.views import print_json

        print_json({"runs": [one._asdict() for one in report.runs]})
        return
    for one in report.runs:
        word = "cancelled" if one.cancelled else "would cancel" if args.dry_run else "left alone"
        job = f", job {one.job_id}" if one.job_id else ""
        print(one.name if args.quiet else f"{word} {one.name} ({one.state}{job})")
    if args.quiet:
        return
    if report.users:
        count = sum(one.ends_itself for one in report.runs)
        users = ", ".join(report.users)
        print(f"{count} of these jobs belong to {users}: each stops at its next heartbeat, or when it starts")
    if not report.runs:
        print("nothing to cancel: none of these runs is active")
