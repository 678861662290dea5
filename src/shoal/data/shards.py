"""Writing one shard: samples in, a file and its index out. Nothing under the final name until all of it is on disk."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

from shoal.data import crc, needs, tar, tfrecord
from shoal.data.disk import disk_errors_at
from shoal.data.index import INDEX_SUFFIX, INT64, NO_LABEL, RAW, IndexBuilder, IndexedSample, SampleMember, write_index
from shoal.data.manifest import Shard
from shoal.errors import InputError
from shoal.job import crc32

FORMATS = {"tar": ".tar", "tfrecord": ".tfrecord", "squashfs": ".squashfs"}
#: Pieces that wait for one system call: few, so that a file's bytes are still in the processor's cache when written.
_MAX_PENDING_BUFFERS = 24
#: Members below this size are joined with their neighbours, up to so much.
_JOIN_BELOW, _MAX_JOINED = 1 << 11, 1 << 16


class FieldValue(NamedTuple):
    """A field to write. `path` is the file it came from; what shoal adds, such as a class number, has none."""

    field: str
    data: bytes
    path: bytes = b""


class ShardWriter:
    """Writes `folder/name` as a temporary file; `finish` puts the shard and then its index in place.

    The index comes last, so an index means a complete shard. Leaving the `with` block early leaves nothing behind.
    """

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.path = os.path.join(folder, name)
        self._temp = f"{self.path}.tmp-{os.getpid()}-{random.getrandbits(32):08x}"
        self._fd = os.open(self._temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._waiting: list[bytes] = []
        self._pieces: list[tuple[int, int]] = []
        self.index = IndexBuilder()
        self.at = 0
        self.bytes = 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        try:
            os.unlink(self._temp)
        except FileNotFoundError:
            pass

    def add(self, key: str, values: Sequence[FieldValue], label: int | None, mtime_s: int) -> None:
        raise NotImplementedError

    def finish(self, about: dict[str, Any] | None = None) -> Shard:
        """Sync, rename, write the index; `about` is kept with it."""
        self._flush()
        with disk_errors_at(self.path):
            os.fsync(self._fd)
        os.close(self._fd)
        self._fd = -1
        checksum = f"{crc.combine_crcs(self._pieces):08x}"
        os.rename(self._temp, self.path)
        shard = {"name": self.name, "size": self.at, "crc32": checksum, "bytes": self.bytes, **(about or {})}
        data = self.index.finish(shard)
        write_index(self.path + INDEX_SUFFIX, data)
        return Shard(
            name=self.name,
            size=self.at,
            samples=len(self.index),
            crc32=checksum,
            index_size=len(data),
            index_crc32=f"{crc32(data):08x}",
        )

    def _put(self, piece: bytes, checksum: int | None = None) -> None:
        self._waiting.append(piece)
        self._pieces.append((crc32(piece) if checksum is None else checksum, len(piece)))
        self.at += len(piece)
        if len(self._waiting) >= _MAX_PENDING_BUFFERS:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        with disk_errors_at(self.path):
            while waiting:
                done = os.writev(self._fd, waiting)
                # A nearly full disk takes a part and reports no error; the next call reports it.
                while waiting and done >= len(waiting[0]):
                    done -= len(waiting.pop(0))
                if waiting and done:
                    waiting[0] = waiting[0][done:]


class TarWriter(ShardWriter):
    """`_glue` is what was not worth a piece of its own: padding, and small members such as class numbers."""

    def __init__(self, folder: str, name: str) -> None:
        super().__init__(folder, name)
        self._glue = b""

    def add(self, key: str, values: Sequence[FieldValue], label: int | None, mtime_s: int) -> None:
        text = key.encode("utf-8", "surrogateescape")
        members = []
        if label is not None and "cls" not in [value.field for value in values]:
            values = [*values, FieldValue("cls", b"%d" % label)]
        for field, data, path in values:
            name = b"%b.%b" % (text, field.encode("utf-8", "surrogateescape"))
            size, checksum = len(data), crc32(data)
            head = self._glue + tar.tar_header(name, size, mtime_s)
            members.append(SampleMember(field, self.at + len(head), size, checksum, path))
            if size < _JOIN_BELOW and len(head) < _MAX_JOINED:
                self._glue = head + data + tar.tar_padding(size)
            else:
                self._put(head)
                self._put(data, checksum)
                self._glue = tar.tar_padding(size)
            self.bytes += size
        self.index.add(IndexedSample(text, tuple(members), NO_LABEL if label is None else label))

    def finish(self, about: dict[str, Any] | None = None) -> Shard:
        self._put(self._glue + tar.TAR_END)
        return super().finish(about)


class TFRecordWriter(ShardWriter):
    def __init__(self, folder: str, name: str) -> None:
        super().__init__(folder, name)
        self._crc32c = needs.crc32c()

    def add(self, key: str, values: Sequence[FieldValue], label: int | None, mtime_s: int) -> None:
        pairs: list[tuple[str, bytes | int]] = [(value.field, value.data) for value in values]
        if label is not None and all(value.field != "cls" for value in values):
            pairs.append(("cls", label))
        text = key.encode("utf-8", "surrogateescape")
        data, offsets = tfrecord.encode_example([*pairs, (tfrecord.KEY_FEATURE, text)])
        self._put(tfrecord.record_header(len(data), self._crc32c))
        paths = {value.field: value.path for value in values}
        members = []
        for (field, value), offset in zip(pairs, offsets, strict=False):
            size = len(value) if isinstance(value, bytes) else len(tfrecord.encode_varint(value))
            checksum = crc32(memoryview(data)[offset : offset + size])
            kind = RAW if isinstance(value, bytes) else INT64
            members.append(SampleMember(field, self.at + offset, size, checksum, paths.get(field, b""), kind))
            self.bytes += size
        self._put(data)
        self._put(struct.pack("<I", tfrecord.masked_crc(self._crc32c(data))))
        self.index.add(IndexedSample(text, tuple(members), NO_LABEL if label is None else label))


def open_writer(format: str, folder: str, name: str) -> ShardWriter:
    if format == "tar":
        return TarWriter(folder, name)
    if format == "tfrecord":
        return TFRecordWriter(folder, name)
    raise InputError(f"there is no format {format!r}", hint=f"--format {'|'.join(FORMATS)}", place="--format")
