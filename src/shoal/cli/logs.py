"""What runs printed, output and errors in order: the newest attempt, or another one; with -f until they end.

shoal logs 000_pretrain_0 -f
shoal logs 001_example/000_pretrain_0 --attempt 1
shoal logs 001_example -n 3            the last lines of every run, with its name before each
shoal logs 004_ddp_0 --rank 3          a rank of a launch; --rank all, --replica 1, --replica 1 --rank all
shoal logs --errors                    what went wrong, once for all runs with the same error
shoal logs 000_pretrain_0 --path
shoal logs 265438 -f                   any job that Slurm knows, also one that shoal did not submit
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shoal.cli.options import add_profile_flag, exit_on_sigterm_for_job, refuse_unused_flags

if TYPE_CHECKING:
    from shoal.views import FoundLogs


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="*", help="a run, several, an experiment, a pattern, or a job id")
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
    add_profile_flag(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="with --errors: names only")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    from shoal import api
    from shoal.views import detect_screen, error_groups

    _refuse_unused_flags(args)
    if args.errors:
        return error_groups.show_errors(api.errors(args.run), detect_screen(), as_json=args.json, quiet=args.quiet)
    if len(args.run) == 1:
        exit_on_sigterm_for_job(args.run[0])
    choice = api.LogChoice(args.replica, args.rank, args.attempt, args.all, args.slurm, strict=not args.follow)
    with api.open_logs(args.run, choice) as found:
        return _show(args, found)


def _show(args: argparse.Namespace, found: FoundLogs) -> int:
    from shoal.views import detect_screen, logs

    if args.json:
        return logs.show_logs_json(found.sources, args.lines)
    paths = [path for source in found.sources for path in source.paths]
    if args.path:
        print("\n".join(paths))
        return 0
    if args.pager and paths:
        return logs.open_pager(paths)
    form = logs.format_for(detect_screen(), lines=args.lines, raw=args.raw)
    if args.follow:
        from shoal.api import observe_and_follow_up
        from shoal.views import follow_output

        return follow_output(found.home, found.sources, form, observe_runs=observe_and_follow_up)
    return logs.show_logs(found.sources, form)


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
