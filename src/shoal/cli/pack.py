"""Run many commands of different length in one allocation, a few at a time, longest first, with no idle slot.

  shoal pack --slots 4 --set depth=4:80:4 --cost depth -- python train.py --depth {depth}
  shoal pack --slots 4 --gpus-per-run 0.25 --preload torch --set lr=0.1,0.01 -- python train.py --lr {lr}
  shoal pack --slots 8 commands.txt
  shoal pack --on slurm --gpus 4 --set seed=0:99:1 -- python train.py --seed {seed}

Here, or as one Slurm job (--on; --pilots K for several small ones). Each command is a run: it has a name, a folder, a
log and an end, and `shoal status` shows it. The same command line again continues with runs that have not completed.
Ctrl-C once lets running ones finish, twice stops them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from shoal.cli.options import (
    add_command_id,
    add_output,
    add_pack_flags,
    add_profile_flag,
    add_sweep,
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
    parser.add_argument("--rerun", action="store_true", help="Run completed runs again in a new output directory")
    parser.add_argument("--dry-run", action="store_true", help="Show the runs and their order without starting them")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table there as well")
    for form in ("png", "pdf", "svg"):
        parser.add_argument(
            f"--{form}", type=Path, metavar="FILE", help=f"draw the timeline as {form.upper()} (needs shoal[plots])"
        )
    add_pack_flags(parser)
    add_command_id(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal import api

    pictures: dict[Format, Path | None] = {"png": args.png, "pdf": args.pdf, "svg": args.svg}
    flag = next((f"--{form}" for form, path in pictures.items() if path), None)
    if flag:
        from shoal.views import need_matplotlib

        need_matplotlib(flag)
    options = pack_options(args)
    target = api.pack_target(options, on=args.on)
    where = "on a pack that is submitted; when it has ended: shoal report EXPERIMENT"
    refuse_unused_flags(args, not target.cluster.is_local, where, "--csv", "--png", "--pdf", "--svg")
    quiet = args.quiet or args.json
    commands = api.PackCommand(args.words, (args.set, args.zip, args.seeds), options, args.cost, args.name, args.rerun)
    command = api.CommandOptions(follow=not quiet, dry_run=args.dry_run, command_id=args.command_id)
    packed = api.pack(commands, target, note=_ignore_note if quiet else _print_note, command=command)
    from shoal.views import pack  # only now: the first run was not to wait for it

    pack.show_pack(packed, as_json=args.json, quiet=args.quiet, csv=args.csv, pictures=pictures)
    return packed.exit_code


def _print_note(text: str) -> None:
    sys.stderr.write(f"note: {text}\n")


def _ignore_note(text: str) -> None:
    """With --json and -q nothing but the answer is printed."""
