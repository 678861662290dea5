"""Show what batch scripts, a command or experiment files would submit: runs, requests, scripts. Changes nothing.

A bash script that sources shoal's functions is executed, with functions that only note how they are called; a Python
file is executed, because it is code. Any other script is not executed.

shoal plan job.sbatch
shoal plan --set lr=0.1,0.01 -- python train.py --lr {lr}
shoal plan experiments/001_example
shoal plan experiments/001_example/000_pretrain_0.sh --script
shoal plan experiments/002_depth/000_train.toml --layouts
"""

from __future__ import annotations

import argparse

from shoal.cli.options import (
    add_output,
    add_profile_flag,
    add_sources,
    add_submit_flags,
    add_sweep,
    pack_flag_names,
    refuse_unused_flags,
    submit_options,
    sweep_options,
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_sources(parser)
    add_profile_flag(parser)
    add_sweep(parser)
    add_submit_flags(parser)
    parser.add_argument(
        "--layouts", action="store_true", help="Compare the cost of all layouts: job per run, array, packs, pilots"
    )
    parser.add_argument(
        "--startup",
        metavar="8m",
        help="With --layouts: time that each allocation needs before its first run (default: 0)",
    )
    parser.add_argument("--script", action="store_true", help="print the batch scripts as well")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    how = (
        "--layout",
        "--resume",
        "--fresh",
        "--max-parallel",
        "--no-snapshot",
        "--force",
        "--smoke",
        "--smoke-here",
    )
    refuse_unused_flags(
        args, args.layouts, "with --layouts, which compares them all", *how, "--script", *pack_flag_names()
    )
    refuse_unused_flags(args, not args.layouts, "without --layouts", "--startup")
    return run_plan(args)


def run_plan(args: argparse.Namespace) -> int:
    """What `submit --dry-run` shows as well."""
    from shoal import api
    from shoal.views import plan

    if getattr(args, "layouts", False):
        return _show_layouts(args)
    report = api.plan(args.file, sweep=sweep_options(args), options=submit_options(args), on=args.on)
    plan.show_plan(
        report,
        as_json=args.json,
        quiet=args.quiet,
        scripts=getattr(args, "script", False),
        of_command=not args.file,
    )
    return 0


def _show_layouts(args: argparse.Namespace) -> int:
    from shoal import api
    from shoal.units import parse_duration_s
    from shoal.views import plan

    startup_s = float(parse_duration_s(args.startup, place="--startup")) if args.startup else 0.0
    comparison = api.compare_layouts(
        args.file, sweep=sweep_options(args), startup_s=startup_s, rerun=args.rerun, on=args.on
    )
    plan.show_layouts(comparison, lambda flags: _submit_line(args, flags), as_json=args.json)
    return 0


def _submit_line(args: argparse.Namespace, flags: str) -> str:
    """The command that submits the same runs with these flags."""
    import shlex

    words = ["shoal", "submit", *map(str, args.file)]
    for flag in ("set", "zip", "seeds", "name", "cpus", "gpu_type", "checkpoint", "on"):
        value = getattr(args, flag, None)
        for one in value if isinstance(value, list) else [] if value is None else [value]:
            words += [f"--{flag.replace('_', '-')}", str(one)]
    words += ["--rerun"] if args.rerun else []
    rest = [*(args.sbatch or ()), *(["--", *args.command] if args.command else [])]
    return " ".join(part for part in (shlex.join(words), flags, shlex.join(rest)) if part)
