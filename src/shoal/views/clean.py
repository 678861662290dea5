"""Output of `shoal clean`: what can be removed, what was moved, and where it is now."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from shoal.cleanup import BackupResult, CleanupItem, read_manifest
from shoal.views.render import print_json, print_table


def show_items(
    items: Sequence[CleanupItem], root: Path, moved: BackupResult | None, *, as_json: bool, quiet: bool
) -> None:
    """The list, its sum, and the next command."""
    if as_json:
        found = [{**item._asdict(), "path": _relative_path(item.path, root)} for item in items]
        print_json({"items": found, "size": sum(item.size for item in items), **_moved_rows(moved, root)})
        return
    if quiet:
        for item in items:
            print(_relative_path(item.path, root))
    elif items:
        rows = [[item.kind, format_size(item.size), _relative_path(item.path, root), item.reason] for item in items]
        print_table(["what", "size", "path", "why"], rows, widest=3)
    total = f"{len(items)} thing{'s' if len(items) != 1 else ''}, {format_size(sum(item.size for item in items))}"
    if moved is None:
        if not quiet:
            print(f"{total}; shoal clean --apply moves them to a backup" if items else "there is nothing to tidy up")
        return
    show_backup(moved, root, "moved to " + moved.folder.name, as_json=False)
    print(f"undo: shoal clean --undo {moved.folder.name}")


def show_backup(moved: BackupResult, root: Path, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json(_moved_rows(moved, root))
        return
    print(f"{len(moved.moved)} {words}")
    for path, why in moved.left:
        print(f"left where it is: {_relative_path(path, root)}: {why}")


def show_backups(folders: Sequence[Path], *, as_json: bool) -> None:
    if as_json:
        print_json({"backups": [{"name": folder.name, "things": len(read_manifest(folder))} for folder in folders]})
        return
    for folder in folders:
        print(f"{folder.name}\t{len(read_manifest(folder))} things")


def show_deleted(name: str, number: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"dropped": name, "things": number})
    else:
        print(f"deleted {name} with {number} things")


def format_size(number: int) -> str:
    """1536 -> 1.5 KiB."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _moved_rows(moved: BackupResult | None, root: Path) -> dict[str, object]:
    if moved is None:
        return {}
    left = [{"path": _relative_path(path, root), "why": why} for path, why in moved.left]
    return {"backup": moved.folder.name, "moved": [_relative_path(path, root) for path in moved.moved], "left": left}


def _relative_path(path: str, root: Path) -> str:
    return os.path.relpath(path, root) if path.startswith(f"{root}{os.sep}") else path
