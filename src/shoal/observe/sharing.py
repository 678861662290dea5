"""Open a project to the group of its folder: the modes of what is there already. New files get theirs in kernel/files.

A shared project is like a repository with git's core.sharedRepository: the state folder has mode 2770, and every member
of its group can submit, look, cancel and retry. Only a file's owner can change its mode, so its owner shares a project.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from shoal.errors import InputError
from shoal.kernel import files, layout

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
