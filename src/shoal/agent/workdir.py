"""The working directory of an attempt: its code, in a place of its own.

    <output_dir>/work/<repository>/...    the files of the snapshot; what the program writes by relative path stays here
    <output_dir>/work/.cwd                leads to where the program starts: the project's folder in that repository
    <output_dir>/work/.code               leads to the snapshot, as long as its files are here

`work` stands for the folder that the repository is in, or one further up, if the code speaks of `../../data`: what the
code names up there is linked. Source files are hard links into the snapshot; others are copies, because programs write
to them. When the attempt ends, what it did not change is removed, and what it wrote is left.
"""

import functools
import json
import os
import re
import shutil
import stat
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..kernel import layout

#: Programs read these and do not write them: linked, not copied. So is what is larger than this.
_SOURCE = (
    *(".py", ".pyi", ".pyx", ".pxd", ".sh", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".so", ".rs", ".go"),
    *(".js", ".ts", ".html", ".css", ".md", ".rst", ".ipynb", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf"),
)
_LARGEST_COPY = 256 << 10
_MANY, _THREADS = 500, 8
#: `../` this often is above every repository.
_MOST_LEVELS = 6
#: A path that leads out of its folder; for git as well as for Python.
UPWARD = r"(\.\./)+[A-Za-z0-9_][A-Za-z0-9_.-]*"
_CACHE = "__pycache__"


class _File(NamedTuple):
    path: str
    size: int
    mtime_ns: int


class _Code(NamedTuple):
    """What a snapshot consists of, by paths inside it; of links the targets."""

    top: str
    folders: Tuple[str, ...]
    files: Tuple[_File, ...]
    links: Tuple[Tuple[str, str], ...]


class WorkDir:
    """Where one attempt works. `fill` before its first process, `clear` after its last."""

    def __init__(self, output_dir: str, code: str, root: str, words: Iterable[str]) -> None:
        """`code` is the project's folder in a snapshot, `root` the project's own; `words` may name paths with ../."""
        self._work = layout.work_dir(output_dir)
        self._top = layout.snapshot_of(code)
        inside = os.path.relpath(code, self._top)
        inner = [] if inside == "." else inside.split("/")
        outer = os.path.abspath(root).strip("/").split("/")
        outer = outer[: len(outer) - len(inner)]
        self._real = "/" + "/".join(outer)
        found: Dict[Tuple[int, str], str] = {}
        for ups, name in upward(words) | _named_by(self._top):
            up = ups - len(inner)
            real = "/" + "/".join([*outer[: len(outer) - up], name])
            if 0 < up < len(outer) and name != outer[-up] and os.path.lexists(real):
                found[up, name] = real
        try:
            self._cwd = os.readlink(os.path.join(self._work, layout.CWD))  # as in the attempt before
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
        self._before: Dict[str, Optional[Tuple[int, int]]] = {}

    def fill(self) -> Optional[str]:
        """Put the code in place; why that cannot be, or None. Files that the program wrote before stay as they are."""
        if os.path.lexists(os.path.join(self._work, layout.CODE)):
            old = os.readlink(os.path.join(self._work, layout.CODE))
            if not os.path.isdir(old):
                return "the code of an earlier attempt is left in %s and its snapshot is gone; remove it" % self._work
            self._remove(_read(old))
        code, repository = _read(self._top), os.path.join(self._work, self._repository)
        os.makedirs(repository, exist_ok=True)
        for name, target in ((layout.CWD, self._cwd), (layout.CODE, self._top)):
            _symlink(target, os.path.join(self._work, name))
        for folder in code.folders:
            _make_folder(os.path.join(repository, folder))
        _for_each(
            lambda one: _put(os.path.join(self._top, one.path), os.path.join(repository, one.path), one), code.files
        )
        for path, target in code.links:
            _symlink(self._target(path, target), os.path.join(repository, path))
        for path, target in self._above.items():
            if os.path.isdir(os.path.dirname(os.path.join(self._work, path))):
                _symlink(target, os.path.join(self._work, path))
        os.makedirs(self.cwd, exist_ok=True)
        self._before = {target: _state(target) for target in self._shared(code)}
        return None

    def clear(self) -> List[str]:
        """Take the code out again; returns what the attempt changed that is not its own, in words."""
        code = _read(self._top)
        notes = self._remove(code)
        changed = [path for path, before in self._before.items() if before is not None and _state(path) != before]
        if changed:
            some = ", ".join(changed[:3]) + (" and %d more" % (len(changed) - 3) if len(changed) > 3 else "")
            notes.append("changed while it ran, and shared by all runs: %s" % some)
        return notes

    def _target(self, path: str, target: str) -> str:
        """Where a link of the code leads; one that leads out of the repository is not relative any more."""
        inside = os.path.normpath(os.path.join(os.path.dirname(path), target))
        return os.path.normpath(os.path.join(self._real, inside)) if inside.startswith("../") else target

    def _shared(self, code: _Code) -> List[str]:
        """Places of the project that a run sees as they are. Names with a dot first are tools' and environments'."""
        targets = [target for path, target in code.links if os.path.isabs(target)]
        return [path for path in targets if not os.path.basename(path).startswith((".", "__"))]

    def _remove(self, code: _Code) -> List[str]:
        repository = os.path.join(self._work, self._repository)
        notes: List[str] = []

        def take_out(one: _File) -> None:
            path = os.path.join(repository, one.path)
            found = _lstat(path)
            if found is None:
                return
            if stat.S_ISLNK(found.st_mode):
                if _is_link_to(path, os.path.join(code.top, one.path)):
                    os.unlink(path)
            elif (found.st_size, found.st_mtime_ns) == (one.size, one.mtime_ns):
                os.unlink(path)
            elif found.st_nlink > 1 and os.path.samefile(path, os.path.join(code.top, one.path)):
                notes.append("it changed %s of the code, which other runs share" % one.path)
                os.unlink(path)

        _for_each(take_out, code.files)
        links = [(os.path.join(repository, path), self._target(path, target)) for path, target in code.links]
        for path, target in [*links, *((os.path.join(self._work, path), to) for path, to in self._above.items())]:
            if _is_link_to(path, target):
                os.unlink(path)
        for folder in ("", *code.folders):
            shutil.rmtree(os.path.join(repository, folder, _CACHE), ignore_errors=True)
        for folder in reversed(code.folders):
            _remove_empty(os.path.join(repository, folder))
        os.unlink(os.path.join(self._work, layout.CODE))
        self._remove_if_unused(repository)
        return notes

    def _remove_if_unused(self, repository: str) -> None:
        """Nothing was written: no trace of the working directory stays."""
        folder = repository
        while folder != self._work and _remove_empty(folder):
            folder = os.path.dirname(folder)
        if folder == self._work and os.listdir(folder) == [layout.CWD]:
            os.unlink(os.path.join(folder, layout.CWD))
            _remove_empty(folder)


def of(spec: Mapping[str, Any], output_dir: str) -> Optional[WorkDir]:
    """The working directory of a run, if its code was kept; else it works in the project's own folder."""
    if not spec.get("code") or spec.get("cannot_start"):
        return None
    values = [*(spec.get("params") or {}).values(), *(spec.get("env") or {}).values()]
    words = [*spec["command"], *spec.get("args", []), *(value for value in values if isinstance(value, str))]
    return WorkDir(output_dir, spec["code"], spec["root"], words)


def upward(texts: Iterable[str]) -> "set[Tuple[int, str]]":
    """Paths with ../ in front: how often, and the name that follows."""
    paths = {match.group() for text in texts for match in re.finditer(UPWARD, text)}
    found = {(path.count("../"), path.rpartition("/")[2]) for path in paths}
    return {(ups, name) for ups, name in found if ups <= _MOST_LEVELS}


@functools.lru_cache(maxsize=4)
def _named_by(top: str) -> "set[Tuple[int, str]]":
    """What the code of a snapshot speaks of, as its record says."""
    try:
        with open(top + ".json", encoding="utf-8") as file:
            return {(int(ups), str(name)) for ups, name in json.load(file).get("above", ())}
    except (OSError, ValueError, TypeError):
        return set()


@functools.lru_cache(maxsize=4)
def _read(top: str) -> _Code:
    """All of a snapshot; runs of a pack share one look at it."""
    folders: List[str] = []
    found: List[_File] = []
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
                    found.append(_File(path, about.st_size, about.st_mtime_ns))
    return _Code(top, tuple(sorted(folders)), tuple(found), tuple(links))


def _put(original: str, path: str, one: _File) -> None:
    """A file of the code. One that is there is the run's own, unless it belongs to somebody else."""
    try:
        _link_or_copy(original, path, one)
    except FileExistsError:
        found = _lstat(path)
        if found is not None and found.st_uid != os.getuid():
            os.unlink(path)
            _link_or_copy(original, path, one)


def _link_or_copy(original: str, path: str, one: _File) -> None:
    if one.size > _LARGEST_COPY or path.endswith(_SOURCE):
        try:
            os.link(original, path)
            return
        except FileExistsError:
            raise
        except OSError:
            pass  # Another file system, or one without links.
        if one.size > _LARGEST_COPY:
            os.symlink(original, path)
            return
    with open(original, "rb") as source, open(path, "xb") as target:
        os.fchmod(target.fileno(), stat.S_IMODE(os.fstat(source.fileno()).st_mode))
        shutil.copyfileobj(source, target)
    os.utime(path, ns=(one.mtime_ns, one.mtime_ns))


def _for_each(do: Callable[[_File], None], files: Sequence[_File]) -> None:
    """With several threads where there are many: a file server answers several at once."""
    if len(files) < _MANY:
        for one in files:
            do(one)
        return
    from concurrent.futures import ThreadPoolExecutor

    def do_part(part: Sequence[_File]) -> None:
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


def _lstat(path: str) -> Optional[os.stat_result]:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _state(path: str) -> Optional[Tuple[int, int]]:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
