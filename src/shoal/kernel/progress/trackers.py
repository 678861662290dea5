"""Two record formats, just far enough to read numbers from them: W&B's offline log and TensorBoard's event file.

Both are files of framed protobuf messages that grow while a run writes them, so the end may be missing: whatever is
whole is read and the rest is passed over. Neither library is needed, and neither could be imported in a second.
"""

import io
import json
import re
import struct
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Tuple, Union

#: LevelDB's log format, in which W&B frames its records: blocks of 32 KiB, after a header of 7 bytes.
_BLOCK = 32 * 1024
_WANDB_HEADER = 7
_CHUNK_FULL, _CHUNK_FIRST, _CHUNK_MIDDLE, _CHUNK_LAST = 1, 2, 3, 4
#: In W&B's record of a step the value follows its key: field 16 of the item, whose text is JSON.
_WANDB_STEP = re.compile(rb"\x05_step\x82\x01(.)(\d+)", re.DOTALL)

ProtobufField = Tuple[int, Union[int, bytes]]


def wandb_numbers(data: bytes) -> Iterator[Tuple[str, Any]]:
    """(key, value) of every logged and summary item of a run-*.wandb file, in order."""
    for _, row in wandb_rows(data):
        yield from row.items()


def wandb_rows(data: bytes) -> Iterator[Tuple[bool, Dict[str, Any]]]:
    """(whether it was logged and not a summary, key -> value) of every record with numbers, in order."""
    for record in _leveldb_records(data):
        for number, value in protobuf_fields(record):
            if number not in (2, 3) or not isinstance(value, bytes):
                continue  # 2 is a history record, 3 a summary; both hold items as their field 1
            items = (item for inner, item in protobuf_fields(value) if inner == 1 and isinstance(item, bytes))
            yield number == 2, {key: value for item in items for key, value in _wandb_item(item)}


def wandb_last_step(data: bytes) -> Optional[int]:
    """The newest step in a part of a run-*.wandb file, which may begin anywhere."""
    found = _WANDB_STEP.findall(data)
    return int(found[-1][1][: ord(found[-1][0])]) if found else None


def tensorboard_numbers(data: bytes) -> Iterator[Tuple[str, float]]:
    """(tag, value) of every scalar in an event file, in order."""
    return ((tag, value) for tag, _, value in tensorboard_points(data))


def tensorboard_points(data: bytes) -> Iterator[Tuple[str, int, float]]:
    """(tag, step, value) of every scalar in an event file, in order."""
    for event in _tensorboard_events(io.BytesIO(data), len(data)):
        step = 0
        for number, value in protobuf_fields(event):
            if number == 2 and isinstance(value, int):
                step = value
            elif number == 5 and isinstance(value, bytes):
                for inner, one in protobuf_fields(value):
                    if inner == 1 and isinstance(one, bytes):
                        yield from ((tag, step, scalar) for tag, scalar in _tensorboard_value(one))


def tensorboard_last_step(path: str) -> Optional[int]:
    """The step of the last event; of each only the beginning is read, where the time and the step stand."""
    newest = None
    try:
        with open(path, "rb") as file:
            for event in _tensorboard_events(file, 32):
                newest = next((value for number, value in protobuf_fields(event) if number == 2), newest)
    except (OSError, ValueError):
        pass
    return newest if isinstance(newest, int) else None


def _tensorboard_events(file: BinaryIO, max_bytes: int) -> Iterator[bytes]:
    """Records are a length, its checksum, a protobuf Event and a checksum; of each event the first so many bytes."""
    end = file.seek(0, io.SEEK_END)
    at = file.seek(0)
    while at + 12 <= end:
        (length,) = struct.unpack("<Q", file.read(12)[:8])
        if at + 12 + length + 4 > end:
            return
        yield file.read(min(length, max_bytes))
        at = file.seek(at + 12 + length + 4)


def protobuf_fields(message: bytes) -> Iterator[ProtobufField]:
    """The fields of a protobuf message: numbers as int (fixed-width ones as their bytes), the rest as bytes.

    A message that breaks off ends the walk without a word.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            return
        if at + length > len(message):
            return
        yield key >> 3, message[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            break
    return value, at


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    parts: List[bytes] = []
    at = _WANDB_HEADER
    while at + 7 <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0 or at + 7 + length > len(data):
            return
        body = data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (_CHUNK_FULL, _CHUNK_FIRST):
            parts = []
        parts.append(body)
        if kind in (_CHUNK_FULL, _CHUNK_LAST):
            yield b"".join(parts)
            parts = []


def _wandb_item(item: bytes) -> Iterator[Tuple[str, Any]]:
    key, nested, text = "", [], b""
    for number, value in protobuf_fields(item):
        if isinstance(value, bytes):
            if number == 1:
                key = value.decode("utf-8", "replace")
            elif number == 2:
                nested.append(value.decode("utf-8", "replace"))
            elif number == 16:
                text = value
    try:
        yield key or ".".join(nested), json.loads(text)
    except ValueError:
        return


def _tensorboard_value(message: bytes) -> Iterator[Tuple[str, float]]:
    tag, number = "", None
    for field, value in protobuf_fields(message):
        if field == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif field == 2 and isinstance(value, bytes) and len(value) == 4:
            number = struct.unpack("<f", value)[0]
        elif field == 8 and isinstance(value, bytes):
            number = _tensor(value)
    if tag and number is not None:
        yield tag, number


def _tensor(message: bytes) -> Optional[float]:
    """A scalar that TensorFlow 2 wrote as a tensor: 32 or 64 bits, as content or as a list of one."""
    for field, value in protobuf_fields(message):
        if isinstance(value, bytes) and field in (4, 5, 6) and len(value) in (4, 8):
            return float(struct.unpack("<f" if len(value) == 4 else "<d", value)[0])
    return None
