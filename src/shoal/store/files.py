"""What the rest of shoal needs from shoal.agent.files, with errors in shoal's own terms."""

from __future__ import annotations

import errno
import os
import shutil

from shoal.agent.files import DISK_ERRNOS, create_exclusive, names_in, read_json, replace, to_json
from shoal.errors import DiskError

__all__ = ["as_disk_error", "create_exclusive", "names_in", "read_json", "replace", "to_json"]

_REMEDY = {
    errno.ENOSPC: "free some space there, or move shoal's state with SHOAL_HOME=/another/folder",
    errno.EDQUOT: "quota -s   # then remove something, or move shoal's state with SHOAL_HOME=/another/folder",
    errno.EROFS: "move shoal's state with SHOAL_HOME=/a/writable/folder",
    errno.EACCES: "move shoal's state with SHOAL_HOME=/a/writable/folder",
    errno.EIO: "the disk or file server reports an error: ask whoever runs it",
}


def as_disk_error(error: OSError) -> DiskError | None:
    """The same failure as a sentence about the disk, or None if it is about something else."""
    if error.errno not in (*DISK_ERRNOS, errno.EACCES) or not error.filename:
        return None
    folder = os.path.dirname(os.fspath(error.filename)) or "."
    space = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        space = f" ({shutil.disk_usage(folder).free // 1_000_000} MB free)"
    reason = (error.strerror or "disk error").lower()
    return DiskError(f"cannot write {os.fspath(error.filename)}: {reason}{space}", hint=_REMEDY.get(error.errno or 0))
