"""Find what can go: near-copies of scripts, failed attempts, old logs, old checkpoints, stale snapshots and scratch.

  shoal clean                          what the runs of this project left behind; changes nothing
  shoal clean scripts/                 near-copies among the scripts of a folder as well
  shoal clean --apply                  moves it to backup_<timestamp>/
  shoal clean --undo                   moves the newest backup back
  shoal clean --drop backup_20250101_120000    deletes a backup for good

What an active run uses is never touched; a run whose state is unknown counts as active.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from shoal.cli.options import add_output, refuse_unused_flags


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="*", type=Path, help="folders whose scripts are compared with each other")
    parser.add_argument("--keep", type=int, default=3, metavar="K", help="checkpoints that stay of each run (3)")
    parser.add_argument("--older-than", default="30d", metavar="TIME", help="logs and copies used since stay (30d)")
    parser.add_argument(
        "--only",
        action="append",
        choices=("script", "attempt", "checkpoint", "log", "snapshot", "object", "scratch", "temporary"),
        help="only these",
    )
    parser.add_argument("--apply", action="store_true", help="move what was found to backup_<timestamp>/")
    parser.add_argument("--undo", nargs="?", const="", metavar="BACKUP", help="move a backup, or the newest, back")
    parser.add_argument("--drop", metavar="BACKUP", help="delete a backup for good")
    parser.add_argument("--list", action="store_true", help="list the backups")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal import api
    from shoal.units import parse_duration_s
    from shoal.views import clean as view

    _refuse_flags_without_effect(args)
    if args.list:
        view.show_backups(api.backups(), as_json=args.json)
    elif args.drop is not None:
        view.show_deleted(args.drop, api.delete_backup(args.drop), as_json=args.json)
    elif args.undo is not None:
        restored = api.restore_backup(args.undo)
        view.show_backup(restored.moved, restored.root, "moved back", as_json=args.json)
    else:
        older_than_s = parse_duration_s(args.older_than, place="--older-than")
        found = api.clean(args.folder, keep=args.keep, older_than_s=older_than_s, kinds=args.only, apply=args.apply)
        view.show_items(found.items, found.root, found.moved, as_json=args.json, quiet=args.quiet)
    return 0


def _refuse_flags_without_effect(args: argparse.Namespace) -> None:
    from shoal.errors import InputError

    backups = [flag for flag in ("--list", "--drop", "--undo") if flag in args.given]
    finding = ("--keep", "--older-than", "--only", "--apply")
    refuse_unused_flags(args, bool(backups), f"with {' '.join(backups[:1])}", *finding, *backups[1:])
    if args.folder and (backups or "script" not in (args.only or ["script"])):
        raise InputError(f"{args.folder[0]} has no effect: scripts are not looked at", hint=f"remove {args.folder[0]}")
    refuse_unused_flags(args, "checkpoint" not in (args.only or ["checkpoint"]), "without --only checkpoint", "--keep")
