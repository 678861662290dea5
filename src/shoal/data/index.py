"""The index of one shard: where each member of each sample lies, and what its bytes add up to.

A file of columns behind a short JSON header, made to be memory-mapped: any sample of any shard is one look-up and one
read away. `first` says at which member a sample begins; keys and original paths are bytes, since names need not be
text. A member is a range of bytes of the shard; `kind` says what is in it, because a TFRecord also holds numbers.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from shoal.data import needs
from shoal.errors import ShoalError
from shoal.job import crc32
from shoal.kernel import files

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
        np = needs.numpy()
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
        np = needs.numpy()
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
