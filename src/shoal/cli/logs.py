"""What runs printed, output and errors in order: the newest attempt, or another one; with -f until they end.

shoal logs 000_pretrain_0 -f
shoal logs 001_example/000_pretrain_0 --attempt 1
shoal logs 001_example -n 3            the last lines of every run, with its name before each
shoal logs 004_ddp_0 --rank 3          a rank of a launch; --rank all, --replica 1, --replica 1 --rank all
shoal logs --errors                    what went wrong, once for all runs with the same error
shoal logs 000_pretrain_0 --path
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shoal.cli.options import refuse_unused_flags
from shoal.describe import home_here

if TYPE_CHECKING:
    from shoal.views import logs


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="*", help="a run, several, an experiment, or a pattern")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the runs end")
    parser.add_argument("-n", "--lines", type=int, default=200, help="how many of the last lines (default 200; 0: all)")
    parser.add_argument("--rank", type=_rank_number, metavar="N", help="this rank instead of rank 0, or all")
    parser.add_argument("--replica", type=_rank_number, metavar="N", help="this replica instead of all of them")
    parser.add_argument("--attempt", type=int, help="this attempt instead of the newest")
    parser.add_argument("--all", action="store_true", help="every attempt, oldest first")
    parser.add_argument("--errors", action="store_true", help="errors of failed runs, equal ones together")
    parser.add_argument("--slurm", action="store_true", help="what Slurm and the cluster's set-up lines printed")
    parser.add_argument("--path", action="store_true", help="print the file's path instead of its content")
    parser.add_argument("--pager", action="store_true", help="open it at its end in $PAGER")
    parser.add_argument("--raw", action="store_true", help="as it was written: progress bars and escapes stay")
    parser.add_argument("-q", "--quiet", action="store_true", help="with --errors: names only")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    from shoal.errors import InputError
    from shoal.views import detect_screen, error_groups, logs, select_runs

    _refuse_unused_flags(args)
    home = home_here()
    if args.errors:
        return error_groups.show_errors(
            error_groups.group_errors(home, select_runs(home, args.run)),
            detect_screen(),
            as_json=args.json,
            quiet=args.quiet,
        )
    if not args.run:
        raise InputError("which run?", hint="shoal logs RUN   # or shoal logs --errors for all that failed")
    sources = [source for name in select_runs(home, args.run) for source in _sources(home, name, args)]
    if args.json:
        return logs.show_logs_json(sources, args.lines)
    paths = [path for source in sources for path in source.paths]
    if args.path:
        print("\n".join(paths))
        return 0
    if args.pager and paths:
        return logs.open_pager(paths)
    form = logs.format_for(detect_screen(), lines=args.lines, raw=args.raw)
    if args.follow:
        from shoal.views import follow_output

        return follow_output(home, sources, form)
    return logs.show_logs(sources, form)


def _sources(home: str, run: str, args: argparse.Namespace) -> list[logs.LogSource]:
    from shoal.views import RankSelection, logs

    pick = RankSelection(args.replica, args.rank)
    if args.slurm or (args.all and pick == RankSelection()):
        return [logs.find_logs(home, run, slurm=args.slurm, every=args.all)]
    return logs.find_rank_logs(home, run, pick, attempt=args.attempt, every=args.all, strict=not args.follow)


def _refuse_unused_flags(args: argparse.Namespace) -> None:
    which = ("--rank", "--replica", "--attempt", "--err", "--both")
    form = ("--follow", "--raw", "--pager", "--lines")
    refuse_unused_flags(args, args.errors, "with --errors", *which, *form, "--all", "--slurm", "--path")
    refuse_unused_flags(args, not args.errors, "without --errors", "--quiet")
    refuse_unused_flags(args, args.slurm, "with --slurm", *which, "--all")
    refuse_unused_flags(args, args.all, "with --all", "--attempt")
    refuse_unused_flags(args, args.json, "with --json", *form[:3], "--path")
    refuse_unused_flags(args, args.path, "with --path", *form)
    refuse_unused_flags(args, args.pager, "with --pager", "--follow", "--raw", "--lines")


def _rank_number(text: str) -> int | str:
    if text != "all" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor all")
    return text if text == "all" else int(text)
