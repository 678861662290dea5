"""What every run is doing: a line of counts, then the runs that are unfinished or failed.

shoal status                            the whole project
shoal status 001_example --all          one experiment, with completed runs
shoal status last --tasks               the newest experiment, every run on a line of its own
shoal status --state failed --since 2h  what failed lately
shoal status 001_example --group        one row per setting: mean and deviation over seeds
shoal status --sort val_loss            every run, the best first
shoal status -w --exit-status           until all runs have ended
"""

from __future__ import annotations

import argparse
import os

from shoal.cli.options import CAUSE_HELP, add_output, add_profile_flag, refuse_unused_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.views import StatusFilter, TableChoice, TableFlags


def configure(parser: argparse.ArgumentParser) -> None:
    add_filters(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="go on until all runs have ended (as shoal watch)")
    parser.add_argument("--exit-status", action="store_true", help="Exit with 4 if a run failed or was cancelled")


def add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "which", nargs="*", metavar="RUN_OR_EXPERIMENT", help="only these; `last` is the newest experiment"
    )
    parser.add_argument("--all", action="store_true", help="Show completed runs as well")
    parser.add_argument("--tasks", action="store_true", help="a line for every run; nothing is folded")
    parser.add_argument(
        "--state",
        metavar="STATE,...",
        help="Filter by state; active, ended and failed stand for several (failed: also oom, timeout, lost, ...)",
    )
    parser.add_argument("--cause", metavar="CAUSE,...", help=CAUSE_HELP)
    parser.add_argument("--name", metavar="PATTERN", help="only names like this, as in 'lr*'")
    parser.add_argument("--since", metavar="2h", help="only what was submitted, started or ended since, or is active")
    parser.add_argument("--last", type=int, metavar="N", help="only the N submitted last")
    parser.add_argument(
        "--columns", metavar="+gpus,-node", help="Add, remove or list columns; parameters and metrics are columns too"
    )
    parser.add_argument("--sort", metavar="NAME", help="Sort by a metric (best first) or by a parameter")
    parser.add_argument(
        "--group",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="One row per setting: the metric as mean and deviation over seeds",
    )
    parser.add_argument("--reset", action="store_true", help="Forget the columns, sort and groups chosen before")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument(
        "--plain", dest="tty", action="store_false", default=None, help="as in a pipe: tabs, nothing cut"
    )
    forms.add_argument("--tty", action="store_true", default=None, help="as on a terminal, also in a pipe")
    add_profile_flag(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal import api

    refuse_table_flags(args)
    home = api.state_directory()
    if not args.which and not args.json and not args.watch and not api.has_runs():
        print("no runs yet")
        return 0
    if args.watch:
        from shoal.cli.watch import watch_runs

        return watch_runs(args, home)
    return _show_once(args, home)


def _show_once(args: argparse.Namespace, home: str) -> int:
    from shoal import api
    from shoal.views import detect_screen, remember_table, status

    screen = detect_screen(force=args.tty)
    choice = table_choice(args, home, screen.tty)
    everything = shows_everything(args, choice)
    report = api.status(status_filter(args), choice=choice, only_counts_completed=not (everything or args.json))
    status.show_status(
        report,
        as_json=args.json,
        quiet=args.quiet,
        everything=everything,
        tasks=args.tasks,
        choice=choice,
        screen=screen,
    )
    if screen.tty and not args.json and not args.quiet:
        remember_table(home, table_flags(args), report)
    return 4 if args.exit_status and report.has_failed else 0


def refuse_table_flags(args: argparse.Namespace) -> None:
    """Flags about a table, where there is none."""
    flags = ("--columns", "--sort", "--group", "--no-group", "--reset", "--plain", "--tty")
    refuse_unused_flags(args, args.json or args.quiet, "with --json or -q", *flags)


def table_flags(args: argparse.Namespace) -> TableFlags:
    from shoal.views import TableFlags

    return TableFlags(args.columns, args.sort, args.group)


def table_choice(args: argparse.Namespace, home: str, tty: bool) -> TableChoice:
    from shoal.views import choose_table, forget_choice

    if args.reset:
        forget_choice(home)
    return choose_table(home, table_flags(args), os.environ, remembers=tty and not args.json and not args.quiet)


def shows_everything(args: argparse.Namespace, choice: TableChoice) -> bool:
    """Who asks for certain runs, or for an order, wants to see completed ones too."""
    return args.all or bool(args.state or args.cause or args.last or choice.sort or choice.group)


def status_filter(args: argparse.Namespace) -> StatusFilter:
    from shoal.views import StatusFilter

    return StatusFilter(args.which, args.state, args.cause, args.name, args.since, args.last)
