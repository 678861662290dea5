"""Where staged data is on a node, and who may remove it.

ROOT/
  objects/<id>/data/  one dataset: files appear here complete, by rename; this directory is SHOAL_DATA_<NAME>
  objects/<id>/       about.json, complete.json, problem; parts/ being copied; wants/ of readers
  locks/<id>          flock, exclusive: who copies. It ends with its holder, so a kill leaves nothing stale
  use/<id>            flock, shared: who reads. Its time is the last use; only what no process holds is ever removed
  trash/              what is being removed, so that a half removed dataset is never taken for a complete one

Where a directory is writable for a group, its members share one root, and its directories are closed to all others.
Data that the group could not read at its source is copied to a root of the user's own.

On a node-local disk flock is exact; on network storage it is not, and such a root is refused.
"""

import errno
import fcntl
import os
import random
import shutil
import stat
import tempfile
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..kernel import files
from .environment import VariableNotSet, expand_path

#: Where a person or a site may say that node-local disk is, best first.
ROOT_VARIABLES = ("SHOAL_SCRATCH", "SLURM_TMPDIR", "TMPDIR")
#: How much staged data may take.
LIMIT_VARIABLE = "SHOAL_SCRATCH_LIMIT"
_NETWORK_FILE_SYSTEMS = """
nfs nfs4 lustre gpfs beegfs cifs smb3 smbfs ceph glusterfs 9p afs panfs pvfs2 orangefs wekafs daos
fuse.sshfs fuse.glusterfs fuse.ceph fuse.juicefs fuse.gcsfuse fuse.s3fs
"""
_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class CacheRoot(NamedTuple):
    """A usable cache root; `group` is the group whose members share it, None if it is private; `named` says by what it
    was chosen."""

    path: str
    group: Optional[int] = None
    named: str = ""

    def folder(self, kind: str, name: str = "") -> str:
        return os.path.join(self.path, kind, name) if name else os.path.join(self.path, kind)

    def make(self, folder: str) -> None:
        """Make a folder that is private, or open to the group that shares the root."""
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            return
        if self.group is not None:
            os.chown(folder, -1, self.group)
            os.chmod(folder, files.SHARED_MODE)


def find_root(environ: Mapping[str, str], profile: Optional[str] = None) -> Tuple[Optional[CacheRoot], List[str]]:
    """The first usable place of those that the environment and the cluster's profile name, and what was wrong before.

    SHOAL_SCRATCH and a profile's folder are meant for this and are used as they are; in $TMPDIR, which others use too,
    shoal makes a folder of its own. $NAMES in them are filled in here, on the node.
    """
    notes: List[str] = []
    for name in (*ROOT_VARIABLES, "the cluster's profile"):
        base = profile if name.startswith("the ") else environ.get(name)
        if not base:
            continue
        try:
            return _open_root(expand_path(base, environ))._replace(named=name), notes
        except VariableNotSet as variable:
            notes.append("%s (%s) is not used: $%s is not set on this node" % (name, base, variable))
        except OSError as error:
            notes.append("%s (%s) is not used: %s" % (name, base, error.strerror or error))
    return None, notes


def _open_root(base: str) -> CacheRoot:
    status = os.stat(base)
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.ENOTDIR, "not a folder")
    kind = file_system_type(base)
    if kind in _NETWORK_FILE_SYSTEMS.split():
        raise OSError(errno.ENOTSUP, "it is network storage (%s)" % kind)
    mine = status.st_uid == os.getuid()
    shared = (
        bool(status.st_mode & stat.S_IWGRP) and not status.st_mode & stat.S_ISVTX and status.st_gid in os.getgroups()
    )
    path = os.path.join(base, "shoal-data") if mine or shared else _private_path(base)
    return _make_root(CacheRoot(path, status.st_gid if shared else None))


def private_root(root: CacheRoot) -> CacheRoot:
    """Beside a root that a group shares, the one for data that the group may not see."""
    return _make_root(CacheRoot(_private_path(os.path.dirname(root.path))))


def _private_path(base: str) -> str:
    return os.path.join(base, "shoal-data-%d" % os.getuid())


def _make_root(root: CacheRoot) -> CacheRoot:
    path = root.path
    root.make(path)
    owner = os.lstat(path)
    if not stat.S_ISDIR(owner.st_mode) or (owner.st_uid != os.getuid() and root.group is None):
        raise OSError(errno.EPERM, "%s belongs to somebody else" % path)
    for folder in ("objects", "locks", "use", "trash"):
        root.make(root.folder(folder))
    if not os.access(path, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, "%s cannot be written" % path)
    return root


def is_group_readable(path: str, group: int) -> bool:
    """Whether the members of a group can read a file: by its mode, and by those of all folders above it."""
    real = os.path.realpath(path)
    status = os.stat(real)
    if not status.st_mode & stat.S_IROTH and not (status.st_gid == group and status.st_mode & stat.S_IRGRP):
        return False
    while real != os.path.dirname(real):
        real = os.path.dirname(real)
        status = os.stat(real)
        if not status.st_mode & stat.S_IXOTH and not (status.st_gid == group and status.st_mode & stat.S_IXGRP):
            return False
    return True


def file_system_type(path: str) -> str:
    """The type of the file system that holds a path, as the kernel names it; empty if it does not tell."""
    best, kind = -1, ""
    real = os.path.realpath(path)
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                words, _, behind = line.partition(" - ")
                mount = words.split(" ")[4].replace("\\040", " ")
                if (real + "/").startswith(mount.rstrip("/") + "/") and len(mount) >= best:
                    best, kind = len(mount), behind.split(" ")[0]
    except (OSError, IndexError):
        return ""
    return kind


class FileLock:
    """flock on a file that stays. `take(False)` is shared. Closing, or dying, lets go."""

    def __init__(self, path: str) -> None:
        if not os.path.exists(path):
            _make_shared_file(path)
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def take(self, exclusive: bool, wait: bool = False) -> bool:
        try:
            fcntl.flock(self.fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB))
            return True
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise

    def touch(self) -> None:
        try:
            os.utime(self.fd)
        except OSError:
            pass  # Another user's file in a shared root: its time stays, which only makes it go a little earlier.

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _make_shared_file(path: str) -> None:
    """An empty file that every user of a shared root may open from its first moment, whatever the umask.

    The umask itself is left alone: it belongs to all threads of a process.
    """
    fd, temp = tempfile.mkstemp(prefix=".new-", dir=os.path.dirname(path))
    try:
        os.fchmod(fd, 0o666)
        os.link(temp, path)
    except FileExistsError:
        pass  # Another job was faster.
    finally:
        os.close(fd)
        os.unlink(temp)


def free_bytes(root: CacheRoot, environ: Mapping[str, str]) -> int:
    """What may still be written: free space less a reserve, and less than the cache's own limit if it has one."""
    disk = os.statvfs(root.path)
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    room = free - min(total // 50, 2 * 10**9)
    limit = parse_size(environ.get(LIMIT_VARIABLE) or "")
    if limit is not None:
        room = min(room, limit - sum(entry["bytes"] for entry in list_datasets(root)))
    return max(0, room)


def list_datasets(root: CacheRoot) -> List[Dict[str, Any]]:
    """The data sets in the cache: id, bytes on disk, last use, whether somebody uses it now; oldest use first."""
    found = []
    for name in sorted(os.listdir(root.folder("objects"))):
        used = root.folder("use", name)
        found.append(
            {
                "id": name,
                "bytes": _disk_bytes(root.folder("objects", name)),
                "used_at": mtime_or_zero(used),
                "busy": is_locked(used),
            }
        )
    return sorted(found, key=lambda entry: float(entry["used_at"]))


def is_locked(path: str) -> bool:
    """Whether any process holds the lock at `path`."""
    if not os.path.exists(path):
        return False
    lock = FileLock(path)
    try:
        return not lock.take(True)
    finally:
        lock.close()


def make_room(root: CacheRoot, needed: int, environ: Mapping[str, str], keep: str = "") -> List[str]:
    """Remove data sets that nobody uses, longest unused first, until `needed` bytes fit; returns what went.

    Never removes one that is in use, nor `keep`. What is being removed is out of the cache before its first file goes.
    """
    gone = []
    empty_trash(root)
    for entry in list_datasets(root):
        if free_bytes(root, environ) >= needed:
            break
        if entry["id"] != keep and not entry["busy"] and remove_dataset(root, entry["id"]):
            gone.append(entry["id"])
    return gone


def remove_dataset(root: CacheRoot, name: str) -> bool:
    """Remove one data set unless somebody uses or copies it."""
    use, copy = FileLock(root.folder("use", name)), FileLock(root.folder("locks", name))
    try:
        if not (use.take(True) and copy.take(True)):
            return False
        trashed = move_to_trash(root, name)
    finally:
        copy.close()
        use.close()
    if trashed is not None:
        shutil.rmtree(trashed, ignore_errors=True)
    return trashed is not None


def move_to_trash(root: CacheRoot, name: str) -> Optional[str]:
    """Take a data set out of the cache in one step; the caller holds its locks. Where it went, or None."""
    trashed = root.folder("trash", "%s-%08x" % (name, random.getrandbits(32)))
    try:
        os.rename(root.folder("objects", name), trashed)
    except OSError:
        return None
    return trashed


def empty_trash(root: CacheRoot) -> None:
    """Finish removals that a kill interrupted."""
    for name in os.listdir(root.folder("trash")):
        shutil.rmtree(root.folder("trash", name), ignore_errors=True)


def parse_size(text: str) -> Optional[int]:
    """Bytes of "200G"; None for nothing or for what is no size."""
    word = text.strip().upper()
    if word.endswith("B"):
        word = word[:-1]
    unit = _UNITS.get(word[-1:], 1)
    number = word[:-1] if word[-1:] in _UNITS else word
    try:
        return int(float(number) * unit) if number else None
    except ValueError:
        return None


def _disk_bytes(folder: str) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
            except OSError:
                continue
    return total


def mtime_or_zero(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
