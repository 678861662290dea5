"""Show what an experiment would submit: runs, requests, shapes and scripts. Submits and changes nothing.

A bash script that sources shoal's functions is executed, with functions that only note how they are called; a Python
file is executed, because it is code. Any other script is not executed.

shoal plan experiments/001_example
shoal plan experiments/001_example/000_pretrain_0.sh --script
shoal plan experiments/002_depth/000_train.toml --shapes
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.options import (
    add_output,
    add_profile_flag,
    add_submit_flags,
    add_sweep,
    chosen_cluster,
    current_project,
    pack_flag_names,
    refuse_unused_flags,
    submit_options,
    sweep_options,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.describe import Cluster, Project, RequestedRun


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="+", type=Path, help="an experiment (.sh, .toml, .py), or a folder of them")
    add_profile_flag(parser)
    add_sweep(parser)
    add_submit_flags(parser)
    parser.add_argument("--shapes", action="store_true", help="compare job each, array, packs and pilots; and stop")
    parser.add_argument("--startup", metavar="8m", help="with --shapes: what each allocation pays before its first run")
    parser.add_argument("--script", action="store_true", help="print the batch scripts as well")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    how = (
        "--shape",
        "--again",
        "--resume",
        "--fresh",
        "--at-once",
        "--no-snapshot",
        "--force",
        "--smoke",
        "--smoke-here",
    )
    refuse_unused_flags(
        args, args.shapes, "with --shapes, which compares them all", *how, "--script", *pack_flag_names()
    )
    refuse_unused_flags(args, not args.shapes, "without --shapes", "--startup")
    return run_plan(args)


def run_plan(args: argparse.Namespace) -> int:
    """What `submit --dry-run` shows as well."""
    from shoal.submit import cluster_of_scripts, prepare_submission, read_scripts, removed_runs
    from shoal.views import plan

    project = current_project()
    asked, grown = read_scripts(args.file, project, os.environ, sweep_options(args))
    cluster = cluster_of_scripts(asked, project, chosen_cluster(project, args.on), os.environ, args.on)
    if getattr(args, "shapes", False):
        return show_layouts(args, asked, project, cluster)
    order = prepare_submission(asked, project, cluster, os.environ, submit_options(args))
    gone = removed_runs(str(project.home), grown, [one.run.spec.name for one in asked], os.environ)
    scripts = getattr(args, "script", False)
    plan.show_plan(order, asked, project, cluster, gone=gone, as_json=args.json, quiet=args.quiet, scripts=scripts)
    return 0


def show_layouts(args: argparse.Namespace, asked: Sequence[RequestedRun], project: Project, cluster: Cluster) -> int:
    from shoal.submit import compare_layouts_of
    from shoal.units import parse_duration_s
    from shoal.views import plan

    startup_s = float(parse_duration_s(args.startup, place="--startup")) if args.startup else 0.0
    comparison = compare_layouts_of(asked, project, cluster, os.environ, startup_s=startup_s)
    plan.show_layouts(comparison, len(asked), as_json=args.json, per_node=cluster.gpus_per_node)
    return 0
