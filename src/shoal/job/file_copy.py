"""Copy files in order with several threads; each is checked while it is copied, and complete when its name appears.

A file is cut into ranges, and all threads work on the front of the queue: the link is saturated, yet the first file is
complete first. Each range has its CRC; together they give the file's, which must be the manifest's. A finished range is
noted beside the part file, so what a killed copy leaves is checked again from the local disk and not fetched again.
A copy has the permissions of its source. CRC-32 is zlib's, or ten times as fast with the package isal
(`pip install 'shoal[data]'`).
"""

import os
import stat
import threading
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..kernel import files


def _choose_crc32() -> "Callable[..., int]":
    try:
        from isal.isal_zlib import crc32
    except ImportError:
        from zlib import crc32
    return crc32


crc32 = _choose_crc32()


#: What one thread asks for at a time: large enough to fill a link.
RANGE_BYTES = 2 << 20
#: Of which so much is read, summed and written at once, while it is in the processor's cache.
_CHUNK_BYTES = 256 << 10
_POLYNOMIAL = 0xEDB88320


class CopyItem(NamedTuple):
    """A file to copy; `crc32` is what its bytes must give, or None if nobody knows."""

    name: str
    size: int
    crc32: Optional[str] = None
    mtime_ns: Optional[int] = None


class SourceChanged(Exception):
    """The source is not what its manifest, or the first look at it, says."""


class Copier:
    """Copies items from `source` to `dest` by way of `parts`, calling `arrived(item)` for each one in place."""

    def __init__(self, source: str, dest: str, parts: str, threads: int, arrived: Callable[[CopyItem], None]) -> None:
        self.source = source
        self.dest = dest
        self.parts = parts
        self.threads = threads
        self.arrived = arrived
        self.copied_bytes = 0
        self.stop = threading.Event()
        self._changed = threading.Condition()
        self._error: Optional[BaseException] = None
        self._open: Dict[int, "_PartialFile"] = {}
        self._opening = 0
        self._taken = 0
        self._next: Callable[[], Optional[CopyItem]] = lambda: None

    def run(self, next_item: Callable[[], Optional[CopyItem]]) -> None:
        """Copy what `next_item` gives, in that order, until it gives None. The first error stops all and is raised."""
        self._next = next_item
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(self.threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for part in list(self._open.values()):
            part.close()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        try:
            while not self.stop.is_set():
                task = self._take()
                if task is None:
                    return
                place, part, number = task
                fetched = part.copy(number, buffer)
                with self._changed:
                    self.copied_bytes += fetched
                    last = part.done()
                    if last:
                        self._open.pop(place, None)
                if last:
                    part.finish()
                    self.arrived(part.item)
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self.stop.set()
                self._changed.notify_all()

    def _take(self) -> "Optional[Tuple[int, _PartialFile, int]]":
        """The next range: of the earliest file that has one left; None when there will be no more.

        Files are opened while ranges of others are left: on network storage that is several round trips, each behind
        all the bytes that are under way, and the link would stand still meanwhile.
        """
        while not self.stop.is_set():
            with self._changed:
                left = sum(part.left() for part in self._open.values())
                early = left < 2 * self.threads and self._opening < self.threads // 2
                item = self._next() if early or not left else None
                if item is None and left:
                    place = min(place for place, part in self._open.items() if part.left())
                    return place, self._open[place], self._open[place].next_range()
                if item is None:
                    if not self._opening:
                        return None
                    self._changed.wait()
                    continue
                place, self._taken, self._opening = self._taken, self._taken + 1, self._opening + 1
            self._open_part(place, item)
        return None

    def _open_part(self, place: int, item: CopyItem) -> None:
        """Without the lock: a folder has very many files, and threads open them at once."""
        part: Optional[_PartialFile] = None
        try:
            part = _PartialFile(self.source, self.dest, self.parts, item)
        finally:
            with self._changed:
                self._opening -= 1
                if part is not None:
                    self._open[place] = part
                self._changed.notify_all()


class _PartialFile:
    """One file on its way: PARTS/NAME with a journal of the ranges that are in it."""

    def __init__(self, source: str, dest: str, parts: str, item: CopyItem) -> None:
        self.item = item
        self.final = os.path.join(dest, item.name)
        self.path = os.path.join(parts, flat_name(item.name))
        self.ranges = max(1, -(-item.size // RANGE_BYTES))
        self._crcs: List[Optional[int]] = [None] * self.ranges
        self._given = 0
        self._left = self.ranges
        self._fresh = not _is_own_part(self.path)
        self._in = os.open(os.path.join(source, item.name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._seen = os.fstat(self._in)
            self._compare()
            self._out = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._kept = {} if self._fresh else _read_journal(self.path + ".done")
            self._journal = None if item.size <= RANGE_BYTES else open(self.path + ".done", "a")  # noqa: SIM115 (closed with the part)
        except BaseException:
            os.close(self._in)
            raise

    def left(self) -> int:
        """Ranges that nobody took yet."""
        return self.ranges - self._given

    def next_range(self) -> int:
        self._given += 1
        return self._given - 1

    def copy(self, number: int, buffer: memoryview) -> int:
        """Fetch one range, or find it intact on the local disk; returns the bytes that came from the source."""
        start = number * RANGE_BYTES
        end = min(start + RANGE_BYTES, self.item.size)
        if number in self._kept:
            crc = 0
            for view in _chunks(self._out, start, end, buffer):
                crc = crc32(view, crc)
            if crc == self._kept[number]:
                self._crcs[number] = crc
                return 0
        if self.ranges > 1:
            # Several threads read one file in pieces, which looks random to the kernel's own read-ahead.
            os.posix_fadvise(self._in, start, end - start, os.POSIX_FADV_WILLNEED)
        crc, at = 0, start
        for view in _chunks(self._in, start, end, buffer):
            crc = crc32(view, crc)
            self._write(view, at)
            at += len(view)
        if at != end:
            raise SourceChanged("%s is shorter than it should be" % self.item.name)
        self._crcs[number] = crc
        if self._journal is not None:
            self._journal.write("%d %08x\n" % (number, crc))
            self._journal.flush()
        return end - start

    def _write(self, view: memoryview, at: int) -> None:
        while view:
            try:
                done = os.pwrite(self._out, view, at)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self.final) from None
            view, at = view[done:], at + done

    def done(self) -> bool:
        """Count a range that is in place; True for the last one of the file."""
        self._left -= 1
        return self._left == 0

    def finish(self) -> None:
        """Compare the whole with what it should be, then give it its name; a wrong one leaves nothing behind."""
        try:
            now = os.fstat(self._in)
            if (now.st_size, now.st_mtime_ns) != (self._seen.st_size, self._seen.st_mtime_ns):
                raise SourceChanged("%s changed while it was copied" % self.item.name)
            lengths = [min(RANGE_BYTES, self.item.size - k * RANGE_BYTES) for k in range(self.ranges)]
            whole = combine_crc32([(crc or 0, length) for crc, length in zip(self._crcs, lengths)])
            if self.item.crc32 is not None and "%08x" % whole != self.item.crc32:
                os.unlink(self.path)
                raise SourceChanged("%s does not have the checksum of its manifest" % self.item.name)
            os.ftruncate(self._out, self.item.size)
            if self.item.mtime_ns is not None:
                os.utime(self._out, ns=(self.item.mtime_ns, self.item.mtime_ns))
            _copy_permissions(self._out, now)
            folder = os.path.dirname(self.final)
            if not os.path.isdir(folder):
                files.make_dir(folder)
            os.rename(self.path, self.final)
        finally:
            self.close()
            if self._journal is not None:
                try:
                    os.unlink(self.path + ".done")
                except FileNotFoundError:
                    pass

    def close(self) -> None:
        for name in ("_in", "_out"):
            fd = getattr(self, name, -1)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)
        if self._journal is not None:
            self._journal.close()

    def _compare(self) -> None:
        if self._seen.st_size != self.item.size:
            raise SourceChanged(
                "%s has %d bytes and should have %d" % (self.item.name, self._seen.st_size, self.item.size)
            )
        if self.item.crc32 is None and self.item.mtime_ns not in (None, self._seen.st_mtime_ns):
            raise SourceChanged("%s changed since it was listed" % self.item.name)


def flat_name(name: str) -> str:
    """A name in one folder for a file that may lie deeper."""
    return name.replace("/", "\\")


def _is_own_part(path: str) -> bool:
    """Whether there is a part file of this user's. What another user of a shared cache began is begun again."""
    try:
        if os.stat(path).st_uid == os.geteuid():
            return True
    except FileNotFoundError:
        pass
    for left in (path, path + ".done"):
        try:
            os.unlink(left)
        except FileNotFoundError:
            pass
    return False


def _copy_permissions(fd: int, source: os.stat_result) -> None:
    """Give a copy the permissions of its source; where its group cannot have them, the group gets what all have."""
    mode = stat.S_IMODE(source.st_mode) & 0o777 | stat.S_IRUSR
    if os.fstat(fd).st_gid != source.st_gid and mode & 0o070 != (mode & 0o007) << 3:
        try:
            os.fchown(fd, -1, source.st_gid)
        except OSError:
            mode = mode & 0o707 | (mode & 0o007) << 3
    os.fchmod(fd, mode)


def combine_crc32(pieces: List[Tuple[int, int]]) -> int:
    """CRC-32 of pieces in a row, from the CRC and length of each."""
    whole = 0
    powers: Dict[int, int] = {}
    for crc, length in pieces:
        if length not in powers:
            powers[length] = _crc32_shift(length)
        whole = _crc32_multiply(whole, powers[length]) ^ crc
    return whole


def _crc32_shift(length: int) -> int:
    """x^(8 length) modulo the polynomial, with the bits in the order of CRC-32 (the highest is x^0)."""
    result, square = 1 << 31, 1 << 23
    while length:
        if length & 1:
            result = _crc32_multiply(result, square)
        square = _crc32_multiply(square, square)
        length >>= 1
    return result


def _crc32_multiply(a: int, b: int) -> int:
    total = 0
    for bit in range(31, -1, -1):
        if b >> bit & 1:
            total ^= a
        a = (a >> 1) ^ (_POLYNOMIAL if a & 1 else 0)
    return total


def _chunks(fd: int, at: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
    """The bytes of a file from `at` to `end`, or to where it ends before, a bufferful at a time."""
    while at < end:
        got = os.preadv(fd, [buffer[: end - at]], at)
        if got == 0:
            return
        yield buffer[:got]
        at += got


def _read_journal(path: str) -> Dict[int, int]:
    try:
        with open(path) as file:
            pairs = [line.split() for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return {}
    kept: Dict[int, int] = {}
    for pair in pairs:
        try:
            kept[int(pair[0])] = int(pair[1], 16)
        except (ValueError, IndexError):
            continue
    return kept
