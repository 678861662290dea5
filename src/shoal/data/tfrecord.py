"""TFRecord without TensorFlow: length, checksum, a tf.train.Example, checksum; and where the values lie in it.

The Example is framed by hand. What the index needs is the place of each value inside the record, so that reading one
is a plain read of bytes, with no protocol buffer parsed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from shoal.data.index import BYTES_LIST, FLOAT, INT64, RAW
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
    at = 0
    while True:
        start = file.read(HEADER_SIZE)
        if not start:
            return
        if len(start) < HEADER_SIZE:
            raise ShoalError(f"{place} is cut off at byte {at}, inside the head of a record")
        length, crc = struct.unpack("<QI", start)
        if crc32c is not None and masked_crc(crc32c(start[:8])) != crc:
            raise ShoalError(f"{place} is damaged at byte {at}: the length of a record has a wrong checksum")
        data, foot = file.read(length), file.read(FOOTER_SIZE)
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
