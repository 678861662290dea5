"""Write one shard: samples in, a file and its index out. The final name appears when all of it is on disk.

The CRC-32 of the file comes from the CRCs of its records without a second pass. zlib's CRC is linear:
crc(A + B) = shift(crc(A), len(B)) xor crc(B), where shift multiplies by x^(8 len) modulo the polynomial. So the
checksums of the records, which the index keeps, give the checksum of the shard, which the manifest keeps and every
copy is compared with. Any Python on any node can check it.

Also here: disk errors that name the file (the kernel's "no space left" names none), and a directory as one squashfs
image, made, opened and checked by squashfs-tools, for code that needs a directory.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple

from shoal.data import formats, optional_packages
from shoal.data.manifest import (
    INDEX_SUFFIX,
    INT64,
    NO_LABEL,
    RAW,
    IndexBuilder,
    IndexedSample,
    SampleMember,
    Shard,
    write_index,
)
from shoal.errors import DiskError, InputError, ShoalError
from shoal.job import crc32
from shoal.observe import full_disk_hint

_POLYNOMIAL = 0xEDB88320


def combine_crcs(pieces: Sequence[tuple[int, int]]) -> int:
    """CRC-32 of the concatenation of pieces given as (crc, length)."""
    np = optional_packages.numpy()
    if not pieces:
        return 0
    crcs = np.fromiter((crc for crc, _ in pieces), dtype=np.uint32, count=len(pieces))
    lengths = np.fromiter((length for _, length in pieces), dtype=np.int64, count=len(pieces))
    behind = int(lengths.sum()) - np.cumsum(lengths)
    for bit in range(int(behind[0]).bit_length()):
        odd = np.flatnonzero(behind >> bit & 1)
        crcs[odd] = _multiply(crcs[odd], _byte_products(bit))
    return int(np.bitwise_xor.reduce(crcs))


def _multiply(values: Any, table: Any) -> Any:
    """Each value times the factor of a table: the product is the sum of the products of its four bytes."""
    return table[0][values & 255] ^ table[1][values >> 8 & 255] ^ table[2][values >> 16 & 255] ^ table[3][values >> 24]


@cache
def _byte_products(bit: int) -> Any:
    """Products of every byte, in each of the four places, with x^(8 * 2^bit) modulo the polynomial."""
    np = optional_packages.numpy()
    table = np.zeros((4, 256), dtype=np.uint32)
    product = _shift_factor(bit)
    for place in range(31, -1, -1):  # In CRC-32's notation the highest bit is x^0, and shifting down multiplies by x.
        byte, power = divmod(place, 8)
        table[byte, 1 << power] = product
        product = product >> 1 ^ (_POLYNOMIAL if product & 1 else 0)
    for power in range(8):
        table[:, (1 << power) + 1 : 2 << power] = table[:, 1 : 1 << power] ^ table[:, 1 << power, None]
    return table


@cache
def _shift_factor(bit: int) -> int:
    """x^(8 * 2^bit): the square of the one before, beginning with x^8."""
    if bit == 0:
        return 1 << 23
    before = _shift_factor(bit - 1)
    return int(_multiply(optional_packages.numpy().array([before], dtype="uint32"), _byte_products(bit - 1))[0])


@contextmanager
def disk_errors_at(path: str) -> Iterator[None]:
    """Whatever fails in here for lack of room failed at `path`."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or path) from None


def run_writer(argv: Sequence[str], dest: str) -> None:
    """Run a program that writes below `dest`; its first complaint as an error if it fails."""
    done = subprocess.run(list(argv), check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        first = next(iter(done.stderr.splitlines()), f"exit code {done.returncode}")
        raise writer_error(first if first.startswith(argv[0]) else f"{argv[0]}: {first}", dest)


def writer_error(text: str, dest: str) -> ShoalError:
    """An error of another program that wrote below `dest`: of a full disk if that is what it complains about."""
    full = "no space left" in text.lower()
    return DiskError(text, hint=full_disk_hint(dest)) if full else ShoalError(text)


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
        checksum = f"{combine_crcs(self._pieces):08x}"
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
            head = self._glue + formats.tar_header(name, size, mtime_s)
            members.append(SampleMember(field, self.at + len(head), size, checksum, path))
            if size < _JOIN_BELOW and len(head) < _MAX_JOINED:
                self._glue = head + data + formats.tar_padding(size)
            else:
                self._put(head)
                self._put(data, checksum)
                self._glue = formats.tar_padding(size)
            self.bytes += size
        self.index.add(IndexedSample(text, tuple(members), NO_LABEL if label is None else label))

    def finish(self, about: dict[str, Any] | None = None) -> Shard:
        self._put(self._glue + formats.TAR_END)
        return super().finish(about)


class TFRecordWriter(ShardWriter):
    def __init__(self, folder: str, name: str) -> None:
        super().__init__(folder, name)
        self._crc32c = optional_packages.crc32c()

    def add(self, key: str, values: Sequence[FieldValue], label: int | None, mtime_s: int) -> None:
        pairs: list[tuple[str, bytes | int]] = [(value.field, value.data) for value in values]
        if label is not None and all(value.field != "cls" for value in values):
            pairs.append(("cls", label))
        text = key.encode("utf-8", "surrogateescape")
        data, offsets = formats.encode_example([*pairs, (formats.KEY_FEATURE, text)])
        self._put(formats.record_header(len(data), self._crc32c))
        paths = {value.field: value.path for value in values}
        members = []
        for (field, value), offset in zip(pairs, offsets, strict=False):
            size = len(value) if isinstance(value, bytes) else len(formats.encode_varint(value))
            checksum = crc32(memoryview(data)[offset : offset + size])
            kind = RAW if isinstance(value, bytes) else INT64
            members.append(SampleMember(field, self.at + offset, size, checksum, paths.get(field, b""), kind))
            self.bytes += size
        self._put(data)
        self._put(struct.pack("<I", formats.masked_crc(self._crc32c(data))))
        self.index.add(IndexedSample(text, tuple(members), NO_LABEL if label is None else label))


def open_writer(format: str, folder: str, name: str) -> ShardWriter:
    if format == "tar":
        return TarWriter(folder, name)
    if format == "tfrecord":
        return TFRecordWriter(folder, name)
    raise InputError(f"there is no format {format!r}", hint=f"--format {'|'.join(FORMATS)}", place="--format")


SQUASHFS_NAME = "data.squashfs"
_SQUASHFS_INSTALL = "sudo apt-get install squashfs-tools"


def make_squashfs(source: str, folder: str, workers: int | None) -> Shard:
    """Write the image of a folder, uncompressed: training data rarely shrinks, and reading it costs no CPU then."""
    if not os.path.isdir(source):
        raise InputError("squashfs takes a folder, not a list", hint="--format tar")
    path, temp = os.path.join(folder, SQUASHFS_NAME), os.path.join(folder, f"{SQUASHFS_NAME}.tmp-{os.getpid()}")
    argv = [
        _squashfs_program("mksquashfs"),
        source,
        temp,
        "-noappend",
        "-noI",
        "-noD",
        "-noF",
        "-noX",
        "-no-progress",
        "-quiet",
    ]
    argv += ["-processors", str(workers)] if workers else []
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise _squashfs_error("mksquashfs", done, folder)
        size, checksum = file_checksum(temp)
        os.rename(temp, path)
    finally:
        if os.path.exists(temp):
            os.unlink(temp)
    return Shard(name=SQUASHFS_NAME, size=size, samples=0, crc32=checksum)


def extract_squashfs(image: str, dest: str) -> None:
    """Restore the folder from its image."""
    argv = [_squashfs_program("unsquashfs"), "-no-progress", "-quiet", "-d", dest, image]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _squashfs_error("unsquashfs", done, os.path.dirname(os.path.abspath(dest)))


def _squashfs_error(program: str, done: subprocess.CompletedProcess[str], folder: str) -> ShoalError:
    """The last complaint of a program, which may have said before that the disk below `folder` is full."""
    output = done.stderr + done.stdout
    text = (done.stderr or done.stdout).strip().splitlines()
    last = f"{program} failed: {text[-1] if text else f'exit code {done.returncode}'}"
    full = "no space left" in output.lower() and "no space left" not in last.lower()
    return writer_error(f"{last} (no space left on device)" if full else last, folder)


def file_checksum(path: str) -> tuple[int, str]:
    """(size, crc32) of a whole file."""
    size = value = 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(1 << 22):
            value = crc32(data, value)
            size += len(data)
    return size, f"{value:08x}"


def _squashfs_program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise InputError(f"there is no {name} here, which squashfs needs", hint=_SQUASHFS_INSTALL)
    return path
