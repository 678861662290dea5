"""The state directory: the runs of a project, sharing it with a group, and kernel/files.py with shoal's own errors.

Runs are listed by directory names alone, with few imports, so that an empty project answers at once.

A shared project is like a repository with git's core.sharedRepository: the state directory has mode 2770, and every
member of its group can submit, look, cancel and retry. Only a file's owner can change its mode, so its owner shares a
project. Modes of new files are set by kernel/files.py.
"""

from __future__ import annotations

import errno
import os
import pwd
import shlex
import shutil
import stat
from pathlib import Path

from shoal.errors import DiskError, InputError
from shoal.kernel import DISK_ERRNOS, create_exclusive, files, layout, list_names, read_json, replace, to_json
from shoal.units import natural_sort_key

__all__ = ["as_disk_error", "create_exclusive", "full_disk_hint", "list_names", "read_json", "replace", "to_json"]

#: What helps when it is shoal's own state that cannot be written.
_MOVE_HINT = "move shoal's state: export SHOAL_HOME=/another/folder"


def as_disk_error(error: OSError) -> DiskError | None:
    """The same failure as a sentence about the disk, or None if it is about something else."""
    if error.errno not in (*DISK_ERRNOS, errno.EACCES) or not error.filename:
        return None
    path = os.fspath(error.filename)
    folder = os.path.dirname(path) or "."
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    space = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        space = f" ({shutil.disk_usage(folder).free // 1_000_000} MB free)"
    reason = (error.strerror or "disk error").lower()
    doing = "open" if error.errno == errno.EACCES else "write"
    return DiskError(
        f"cannot {doing} {path}: {reason}{space}", hint=_disk_hint(error.errno, folder, _is_state_file(path))
    )


def full_disk_hint(folder: str, otherwise: str = "choose another folder") -> str:
    """A command that shows how full the disk below a folder is, and what to do about it."""
    return f"df -h {shlex.quote(folder)}   # free some space there, or {otherwise}"


def _disk_hint(code: int | None, folder: str, is_state: bool) -> str:
    otherwise = _MOVE_HINT if is_state else "choose another folder"
    if code == errno.ENOSPC:
        return full_disk_hint(folder, otherwise)
    if code == errno.EDQUOT:
        return f"quota -s   # remove something, or {otherwise}"
    if code == errno.EIO:
        return "the disk or file server reports an error: ask whoever runs it"
    owner = _other_owner(folder)
    if is_state and owner is not None:
        # Not SHOAL_HOME: in another state folder the runs of this project would all be new, and run again.
        return f"ask {owner} to share the project: shoal init --shared"
    return f"ls -ld {shlex.quote(folder)}   # you may not write there: {otherwise}"


def _other_owner(folder: str) -> str | None:
    """The user who could open a folder to us; None if it is our own, or nobody knows."""
    try:
        uid = os.stat(folder).st_uid
        return None if uid == os.geteuid() else pwd.getpwuid(uid).pw_name
    except (OSError, KeyError):
        return None


def _is_state_file(path: str) -> bool:
    """Whether a path is of shoal's own records rather than of something that the user asked to be written."""
    home = os.environ.get("SHOAL_HOME")
    return ".shoal" in path.split("/") or bool(home and os.path.abspath(path).startswith(os.path.abspath(home) + "/"))


#: Folders of state in which others may read and must not write: what is in them is executed.
_EXECUTED_DIRS = ("agent", "snapshots")


def share_project(root: Path, home: Path) -> None:
    """Give the group of `root` the project's folder, its state and its outputs; what was kept for one person stays so.

    InputError where the project's folder or its state is not ours to share.
    """
    for folder in (root, home):
        if folder.exists() and folder.stat().st_uid != os.geteuid():
            raise InputError(f"cannot share {folder}: its owner is {folder.owner()}", hint="ask its owner to share it")
    group = root.stat().st_gid
    root.chmod(stat.S_IMODE(root.stat().st_mode) | 0o2070)
    home.mkdir(mode=files.PRIVATE_MODE, parents=True, exist_ok=True)
    for path in (home, root / "outputs"):
        _share_tree(str(path), group, str(home))


def make_shared(home: Path, group: int) -> None:
    """Give a new state folder to a group, before anything is in it."""
    os.chown(home, -1, group)
    home.chmod(files.SHARED_MODE)


def _share_tree(top: str, group: int, home: str) -> None:
    private = os.path.join(home, layout.ENVIRONMENTS_DIR)
    executed = tuple(os.path.join(home, name) for name in _EXECUTED_DIRS)
    for folder, below, names in os.walk(top):
        frozen = (folder + os.sep).startswith(tuple(path + os.sep for path in executed)) and folder not in executed
        _set_mode(folder, group, 0o2750 if frozen else files.SHARED_MODE)
        if folder == private:  # each person's own, readable to nobody else
            _keep_private(folder, below, names)
            below.clear()
            continue
        for name in names:
            _set_mode(os.path.join(folder, name), group, 0o640 if frozen or name == "script.sh" else 0o660)


def _keep_private(folder: str, below: list[str], names: list[str]) -> None:
    for name in (*below, *names):
        _set_mode(os.path.join(folder, name), -1, files.PRIVATE_MODE if name in below else 0o600)


def _set_mode(path: str, group: int, mode: int) -> None:
    """Change what is ours; an executable file stays executable, and a link is only a name."""
    found = os.lstat(path)
    if found.st_uid != os.geteuid() or stat.S_ISLNK(found.st_mode):
        return
    if stat.S_ISREG(found.st_mode) and found.st_mode & 0o100:
        mode |= 0o110
    os.chown(path, -1, group)
    os.chmod(path, mode)


def run_names(home: str) -> list[str]:
    """Every run that has a folder, in natural order: every view shows them so."""
    root = os.path.join(home, "runs")
    return [
        f"{experiment}/{stem}" for experiment in run_stems(root) for stem in run_stems(os.path.join(root, experiment))
    ]


def has_runs(home: str) -> bool:
    """Whether there is any run, without listing them all."""
    root = os.path.join(home, "runs")
    return any(_has_dirs(os.path.join(root, experiment)) for experiment in list_names(root))


def _has_dirs(path: str) -> bool:
    try:
        with os.scandir(path) as entries:
            return any(entry.is_dir() for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False


def run_stems(path: str) -> list[str]:
    """The directories in one, in natural order: runs of an experiment, or experiments."""
    try:
        with os.scandir(path) as entries:
            return sorted((entry.name for entry in entries if entry.is_dir()), key=natural_sort_key)
    except (FileNotFoundError, NotADirectoryError):
        return []
