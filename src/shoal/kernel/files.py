"""Small files that many machines share without locks: written whole, exactly once, or not at all.

Correct on NFS and Lustre as well as on a local disk: a name comes into being by link or rename of a finished and synced
temporary file, so no reader ever sees half of one; who created a name first is decided by the file system.
"""

import errno
import json
import os
import random
from typing import Any, Dict, List, Optional, Sequence, cast

#: Errors of the disk, not of the program: full, over quota, read-only, failing hardware.
DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_NO_LINKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS, errno.EMLINK)


def create_exclusive(path: str, data: bytes, sync_folder: bool = True, sync: bool = True) -> bool:
    """Create `path` with `data` unless it exists; True means that this call created it.

    After True the content is on disk, and so is the name unless the caller will sync the folder with a later file.
    After False `path` exists, with whatever its creator wrote. After an error
    nothing of this call is left behind. Without `sync` who comes first is decided all the same, but content and name
    are on disk only after `sync_records`.
    """
    temp = _write_temp(path, data, sync)
    try:
        try:
            os.link(temp, path)
            created = True
        except FileExistsError:
            # An NFS client that resends a LINK is told EEXIST about its own success: the link count tells the truth.
            created = os.stat(temp).st_nlink == 2
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            created = _create_by_mkdir(temp, path)
    finally:
        _remove(temp)
    if created and sync and sync_folder:
        sync_dir(os.path.dirname(path))
    return created


def add_name(path: str, name: str) -> bool:
    """Give a file a second name unless that exists; True means that it is ours now. Where a file system has no links,
    the name gets a copy."""
    try:
        os.link(path, name)
        return True
    except FileExistsError:
        return os.path.samefile(path, name)  # A resent request is told EEXIST about its own success.
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    with open(path, "rb") as file:
        return create_exclusive(name, file.read(), sync_folder=False)


def check_room(folder: str, size: int) -> None:
    """OSError if a file of this size does not fit there now."""
    _remove(_write_temp(os.path.join(folder, "room"), b" " * size))


def sync_records(paths: Sequence[str]) -> None:
    """Wait until records of one folder that were created without waiting are on disk, with their names."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            _sync(fd, path)
        finally:
            os.close(fd)
    sync_dir(os.path.dirname(paths[0]))


def replace(path: str, data: bytes, sync: bool = True) -> None:
    """Put `data` at `path` in one step; a reader sees the old content or the new, never a mix."""
    temp = _write_temp(path, data, sync)
    try:
        os.rename(temp, path)
    except BaseException:
        _remove(temp)
        raise
    if sync:
        sync_dir(os.path.dirname(path))


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """The record at `path`, or None if there is none (yet); a broken record raises ValueError that names the file."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:
            return None
        raise
    try:
        record = json.loads(data)
    except ValueError:
        raise ValueError("%s is damaged: not a JSON record" % path)
    if not isinstance(record, dict):
        raise ValueError("%s is damaged: not a JSON object" % path)
    return cast(Dict[str, Any], record)


def to_json(record: Dict[str, Any]) -> bytes:
    """A record as bytes. ASCII escapes keep arguments that are not valid UTF-8 intact (as lone surrogates)."""
    return json.dumps(record, ensure_ascii=True, sort_keys=True).encode("ascii") + b"\n"


def names_in(folder: str) -> List[str]:
    """The names in a folder, empty if it is not there. A listing sees what a cached stat() on NFS may still deny."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _write_temp(path: str, data: bytes, sync: bool = True) -> str:
    temp = "%s.tmp-%d-%08x" % (path, os.getpid(), random.getrandbits(32))
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        try:
            rest = memoryview(data)
            while rest:
                # A nearly full disk takes a part and reports no error; the next call reports it.
                rest = rest[os.write(fd, rest) :]
            if sync:
                _sync(fd, path)
        finally:
            os.close(fd)
    except BaseException as error:
        _remove(temp)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path  # write() knows only a number, and people need a name.
        raise
    return temp


def _sync(fd: int, path: str) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        error.filename = path
        raise


def _create_by_mkdir(temp: str, path: str) -> bool:
    """Where hard links do not exist, making a folder is still exclusive; the winner renames its file into place."""
    try:
        os.mkdir(path + ".won")
    except FileExistsError:
        return False
    os.rename(temp, path)
    return True


def sync_dir(folder: str) -> None:
    fd = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network file systems refuse to sync a folder; they commit names on the server by themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
