"""What a run printed: its newest attempt, or another one; with -f until the run ends.

shoal logs 000_pretrain_0 -f
shoal logs 001_example/000_pretrain_0 --attempt 1 --err
shoal logs 000_pretrain_0 --path
"""

from __future__ import annotations

import argparse

from shoal.cli.options import home_here


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("-n", "--lines", type=int, default=200, help="how many of the last lines (default 200; 0: all)")
    parser.add_argument("--err", action="store_true", help="standard error instead of standard output")
    parser.add_argument("--attempt", type=int, help="this attempt instead of the newest")
    parser.add_argument("--slurm", action="store_true", help="what Slurm and the cluster's set-up lines printed")
    parser.add_argument("--path", action="store_true", help="print the file's path instead of its content")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    from shoal.plan.inputs import find_run
    from shoal.views import logs

    home = home_here()
    source = logs.find(home, find_run(home, args.run), attempt=args.attempt, err=args.err, slurm=args.slurm)
    if args.json:
        return logs.show_json(source, args.lines)
    if args.path:
        print("\n".join(source.paths))
        return 0
    return logs.follow(home, source, args.lines) if args.follow else logs.show(source, args.lines)
