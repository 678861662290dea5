r"""Read logs that may be 10 GB, hold NULs, broken UTF-8 or a bar of a million `\r`: from the end, in pieces.

Which file of an attempt holds the output of which rank and replica is known by the names that job/launch gives them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import BinaryIO, Literal, NamedTuple

from shoal.kernel import layout, list_names

BLOCK = 1 << 16
#: No single line is kept beyond this; a program that prints no line break must not fill our memory.
MAX_LINE_BYTES = 1 << 16
#: Of fewer lines than this one is longer than all that is read.
_MIN_LINES_FOUND = 40
#: How far back the beginning of such a line is looked for, and how much of it is kept.
_MAX_LINE_SEARCH = 2 << 20
_LINE_HEAD_BYTES = 4000
#: The last lines begin at most so far before the end: 10 GB without a line break are not one line that anybody reads.
_MAX_SEARCH_BYTES = 32 << 20


def seek_last_lines(file: BinaryIO, lines: int, max_bytes: int | None = None) -> int:
    """Place the file at the beginning of its last lines, reading back `max_bytes` at most; 0 means all of it."""
    end = position = file.seek(0, os.SEEK_END)
    if max_bytes is None:
        max_bytes = _MAX_SEARCH_BYTES if lines > 0 else end
    floor = max(0, end - max_bytes)
    while position > floor and lines > 0:
        start = max(floor, position - BLOCK)
        file.seek(start)
        block = file.read(position - start)
        # The line break at the very end closes the last line and begins none.
        at = len(block) - 1 if position == end and block.endswith(b"\n") else len(block)
        while lines > 0 and (at := block.rfind(b"\n", 0, at)) >= 0:
            lines -= 1
            if lines == 0:
                return file.seek(start + at + 1)
        position = start
    return file.seek(floor)


def collapse_carriage_returns(data: bytes) -> bytes:
    r"""Each line as a terminal would leave it: of parts separated by `\r`, the last that is not empty."""
    if b"\r" not in data:
        return data
    return b"\n".join(_last_overwrite(line) for line in data.split(b"\n"))


def _last_overwrite(line: bytes) -> bytes:
    if b"\r" not in line:
        return line
    kept = line.rstrip(b"\r")
    return kept[kept.rfind(b"\r") + 1 :]


class CarriageReturnFilter:
    r"""The same for a stream that comes in pieces: what follows the last `\r` of an unfinished line is held back."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Whole lines of what came so far."""
        data = self._rest + data
        at = data.rfind(b"\n") + 1
        self._rest = _last_overwrite(data[at:])
        if data[at:].endswith(b"\r"):
            self._rest += b"\r"
        if len(self._rest) > MAX_LINE_BYTES:
            out, self._rest = collapse_carriage_returns(data[:at]) + self._rest, b""
            return out
        return collapse_carriage_returns(data[:at])

    def flush(self) -> bytes:
        out, self._rest = _last_overwrite(self._rest), b""
        return out


def last_text(path: str, lines: int, max_bytes: int = 1 << 16) -> list[str]:
    """The last lines of a file as text, `max_bytes` at most: decoded with replacement, bars collapsed, no NULs.

    Where these begin inside a line, the beginning of that line is looked for a little further back, and what is before
    it: an error with a whole tensor in its message is still told by its first words.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            start = seek_last_lines(file, lines, max_bytes)
            data = file.read(max_bytes)
            if start and _is_inside_a_line(file, start) and data.count(b"\n", 0, -1) < min(lines, _MIN_LINES_FOUND):
                begin = file.seek(max(0, start - _MAX_LINE_SEARCH))
                data = _cut_long_lines(file.read(start - begin) + data, is_whole=begin == 0)
    except OSError:
        return []
    text = collapse_carriage_returns(data.replace(b"\0", b"")).decode("utf-8", "replace")
    return text.split("\n")[:-1] if text.endswith("\n") else text.split("\n") if text else []


def _is_inside_a_line(file: BinaryIO, start: int) -> bool:
    file.seek(start - 1)
    return file.read(1) != b"\n"


def _cut_long_lines(data: bytes, is_whole: bool) -> bytes:
    """The last lines, cut to their beginnings; a first one without its beginning is left out, if others follow."""
    lines = collapse_carriage_returns(data.replace(b"\0", b"")).split(b"\n")
    if not is_whole and len(lines) > 1 and any(lines[1:]):
        del lines[0]
    return b"\n".join(line[:_LINE_HEAD_BYTES] for line in lines[-_MIN_LINES_FOUND:])


def read_slice(path: str, offset: int, max_bytes: int = 1 << 20) -> tuple[bytes, int, int]:
    """(bytes, where they begin, size of the file): from `offset`, or the last -offset bytes if that is negative."""
    with open(path, "rb") as file:  # noqa: PTH123
        size = file.seek(0, os.SEEK_END)
        start = max(0, size + offset) if offset < 0 else min(offset, size)
        file.seek(start)
        return file.read(max_bytes), start, size


def real_log(path: str) -> str:
    """Where a log stands: the file of an adopted job is elsewhere, and an attempt has a link to it."""
    return os.readlink(path) if os.path.islink(path) and os.path.isabs(os.readlink(path)) else path


def has_bytes(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def log_age_s(log_dir: str | None, attempt: int, now: float) -> float | None:
    """Seconds since an attempt last wrote anything; None if it has written nothing."""
    times = []
    for path in layout.log_files(log_dir or "", attempt):
        try:
            found = os.stat(path)
        except OSError:
            continue
        times += [found.st_mtime] if found.st_size else []
    return max(0.0, now - max(times)) if times else None


_LOG_FILE_NAME = re.compile(
    r"(?:replica-(?P<replica>\d+)(?:\.start-(?P<start>\d+))?\.attempt-(?P<attempt>\d+)\.?)?"
    r"(?:rank-(?P<rank>\d+)(?:\.restart-(?P<restart>\d+))?)?\.?out\Z"
)
#: In the place of a rank: what an adopted job prints to standard error, where that has a file of its own.
_ERRORS = -1
RankNumber = int | Literal["all"] | None


class RankSelection(NamedTuple):
    """What to show of several ranks or replicas: a number, all, or None: rank 0 of every replica there is."""

    replica: RankNumber = None
    rank: RankNumber = None


class RankLog(NamedTuple):
    """The output of one rank. `attempts`: its files, oldest first; what was started again has several."""

    replica: int | None
    rank: int
    attempts: list[str]

    @property
    def label(self) -> str:
        if self.rank == _ERRORS:
            return "errors"
        words = [] if self.replica is None else [f"replica {self.replica}"]
        if self.replica is None or self.rank:
            words.append(f"rank {self.rank}")
        return " ".join(words)


def rank_logs(log_dir: str, attempt: int) -> list[RankLog]:
    """Every rank of an attempt, by replica and rank. Rank 0 without a replica is what the run itself printed."""
    folder = os.path.join(log_dir, f"attempt-{attempt}.launch")
    found: dict[tuple[int, int], list[tuple[int, int, int, str]]] = {}
    for name in list_names(folder):
        match = _LOG_FILE_NAME.match(name)
        if match:
            start, again, restart = (int(match[key] or 1) for key in ("start", "attempt", "restart"))
            place = (int(match["replica"]) if match["replica"] else -1, int(match["rank"] or 0))
            found.setdefault(place, []).append((start, again, restart, os.path.join(folder, name)))
    found.setdefault((-1, 0), []).append((0, 0, 0, layout.log_file(log_dir, attempt)))
    ranks = [
        RankLog(None if replica < 0 else replica, rank, [path for *_, path in sorted(attempts)])
        for (replica, rank), attempts in sorted(found.items())
    ]
    errors = layout.log_files(log_dir, attempt)[1:]
    return [*ranks, *(RankLog(None, _ERRORS, [path]) for path in errors)]


def first_nonempty(found: Sequence[RankLog]) -> int:
    """The place of the one to show first: the run's own log, or where that is empty the first that printed something.

    Beside replicas the run itself may have nothing to say.
    """
    return next((place for place, part in enumerate(found) if has_bytes(part.attempts[-1])), 0)


def needs_label(part: RankLog, pick: RankSelection) -> bool:
    """Whether its lines must say whose they are, because others are shown beside it."""
    return "all" in pick or (pick == RankSelection() and part.replica is not None)


def select_ranks(found: Iterable[RankLog], pick: RankSelection) -> list[RankLog]:
    return [
        part
        for part in found
        if (pick.replica in (None, "all") or part.replica == pick.replica)
        and (pick.rank == "all" or part.rank == (pick.rank or 0))
    ]
