"""What every run is doing: a line of counts, then the runs that are unfinished or failed.

shoal status                       the whole project
shoal status 001_example --all     one experiment, with the runs that are done
shoal status --state failed,oom --json
"""

from __future__ import annotations

import argparse

from shoal.cli.options import add_output, home_here


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", nargs="*", metavar="RUN_OR_EXPERIMENT", help="only these")
    parser.add_argument("--all", action="store_true", help="show runs that are done as well")
    parser.add_argument("--state", metavar="STATE,...", help="only runs in one of these states")
    add_output(parser)


def run(args: argparse.Namespace) -> None:
    from shoal.store.listing import run_names

    home = home_here()
    if not run_names(home) and not args.which and not args.json:
        print("no runs yet")
        return
    from shoal.views import status

    report = status.gather(home, args.which, args.state)
    status.show(report, as_json=args.json, quiet=args.quiet, everything=args.all or bool(args.state))
