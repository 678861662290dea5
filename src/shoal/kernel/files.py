"""Small files that many machines and people share without locks: written whole, exactly once, or not at all.

Correct on NFS and Lustre as well as on a local disk: a name comes into being by link or rename of a finished and synced
file, so no reader ever sees half of one; who created a name first is decided by the file system.

Modes come from the folder, not from the umask. In a folder that is setgid and group-writable (2770, a shared project)
files are 0660 and folders 2770; in a private one (0700) they are 0600 and 0700. Anywhere else the umask decides.
"""

import errno
import json
import os
import stat
from typing import Any, Dict, List, Optional, Sequence, Set, cast

#: Errors of the disk, not of the program: full, over quota, read-only, failing hardware.
DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
#: A folder of this mode is shared with its group; one of the other is its owner's alone.
SHARED_MODE, PRIVATE_MODE = 0o2770, 0o700
_NO_LINK_ERRNOS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS, errno.EMLINK)
#: In the name of a file that is being written, where files have names from the start: <name>.tmp-<pid>-<random>.
TEMP_MARK = ".tmp-"
#: open(2) of a file without a name: what kernels and file systems that have none answer (NFS, Lustre, old FUSE).
_NO_TMPFILE_ERRNOS = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENOSYS)
#: Devices that have refused one; asked once by each process.
_devices_without_tmpfile: Set[int] = set()


def create_exclusive(
    path: str, data: bytes, sync_folder: bool = True, sync: bool = True, executable: bool = False
) -> bool:
    """Create `path` with `data` unless it exists; True means that this call created it.

    After True the content is on disk, and so is the name unless the caller will sync the folder with a later file.
    After False `path` exists, with whatever its creator wrote. After an error
    nothing of this call is left behind. Without `sync` who comes first is decided all the same, but content and name
    are on disk only after `sync_records`. What is `executable` can be changed by its owner only (see `read_trusted`).
    """
    folder_fd = _open_folder(path)
    try:
        folder = os.fstat(folder_fd)
        mode = _file_mode(folder.st_mode, executable)
        created = None
        if folder.st_dev not in _devices_without_tmpfile:
            created = _link_unnamed(folder_fd, folder.st_dev, path, data, mode, sync)
        if created is None:
            created = _link_temp(path, data, mode, sync)
        if created and sync and sync_folder:
            _sync_folder(folder_fd)
        return created
    finally:
        os.close(folder_fd)


def create_in_run_dir(path: str, data: bytes) -> bool:
    """`create_exclusive` in the directory of a run that may have ended, announced before, because this process may be
    killed, and after, because it may be stopped in between."""
    run_dir = os.path.dirname(path)
    announce_change(run_dir)
    created = create_exclusive(path, data)
    announce_change(run_dir)
    return created


def announce_change(run_dir: str) -> None:
    """Let looks see that an ended run changes: they keep ended runs as long as the directory of the experiment has the
    same time of change (observe/settled_runs.py)."""
    try:
        os.utime(os.path.dirname(run_dir))
    except OSError:
        pass  # where only the run's own directory may be written; looks check a part of these each time


def _link_unnamed(
    folder_fd: int, device: int, path: str, data: bytes, mode: Optional[int], sync: bool
) -> Optional[bool]:
    """Write a file without a name and link it: a killed writer leaves nothing. None where that cannot be done."""
    unnamed = getattr(os, "O_TMPFILE", None)
    try:
        if unnamed is None:
            raise OSError(errno.ENOSYS, "no O_TMPFILE")
        fd = os.open(".", unnamed | os.O_WRONLY | os.O_CLOEXEC, 0o666 if mode is None else 0o600, dir_fd=folder_fd)
    except OSError as error:
        if error.errno not in _NO_TMPFILE_ERRNOS:
            error.filename = path
            raise
        if error.errno != errno.ENOENT:
            _devices_without_tmpfile.add(device)
        return None
    try:
        _write_and_sync(fd, path, data, mode, sync)
        # The folder's descriptor makes Python call linkat() with AT_SYMLINK_FOLLOW, which link() would not do.
        os.link("/proc/self/fd/%d" % fd, os.path.basename(path), src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        return True
    except FileExistsError:
        return os.fstat(fd).st_nlink == 1
    except OSError as error:
        if error.errno not in (*_NO_LINK_ERRNOS, errno.ENOENT, errno.EXDEV):  # no /proc, or links are refused
            raise
        return None
    finally:
        os.close(fd)


def _link_temp(path: str, data: bytes, mode: Optional[int], sync: bool) -> bool:
    temp = _write_temp(path, data, mode, sync)
    try:
        try:
            os.link(temp, path)
            return True
        except FileExistsError:
            # An NFS client that resends a LINK is told EEXIST about its own success: the link count tells the truth.
            return os.stat(temp).st_nlink == 2
        except OSError as error:
            if error.errno not in _NO_LINK_ERRNOS:
                raise
            return _create_by_mkdir(temp, path)
    finally:
        _remove(temp)


def make_dir(path: str, exist_ok: bool = True) -> None:
    """Make a folder, and those above it that are missing, with the mode of the folder that they stand in."""
    path = path.rstrip("/") or "/"
    try:
        os.mkdir(path)
    except FileNotFoundError:
        above = os.path.dirname(path)
        if above in ("", path):
            raise
        make_dir(above)
        make_dir(path, exist_ok)
        return
    except FileExistsError:
        if not exist_ok or not os.path.isdir(path):
            raise
        return
    mode = _folder_mode(os.stat(os.path.dirname(path) or ".").st_mode)
    if mode is not None:
        os.chmod(path, mode)


def make_private_dir(path: str) -> None:
    """Make a folder that only this user can look into, also in a shared project."""
    make_dir(os.path.dirname(path))
    try:
        os.mkdir(path, PRIVATE_MODE)
        os.chmod(path, PRIVATE_MODE)  # without the setgid bit that a shared folder hands down
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "not a private folder of this user", path)


def is_shared(folder: str) -> bool:
    """Whether what is made in a folder is the whole group's."""
    try:
        return _is_shared_mode(os.stat(folder or ".").st_mode)
    except FileNotFoundError:
        return False


def open_umask(folder: str) -> None:
    """In a shared project: what this process and its children make from now on is open to the group.

    For files that are not made here: logs, checkpoints of the program, what Slurm and git write.
    """
    if is_shared(folder):
        mask = os.umask(0o077) & 0o707
        os.umask(mask)
        if "SLURM_UMASK" in os.environ:  # srun gives this one to its tasks, not its own
            os.environ["SLURM_UMASK"] = "%04o" % mask


def read_trusted(path: str) -> bytes:
    """The content of a file that is about to be executed; PermissionError where it may be of another user's making."""
    with open(path, "rb") as file:
        refuse_untrusted(path, os.fstat(file.fileno()))
        return file.read()


def refuse_untrusted(path: str, found: Optional[os.stat_result] = None) -> None:
    """Nobody executes what somebody else has written or could change; a private folder has nobody else in it."""
    if not is_shared(os.path.dirname(path)):
        return
    found = found or os.stat(path)
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "not executed: its owner is another user (uid %d)" % found.st_uid, path)
    if found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "not executed: other users can change it", path)


def link_exclusive(path: str, name: str) -> bool:
    """Give a file a second name unless that exists; True means that it is ours now. Where a file system has no links,
    the name gets a copy."""
    try:
        os.link(path, name)
        return True
    except FileExistsError:
        return os.path.samefile(path, name)  # A resent request is told EEXIST about its own success.
    except OSError as error:
        if error.errno not in _NO_LINK_ERRNOS:
            raise
    with open(path, "rb") as file:
        return create_exclusive(name, file.read(), sync_folder=False)


def check_free_space(folder: str, size: int) -> None:
    """OSError if a file of this size does not fit there now."""
    path = os.path.join(folder, "room.%d-%08x" % (os.getpid(), int.from_bytes(os.urandom(4), "big")))
    create_exclusive(path, b" " * size)
    _remove(path)


def sync_records(paths: Sequence[str]) -> None:
    """Wait until records of one folder that were created without waiting are on disk, with their names."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            _sync(fd, path)
        finally:
            os.close(fd)
    sync_dir(os.path.dirname(paths[0]))


def sync_dir(folder: str) -> None:
    """Wait until the names in a folder are on disk."""
    fd = os.open(folder or ".", os.O_RDONLY)
    try:
        _sync_folder(fd)
    finally:
        os.close(fd)


def replace(path: str, data: bytes, sync: bool = True) -> None:
    """Put `data` at `path` in one step; a reader sees the old content or the new, never a mix."""
    folder_fd = _open_folder(path)
    try:
        temp = _write_temp(path, data, _file_mode(os.fstat(folder_fd).st_mode), sync)
        try:
            os.rename(temp, path)
        except BaseException:
            _remove(temp)
            raise
        if sync:
            _sync_folder(folder_fd)
    finally:
        os.close(folder_fd)


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """The record at `path`, or None if there is none (yet); a broken record raises ValueError that names the file."""
    data = read_bytes(path)
    return None if data is None else from_json(data, path)


def read_bytes(path: str) -> Optional[bytes]:
    """What is in a file, or None if there is none (yet)."""
    fd: Optional[int] = None
    parts: List[bytes] = []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        while True:
            parts.append(os.read(fd, 1 << 16))
            if not parts[-1]:
                return b"".join(parts)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:
            return None
        raise
    finally:
        if fd is not None:
            os.close(fd)


def from_json(data: bytes, path: str) -> Dict[str, Any]:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("%s is damaged: not a JSON record" % path)
    if not isinstance(record, dict):
        raise ValueError("%s is damaged: not a JSON object" % path)
    return cast(Dict[str, Any], record)


def to_json(record: Dict[str, Any]) -> bytes:
    """A record as bytes. ASCII escapes keep arguments that are not valid UTF-8 intact (as lone surrogates)."""
    return json.dumps(record, ensure_ascii=True, sort_keys=True).encode("ascii") + b"\n"


def size_of(path: str) -> int:
    """Size of a file in bytes; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def list_names(folder: str) -> List[str]:
    """The names in a folder, empty if it is not there. A listing sees what a cached stat() on NFS may still deny."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _write_temp(path: str, data: bytes, mode: Optional[int] = None, sync: bool = True) -> str:
    temp = "%s%s%d-%08x" % (path, TEMP_MARK, os.getpid(), int.from_bytes(os.urandom(4), "big"))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    fd = os.open(temp, flags, 0o666 if mode is None else 0o600)
    try:
        try:
            _write_and_sync(fd, path, data, mode, sync)
        finally:
            os.close(fd)
    except BaseException:
        _remove(temp)
        raise
    return temp


def _write_and_sync(fd: int, path: str, data: bytes, mode: Optional[int], sync: bool) -> None:
    try:
        # Asked of the client first: a change of mode is a request to the file server.
        if mode is not None and stat.S_IMODE(os.fstat(fd).st_mode) != mode:
            os.fchmod(fd, mode)
        rest = memoryview(data)
        while rest:
            # A nearly full disk takes a part and reports no error; the next call reports it.
            rest = rest[os.write(fd, rest) :]
        if sync:
            os.fsync(fd)
    except OSError as error:
        error.filename = path  # write() knows only a number, and people need a name.
        raise


def _file_mode(folder: int, executable: bool = False) -> Optional[int]:
    mode = _folder_mode(folder)
    if mode is None:
        return None
    return mode & (0o644 if executable else 0o666)


def _folder_mode(above: int) -> Optional[int]:
    """The mode of a folder in a folder of that mode; None where the umask decides."""
    if _is_shared_mode(above):
        return above & 0o2777
    return None if above & 0o077 else PRIVATE_MODE


def _is_shared_mode(mode: int) -> bool:
    return mode & 0o2020 == 0o2020


def _open_folder(path: str) -> int:
    try:
        return os.open(os.path.dirname(path) or ".", os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError as error:
        error.filename = path
        raise


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


def _sync_folder(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network file systems refuse to sync a folder; they commit names on the server by themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
