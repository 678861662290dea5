"""Find what can go: near-copies of scripts, dead tries, old logs, old checkpoints, stale snapshots and scratch.

  shoal clean                          what the runs of this project left behind; changes nothing
  shoal clean scripts/                 near-copies among the scripts of a folder as well
  shoal clean --apply                  moves it to backup_<timestamp>/
  shoal clean --undo                   moves the newest backup back
  shoal clean --drop backup_20250101_120000    deletes a backup for good

What a live run uses is never touched; a run whose state is not known counts as live.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.options import add_output, current_project, refuse_unused_flags

if TYPE_CHECKING:
    from shoal.cleanup import CleanupItem
    from shoal.describe import Project


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="*", type=Path, help="folders whose scripts are compared with each other")
    parser.add_argument("--keep", type=int, default=3, metavar="K", help="checkpoints that stay of each run (3)")
    parser.add_argument("--older-than", default="30d", metavar="TIME", help="logs and copies used since stay (30d)")
    parser.add_argument(
        "--only",
        action="append",
        choices=("script", "attempt", "checkpoint", "log", "snapshot", "scratch", "temporary"),
        help="only these",
    )
    parser.add_argument("--apply", action="store_true", help="move what was found to backup_<timestamp>/")
    parser.add_argument("--undo", nargs="?", const="", metavar="BACKUP", help="move a backup, or the newest, back")
    parser.add_argument("--drop", metavar="BACKUP", help="delete a backup for good")
    parser.add_argument("--list", action="store_true", help="list the backups")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    from shoal.cleanup import backup
    from shoal.errors import InputError
    from shoal.views import clean as view

    backups = [flag for flag in ("--list", "--drop", "--undo") if flag in args.given]
    finding = ("--keep", "--older-than", "--only", "--apply")
    refuse_unused_flags(args, bool(backups), f"with {' '.join(backups[:1])}", *finding, *backups[1:])
    if args.folder and (backups or "script" not in (args.only or ["script"])):
        raise InputError(f"{args.folder[0]} has no effect: scripts are not looked at", hint=f"remove {args.folder[0]}")
    refuse_unused_flags(args, "checkpoint" not in (args.only or ["checkpoint"]), "without --only checkpoint", "--keep")
    project = current_project()
    root = Path(project.root)
    if args.list:
        view.show_backups(backup.list_backups(root), as_json=args.json)
    elif args.drop is not None:
        view.show_deleted(args.drop, backup.delete_backup(root / args.drop), as_json=args.json)
    elif args.undo is not None:
        view.show_backup(backup.restore_backup(root, _backup(root, args.undo)), root, "moved back", as_json=args.json)
    else:
        items = _find(args, project)
        stamp = time.strftime("%Y%m%d_%H%M%S")
        moved = backup.move_to_backup(root, items, stamp) if args.apply and items else None
        view.show_items(items, root, moved, as_json=args.json, quiet=args.quiet)
    return 0


def _find(args: argparse.Namespace, project: Project) -> list[CleanupItem]:
    from shoal.cleanup import (
        ITEM_KINDS,
        find_leftovers,
        list_near_duplicates,
        read_run_directories,
        stale_snapshots,
        temporary_files,
        unused_staged_data,
    )
    from shoal.observe import observe
    from shoal.units import parse_duration_s

    kinds = args.only or ITEM_KINDS
    older_than_s = parse_duration_s(args.older_than, place="--older-than")
    home, now_s = str(project.home), time.time()
    views = observe(home, environ=os.environ).views
    found = find_leftovers(
        read_run_directories(home, views), keep=args.keep, older_than_s=older_than_s, now_s=now_s, kinds=kinds
    )
    if "snapshot" in kinds:
        found += stale_snapshots(home, views, older_than_s=older_than_s, now_s=now_s)
    if "temporary" in kinds:
        found += temporary_files(home, now_s=now_s)
    if "scratch" in kinds:
        bases = [os.environ.get("SHOAL_SCRATCH"), *(cluster.scratch for cluster in project.clusters.values())]
        found += unused_staged_data(bases, older_than_s=older_than_s, now_s=now_s)
    return found + (list_near_duplicates(args.folder, Path(project.root)) if "script" in kinds else [])


def _backup(root: Path, name: str) -> Path:
    from shoal.cleanup import list_backups
    from shoal.errors import InputError

    if name:
        return root / name
    known = list_backups(root)
    if not known:
        raise InputError("there is no backup to undo", hint="shoal clean --list")
    return known[0]
