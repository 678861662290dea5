"""The working directory of an attempt: a copy of its code.

    <output_dir>/work/<repository>/...    the files of the snapshot; what the program writes by relative path stays here
    <output_dir>/work/.cwd                link to where the program starts: the project's directory in that repository
    <output_dir>/work/.code               link to that directory in the snapshot, as long as the code is here
    <output_dir>/work/.filling            the code is being copied: a file that is younger may be incomplete

`work` stands for the directory that contains the repository, or one further up if the code refers to `../../data`: what
the code names up there is linked. Every file is a copy, because a program may write to any of them. When the attempt
ends, what it did not change is removed, and what it wrote is left.
"""

import errno
import functools
import json
import os
import re
import shutil
import stat
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ..kernel import layout

#: A file larger than this is copied by the kernel, which shares its blocks or lets the file server copy where it can.
_MAX_READ_BYTES = 256 << 10
#: Why the kernel may not copy a file: other file systems, an old kernel, a file system that cannot.
_NO_KERNEL_COPY_ERRNOS = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
#: Of each place that runs share so many entries are looked at for changes, and of all of them for so long.
_MAX_ENTRIES, _MAX_SCAN_S = 1000, 0.25
_MIN_FILES_FOR_THREADS, _THREADS = 500, 8
#: `../` this often is above every repository.
_MAX_LEVELS = 6
#: A path that leads out of its folder; for git as well as for Python.
PARENT_PATH = r"(\.\./)+[A-Za-z0-9_][A-Za-z0-9_.-]*"
_BYTECODE_DIR = "__pycache__"


class _CodeFile(NamedTuple):
    path: str
    size: int
    mtime_ns: int


class _SnapshotFiles(NamedTuple):
    """What a snapshot consists of, by paths inside it; of links the targets."""

    top: str
    folders: Tuple[str, ...]
    files: Tuple[_CodeFile, ...]
    links: Tuple[Tuple[str, str], ...]


class WorkDir:
    """Where one attempt works. `fill` before its first process, `clear` after its last."""

    def __init__(self, output_dir: str, code: str, root: str, words: Iterable[str]) -> None:
        """`code` is the project's folder in a snapshot, `root` the project's own; `words` may name paths with ../."""
        self._work = layout.work_dir(output_dir)
        self._code = code
        self._top = layout.snapshot_of(code)
        inside = os.path.relpath(code, self._top)
        inner = [] if inside == "." else inside.split("/")
        outer = os.path.abspath(root).strip("/").split("/")
        outer = outer[: len(outer) - len(inner)]
        self._real = "/" + "/".join(outer)
        found: Dict[Tuple[int, str], str] = {}
        for ups, name in parent_paths(words) | {
            (int(ups), str(name)) for ups, name in _snapshot_record(self._top).get("above", ())
        }:
            up = ups - len(inner)
            real = "/" + "/".join([*outer[: len(outer) - up], name])
            if 0 < up < len(outer) and name != outer[-up] and os.path.lexists(real):
                found[up, name] = real
        try:
            self._cwd = os.readlink(os.path.join(self._work, layout.CWD_NAME))  # as in the attempt before
        except OSError:
            levels = max([1, *(up for up, _ in found)])
            self._cwd = "/".join([*outer[len(outer) - levels :], *inner])
        parts = self._cwd.split("/")
        parts = parts[: len(parts) - len(inner)]
        self._repository = "/".join(parts)
        #: Links in `work`, and what of the real folders they lead to.
        self._above = {
            "/".join([*parts[: len(parts) - up], name]): real for (up, name), real in found.items() if up <= len(parts)
        }
        self.cwd = os.path.join(self._work, self._cwd)
        self._before: Dict[str, Optional[_PlaceState]] = {}

    def fill(self) -> Optional[str]:
        """Put the code in place; why that cannot be, or None. Files that the program wrote before stay as they are."""
        filling = os.path.join(self._work, layout.FILLING_NAME)
        if os.path.lexists(os.path.join(self._work, layout.CODE_NAME)):
            try:
                old = layout.snapshot_of(os.readlink(os.path.join(self._work, layout.CODE_NAME)))
                left = _read_snapshot(old)
            except (OSError, ValueError):
                return "the code of an earlier attempt is left in %s and its snapshot is gone; remove it" % self._work
            self._remove(left)
        code, repository = _read_snapshot(self._top), os.path.join(self._work, self._repository)
        os.makedirs(repository, exist_ok=True)
        for name, target in (
            (layout.CWD_NAME, self._cwd),
            (layout.CODE_NAME, self._code),
            (layout.FILLING_NAME, self._top),
        ):
            _symlink(target, os.path.join(self._work, name))
        for folder in code.folders:
            _make_folder(os.path.join(repository, folder))
        real = self._real_folders(code)
        _for_each(
            lambda one: _put_file(os.path.join(self._top, one.path), os.path.join(repository, one.path), one),
            [one for one in code.files if os.path.dirname(one.path) in real],
        )
        for path, target in code.links:
            if os.path.dirname(path) in real:
                _symlink(self._target(path, target), os.path.join(repository, path))
        for path, target in self._above.items():
            if os.path.isdir(os.path.dirname(os.path.join(self._work, path))):
                _symlink(target, os.path.join(self._work, path))
        os.makedirs(self.cwd, exist_ok=True)
        os.unlink(filling)
        self._before = _scan_places(self._shared(code))
        return None

    def clear(self) -> List[str]:
        """Take the code out again; returns what the attempt changed that is not its own, in words."""
        code = _read_snapshot(self._top)
        self._remove(code)
        after = _scan_places(self._before)
        changed = [path for path, before in self._before.items() if before and before.differs(after.get(path))]
        if not changed:
            return []
        some = ", ".join(changed[:3]) + (" and %d more" % (len(changed) - 3) if len(changed) > 3 else "")
        return ["changed while it ran, and shared by all runs: %s" % some]

    def _target(self, path: str, target: str) -> str:
        """Where a link of the code leads; one that leads out of the repository is not relative any more."""
        inside = os.path.normpath(os.path.join(os.path.dirname(path), target))
        is_outside = inside == ".." or inside.startswith("../")
        return os.path.normpath(os.path.join(self._real, inside)) if is_outside else target

    def _shared(self, code: _SnapshotFiles) -> List[str]:
        """Places of the project and beside it that a run sees as they are. Names with a dot first are tools' and
        environments'."""
        targets = [self._target(path, target) for path, target in code.links]
        targets = [*filter(os.path.isabs, targets), *self._above.values()]
        around = os.path.join(self._real, "")
        return [
            path
            for path in dict.fromkeys(targets)
            if not os.path.basename(path).startswith((".", "__")) and not around.startswith(os.path.join(path, ""))
        ]

    def _real_folders(self, code: _SnapshotFiles) -> Set[str]:
        """Folders of the code that are here; "" is the repository. Not those that the program has made a link of, with
        all that is below: they lead out of here."""
        place, found = self._work, {""}
        for part in self._repository.split("/"):
            place = os.path.join(place, part)
            if not _is_real_folder(place):
                return set()
        for folder in code.folders:  # sorted: a folder comes before what is in it
            if os.path.dirname(folder) in found and _is_real_folder(os.path.join(place, folder)):
                found.add(folder)
        return found

    def _remove(self, code: _SnapshotFiles) -> None:
        repository, real = os.path.join(self._work, self._repository), self._real_folders(code)
        filling = _lstat(os.path.join(self._work, layout.FILLING_NAME))

        def take_out(one: _CodeFile) -> None:
            path = os.path.join(repository, one.path)
            found = _lstat(path)
            if found is None or not stat.S_ISREG(found.st_mode):
                return
            is_half = filling is not None and found.st_mtime_ns >= filling.st_mtime_ns
            if layout.is_code_copy(found, one.size, one.mtime_ns) or is_half:
                os.unlink(path)

        _for_each(take_out, [one for one in code.files if os.path.dirname(one.path) in real])
        links = [(path, self._target(path, target)) for path, target in code.links if os.path.dirname(path) in real]
        above = [(os.path.join(self._work, path), target) for path, target in self._above.items()]
        for path, target in [*((os.path.join(repository, path), target) for path, target in links), *above]:
            if _is_link_to(path, target):
                os.unlink(path)
        for folder in real:
            shutil.rmtree(os.path.join(repository, folder, _BYTECODE_DIR), ignore_errors=True)
        for folder in sorted(real - {""}, reverse=True):
            _remove_empty(os.path.join(repository, folder))
        for name in (layout.FILLING_NAME, layout.CODE_NAME):
            if os.path.lexists(os.path.join(self._work, name)):
                os.unlink(os.path.join(self._work, name))
        if real:
            self._remove_if_unused(repository)

    def _remove_if_unused(self, repository: str) -> None:
        """Nothing was written: no trace of the working directory stays."""
        folder = repository
        while folder != self._work and _remove_empty(folder):
            folder = os.path.dirname(folder)
        if folder == self._work and os.listdir(folder) == [layout.CWD_NAME]:
            os.unlink(os.path.join(folder, layout.CWD_NAME))
            _remove_empty(folder)


def workdir_of(spec: Mapping[str, Any], output_dir: str) -> Optional[WorkDir]:
    """The working directory of a run, if its code was kept; else it works in the project's own folder."""
    if not spec.get("code") or spec.get("cannot_start"):
        return None
    values = [*(spec.get("params") or {}).values(), *(spec.get("env") or {}).values()]
    words = [*spec["command"], *spec.get("args", []), *(value for value in values if isinstance(value, str))]
    return WorkDir(output_dir, spec["code"], spec["root"], words)


def parent_paths(texts: Iterable[str]) -> "set[Tuple[int, str]]":
    """Paths with ../ in front: how often, and the name that follows."""
    paths = {match.group() for text in texts for match in re.finditer(PARENT_PATH, text)}
    found = {(path.count("../"), path.rpartition("/")[2]) for path in paths}
    return {(ups, name) for ups, name in found if ups <= _MAX_LEVELS}


def commit_of(spec: Mapping[str, Any]) -> str:
    """The commit that the code of a run is, or differs from; "" if that is not known. What git says in the working
    directory is about the project as it is now."""
    return str(_snapshot_record(layout.snapshot_of(spec["code"])).get("commit") or "") if spec.get("code") else ""


@functools.lru_cache(maxsize=4)
def _snapshot_record(top: str) -> Dict[str, Any]:
    """What is written down about a snapshot."""
    try:
        with open(top + ".json", encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError, TypeError):
        return {}


@functools.lru_cache(maxsize=4)
def _read_snapshot(top: str) -> _SnapshotFiles:
    """All of a snapshot; runs of a pack share one look at it."""
    folders: List[str] = []
    found: List[_CodeFile] = []
    links: List[Tuple[str, str]] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(os.path.join(top, folder)) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = os.path.join(folder, entry.name)
                if entry.is_symlink():
                    links.append((path, os.readlink(entry.path)))
                elif entry.is_dir():
                    folders.append(path)
                    waiting.append(path)
                else:
                    about = entry.stat()
                    found.append(_CodeFile(path, about.st_size, about.st_mtime_ns))
    return _SnapshotFiles(top, tuple(sorted(folders)), tuple(found), tuple(links))


def _put_file(original: str, path: str, one: _CodeFile) -> None:
    """A file of the code. One that is there is the run's own, unless it belongs to somebody else."""
    try:
        _copy_file(original, path, one)
    except FileExistsError:
        found = _lstat(path)
        if found is not None and found.st_uid != os.getuid():
            os.unlink(path)
            _copy_file(original, path, one)


def _copy_file(original: str, path: str, one: _CodeFile) -> None:
    """A copy with the time that layout.is_code_copy knows it by; all of it, or nothing."""
    with open(original, "rb") as source, open(path, "xb") as target:
        try:
            os.fchmod(target.fileno(), stat.S_IMODE(os.fstat(source.fileno()).st_mode))
            if one.size <= _MAX_READ_BYTES or not _copy_in_kernel(source.fileno(), target.fileno(), one.size):
                shutil.copyfileobj(source, target)
            target.flush()
            if os.fstat(target.fileno()).st_size != one.size:
                raise OSError("the copy of %s has another size" % original)
        except BaseException:
            os.unlink(path)
            raise
    os.utime(path, ns=(layout.copy_mtime_ns(one.mtime_ns),) * 2)


def _copy_in_kernel(source: int, target: int, size: int) -> bool:
    """Whether the kernel has copied all of it; if not, nothing of it is there."""
    copied = 0
    try:
        while copied < size:
            count = os.copy_file_range(source, target, size - copied, copied, copied)
            if count == 0:
                break
            copied += count
    except AttributeError:  # an old libc
        return False
    except OSError as error:
        if error.errno not in _NO_KERNEL_COPY_ERRNOS:
            raise
    if copied < size:
        os.ftruncate(target, 0)
    return copied == size


def _for_each(do: Callable[[_CodeFile], None], files: Sequence[_CodeFile]) -> None:
    """With several threads where there are many: a file server answers several at once."""
    if len(files) < _MIN_FILES_FOR_THREADS:
        for one in files:
            do(one)
        return
    from concurrent.futures import ThreadPoolExecutor

    def do_part(part: Sequence[_CodeFile]) -> None:
        for one in part:
            do(one)

    with ThreadPoolExecutor(_THREADS) as threads:
        for done in [threads.submit(do_part, files[first::_THREADS]) for first in range(_THREADS)]:
            done.result()


def _make_folder(path: str) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        pass


def _symlink(target: str, path: str) -> None:
    try:
        os.symlink(target, path)
    except FileExistsError:
        pass


def _is_link_to(path: str, target: str) -> bool:
    try:
        return os.readlink(path) == target
    except OSError:
        return False


def _remove_empty(path: str) -> bool:
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def _is_real_folder(path: str) -> bool:
    found = _lstat(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def _lstat(path: str) -> Optional[os.stat_result]:
    try:
        return os.lstat(path)
    except OSError:
        return None


class _PlaceState(NamedTuple):
    """What a look at a shared place saw: how many entries, and of these the newest time and all sizes."""

    entries: int
    newest_ns: int
    size: int
    is_whole: bool

    def differs(self, other: "Optional[_PlaceState]") -> bool:
        """A look that was cut short for time may have seen another part: then only what is newer counts."""
        if other is None:
            return True
        return self != other if self.is_whole and other.is_whole else other.newest_ns > self.newest_ns


def _scan_places(places: Iterable[str]) -> Dict[str, Optional[_PlaceState]]:
    """The state of each place, level by level, so that a large folder hides only what is deep in it; None for one that
    is not there."""
    until = time.monotonic() + _MAX_SCAN_S
    return {path: _scan_place(path, until) for path in places}


def _scan_place(path: str, until: float) -> Optional[_PlaceState]:
    try:
        about = os.stat(path)
    except OSError:
        return None
    count, newest, size = 1, about.st_mtime_ns, 0 if stat.S_ISDIR(about.st_mode) else about.st_size
    left = [path] if stat.S_ISDIR(about.st_mode) else []
    while left:
        deeper: List[str] = []
        for entry in _entries(left):
            if count >= _MAX_ENTRIES or time.monotonic() > until:
                return _PlaceState(count, newest, size, False)
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            is_folder = stat.S_ISDIR(about.st_mode)
            count, newest = count + 1, max(newest, about.st_mtime_ns)
            size += 0 if is_folder else about.st_size
            if is_folder and not entry.name.startswith((".", "__")):
                deeper.append(entry.path)
        left = deeper
    return _PlaceState(count, newest, size, True)


def _entries(folders: Iterable[str]) -> "Iterator[os.DirEntry[str]]":
    """What is in these folders, as it is read: one that is very large is not read to its end."""
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                yield from entries
        except OSError:
            continue
