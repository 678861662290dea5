"""Plain tar in WebDataset's convention: members of one sample stand together and share the name up to the first dot.

Written by hand because a shard is the hot path of packing: a header is one bytes expression, and its checksum is the
sum of the few bytes that differ from an empty header. Read by hand because an index needs offsets, not file objects.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from shoal.errors import ShoalError

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
