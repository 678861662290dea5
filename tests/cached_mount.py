"""A folder as another node sees it: through caches of attributes, names and listings, each up to some seconds old.

`python cached_mount.py FOLDER HOST AGE_S` mounts a folder over itself with FUSE, in a mount namespace and under a host
name of its own; `Node` starts that, and runs programs in there. Outside, the same path shows what the server has.

What is as old as AGE_S at most: attributes, names that were found and names that were not (kept by the kernel), and
listings (kept here). What is never old, as on NFS: whether a link, rename or exclusive creation succeeded, the content
of a file that is opened, and what was changed through the same mount. The caches know nothing of each other, and a
listing is not read again after a change of one's own, only corrected: both are worse than any NFS client.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

_ATTRIBUTES = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")
_TIMES = ("st_atime", "st_mtime", "st_ctime")
_READY, _REFUSED = "mounted", "not allowed to mount"
#: What fuse_main() of libfuse 3 returns if mount(2) failed.
_MOUNT_FAILED = 4


class Node:
    """A host of its own that sees one folder through old caches. Its processes have numbers of this machine."""

    def __init__(self, name: str, server: subprocess.Popen[str]) -> None:
        self.name, self._server = name, server

    def argv(self, folder: Path, words: Sequence[object]) -> list[object]:
        """The command line that runs these words in this folder, on this node."""
        into = ["nsenter", "--target", str(self._server.pid), "--mount", "--uts", "--"]
        return [*into, "env", f"--chdir={folder}", *words]


@contextlib.contextmanager
def node(folder: Path, name: str, age_s: float) -> Iterator[Node]:
    """A node for as long as the block lasts. Its mount is in its own namespace, and gone with its last process."""
    _skip_without_fuse()
    words = ["unshare", "--mount", "--uts", "--propagation", "private", sys.executable, __file__]
    server = subprocess.Popen(
        [*words, str(folder), name, str(age_s)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        told = server.stdout.readline().strip()
        if told == _REFUSED:
            pytest.skip("this machine lets us mount nothing with FUSE")
        assert told == _READY, "the mount failed; its reason is on standard error"
        yield Node(name, server)
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _skip_without_fuse() -> None:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        pytest.skip(f"cannot use /dev/fuse: {error.strerror}")
    if subprocess.run(["unshare", "--mount", "--uts", "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine gives us no mount namespace")


class _Listings:
    """The names in folders as they were read, up to `age_s` ago, with what was changed here since then."""

    def __init__(self, age_s: float) -> None:
        self._age_s = age_s
        self._kept: dict[str, tuple[float, set[str]]] = {}
        #: Held while the server is asked as well: otherwise a listing could miss a change of our own.
        self.lock = threading.RLock()

    def names(self, path: str, real: str) -> list[str]:
        with self.lock:
            read_at, names = self._kept.get(path, (0.0, set()))
            if time.monotonic() - read_at > self._age_s or path not in self._kept:
                read_at, names = time.monotonic(), set(os.listdir(real))
                self._kept[path] = read_at, names
            return sorted(names)

    def add(self, path: str) -> None:
        folder, name = os.path.split(path)
        if folder in self._kept:
            self._kept[folder][1].add(name)

    def remove(self, path: str) -> None:
        folder, name = os.path.split(path)
        if folder in self._kept:
            self._kept[folder][1].discard(name)
        for below in [kept for kept in self._kept if kept == path or kept.startswith(path + "/")]:
            del self._kept[below]


class CachedFolder:
    """What FUSE asks for. Every method goes to the folder below the mount; `readdir` may answer from memory."""

    use_ns = True

    def __init__(self, folder: str, age_s: float) -> None:
        self._below = f"/proc/self/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}"
        self._listings = _Listings(age_s)

    def _real(self, path: str) -> str:
        return self._below + path

    def init(self, path: str) -> None:
        print(_READY, flush=True)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._real(path)) if fh is None else os.fstat(fh)
        times = {name: getattr(found, f"{name}_ns") for name in _TIMES}
        return {**{name: getattr(found, name) for name in _ATTRIBUTES}, **times}

    def readdir(self, path: str, fh: int) -> list[tuple[str, None, int]]:
        return [(name, None, 0) for name in (".", "..", *self._listings.names(path, self._real(path)))]

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._real(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    # --- files ---

    def open(self, path: str, flags: int) -> int:
        return os.open(self._real(path), flags)

    def create(self, path: str, mode: int, flags: int) -> int:
        with self._listings.lock:
            fd = os.open(self._real(path), flags | os.O_CREAT, mode)
            self._listings.add(path)
        return fd

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)  # of a file that was opened to append: at its end, as the server has it

    def release(self, path: str, fh: int) -> None:
        os.close(fh)

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        """The server keeps what it was given; power cuts are not tested here."""

    def fsyncdir(self, path: str, datasync: int, fh: int) -> None:
        pass

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        os.truncate(self._real(path) if fh is None else fh, length)

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._real(path), mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.lchown(self._real(path), uid, gid)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        if times is None:
            os.utime(self._real(path), follow_symlinks=False)
        else:
            os.utime(self._real(path), ns=times, follow_symlinks=False)

    # --- names ---

    def link(self, target: str, source: str) -> None:
        with self._listings.lock:
            os.link(self._real(source), self._real(target), follow_symlinks=False)
            self._listings.add(target)

    def symlink(self, target: str, source: str) -> None:
        with self._listings.lock:
            os.symlink(source, self._real(target))
            self._listings.add(target)

    def readlink(self, path: str) -> str:
        return os.readlink(self._real(path))

    def rename(self, old: str, new: str) -> None:
        with self._listings.lock:
            os.rename(self._real(old), self._real(new))
            self._listings.remove(old)
            self._listings.add(new)

    def unlink(self, path: str) -> None:
        with self._listings.lock:
            os.unlink(self._real(path))
            self._listings.remove(path)

    def mkdir(self, path: str, mode: int) -> None:
        with self._listings.lock:
            os.mkdir(self._real(path), mode)
            self._listings.add(path)

    def rmdir(self, path: str) -> None:
        with self._listings.lock:
            os.rmdir(self._real(path))
            self._listings.remove(path)


def _mount(folder: str, host: str, age_s: float) -> None:
    import mfusepy  # only here: whoever imports `node` may be on a machine without libfuse

    socket.sethostname(host)
    os.umask(0)
    kept = {"entry_timeout": age_s, "attr_timeout": age_s, "negative_timeout": age_s}
    # direct_io: what is read comes from the server and not from the kernel's pages, as after an open() on NFS.
    # use_ino: two names of one file are the same file. hard_remove: a file that is open keeps no name of libfuse's.
    try:
        mfusepy.FUSE(
            CachedFolder(folder, age_s),
            folder,
            foreground=True,
            fsname=f"shoal-test-{host}",
            use_ino=True,
            direct_io=True,
            hard_remove=True,
            **kept,
        )
    except RuntimeError as error:  # libfuse counts its end by a signal as an error as well, and prints all others
        if error.args == (_MOUNT_FAILED,):
            print(_REFUSED, flush=True)


if __name__ == "__main__":
    _mount(sys.argv[1], sys.argv[2], float(sys.argv[3]))
