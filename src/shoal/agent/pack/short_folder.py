"""A private folder with a short path, removed by its maker or, if that one was killed, by the next who makes one."""

import glob
import os
import shutil
import tempfile

from ..cache import Lock

_ROOT, _PREFIX = "/tmp", "sr"  # noqa: S108 - mkdtemp makes it ours


class ShortFolder:
    """Only we may enter it. Short, because the path of a socket has 107 bytes and Ray needs 60 of them."""

    def __init__(self) -> None:
        _remove_left_over()
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=_ROOT)
            self._lock = Lock(_owner(self.path))
            self._lock.take(exclusive=True, wait=True)
            if os.path.exists(_owner(self.path)):  # Somebody may have taken it for left over before we had the lock.
                return
            self._lock.close()

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _owner(folder: str) -> str:
    """A file that its maker holds locked: the lock goes when the process does, however it ends."""
    return os.path.join(folder, "owner")


def _remove_left_over() -> None:
    for folder in glob.glob(os.path.join(_ROOT, _PREFIX + "*")):
        try:
            if os.stat(folder).st_uid != os.getuid() or not os.path.exists(_owner(folder)):
                continue
            lock = Lock(_owner(folder))
        except OSError:
            continue  # It is being removed.
        if lock.take(exclusive=True):
            shutil.rmtree(folder, ignore_errors=True)
        lock.close()
