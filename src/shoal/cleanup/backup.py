"""Move files to backup_<timestamp>/ and back. Nothing is overwritten, and only the command to delete deletes.

backup_<timestamp>/
  manifest.json      what is moved, and from where; written before the first move, so that any crash can be undone
  files/<path>       the files, under their path below the project's root
Staged datasets stay on their own disk, set aside there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.cleanup.leftovers import CleanupItem, move_staged_data
from shoal.errors import InputError

_MANIFEST = "manifest.json"
_SCHEMA = 1


class BackupResult(NamedTuple):
    """What became of a backup or of its undoing: its folder, what moved, and (path, why) of what did not."""

    folder: Path
    moved: list[str]
    left: list[tuple[str, str]]


def move_to_backup(root: Path, items: Sequence[CleanupItem], stamp: str) -> BackupResult:
    """Move items into a new backup folder below the root; what lies on scratch is set aside there, because a copy to
    another disk would be no backup. What cannot be moved stays where it is and is told."""
    scratch = {item.path: _trash_path(item.path, stamp) for item in items if item.kind == "scratch"}
    inside = [item for item in items if item.path not in scratch and _is_below(item.path, root)]
    known = {*scratch, *(item.path for item in inside)}
    left = [(item.path, "it is not below the project's folder") for item in items if item.path not in known]
    folder = _new_folder(root, stamp)
    entries = [{"path": os.path.relpath(item.path, root), "kind": item.kind, "reason": item.reason} for item in inside]
    _write_manifest(folder, entries, scratch)
    moved: list[str] = []
    for path, dest in scratch.items():
        try:
            why = None if move_staged_data(path, dest) else "somebody uses it now"
        except OSError as error:
            why = error.strerror or str(error)
        left += [] if why is None else [(path, why)]
        moved += [path] if why is None else []
    for item in inside:
        target = folder / "files" / os.path.relpath(item.path, root)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(item.path, target)  # never a copy: half a copy would look like a whole backup
        except OSError as error:
            left.append((item.path, error.strerror or str(error)))
        else:
            moved.append(item.path)
    return BackupResult(folder, moved, left)


def restore_backup(root: Path, folder: Path) -> BackupResult:
    """Move everything of a backup back to where it was; what is in the way stays, and so does the thing itself."""
    moved: list[str] = []
    left: list[tuple[str, str]] = []
    inside = [(folder / "files" / path, root / path) for path in read_manifest(folder)]
    for source, target in [*inside, *((Path(dest), Path(path)) for path, dest in _scratch_entries(folder).items())]:
        if not os.path.lexists(source):
            continue
        if os.path.lexists(target):
            left.append((str(target), "something else is there now"))
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(source, target)
        except OSError as error:
            left.append((str(target), error.strerror or str(error)))
        else:
            moved.append(str(target))
    if not left:
        _remove_empty(folder)
    return BackupResult(folder, moved, left)


def delete_backup(folder: Path) -> int:
    """Delete a backup for good; returns how many things it held. Only a folder with our manifest is deleted."""
    entries, aside = read_manifest(folder), _scratch_entries(folder).values()
    held = sum(1 for path in entries if os.path.lexists(folder / "files" / path))
    held += sum(1 for path in aside if os.path.lexists(path))
    for path in aside:
        shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(folder)
    return held


def list_backups(root: Path) -> list[Path]:
    """The backups of a project, newest first."""
    return sorted((path for path in root.glob("backup_*") if (path / _MANIFEST).is_file()), reverse=True)


def read_manifest(folder: Path) -> list[str]:
    """Paths of a backup, relative to the root; an InputError for a folder that is none, or a path that leaves it."""
    try:
        document = json.loads((folder / _MANIFEST).read_text())
        paths = [str(entry["path"]) for entry in document["entries"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{folder} is not a backup that shoal clean made", hint="shoal clean --list") from None
    for path in paths:
        if os.path.isabs(path) or ".." in Path(path).parts:
            raise InputError(f"the manifest of {folder} names {path!r}, which leaves the project's folder")
    return paths


def _trash_path(path: str, stamp: str) -> str:
    """Where a data set of the cache waits: in its trash, which is emptied when a job needs the room."""
    root, name = os.path.dirname(os.path.dirname(path)), os.path.basename(path)
    return os.path.join(root, "trash", f"{name}-{stamp}")


def _scratch_entries(folder: Path) -> dict[str, str]:
    """Staged data sets of a backup: where they were -> where they wait. Paths of any other layout are not ours."""
    found = json.loads((folder / _MANIFEST).read_text()).get("scratch") or {}
    for path, dest in found.items():
        root, name = os.path.dirname(os.path.dirname(path)), os.path.basename(path)
        ours = os.path.basename(root).startswith("shoal-data") and os.path.dirname(dest) == os.path.join(root, "trash")
        if not ours or path != os.path.join(root, "objects", name) or ".." in Path(path).parts:
            raise InputError(f"the manifest of {folder} names {path!r}, which is no staged data set")
    return dict(found)


def _is_below(path: str, root: Path) -> bool:
    """Whether a path lies below the root, by its name and by where its folder really is."""
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return real.startswith(os.path.realpath(root) + os.sep) and os.path.abspath(path).startswith(f"{root}{os.sep}")


def _new_folder(root: Path, stamp: str) -> Path:
    for number in range(1, 1000):
        folder = root / (f"backup_{stamp}" if number == 1 else f"backup_{stamp}_{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise InputError(f"there are a thousand backups of {stamp} already")


def _write_manifest(folder: Path, entries: list[dict[str, str]], scratch: dict[str, str]) -> None:
    with (folder / _MANIFEST).open("x") as file:
        json.dump({"schema": _SCHEMA, "entries": entries, "scratch": scratch}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _remove_empty(folder: Path) -> None:
    """The folder itself, once nothing but empty folders and the manifest is in it."""
    for root, folders, files in os.walk(folder, topdown=False):
        if any(name != _MANIFEST for name in files):
            return
        for name in folders:
            path = os.path.join(root, name)
            if not os.listdir(path):
                os.rmdir(path)
    if sorted(os.listdir(folder)) == [_MANIFEST]:
        (folder / _MANIFEST).unlink()
        folder.rmdir()
