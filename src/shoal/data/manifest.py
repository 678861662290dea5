"""The manifest of a dataset, which lists its shards and their source, and the index of one shard.

A directory without a manifest is not a dataset. An index tells where each member of each sample is, with its checksum:
a file of columns behind a short JSON header, made to be memory-mapped, so that any sample of any shard is one look-up
and one read. `first` is the first member of a sample; keys and original paths are bytes, since file names need not be
text. A member is a range of bytes of the shard; `kind` is its type, because a TFRecord also holds numbers.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from shoal.data import optional_packages
from shoal.errors import InputError, ShoalError
from shoal.job import crc32
from shoal.kernel import files

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1


class Shard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One big file. `crc32` is zlib's, of the whole file, which any Python can compute while copying."""

    name: str
    size: int
    samples: int = 0
    crc32: str = ""
    index_size: int = 0
    index_crc32: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A data set. `bytes` is what the samples hold, without the containers around them."""

    version: int
    name: str
    id: str
    format: str
    samples: int
    bytes: int
    shards: list[Shard]
    fields: list[str] = []
    classes: list[str] = []
    seed: int | None = None
    source: dict[str, Any] = {}
    left_out: list[str] = []
    tool: str = ""

    @property
    def size(self) -> int:
        """Bytes on disk, indexes included."""
        return sum(shard.size + shard.index_size for shard in self.shards)


def dataset_id(shards: list[Shard], fields: list[str], classes: list[str]) -> str:
    """The identity of the content: the same shards give the same id wherever and whenever they were made."""
    parts = [[shard.name, shard.size, shard.crc32, shard.samples] for shard in shards]
    return hashlib.sha256(json.dumps([parts, fields, classes]).encode()).hexdigest()[:24]


def encode_manifest(manifest: Manifest) -> bytes:
    return json.dumps(msgspec.to_builtins(manifest), indent=1).encode() + b"\n"


def find_manifest(path: str) -> str | None:
    """The path of the manifest that a person means by a folder or by the manifest itself; None if there is none."""
    if os.path.isdir(path):
        path = os.path.join(path, MANIFEST_NAME)
    return path if os.path.basename(path) == MANIFEST_NAME and os.path.isfile(path) else None


def load_manifest(path: str) -> Manifest:
    """Read the manifest of a data set given by its folder or by the manifest's path."""
    place = find_manifest(path)
    if place is None:
        raise InputError(
            f"there is no data set in {path}: it has no {MANIFEST_NAME}", hint=f"shoal data shard FOLDER {path}"
        )
    try:
        with open(place, "rb") as file:
            document = json.loads(file.read())
        version = document["version"]
        if version > MANIFEST_VERSION:
            raise InputError(
                f"{place} was written by a newer shoal (manifest version {version}, this one reads {MANIFEST_VERSION})",
                hint="pip install --upgrade shoal",
            )
        manifest = msgspec.convert(document, Manifest)
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise ShoalError(
            f"{place} is damaged: {error}", hint="copy it again from where the data set was sharded"
        ) from None
    for shard in manifest.shards:
        if os.path.basename(shard.name) != shard.name or shard.name in ("", ".", ".."):
            raise ShoalError(f"{place} is damaged: {shard.name!r} is not the name of a shard")
    return manifest


INDEX_SUFFIX = ".index"
_INDEX_MAGIC = b"SHOALIX1"
_INDEX_COLUMNS = (
    ("first", "<u4"),
    ("offset", "<u8"),
    ("size", "<u8"),
    ("crc", "<u4"),
    ("field", "<u2"),
    ("label", "<i8"),
    ("key_end", "<u8"),
    ("path_end", "<u8"),
)
#: What a member's bytes are: the value itself, or numbers as protocol buffers write them.
RAW, INT64, FLOAT, BYTES_LIST = "raw", "int64", "float", "bytes_list"
#: No class: the sample has no `cls`, or one that is not a number.
NO_LABEL = -(1 << 63)


class SampleMember(NamedTuple):
    """One field of a sample: its bytes are shard[offset : offset + size]; `path` is the file it came from, if any."""

    field: str
    offset: int
    size: int
    crc: int
    path: bytes = b""
    kind: str = RAW


class IndexedSample(NamedTuple):
    key: bytes
    members: tuple[SampleMember, ...]
    label: int = NO_LABEL


class ShardIndex:
    """A memory-mapped index. Columns are numpy arrays; `sample(i)` gathers one sample for code that is not hot."""

    def __init__(self, data: Any, place: str) -> None:
        np = optional_packages.numpy()
        view = memoryview(data)
        if len(view) < 20 or bytes(view[:8]) != _INDEX_MAGIC:
            raise ShoalError(f"{place} is not an index of shoal", hint=f"rm {place}   # it is built again when needed")
        if not is_intact(view):
            raise ShoalError(f"{place} is damaged", hint=f"rm {place}   # it is built again when needed")
        (length,) = struct.unpack_from("<Q", view, 8)
        try:
            header = json.loads(bytes(view[16 : 16 + length]))
            self.columns = {
                name: np.frombuffer(view, dtype=dtype, count=count, offset=offset)
                for name, (offset, count, dtype) in header["columns"].items()
            }
            self.keys, self.paths = (view[o : o + n] for o, n in (header["keys"], header["paths"]))
        except (ValueError, KeyError):
            raise ShoalError(f"{place} is damaged", hint=f"rm {place}   # it is built again when needed") from None
        self.shard: dict[str, Any] = header["shard"]
        self.fields: tuple[str, ...] = tuple(header["fields"])
        self.kinds: tuple[str, ...] = tuple(header["kinds"])
        self.place = place
        self.data = view

    def __len__(self) -> int:
        return len(self.columns["label"])

    def key(self, number: int) -> bytes:
        return _blob_part(self.keys, self.columns["key_end"], number)

    def path(self, member: int) -> bytes:
        return _blob_part(self.paths, self.columns["path_end"], member)

    def sample(self, number: int) -> IndexedSample:
        column = self.columns
        members = tuple(
            SampleMember(
                self.fields[column["field"][m]],
                int(column["offset"][m]),
                int(column["size"][m]),
                int(column["crc"][m]),
                self.path(m),
                self.kinds[column["field"][m]],
            )
            for m in range(int(column["first"][number]), int(column["first"][number + 1]))
        )
        return IndexedSample(self.key(number), members, int(column["label"][number]))


class IndexBuilder:
    """Collects the samples of a shard in the order in which they lie there."""

    def __init__(self) -> None:
        self._columns: dict[str, list[int]] = {name: [] for name, _ in _INDEX_COLUMNS}
        self._fields: dict[tuple[str, str], int] = {}
        self._keys = bytearray()
        self._paths = bytearray()

    def __len__(self) -> int:
        return len(self._columns["label"])

    def add(self, sample: IndexedSample) -> None:
        first, offsets, sizes, crcs, fields, labels, key_ends, path_ends = self._columns.values()
        key, members, label = sample
        first.append(len(offsets))
        labels.append(label)
        self._keys += key
        key_ends.append(len(self._keys))
        for field, offset, size, crc, path, kind in members:
            offsets.append(offset)
            sizes.append(size)
            crcs.append(crc)
            fields.append(self._fields.setdefault((field, kind), len(self._fields)))
            self._paths += path
            path_ends.append(len(self._paths))

    def finish(self, shard: dict[str, Any]) -> bytes:
        """The index as bytes; `shard` says which file it describes (name, size, crc32, format)."""
        np = optional_packages.numpy()
        self._columns["first"].append(len(self._columns["offset"]))
        arrays = {name: np.array(self._columns[name], dtype=dtype) for name, dtype in _INDEX_COLUMNS}
        names = sorted(self._fields, key=lambda pair: self._fields[pair])
        header: dict[str, Any] = {
            "version": 1,
            "shard": shard,
            "fields": [field for field, _ in names],
            "kinds": [kind for _, kind in names],
        }
        # Offsets depend on the header's length and stand in the header: write it once with room, then for good.
        room = len(json.dumps(header)) + 64 * (len(arrays) + 2)
        at = 16 + room + (-(16 + room)) % 8
        parts: list[bytes] = []
        header["columns"] = {}
        for name, array in arrays.items():
            header["columns"][name] = [at, len(array), array.dtype.str]
            parts.append(array.tobytes() + b"\0" * (-array.nbytes % 8))
            at += len(parts[-1])
        for name, blob in (("keys", self._keys), ("paths", self._paths)):
            header[name] = [at, len(blob)]
            parts.append(bytes(blob) + b"\0" * (-len(blob) % 8))
            at += len(parts[-1])
        text = json.dumps(header).encode()
        body_at = 16 + room + (-(16 + room)) % 8
        body = _INDEX_MAGIC + struct.pack("<Q", len(text)) + text.ljust(body_at - 16, b" ") + b"".join(parts)
        return body + struct.pack("<I", crc32(body))


def open_index(path: str) -> ShardIndex:
    """Map the index at `path`; FileNotFoundError if there is none."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise ShoalError(f"{path} is damaged: it is empty", hint=f"rm {path}   # it is built again when needed")
        return ShardIndex(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), path)


def write_index(path: str, data: bytes) -> None:
    """Put an index in place, whole or not at all."""
    files.replace(path, data)


def is_intact(index_bytes: bytes | memoryview) -> bool:
    """Whether the bytes of an index are the ones that were written."""
    if len(index_bytes) < 20 or bytes(index_bytes[:8]) != _INDEX_MAGIC:
        return False
    return crc32(index_bytes[:-4]) == int.from_bytes(index_bytes[-4:], "little")


def _blob_part(blob: memoryview, ends: Sequence[int], number: int) -> bytes:
    return bytes(blob[int(ends[number - 1]) if number else 0 : int(ends[number])])
