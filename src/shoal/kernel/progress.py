"""How far a program has come, from what it leaves behind: its progress file, its log, TensorBoard or W&B files.

Nothing is asked of the program. Logs are other people's text, so a number counts only beside a word that says what it
is (step, iteration, epoch) or in a bar as tqdm draws it; bars of validation and of downloads are passed over.
"""

import glob
import json
import os
import re
import struct
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

_TAIL_BYTES = 1 << 16
_NUMBER = r"(\d[\d,]*)"
_OF = re.compile(_NUMBER + r"\s*(?:/|\bof\b)\s*" + _NUMBER)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s?%")
_EPOCH = re.compile(r"\bepochs?\b[\s:=#\[(\"']*" + _NUMBER + r"(?:\s*(?:/|\bof\b)\s*" + _NUMBER + ")?", re.IGNORECASE)
_STEP = re.compile(
    r"\b(?:global[_ ]?)?(?:step|iter|iteration|update|batch)s?\b[\s:=#\[(\"']*"
    + _NUMBER
    + r"(?:\s*(?:/|\bof\b)\s*"
    + _NUMBER
    + ")?",
    re.IGNORECASE,
)
_BAR = re.compile(r"(\d+)%\|[^|]*\|\s*" + _NUMBER + "/" + _NUMBER)
#: Bars and counts that are not the training's own.
_ASIDE = re.compile(
    r"valid|sanity|\beval|\btest|download|fetch|load(?:ing)?\b(?!er)|tokeniz|\bmap\b|\bval\b", re.IGNORECASE
)
#: In W&B's record of a step the value follows its key: field 16 of the item, whose text is JSON.
_WANDB_STEP = re.compile(rb"\x05_step\x82\x01(.)(\d+)", re.DOTALL)


class Progress(NamedTuple):
    """`step` of `total`, and the part of the way that is done; what is not known is None. `t`: when it was written."""

    step: Optional[float]
    total: Optional[float]
    fraction: Optional[float]
    source: str
    text: str
    t: float


def read(
    output_dir: str, logs: Iterable[str], total: Optional[float] = None, epochs: Optional[float] = None
) -> Optional[Progress]:
    """The newest word on a run's progress, or None. `total` and `epochs` help where a source tells only the step."""
    file = os.path.join(output_dir, "progress")
    found = _newest(_lines(file), epochs, plain=True)
    if found is not None:
        return _make(found, total, "progress file", file)
    best: Optional[Progress] = None
    for log in logs:
        found = _newest(_lines(log), epochs)
        if found is not None:
            one = _make(found, total, "log", log)
            if best is None or (one.fraction is not None, one.t) > (best.fraction is not None, best.t):
                best = one
    if best is not None:
        return best
    for source, pattern, look in (
        ("TensorBoard", "events.out.tfevents.*", _tensorboard_step),
        ("W&B", "*.wandb", _wandb_step),
    ):
        for path in _newest_files(output_dir, pattern):
            step = look(path)
            if step is not None:
                return _make((float(step), None, None, "step %d" % step), total, source, path)
    return None


_Found = Tuple[Optional[float], Optional[float], Optional[float], str]


def _make(found: _Found, total: Optional[float], source: str, path: str) -> Progress:
    step, of, fraction, text = found
    if fraction is None and step is not None and (of or total):
        of = of or total
        fraction = min(1.0, step / float(of or 1))
    try:
        written = os.stat(path).st_mtime
    except OSError:
        written = 0.0
    return Progress(step, of, fraction, source, " ".join(text.split())[:120], written)


def parse(line: str, epochs: Optional[float] = None, plain: bool = False) -> Optional[_Found]:
    """(step, total, fraction, the line's own words) or None. With `plain`, bare `120/500` and `41%` count as well."""
    text = line.strip()
    if plain and text.startswith("{"):
        return _of_object(text)
    epoch = _EPOCH.search(text)
    if epoch is not None:
        return _of_epoch(text, epoch, epochs)
    step = _STEP.search(text)
    if step is not None and not _ASIDE.search(text[: step.start()]):
        return _of_step(step.group(1), step.group(2), text)
    bar = _BAR.search(text)
    if bar is not None and not _ASIDE.search(text[: bar.start()]):
        return _of_step(bar.group(2), bar.group(3), text)
    if plain:
        bare, percent = _OF.search(text), _PERCENT.search(text)
        if bare is not None:
            return _of_step(bare.group(1), bare.group(2), text)
        if percent is not None:
            return float(percent.group(1)), 100.0, min(1.0, float(percent.group(1)) / 100), text
        if re.match(r"\d+(\.\d+)?\Z", text):
            return float(text), None, None, text
    return None


def _of_step(step: str, total: Optional[str], text: str) -> _Found:
    done, whole = _number(step), _number(total) if total else None
    return done, whole, min(1.0, done / whole) if whole else None, text


def _of_epoch(text: str, match: "re.Match[str]", epochs: Optional[float]) -> _Found:
    """ "Epoch 3/40" counts from one, "Epoch 3:" from zero. A part inside the epoch (45/100, 45%) makes it finer."""
    number, whole = _number(match.group(1)), _number(match.group(2)) if match.group(2) else None
    before = max(0.0, number - 1) if whole else number
    rest = text[match.end() :]
    inside, percent = _OF.search(rest), _PERCENT.search(rest)
    part, per_epoch = 0.0, 1.0
    if inside is not None and _number(inside.group(2)) > 0:
        per_epoch = _number(inside.group(2))
        part = min(1.0, _number(inside.group(1)) / per_epoch)
    elif percent is not None:
        per_epoch, part = 100.0, min(1.0, float(percent.group(1)) / 100)
    of = whole or epochs
    total = of * per_epoch if of else None
    return (before + part) * per_epoch, total, min(1.0, (before + part) / of) if of else None, text


def _of_object(text: str) -> Optional[_Found]:
    try:
        record: Dict[str, Any] = json.loads(text)
        step, total = record.get("step"), record.get("total")
    except (ValueError, AttributeError):
        return None
    if not isinstance(step, (int, float)):
        return None
    whole = float(total) if isinstance(total, (int, float)) and total > 0 else None
    words = "step %g" % step + ("/%g" % whole if whole else "")
    return float(step), whole, min(1.0, step / whole) if whole else None, words


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _newest(lines: List[str], epochs: Optional[float], plain: bool = False) -> Optional[_Found]:
    """The last line that says most: one with a total before one without, a word before a bare bar."""
    best: Optional[_Found] = None
    for line in reversed(lines):
        found = parse(line, epochs, plain)
        if found is not None and found[2] is not None:
            return found
        best = best or found
    return best


def _lines(path: str) -> List[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except OSError:
        return []
    text = data.replace(b"\0", b"").decode("utf-8", "replace")
    return [line for line in re.split(r"[\r\n]", text) if line.strip()]


def _newest_files(folder: str, pattern: str) -> List[str]:
    """Files that match, up to four folders deep, the last written first."""
    found = [
        path for depth in range(5) for path in glob.glob(os.path.join(glob.escape(folder), *["*"] * depth, pattern))
    ]
    return sorted(found, key=lambda path: os.stat(path).st_mtime, reverse=True)[:3]


def _tensorboard_step(path: str) -> Optional[int]:
    """The step of the last event: records are a length, its checksum, a protobuf Event and a checksum."""
    newest = None
    try:
        with open(path, "rb") as file:
            while True:
                head = file.read(12)
                if len(head) < 12:
                    return newest
                (length,) = struct.unpack("<Q", head[:8])
                data = file.read(min(length, 32))
                file.seek(length - len(data) + 4, 1)
                # Field 1 is the time as a double, field 2 the step as a varint; the step 0 is not written at all.
                if len(data) > 10 and data[0] == 0x09 and data[9] == 0x10:
                    newest = _varint(data[10:])
    except (OSError, ValueError, IndexError):
        return newest


def _varint(data: bytes) -> int:
    value, shift = 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value
        shift += 7
    raise ValueError("half a number")


def _wandb_step(path: str) -> Optional[int]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 20)))
            found = _WANDB_STEP.findall(file.read())
    except OSError:
        return None
    return int(found[-1][1][: ord(found[-1][0])]) if found else None
