"""The copy of a dataset on a node: its directory in the cache, and what its source consists of.

HOME/data/          the files; a name appears when the file is complete, or links to the source where space is short
HOME/parts/         files that are being copied
HOME/wants/         names that readers wait for
HOME/damaged/       names of files whose bytes a reader found to be wrong
HOME/about.json     the source;  complete.json: all of it is there;  problem: why it never will be

A source is a manifest's shards, a directory's files, or one file; it is read without any dependency.
"""

import hashlib
import json
import os
import queue
import re
import shutil
import stat
import threading
import zlib
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from ..kernel import files
from . import cache
from .cache import CacheRoot, FileLock
from .file_copy import CopyItem, flat_name

MANIFEST_FILE = "manifest.json"
#: The newest manifest that this code understands.
MANIFEST_VERSION = 1
_ID = re.compile(r"[0-9a-f]{8,64}\Z")


class NotStageable(Exception):
    """There is nothing here to copy; the sentence says why."""


class Listing(NamedTuple):
    """Items in the order of the data set. `units` are names that belong together, such as a shard and its index.

    `partial`: whoever reads it knows from the manifest what is still to come, so reading may begin with the first unit.
    """

    id: str
    folder: str
    items: Dict[str, CopyItem]
    units: List[Tuple[str, ...]]
    partial: bool
    manifest: Optional[bytes] = None
    entry: str = ""

    @property
    def bytes(self) -> int:
        return sum(item.size for item in self.items.values())


def read_source(path: str) -> Listing:
    """Look at a source. NotStageable says in one sentence what is wrong with it."""
    if os.path.basename(path) == MANIFEST_FILE and os.path.isfile(path):
        path = os.path.dirname(path) or "."
    path = os.path.abspath(path)
    try:
        if os.path.isfile(os.path.join(path, MANIFEST_FILE)):
            return _of_manifest(path)
        if os.path.isdir(path):
            return _of_folder(path)
        status = os.stat(path)
    except OSError as error:
        raise NotStageable("%s cannot be read: %s" % (path, (error.strerror or str(error)).lower()))
    if not stat.S_ISREG(status.st_mode):
        raise NotStageable("%s is neither a folder nor a file" % path)
    name = os.path.basename(path)
    item = CopyItem(name, status.st_size, None, status.st_mtime_ns)
    folder = os.path.dirname(path)
    return Listing(_listing_id([folder, item]), folder, {name: item}, [(name,)], False, None, name)


def _of_manifest(folder: str) -> Listing:
    with open(os.path.join(folder, MANIFEST_FILE), "rb") as file:
        data = file.read()
    try:
        document = json.loads(data)
        if document["version"] > MANIFEST_VERSION:
            raise NotStageable("%s was written by a newer shoal" % os.path.join(folder, MANIFEST_FILE))
        items: Dict[str, CopyItem] = {}
        units = []
        for shard in document["shards"]:
            names = [shard["name"]]
            items[names[0]] = CopyItem(_check_plain_name(shard["name"]), int(shard["size"]), shard.get("crc32") or None)
            if shard.get("index_size"):
                names.insert(0, shard["name"] + ".index")
                items[names[0]] = CopyItem(names[0], int(shard["index_size"]), shard.get("index_crc32") or None)
            units.append(tuple(names))
        identity = str(document["id"])
        if not _ID.match(identity):
            raise ValueError("its id is not one")
        partial = document.get("format") in ("tar", "tfrecord")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotStageable("%s is damaged: %s" % (os.path.join(folder, MANIFEST_FILE), error))
    return Listing(identity, folder, items, units, partial, data)


def _of_folder(folder: str) -> Listing:
    items: Dict[str, CopyItem] = {}
    for path in sorted(_walk(folder)):
        status = os.stat(os.path.join(folder, path))
        if stat.S_ISREG(status.st_mode):
            items[path] = CopyItem(path, status.st_size, None, status.st_mtime_ns)
    if not items:
        raise NotStageable("%s is empty" % folder)
    return Listing(_listing_id([folder, *items.values()]), folder, items, [(name,) for name in items], False)


def _walk(folder: str) -> List[str]:
    found: List[str] = []
    seen: Set[Tuple[int, int]] = set()

    def fail(error: OSError) -> None:
        raise error

    for where, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        status = os.stat(where)
        if (status.st_dev, status.st_ino) in seen:
            folders[:] = []
            continue
        seen.add((status.st_dev, status.st_ino))
        found += [os.path.relpath(os.path.join(where, name), folder) for name in names]
    return found


def node_order(units: List[Tuple[str, ...]], rotation: int) -> List[Tuple[str, ...]]:
    """The first unit first, because everybody waits for it; the others begin somewhere else on every node."""
    rest = units[1:]
    cut = rotation % len(rest) if rest else 0
    return units[:1] + rest[cut:] + rest[:cut]


def node_rotation(environ: Mapping[str, str], host: str) -> int:
    """Where this node begins. Nodes of one job begin together, so that all its ranks read in one order."""
    if int(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or 1) > 1:
        return zlib.crc32(("job " + environ.get("SLURM_JOB_ID", "")).encode())
    return zlib.crc32(("node " + (environ.get("SLURMD_NODENAME") or host)).encode())


def _check_plain_name(name: str) -> str:
    if os.path.basename(name) != name or name in ("", ".", "..") or name.startswith("."):
        raise ValueError("%r is not the name of a shard" % name)
    return name


def _listing_id(parts: List[Any]) -> str:
    return hashlib.sha256(
        repr([tuple(part) if isinstance(part, tuple) else part for part in parts]).encode("utf-8", "surrogateescape")
    ).hexdigest()[:24]


#: Beside the data set's folder: where it came from; that all of it is there; why it never will be; what readers want;
#: what they found damaged.
ABOUT_FILE, COMPLETE_FILE, PROBLEM_FILE, REQUESTS_DIR, DAMAGED_DIR = (
    "about.json",
    "complete.json",
    "problem",
    "wants",
    "damaged",
)


class DatasetCopy:
    """The copy of what `told` lists, in the cache `root`. Whoever made it must hold its locks as `Stage` does."""

    def __init__(self, root: CacheRoot, listing: Listing) -> None:
        self.root = root
        self.list = listing
        self.home = root.folder("objects", listing.id)
        self.folder = os.path.join(self.home, "data")
        self.parts = os.path.join(self.home, "parts")
        self.wants = os.path.join(self.home, REQUESTS_DIR)
        self.damaged = os.path.join(self.home, DAMAGED_DIR)

    def lay_out(self) -> None:
        """Make the folder, once. Left by a node that went down while copying, it may hold files without their bytes."""
        if self._is_laid_out():
            return
        lock = FileLock(self.root.folder("locks", self.list.id))
        try:
            lock.take(True, wait=True)
            about = files.read_json(os.path.join(self.home, ABOUT_FILE))
            if about is not None and about.get("boot") == boot_id():
                return
            trashed = cache.move_to_trash(self.root, self.list.id)
            if trashed is not None:
                shutil.rmtree(trashed, ignore_errors=True)
            for folder in (self.home, self.folder, self.parts, self.wants, self.damaged):
                self.root.make(folder)
            if self.list.manifest is not None:
                _write(os.path.join(self.folder, MANIFEST_FILE), self.list.manifest)
            about = {"source": self.list.folder, "id": self.list.id, "boot": boot_id()}
            _write(os.path.join(self.home, ABOUT_FILE), files.to_json(about))
        finally:
            lock.close()

    def _is_laid_out(self) -> bool:
        about = files.read_json(os.path.join(self.home, ABOUT_FILE))
        return about is not None and (about.get("boot") == boot_id() or self.is_complete())

    def is_complete(self) -> bool:
        """All files are there, and their bytes are on disk or at least of this boot."""
        record = files.read_json(os.path.join(self.home, COMPLETE_FILE))
        return record is not None and bool(record.get("synced") or record.get("boot") == boot_id())

    def broken(self) -> List[str]:
        """Files that a complete copy has lost or that readers found damaged: disks fail, and people tidy up."""
        damaged = set(files.list_names(self.damaged))
        return [name for name in self.list.items if flat_name(name) in damaged or not self.has(name)]

    def note_complete(self, synced: bool) -> None:
        record: Dict[str, Any] = {"boot": boot_id(), "bytes": self.list.bytes}
        if synced:
            record["synced"] = True
        _write(os.path.join(self.home, COMPLETE_FILE), files.to_json(record))

    def note_problem(self, text: Optional[str]) -> None:
        """Tell readers why the data will never be there; None takes it back."""
        path = os.path.join(self.home, PROBLEM_FILE)
        if text is None:
            _remove(path)
        else:
            _write(path, text.encode("utf-8", "replace"))

    def has(self, name: str) -> bool:
        """Whether a file can be read: it is a copy, or a link to the source."""
        path = os.path.join(self.folder, name)
        try:
            return os.stat(path).st_size == self.list.items[name].size and os.access(path, os.R_OK)
        except OSError:
            return False

    def is_copied(self, name: str) -> bool:
        damaged = os.path.lexists(os.path.join(self.damaged, flat_name(name)))
        return self.has(name) and not damaged and not os.path.islink(os.path.join(self.folder, name))

    def missing(self, units: List[Tuple[str, ...]]) -> List[Tuple[str, ...]]:
        """Units of which some file is not copied."""
        return [unit for unit in units if not all(self.is_copied(name) for name in unit)]

    def link(self, rest: List[Tuple[str, ...]]) -> int:
        """A link to the source in the place of each file, so no reader sees a gap; returns the bytes left there."""
        size = 0
        for unit in rest:
            for name in unit:
                path = os.path.join(self.folder, name)
                files.make_dir(os.path.dirname(path))
                if not os.path.lexists(path):
                    os.symlink(os.path.join(self.list.folder, name), path)
                size += self.list.items[name].size if os.path.islink(path) else 0
        return size

    def wanted(self) -> List[str]:
        """What readers ask for, the longest asked first."""
        names = files.list_names(self.wants)
        return (
            names
            if len(names) < 2
            else sorted(names, key=lambda name: cache.mtime_or_zero(os.path.join(self.wants, name)))
        )

    def arrived(self, name: str) -> None:
        """Nobody need wait for this file any more."""
        _remove(os.path.join(self.wants, flat_name(name)))
        _remove(os.path.join(self.damaged, flat_name(name)))

    def drop_parts(self) -> None:
        """Give back the room of files on their way."""
        for name in files.list_names(self.parts):
            _remove(os.path.join(self.parts, name))

    @contextmanager
    def syncing(self) -> Iterator[Callable[[str], None]]:
        """Call what this gives with the name of a file that is in place, and its bytes go to disk meanwhile."""
        names: "queue.SimpleQueue[Optional[str]]" = queue.SimpleQueue()

        def work() -> None:
            for name in iter(names.get, None):
                _sync(os.path.join(self.folder, name))

        threading.Thread(target=work, daemon=True).start()
        try:
            yield names.put
        finally:
            names.put(None)

    def sync(self, stop: Callable[[], bool]) -> bool:
        """Bring the bytes safely to disk; False if told to stop before that was done."""
        for name in self.list.items:
            if stop():
                return False
            _sync(os.path.join(self.folder, name))
        return True


class CopyQueue:
    """What to copy next: what a reader waits for, else the next in order. Called with the copier's lock held."""

    def __init__(self, units: List[Tuple[str, ...]], copy: DatasetCopy) -> None:
        self._units = list(units)
        self._copy = copy
        self._now: List[str] = []

    def __call__(self) -> Optional[CopyItem]:
        while not self._now:
            if not self._units:
                return None
            wanted = self._copy.wanted() if len(self._units) > 1 else []
            asked = (unit for name in wanted for unit in self._units if name in unit)
            chosen = next(asked, self._units[0])
            self._units.remove(chosen)
            self._now = [name for name in chosen if not self._copy.is_copied(name)]
        return self._copy.list.items[self._now.pop(0)]


def split_by_size(units: List[Tuple[str, ...]], items: Dict[str, CopyItem], room: int) -> Tuple[Any, Any]:
    """Units that fit into the room, in order, and the rest."""
    fitting: List[Tuple[str, ...]] = []
    rest: List[Tuple[str, ...]] = []
    for unit in units:
        size = sum(items[name].size for name in unit)
        if not rest and size <= room:
            room -= size
            fitting.append(unit)
        else:
            rest.append(unit)
    return fitting, rest


def boot_id() -> str:
    """Which start of this machine we are in."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _write(path: str, data: bytes) -> None:
    files.replace(path, data, sync=False)


def _sync(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
