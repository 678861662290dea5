"""What every run is doing: a line of counts, then the runs that are unfinished or failed.

shoal status                            the whole project
shoal status 001_example --all          one experiment, with the runs that are done
shoal status last --tasks               the newest experiment, every run on a line of its own
shoal status --state bad --since 2h     what went wrong lately
shoal status -w --exit-status           until all is over
"""

from __future__ import annotations

import argparse
import os
import sys

from shoal.cli.options import add_output, refuse_unused_flags
from shoal.describe import home_here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.describe import ColumnSetting
    from shoal.views import StatusFilter


def configure(parser: argparse.ArgumentParser) -> None:
    add_filters(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="go on until all runs have ended (as shoal watch)")
    parser.add_argument("--exit-status", action="store_true", help="exit with 4 if a run did not end well")


def add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "which", nargs="*", metavar="RUN_OR_EXPERIMENT", help="only these; `last` is the newest experiment"
    )
    parser.add_argument("--all", action="store_true", help="show runs that are done as well")
    parser.add_argument("--tasks", action="store_true", help="a line for every run; nothing is folded")
    parser.add_argument("--state", metavar="STATE,...", help="only these states; also: live, ended, bad")
    parser.add_argument("--name", metavar="PATTERN", help="only names like this, as in 'lr*'")
    parser.add_argument("--since", metavar="2h", help="only what was submitted, started or ended since, or is live")
    parser.add_argument("--last", type=int, metavar="N", help="only the N submitted last")
    parser.add_argument("--columns", metavar="+gpus,-node", help="add, remove or list columns")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument(
        "--plain", dest="tty", action="store_false", default=None, help="as in a pipe: tabs, nothing cut"
    )
    forms.add_argument("--tty", action="store_true", default=None, help="as on a terminal, also in a pipe")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal.observe import run_names

    refuse_table_flags(args)
    home = home_here()
    if not run_names(home) and not args.which and not args.json and not args.watch:
        print("no runs yet")
        return 0
    if args.watch:
        from shoal.cli.watch import watch_runs

        return watch_runs(args, home)
    from shoal.observe import CANCEL_REQUESTED
    from shoal.views import detect_screen, status

    if os.path.isdir(os.path.join(home, "queue")):
        from shoal.submit import admit_waiting  # imported only here: it needs half of shoal

        for name in (name for queue in admit_waiting(home) for name in queue.admitted):
            sys.stderr.write(f"note: submitted {name}, which waited for room under the budget\n")
    report = status.gather_status(home, status_filter(args))
    if any(view.cause == CANCEL_REQUESTED for view in report.views):
        from shoal.submit import cancel_own_jobs

        cancel_own_jobs(home, report.views, os.environ)
    everything = args.all or bool(args.state or args.last)
    status.show_status(
        report,
        as_json=args.json,
        quiet=args.quiet,
        everything=everything,
        tasks=args.tasks,
        columns=chosen_columns(args),
        screen=detect_screen(force=args.tty),
    )
    from shoal.model import ENDED_STATES, SUCCESSFUL_STATES

    bad = any(view.state in ENDED_STATES - SUCCESSFUL_STATES for view in report.views)
    return 4 if args.exit_status and bad else 0


def refuse_table_flags(args: argparse.Namespace) -> None:
    """Flags about a table, where there is none."""
    refuse_unused_flags(args, args.json or args.quiet, "with --json or -q", "--columns", "--plain", "--tty")


def chosen_columns(args: argparse.Namespace) -> list[ColumnSetting]:
    """What the settings say about columns, and then the command line."""
    from shoal.describe import ColumnSetting, find_root, saved_columns

    said = saved_columns(find_root(os.getcwd()), os.environ)
    return [*said, ColumnSetting(args.columns, "--columns")] if args.columns else said


def status_filter(args: argparse.Namespace) -> StatusFilter:
    from shoal.views import StatusFilter

    return StatusFilter(args.which, args.state, args.name, args.since, args.last)
