"""Why a run waits, or what it died of: the reason in a sentence, what it rests on, and the next command.

shoal why 000_pretrain_0
shoal why 001_example/000_pretrain_0 --json
"""

from __future__ import annotations

import argparse
import os

from shoal.cli.options import add_output
from shoal.describe import home_here


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal.describe import find_run
    from shoal.views import detect_screen, why

    home = home_here()
    return why.show_explanation(
        why.explain_run(home, find_run(home, args.run), os.environ),
        detect_screen(),
        as_json=args.json,
        quiet=args.quiet,
    )
