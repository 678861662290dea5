"""Start failed runs again: from their newest checkpoint, with other resources if asked.

A run without a checkpoint, and one whose program is not known to continue from it, starts over in a new folder.

shoal retry 002_depth                          every run that failed, ran out of memory or time, or was lost
shoal retry --state failed,cancelled --dry-run
shoal retry --cause oom --mem x2
shoal retry --cause node_fail,lost
"""

from __future__ import annotations

import argparse

from shoal.cli.options import CAUSE_HELP, add_command_id, add_output, add_profile_flag


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", nargs="*", metavar="RUN_OR_EXPERIMENT", help="only these")
    parser.add_argument(
        "--state", metavar="STATE,...", help="Filter by state; failed is every failed state (default: failed)"
    )
    parser.add_argument("--cause", metavar="CAUSE,...", help=CAUSE_HELP)
    parser.add_argument("--mem", metavar="x2|64G", help="more memory than before, or this much")
    parser.add_argument("--time", metavar="x2|4h", help="more time than before, or this much")
    parser.add_argument(
        "--exclude-nodes", action="store_true", help="not on the node where it ended (failed ones are avoided anyway)"
    )
    parser.add_argument("--fresh", action="store_true", help="from the beginning, in a new folder")
    parser.add_argument("--dry-run", action="store_true", help="show what would be started, and stop")
    add_profile_flag(parser)
    add_command_id(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal import api
    from shoal.cli.submit import exit_code, result_printer

    change = api.RetryChange(args.mem, args.time, args.exclude_nodes, args.fresh)
    command = api.CommandOptions(follow=not args.quiet, dry_run=args.dry_run, command_id=args.command_id)
    with result_printer(args) as say:
        return exit_code(
            api.retry(
                args.which,
                states=args.state,
                causes=args.cause,
                change=change,
                on=args.on,
                tell=say,
                command=command,
            )
        )
