"""Show what an experiment would submit: runs, requests, shapes and scripts. Changes nothing.

shoal plan experiments/001_example
shoal plan experiments/001_example/000_pretrain_0.sh --script
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.options import add_how, add_output, add_sweep, add_where, cluster_for, how_of, project_here, wish_of

if TYPE_CHECKING:
    from shoal.config.cluster import Cluster
    from shoal.config.project import Project


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="+", type=Path, help="an experiment (.sh, .toml, .py), or a folder of them")
    add_where(parser)
    add_sweep(parser)
    add_how(parser)
    parser.add_argument("--script", action="store_true", help="print the batch scripts as well")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    project = project_here()
    return show_plan(args, project, cluster_for(project, args.on))


def show_plan(args: argparse.Namespace, project: Project, cluster: Cluster) -> int:
    from shoal.submit.orders import prepare
    from shoal.submit.pruning import removed
    from shoal.submit.scripts import read_scripts, where
    from shoal.views import plan

    asked, waiting, grown = read_scripts(args.file, project, os.environ, wish_of(args))
    cluster = where(asked, project, cluster, os.environ, args.on)
    how = how_of(args)
    order = prepare(
        asked,
        project,
        cluster,
        os.environ,
        shape=how.shape,
        again=how.again,
        at_once=how.at_once,
        pack=how.pack,
        force=how.force,
    )
    gone = removed(str(project.home), grown, [one.run.spec.name for one in asked], os.environ)
    plan.show(
        order,
        asked,
        waiting,
        project,
        cluster,
        gone=gone,
        as_json=args.json,
        quiet=args.quiet,
        scripts=getattr(args, "script", False),
    )
    return 0
