"""Show what an experiment would submit: runs, requests, shapes and scripts. Changes nothing.

shoal plan experiments/001_example
shoal plan experiments/001_example/000_pretrain_0.sh --script
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.options import add_output, add_sweep, add_where, cluster_for, project_here, wish_of

if TYPE_CHECKING:
    from shoal.config.cluster import Cluster
    from shoal.config.project import Project


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="+", type=Path, help="an experiment (.sh, .toml, .py), or a folder of them")
    add_where(parser)
    add_sweep(parser)
    parser.add_argument("--shape", choices=("auto", "job", "array"), default="auto", help="one job each, or an array")
    parser.add_argument("--again", action="store_true", help="as if runs that are done were to be started over")
    parser.add_argument("--script", action="store_true", help="print the batch scripts as well")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    project = project_here()
    return show_plan(args, project, cluster_for(project, args.on))


def show_plan(args: argparse.Namespace, project: Project, cluster: Cluster) -> int:
    from shoal.submit.orders import prepare
    from shoal.submit.scripts import read_scripts
    from shoal.views import plan

    asked, waiting, _ = read_scripts(args.file, project, os.environ, wish_of(args))
    order = prepare(asked, project, cluster, os.environ, shape=args.shape, again=args.again)
    plan.show(
        order,
        asked,
        waiting,
        project,
        cluster,
        as_json=args.json,
        quiet=args.quiet,
        scripts=getattr(args, "script", False),
    )
    return 0
