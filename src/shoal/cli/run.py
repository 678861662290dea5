"""Submit batch scripts, a command or experiment files, and follow the runs to their end.

  shoal run --gpus 1 --time 2h -- python train.py --lr 0.1
  shoal run job.sbatch
  shoal run experiments/001_example/000_pretrain_0.sh
  shoal run experiments/002_depth --on local && shoal report 002_depth

Exit code 0 if every run completed, 4 if one failed. Ctrl-C stops the following; runs on Slurm go on.
"""

from __future__ import annotations

import argparse
import os

from shoal.cli import submit

configure = submit.configure


def run(args: argparse.Namespace) -> int:
    from shoal import api
    from shoal.views import follow_to_end

    if args.dry_run:
        return submit.run(args)
    with submit.result_printer(args, next_steps=False, ask=not args.yes) as say:
        results = submit.submit_files(args, say)
        say.submission_is_complete()
        if any(result.did == "ran" for result in results):
            return submit.exit_code(results)
        return follow_to_end(api.state_directory(), results, say, os.environ, observe_runs=api.observe_and_follow_up)
