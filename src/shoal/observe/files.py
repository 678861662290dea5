"""What the rest of shoal needs from shoal.kernel.files, with errors in shoal's own terms."""

from __future__ import annotations

import errno
import os
import pwd
import shlex
import shutil

from shoal.errors import DiskError
from shoal.kernel import DISK_ERRNOS, create_exclusive, list_names, read_json, replace, to_json

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
