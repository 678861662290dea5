"""Continue a run from its newest checkpoint, in its own folder, under its own name. Refused when there is none.

A program has to be known to continue: by resume_args or {resume_from} in its step, because one of its files reads
SHOAL_RESUME_FROM, or because an earlier attempt continued. For any other one a terminal is asked; elsewhere it needs
--yes.

shoal resume 000_pretrain_0
shoal resume outputs/training/001_example/000_pretrain_0/20261115_101500 -- --time=1-00:00:00
"""

from __future__ import annotations

import argparse
import os

from shoal.cli.options import add_output, add_profile_flag, add_request, chosen_cluster, current_project


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
    add_request(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal.cli.submit import exit_code, result_printer
    from shoal.describe import resumed_run
    from shoal.submit import SubmitOptions, idempotency, submit_runs

    project = current_project()
    say = result_printer(args, ask=not args.yes)
    asked = resumed_run(args.run, project, args.flags)
    home, name = str(project.home), asked.run.spec.name
    given = idempotency.find_order(home, "resume", [name], (args.on, args.flags), args.request, os.environ)
    with say:
        results = submit_runs(
            [asked],
            project,
            chosen_cluster(project, args.on),
            os.environ,
            tell=say,
            follow=not args.quiet,
            how=SubmitOptions(sure=args.yes),
            dry_run=args.dry_run,
            given=None if args.dry_run else given,
        )
    return exit_code(results)
