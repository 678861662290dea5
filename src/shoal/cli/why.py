"""Why a run waits, or what it died of: the reason in a sentence, what it rests on, and the next command.

shoal why 000_pretrain_0
shoal why 001_example/000_pretrain_0 --json
shoal why 265438                          any job that Slurm knows, also one that shoal did not submit
"""

from __future__ import annotations

import argparse

from shoal.cli.options import add_output, add_profile_flag, exit_on_sigterm_for_job


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN|JOB_ID")
    add_profile_flag(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal import api
    from shoal.views import detect_screen, why

    exit_on_sigterm_for_job(args.run)
    return why.show_explanation(api.why(args.run), detect_screen(), as_json=args.json, quiet=args.quiet)
