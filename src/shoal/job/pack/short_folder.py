"""A private folder with a short path, removed by its maker or, if that one was killed, by the next who makes one."""

import glob
import os
import shutil
import tempfile

from ...kernel import files
from ..cache import FileLock

_TEMP_ROOT, _PREFIX = "/tmp", "sr"  # noqa: S108 - mkdtemp makes it ours
#: A file that the maker holds locked: the lock goes when the process does, however it ends.
_LOCK_FILE = "shoal-holds-this"


class ShortTempDir:
    """Only we may enter it. Short, because the path of a socket has 107 bytes and Ray needs 60 of them."""

    def __init__(self) -> None:
        for folder in glob.glob(os.path.join(_TEMP_ROOT, _PREFIX + "?" * 8)):
            _remove_if_stale(folder)
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=_TEMP_ROOT)
            mark = os.path.join(self.path, _LOCK_FILE)
            try:
                self._lock = FileLock(mark)
            except FileNotFoundError:
                continue  # Somebody took it for left over.
            self._lock.take(exclusive=True, wait=True)
            if os.path.exists(mark):
                return
            self._lock.close()

    def close(self) -> None:
        _remove(self.path)
        self._lock.close()


def _remove_if_stale(folder: str) -> None:
    try:
        if os.lstat(folder).st_uid != os.getuid() or not os.path.exists(os.path.join(folder, _LOCK_FILE)):
            return
        lock = FileLock(os.path.join(folder, _LOCK_FILE))
    except OSError:
        return  # It is being removed.
    if lock.take(exclusive=True):
        _remove(folder)
    lock.close()


def _remove(folder: str) -> None:
    """The mark goes last, so that what could not be removed is found again."""
    for name in files.list_names(folder):
        if name != _LOCK_FILE:
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    if files.list_names(folder) == [_LOCK_FILE]:
        shutil.rmtree(folder, ignore_errors=True)
