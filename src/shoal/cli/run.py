"""Submit an experiment script, or a folder of them, and follow it to the end.

  shoal run experiments/001_example/000_pretrain_0.sh
  shoal run experiments/002_depth --on local && shoal report 002_depth

Exit code 0 if every run is done, 4 if one failed. Ctrl-C stops the following; runs on Slurm go on.
"""

from __future__ import annotations

import argparse
import os

from shoal.cli import submit
from shoal.describe import home_here

configure = submit.configure


def run(args: argparse.Namespace) -> int:
    from shoal.views import follow_to_end

    if args.dry_run:
        return submit.run(args)
    with submit.result_printer(args, next_steps=False, ask=not args.yes) as say:
        results = submit.submit_files(args, say)
        say.submission_is_complete()
        if any(result.did == "ran" for result in results):
            return submit.exit_code(results)
        return follow_to_end(home_here(), results, say, os.environ)
