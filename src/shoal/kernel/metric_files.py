"""Rows of numbers that programs leave in files: metrics.json and metrics.jsonl, and what well-known trainers write.

trainer_state.json and all_results.json are Hugging Face's, summary.csv is timm's, metrics.csv is Lightning's
CSVLogger's. W&B's offline log and TensorBoard's event file are framed protobuf messages, parsed just far enough to read
numbers: neither library is needed, and importing either takes more than a second. All these files grow while they are
read: complete rows and messages count, the rest is ignored.
"""

import io
import json
import math
import os
import re
import struct
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from . import layout

#: Keys that say when a row was written, the best first; never metrics themselves.
STEP_KEYS = ("step", "_step", "global_step", "iter", "iteration")
TOTAL_KEYS = ("total", "max_steps", "total_steps")
TIME_KEYS = ("t", "time", "timestamp", "_timestamp", "_runtime")
_COUNTER_KEYS = frozenset((*STEP_KEYS, *TOTAL_KEYS, *TIME_KEYS, "epoch"))
_MAX_DEPTH = 4
#: A log's line that is longer is no record of metrics.
_MAX_LINE = 1 << 14
#: So many lines of metrics.jsonl are parsed at once.
_BLOCK_LINES = 500


class MetricRow(NamedTuple):
    """Numbers that were written together, and after how much work that was."""

    values: Dict[str, float]
    step: Optional[float] = None
    total: Optional[float] = None
    epoch: Optional[float] = None
    #: When it was written, in seconds since 1970, where the record says so.
    t: Optional[float] = None


def metric_row(record: Any) -> MetricRow:
    """A record's numbers; what counts the work and what tells the time are not among the metrics."""
    values = flatten_numbers(record)
    counters = {name: values.pop(name) for name in _COUNTER_KEYS & values.keys()}
    for name in [name for name in values if name[:1] == "_"]:
        del values[name]
    if not counters:
        return MetricRow(values)
    total = _first_finite(counters, TOTAL_KEYS)
    return MetricRow(
        values,
        _first_finite(counters, STEP_KEYS),
        total if total and total > 0 else None,
        _first_finite(counters, ("epoch",)),
        _moment(counters),
    )


def _moment(numbers: Dict[str, float]) -> Optional[float]:
    """Seconds since 1970; milliseconds count too. A small number may be anything, such as the seconds of one step."""
    for name in TIME_KEYS:
        value = numbers.get(name, 0.0)
        if 1e9 < value < 1e10:
            return value
        if 1e12 < value < 1e13:
            return value / 1000
    return None


def _first_finite(numbers: Dict[str, float], names: Tuple[str, ...]) -> Optional[float]:
    for name in names:
        if name in numbers and math.isfinite(numbers[name]):
            return numbers[name]
    return None


def flatten_numbers(value: Any, prefix: str = "", depth: int = 0) -> Dict[str, float]:
    """The numbers of nested objects, under dotted names; true and false are 1 and 0, numbers in quotes are numbers, and
    null, which is how JSON writes a NaN, is one: a value that was lost must not leave the one before it in place."""
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        found: Dict[str, float] = {}
        for name, inner in value.items():
            key = "%s.%s" % (prefix, name) if prefix else str(name)
            if type(inner) is float or (type(inner) is int and abs(inner) < 1 << 53):  # of a million lines, nearly all
                found[key] = float(inner)
            else:
                found.update(flatten_numbers(inner, key, depth + 1))
        return found
    if not prefix or not (value is None or isinstance(value, (int, float, str))):
        return {}
    try:
        return {prefix: math.nan if value is None else float(value)}
    except OverflowError:
        return {prefix: math.nan}  # a whole number beyond all floats
    except ValueError:
        return {}


def parse_object(text: str) -> Optional[Dict[str, Any]]:
    """A line that is one object, in JSON or as Python prints a dict."""
    text = text.strip()
    if not text.startswith("{") or not text.endswith("}") or len(text) > _MAX_LINE:
        return None
    try:
        record = json.loads(text)
    except ValueError:
        record = _python_dict(text)
    if not isinstance(record, dict):
        return None
    return {str(name): value for name, value in record.items()}


def _python_dict(text: str) -> Any:
    import ast

    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def jsonl_rows(data: bytes) -> Iterator[MetricRow]:
    """Rows of metrics.jsonl."""
    return (metric_row(record) for record in jsonl_records(data))


def jsonl_records(data: bytes) -> Iterator[Dict[str, Any]]:
    """Records of metrics.jsonl, a printed dict included; the line that is being written and other text are passed
    over."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    for at in range(0, len(lines), _BLOCK_LINES):
        for record in _parse_lines(lines[at : at + _BLOCK_LINES]):
            if isinstance(record, dict):
                yield record


def _parse_lines(lines: List[bytes]) -> List[Any]:
    """All at once, which takes half the time, where every line is JSON of its own."""
    try:
        records = json.loads(b"[" + b",".join(lines) + b"]")
        if len(records) == len(lines):
            return list(records)
    except (ValueError, RecursionError):
        pass
    return [_parse_line(line) for line in lines]


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return parse_object(line.decode("utf-8", "replace"))


def csv_rows(data: bytes, is_row_per_epoch: bool = False) -> Iterator[MetricRow]:
    """Rows of a CSV file with a column `step` or `epoch`. A row per epoch is written when that epoch, counted from 0,
    is over."""
    import csv

    whole = data[: data.rfind(b"\n") + 1].decode("utf-8", "replace")
    reader = csv.DictReader(whole.splitlines())
    if not any(name in (*STEP_KEYS, "epoch") for name in reader.fieldnames or ()):
        return
    for line in reader:
        row = metric_row({name: text for name, text in line.items() if name and text})
        yield row._replace(epoch=row.epoch + 1) if is_row_per_epoch and row.epoch is not None else row


def trainer_state_rows(data: bytes) -> Iterator[MetricRow]:
    """Hugging Face's trainer_state.json: its log history, then where the training stands."""
    state = parse_json(data)
    history = state.get("log_history")
    for record in history if isinstance(history, list) else []:
        if isinstance(record, dict):
            yield metric_row(record)
    standing = {name: state.get(name) for name in ("global_step", "max_steps", "epoch")}
    yield metric_row({name: value for name, value in standing.items() if isinstance(value, (int, float))})


def parse_json(data: bytes) -> Dict[str, Any]:
    try:
        record = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def read_end(path: str, max_bytes: int) -> bytes:
    """The last bytes of a file, from the beginning of a line; nothing of one that cannot be read."""
    try:
        with open(path, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - max_bytes)
            file.seek(start)
            data = file.read(max_bytes)
    except OSError:
        return b""
    if start:
        border = re.search(rb"[\r\n]", data[:-1])
        return data[border.end() :] if border else data
    return data


def read_start(path: str, max_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(max_bytes)
    except OSError:
        return b""


def read_whole(path: str, max_bytes: int) -> bytes:
    """All of a file, or nothing if it is larger: a tracker's file cannot be read from the middle."""
    try:
        if os.stat(path).st_size > max_bytes:
            return b""
    except OSError:
        return b""
    return read_start(path, max_bytes)


class MetricFiles(NamedTuple):
    """Files of an output directory that hold numbers, the newest of each kind last."""

    trainer_states: List[str]
    results: List[str]
    summaries: List[str]
    metrics_csv: List[str]
    tensorboard: List[str]
    wandb: List[str]
    wandb_summaries: List[str]


#: Of an output directory so many entries are looked at, so many levels deep.
_MAX_ENTRIES = 20000
_MAX_LEVELS = 7
_HUGGING_FACE_RESULTS = frozenset(("all_results.json", "eval_results.json", "train_results.json"))


def find_metric_files(folder: str, max_entries: int = _MAX_ENTRIES) -> MetricFiles:
    """Found level by level, so that a directory too large to be looked at hides only what is deep in it. Also in the
    program's working directory, of which directories with Python files are code, and so are files of the snapshot."""
    found = MetricFiles([], [], [], [], [], [], [])
    own = layout.OwnFiles(folder)
    work = layout.work_dir(folder)
    left, level = layout.written_dirs(folder), 0
    seen = 0
    while left and level <= _MAX_LEVELS:
        deeper: List[str] = []
        for one in left:
            try:
                entries = list(os.scandir(one))
            except OSError:
                continue
            seen += len(entries)
            if seen > max_entries:
                deeper = []
                break
            is_code = level > 0 and any(entry.name.endswith(".py") for entry in entries)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if not is_code and entry.path != work:
                        deeper.append(entry.path)
                else:
                    _add_file(found, entry.name, entry.path, own)
        left, level = deeper, level + 1
    for paths in (found.trainer_states, found.results, found.summaries, found.metrics_csv):
        paths.sort(key=_mtime)
    for paths in (found.tensorboard, found.wandb, found.wandb_summaries):
        # Names carry the time at which a tracker began, so that a resumed run's later file comes last.
        paths.sort(key=lambda path: path.split(os.sep)[-3:])
    return found


def _add_file(found: MetricFiles, name: str, path: str, own: layout.OwnFiles) -> None:
    for matches, paths in (
        (name == "trainer_state.json", found.trainer_states),
        (name in _HUGGING_FACE_RESULTS, found.results),
        (name == "summary.csv", found.summaries),
        (name == "metrics.csv", found.metrics_csv),
        (".tfevents." in name, found.tensorboard),
        (name.startswith("run-") and name.endswith(".wandb"), found.wandb),
        (name == "wandb-summary.json", found.wandb_summaries),
    ):
        if matches:
            if path in own:
                paths.append(path)
            return


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


#: LevelDB's log format, in which W&B frames its records: blocks of 32 KiB, after a header of 7 bytes.
_BLOCK = 32 * 1024
_WANDB_HEADER = 7
_CHUNK_FULL, _CHUNK_FIRST, _CHUNK_MIDDLE, _CHUNK_LAST = 1, 2, 3, 4
#: In W&B's record of a step the value follows its key: field 16 of the item, whose text is JSON.
_WANDB_STEP = re.compile(rb"\x05_step\x82\x01(.)(\d+)", re.DOTALL)

ProtobufField = Tuple[int, Union[int, bytes]]


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


def tensorboard_points(data: bytes) -> Iterator[Tuple[str, int, float, Optional[float]]]:
    """(tag, step, value, seconds since 1970) of every scalar in an event file, in order."""
    for event in _tensorboard_events(io.BytesIO(data), len(data)):
        step, moment = 0, None
        for number, value in protobuf_fields(event):
            if number == 1 and isinstance(value, bytes) and len(value) == 8:
                moment = struct.unpack("<d", value)[0] or None
            elif number == 2 and isinstance(value, int):
                step = value
            elif number == 5 and isinstance(value, bytes):
                for inner, one in protobuf_fields(value):
                    if inner == 1 and isinstance(one, bytes):
                        yield from ((tag, step, scalar, moment) for tag, scalar in _tensorboard_value(one))


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
    except (ValueError, RecursionError):
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
