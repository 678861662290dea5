"""What a data set's source consists of: a manifest's shards, a folder's files, or one file; read with no dependency."""

import hashlib
import json
import os
import re
import stat
import zlib
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from .copying import CopyItem

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
        told = os.stat(path)
    except OSError as error:
        raise NotStageable("%s cannot be read: %s" % (path, (error.strerror or str(error)).lower()))
    if not stat.S_ISREG(told.st_mode):
        raise NotStageable("%s is neither a folder nor a file" % path)
    name = os.path.basename(path)
    item = CopyItem(name, told.st_size, None, told.st_mtime_ns)
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
        told = os.stat(os.path.join(folder, path))
        if stat.S_ISREG(told.st_mode):
            items[path] = CopyItem(path, told.st_size, None, told.st_mtime_ns)
    if not items:
        raise NotStageable("%s is empty" % folder)
    return Listing(_listing_id([folder, *items.values()]), folder, items, [(name,) for name in items], False)


def _walk(folder: str) -> List[str]:
    found: List[str] = []
    seen: Set[Tuple[int, int]] = set()

    def fail(error: OSError) -> None:
        raise error

    for where, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        told = os.stat(where)
        if (told.st_dev, told.st_ino) in seen:
            folders[:] = []
            continue
        seen.add((told.st_dev, told.st_ino))
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
