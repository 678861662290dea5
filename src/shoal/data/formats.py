"""The two shard formats: plain tar in WebDataset's convention, and TFRecord without TensorFlow.

tar: members of one sample are consecutive and share the name up to the first dot. The writer is our own because it is
the hot path: a header is one bytes expression, and its checksum is the sum of the few bytes that differ from an empty
header. The reader is our own because an index needs offsets, not file objects.

TFRecord: length, checksum, a tf.train.Example, checksum. The index needs the position of each value inside the record,
so that reading a value is a plain read of bytes, with no protocol buffer parsed.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from shoal.data.manifest import BYTES_LIST, FLOAT, INT64, RAW
from shoal.errors import ShoalError

HEADER_SIZE = 12
FOOTER_SIZE = 4
#: The feature that carries a sample's key; readers of others see it as an ordinary bytes feature.
KEY_FEATURE = "__key__"
_LIST_KINDS = {1: RAW, 2: FLOAT, 3: INT64}


class ExampleFeature(NamedTuple):
    """A value of an Example and where it lies, counted from the start of the Example."""

    name: str
    kind: str
    offset: int
    size: int


def masked_crc(crc: int) -> int:
    """TFRecord stores checksums turned and shifted, so that a record may itself hold records."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record_header(length: int, crc32c: Callable[[bytes], int]) -> bytes:
    text = struct.pack("<Q", length)
    return text + struct.pack("<I", masked_crc(crc32c(text)))


def encode_example(values: Sequence[tuple[str, bytes | int]]) -> tuple[bytes, list[int]]:
    """An Example of bytes and integers, and the offset of each value in it."""
    entries: list[tuple[bytes, bytes, bytes]] = []
    for name, value in values:
        if isinstance(value, int):
            data = encode_varint(value)
            inner, kind = b"\x0a" + encode_varint(len(data)), b"\x1a"
        else:
            data = value
            inner, kind = b"\x0a" + encode_varint(len(data)), b"\x0a"
        one = kind + encode_varint(len(inner) + len(data)) + inner
        text = name.encode("utf-8", "surrogateescape")
        entry = b"\x0a" + encode_varint(len(text)) + text + b"\x12" + encode_varint(len(one) + len(data)) + one
        entries.append((b"\x0a" + encode_varint(len(entry) + len(data)), entry, data))
    total = sum(len(a) + len(b) + len(c) for a, b, c in entries)
    parts = [b"\x0a" + encode_varint(total)]
    at, offsets = len(parts[0]), []
    for before, entry, data in entries:
        offsets.append(at + len(before) + len(entry))
        at = offsets[-1] + len(data)
        parts += (before, entry, data)
    return b"".join(parts), offsets


def find_features(data: bytes) -> list[ExampleFeature]:
    """Where the values of an Example lie; ValueError if these bytes are no Example."""
    found: list[ExampleFeature] = []
    for number, start, end in _message_fields(data, 0, len(data)):
        if number != 1:
            raise ValueError("not an Example")
        for entry, entry_start, entry_end in _message_fields(data, start, end):
            if entry != 1:
                raise ValueError("not an Example")
            found.append(_feature_entry(data, entry_start, entry_end))
    if not found:
        raise ValueError("not an Example")
    return found


def read_records(file: BinaryIO, place: str, crc32c: Callable[[bytes], int] | None) -> Iterator[tuple[int, bytes]]:
    """(offset of the data, data) of each record; checksums are compared if the function for them is given."""
    at, size = 0, file.seek(0, os.SEEK_END)
    file.seek(0)
    while True:
        start = file.read(HEADER_SIZE)
        if not start:
            return
        if len(start) < HEADER_SIZE:
            raise ShoalError(f"{place} is cut off at byte {at}, inside the head of a record")
        length, crc = struct.unpack("<QI", start)
        if crc32c is not None and masked_crc(crc32c(start[:8])) != crc:
            raise ShoalError(f"{place} is damaged at byte {at}: the length of a record has a wrong checksum")
        # A damaged length would ask for memory of that size.
        data, foot = (file.read(length), file.read(FOOTER_SIZE)) if length <= size - at else (b"", b"")
        if len(data) < length or len(foot) < FOOTER_SIZE:
            raise ShoalError(f"{place} is cut off at byte {at}, inside a record of {length} bytes")
        if crc32c is not None and masked_crc(crc32c(data)) != struct.unpack("<I", foot)[0]:
            raise ShoalError(f"{place} is damaged at byte {at}: a record has a wrong checksum")
        yield at + HEADER_SIZE, data
        at += HEADER_SIZE + length + FOOTER_SIZE


def int64_list(data: bytes) -> list[int]:
    """The numbers of a packed int64 list."""
    values, at = [], 0
    while at < len(data):
        value, at = _read_varint(data, at)
        values.append(value - (1 << 64) if value >> 63 else value)
    return values


def float_list(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def bytes_list(data: bytes) -> list[bytes]:
    """The values of a bytes list with more than one."""
    return [data[start:end] for _, start, end in _message_fields(data, 0, len(data))]


def _feature_entry(data: bytes, start: int, end: int) -> ExampleFeature:
    name, kind, where = "", RAW, (start, start)
    for number, from_, to in _message_fields(data, start, end):
        if number == 1:
            name = data[from_:to].decode("utf-8", "surrogateescape")
        elif number == 2:
            for which, low, high in _message_fields(data, from_, to):
                kind, where = _feature_values(data, which, low, high)
    return ExampleFeature(name, kind, where[0], where[1] - where[0])


def _feature_values(data: bytes, which: int, low: int, high: int) -> tuple[str, tuple[int, int]]:
    if which not in _LIST_KINDS:
        raise ValueError("not an Example")
    inside = list(_message_fields(data, low, high))
    if len(inside) == 1:
        return _LIST_KINDS[which], (inside[0][1], inside[0][2])
    if _LIST_KINDS[which] != RAW and inside:
        # Numbers that an old writer did not pack: rare, and refused rather than read wrongly.
        raise ValueError("numbers that are not packed")
    return (BYTES_LIST if _LIST_KINDS[which] == RAW else _LIST_KINDS[which]), (low, high)


def _message_fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(field number, start, end) of each length-delimited field of a message."""
    while at < end:
        tag, at = _read_varint(data, at)
        if tag & 7 != 2:
            raise ValueError("not an Example")
        length, at = _read_varint(data, at)
        if at + length > end:
            raise ValueError("not an Example")
        yield tag >> 3, at, at + length
        at += length


def encode_varint(value: int) -> bytes:
    """A number as protocol buffers write it; negative ones as their 64-bit complement."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("not an Example")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


TAR_BLOCK = 512
#: Two empty blocks end an archive; tar itself fills up to a record of 20 blocks.
TAR_END = b"\0" * (TAR_BLOCK * 2)
_MODE_AND_OWNER = b"0000644\0" + b"0000000\0" * 2
_HEADER_TAIL = b"0" + b"\0" * 100 + b"ustar\x0000" + b"\0" * 64 + b"0000000\0" * 2
_FIXED_CHECKSUM = sum(_MODE_AND_OWNER) + sum(_HEADER_TAIL) + 8 * 32
_MAX_OCTAL = 0o77777777777


class TarMember(NamedTuple):
    name: bytes
    offset: int
    size: int


def tar_header(name: bytes, size: int, mtime_s: int) -> bytes:
    """The blocks before a member's data: one for names up to 255 bytes that can be split, three for longer ones."""
    parts = _split_path(name)
    if parts is None or size > _MAX_OCTAL:
        return _pax_header(name, size, mtime_s)
    return _ustar_header(*parts, size, mtime_s)


def tar_padding(size: int) -> bytes:
    """What fills a member's data up to whole blocks."""
    return b"\0" * (-size % TAR_BLOCK)


def split_member_name(member: bytes) -> tuple[bytes, str]:
    """WebDataset's rule: (key, field), cut at the first dot of the last part; "a/b.seg.png" -> (b"a/b", "seg.png")."""
    folder, slash, base = member.rpartition(b"/")
    stem, _, field = base.partition(b".")
    return folder + slash + stem, field.decode("utf-8", "backslashreplace").lower()


def tar_members(file: BinaryIO, place: str) -> Iterator[TarMember]:
    """The regular files of an archive, with where their bytes lie. A truncated or altered one raises ShoalError."""
    at, long_name, pax_size = 0, None, None
    end = file.seek(0, io.SEEK_END)
    while True:
        file.seek(at)
        block = file.read(TAR_BLOCK)
        if not block.rstrip(b"\0"):
            if len(block) < TAR_BLOCK and at == 0:
                raise ShoalError(f"{place} is empty")
            if len(block) < TAR_BLOCK:
                # An archive without its end blocks may have lost whole members at a block's edge.
                raise ShoalError(f"{place} is cut off after {at} bytes: the end of the archive is missing")
            return
        if len(block) < TAR_BLOCK:
            raise ShoalError(f"{place} is cut off after {at + len(block)} bytes, inside a header")
        size = _octal_number(block[124:136], place, at) if pax_size is None else pax_size
        if _octal_number(block[148:156], place, at) != sum(block) - sum(block[148:156]) + 8 * 32:
            raise ShoalError(f"{place} is damaged at byte {at}: the header's checksum is wrong")
        data_at, kind = at + TAR_BLOCK, block[156:157]
        at = data_at + size + (-size % TAR_BLOCK)
        if data_at + size > end:
            raise ShoalError(f"{place} is cut off after {end} bytes, inside a member")
        if kind in (b"L", b"x"):
            file.seek(data_at)
            data = file.read(size)
            if kind == b"L":
                long_name = data.rstrip(b"\0")
            else:
                records = dict(_pax_records(data))
                long_name = records.get(b"path", long_name)
                pax_size = int(records[b"size"]) if b"size" in records else None
            continue
        name = long_name if long_name is not None else _member_name(block)
        long_name, pax_size = None, None
        if kind in (b"0", b"\0", b"7"):
            yield TarMember(name, data_at, size)


def _ustar_header(prefix: bytes, name: bytes, size: int, mtime_s: int) -> bytes:
    numbers = b"%011o\0%011o\0" % (size, mtime_s)
    check = b"%06o\0 " % (_FIXED_CHECKSUM + sum(name) + sum(prefix) + sum(numbers))
    return name.ljust(100, b"\0") + _MODE_AND_OWNER + numbers + check + _HEADER_TAIL + prefix.ljust(167, b"\0")


def _split_path(name: bytes) -> tuple[bytes, bytes] | None:
    if len(name) <= 100:
        return b"", name
    cut = name.find(b"/", max(0, len(name) - 101))
    return (name[:cut], name[cut + 1 :]) if 0 < cut <= 155 and cut < len(name) - 1 else None


def _pax_header(name: bytes, size: int, mtime_s: int) -> bytes:
    records = _pax_record(b"path", name)
    if size > _MAX_OCTAL:
        records += _pax_record(b"size", b"%d" % size)
    short = b"long/%08x" % zlib.crc32(name)
    extra = _ustar_header(b"", b"PaxHeaders/" + short, len(records), mtime_s)
    extra = _with_type(extra, b"x")
    return extra + records + tar_padding(len(records)) + _ustar_header(b"", short, min(size, _MAX_OCTAL), mtime_s)


def _with_type(block: bytes, kind: bytes) -> bytes:
    block = block[:148] + b" " * 8 + kind + block[157:]
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _pax_record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    while len(b"%d" % length) + len(key) + len(value) + 3 != length:
        length = len(b"%d" % length) + len(key) + len(value) + 3
    return b"%d %s=%s\n" % (length, key, value)


def _pax_records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    while data.strip(b"\0"):
        length, _, rest = data.partition(b" ")
        if not length.isdigit() or int(length) <= len(length) + 1:
            return
        key, _, value = rest[: int(length) - len(length) - 2].partition(b"=")
        yield key, value
        data = data[int(length) :]


def _member_name(block: bytes) -> bytes:
    name, prefix = block[:100].split(b"\0", 1)[0], block[345:500].split(b"\0", 1)[0]
    return prefix + b"/" + name if prefix and block[257:262] == b"ustar" and block[262:263] == b"\0" else name


def _octal_number(text: bytes, place: str, at: int) -> int:
    if text[:1] == b"\x80":
        return int.from_bytes(text[1:], "big")
    try:
        return int(text.strip(b" \0") or b"0", 8)
    except ValueError:
        raise ShoalError(f"{place} is damaged at byte {at}: not a tar header") from None
