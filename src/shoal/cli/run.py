"""Submit an experiment script, or a folder of them, and follow it to the end.

  shoal run experiments/001_example/000_pretrain_0.sh

Exit code 0 if every run is done, 4 if one failed. Ctrl-C stops the following; runs on Slurm go on.
"""

from __future__ import annotations

import argparse
import os

from shoal.cli import submit
from shoal.cli.options import cluster_for, how_of, project_here, wish_of

configure = submit.configure


def run(args: argparse.Namespace) -> int:
    from shoal.submit.budget import set_limits
    from shoal.submit.scripts import submit_scripts
    from shoal.views.watching import follow_to_end

    project = project_here()
    cluster = cluster_for(project, args.on)
    if args.dry_run:
        return submit.run(args)
    if args.budget:
        set_limits(str(project.home), cluster, args.budget)
    say = submit.teller(args, next_steps=False)
    with say:
        results = submit_scripts(
            args.file,
            project,
            cluster,
            os.environ,
            tell=say,
            follow=not args.quiet,
            wish=wish_of(args),
            how=how_of(args),
            prune=args.prune,
            on=args.on,
        )
        if cluster.is_local or all(result.did == "ran" for result in results):
            return submit.exit_code(results)
        return follow_to_end(str(project.home), results, say, os.environ)
