"""Run many commands of different length in one allocation, a few at a time, longest first, with no idle slot.

  shoal pack --slots 4 --set depth=4:80:4 --cost depth -- python train.py --depth {depth}
  shoal pack --slots 4 --gpus-per-run 0.25 --preload torch --set lr=0.1,0.01 -- python train.py --lr {lr}
  shoal pack --slots 8 commands.txt
  shoal pack --on slurm --gpus 4 --set seed=0:99:1 -- python train.py --seed {seed}

Here, or as one Slurm job (--on; --pilots K for several small ones). Each command is a run: it has a name, a folder, a
log and an end, `shoal status` shows it, and the same command line run again continues with what is not done. Ctrl-C
once lets running ones finish, twice stops them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from shoal.cli.options import (
    add_output,
    add_pack_flags,
    add_profile_flag,
    add_request,
    add_sweep,
    chosen_cluster,
    pack_options,
    refuse_unused_flags,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.views import Format


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="FILE | -- COMMAND", help="a file of commands, or one with {names}")
    add_profile_flag(parser)
    add_sweep(parser)
    parser.add_argument("--cost", metavar="EXPR", help="relative duration, such as depth or depth*width")
    parser.add_argument("--name", metavar="NAME", help="what the runs belong to (default: pack_ and the script's name)")
    parser.add_argument("--again", action="store_true", help="start over what is done; old results stay")
    parser.add_argument("--dry-run", action="store_true", help="show the runs and the order, and stop")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table there as well")
    for form in ("png", "pdf", "svg"):
        parser.add_argument(
            f"--{form}", type=Path, metavar="FILE", help=f"draw the timeline as {form.upper()} (needs shoal[plots])"
        )
    add_pack_flags(parser)
    add_request(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal.describe import project_or_bare
    from shoal.submit import submit_pack

    pictures: dict[Format, Path | None] = {"png": args.png, "pdf": args.pdf, "svg": args.svg}
    flag = next((f"--{form}" for form, path in pictures.items() if path), None)
    if flag:
        from shoal.views import need_matplotlib

        need_matplotlib(flag)
    project = project_or_bare(Path.cwd(), os.environ)
    cluster = chosen_cluster(project, args.on or (None if args.gpus or args.pilots or args.nodes else "local"))
    where = "on a pack that is submitted; when it is done: shoal report EXPERIMENT"
    refuse_unused_flags(args, not cluster.is_local, where, "--csv", "--png", "--pdf", "--svg")
    packed = submit_pack(
        args.words,
        project,
        cluster,
        os.environ,
        sweep=(args.set, args.zip, args.seeds),
        options=pack_options(args),
        cost=args.cost,
        name=args.name,
        again=args.again,
        dry_run=args.dry_run,
        follow=not args.quiet and not args.json,
        note=_ignore_note if args.quiet or args.json else _print_note,
        request_id=args.request,
    )
    from shoal.views import pack  # only now: the first run was not to wait for it

    pack.show_pack(packed, as_json=args.json, quiet=args.quiet, csv=args.csv, pictures=pictures)
    return packed.exit_code


def _print_note(text: str) -> None:
    sys.stderr.write(f"note: {text}\n")


def _ignore_note(text: str) -> None:
    """With --json and -q nothing but the answer is printed."""
