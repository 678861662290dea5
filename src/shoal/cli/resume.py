"""Continue a run from its newest checkpoint, in its own folder, under its own name. Refused when there is none.

A program has to be known to continue: by resume_args or {resume_from} in its step, because one of its files reads
SHOAL_RESUME_FROM, or because an earlier attempt continued. For any other one a terminal is asked; elsewhere it needs
--yes.

shoal resume 000_pretrain_0
shoal resume outputs/training/001_example/000_pretrain_0/20261115_101500 -- --time=1-00:00:00
"""

from __future__ import annotations

import argparse

from shoal.cli.options import add_command_id, add_output, add_profile_flag


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN_OR_DIR")
    parser.add_argument("flags", nargs="*", metavar="-- SBATCH_FLAGS", help="asked for on top of what it had")
    add_profile_flag(parser)
    parser.add_argument(
        "--yes",
        action="store_true",
        help="Resume even if the program is not known to continue; keep a copy of the checkpoint",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what it would continue from, and stop")
    add_command_id(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal import api
    from shoal.cli.submit import exit_code, result_printer

    command = api.CommandOptions(follow=not args.quiet, dry_run=args.dry_run, command_id=args.command_id)
    with result_printer(args, ask=not args.yes) as say:
        return exit_code(api.resume(args.run, args.flags, sure=args.yes, on=args.on, tell=say, command=command))
