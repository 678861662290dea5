"""Put a data set next to the GPU: one copy per node, shared by all jobs there, usable from the first shard on.

One job of a node copies and the others wait for what it brings; if it ends or is killed, the next one goes on with
what is there. Nobody writes down who is who: a lock of the kernel's is held, or it is not. Where there is no room or
no scratch, the path handed over is the source itself, and the record says why.
"""

import errno
import os
import shutil
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from . import cache, files, listing
from .cache import Lock, Root
from .copying import Copier, Item, SourceChanged, flat
from .listing import Listing, NotStageable

#: Beside the data set's folder: where it came from; that all of it is there; why it never will be; what readers want.
ABOUT, COMPLETE, PROBLEM, WANTS = "about.json", "complete.json", "problem", "wants"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SMALL_FILE = 1 << 20


class StageError(Exception):
    """The data cannot be handed to the run; one sentence."""


class Stage:
    """One data set for one job. begin(), wait(), and close() when the job ends; `record` tells what happened."""

    def __init__(
        self,
        name: str,
        source: str,
        environ: Mapping[str, str],
        profile: Optional[str] = None,
        wait_all: bool = False,
        threads: Optional[int] = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.name = name
        self.source = os.path.abspath(source)
        self.environ = environ
        self.profile = profile
        self.wait_all = wait_all
        self.threads = threads
        self.say = say
        self.path = self.source
        self.record: Dict[str, Any] = {"name": name, "source": self.source, "how": "source", "copied_bytes": 0}
        self.arrived = threading.Condition()
        self.error: Optional[str] = None
        self._began = time.monotonic()
        self._thread: Optional[threading.Thread] = None
        self._stop = threading.Event()
        self._over = False
        self._copier: Optional[Copier] = None
        self._use: Optional[Lock] = None

    def begin(self) -> None:
        """Decide where the data will be and start to bring it. StageError: there is no such data."""
        self._began = time.monotonic()
        try:
            self.list = listing.read_source(self.source)
        except NotStageable as why:
            if not os.path.exists(self.source) or "newer" not in str(why):
                raise StageError(str(why))
            return self._fall_back(str(why))
        self.record.update(id=self.list.id, bytes=self.list.bytes, files=len(self.list.items))
        root, notes = cache.find_root(self.environ, self.profile)
        if root is None:
            reason = "; ".join(notes) or "no node-local scratch is known (set SHOAL_SCRATCH)"
            return self._fall_back(reason)
        try:
            self._enter(root)
        except OSError as error:
            self.close()
            return self._fall_back("%s cannot be used: %s" % (root.path, (error.strerror or str(error)).lower()))
        self.record.update(how="shared", notes=notes)
        self.path = os.path.join(self.folder, self.list.entry) if self.list.entry else self.folder
        if self._is_complete():
            self._finished("shared")
        else:
            self._thread = threading.Thread(target=self._bring, daemon=True)
            self._thread.start()
        return None

    def wait(self, deadline_s: Optional[float] = None) -> str:
        """The path to hand over, as soon as the run may start; StageError if that will never be.

        A run may start when the first shard is there, or all, if it asked for that or could not know what lacks.
        """
        end = None if deadline_s is None else time.monotonic() + deadline_s
        while self._thread is not None and not self._over and not self._ready():
            with self.arrived:
                self.arrived.wait(0.02)
            if end is not None and time.monotonic() > end:
                raise StageError("%s was not staged within %g s" % (self.source, deadline_s or 0))
        if self.error is not None:
            raise StageError(self.error)
        self.record.setdefault("ready_s", round(time.monotonic() - self._began, 4))
        self.record["path"] = self.path
        return self.path

    def wait_copied(self) -> None:
        """Wait until everything can be read; bringing it safely to disk may still go on."""
        while self._thread is not None and self._thread.is_alive() and not self._over:
            with self.arrived:
                self.arrived.wait(0.02)

    def join(self) -> None:
        """Wait until everything is there, and on disk."""
        if self._thread is not None:
            self._thread.join()

    def told(self) -> Dict[str, Any]:
        """The record as it stands, while copying may still go on."""
        copied = self._copier.copied_bytes if self._copier is not None else 0
        return dict(self.record, copied_bytes=copied)

    def close(self) -> Dict[str, Any]:
        """Stop copying if it still goes on, let others remove the data, and return the record."""
        self._stop.set()
        if self._copier is not None:
            self._copier.stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._copier is not None:
            self.record["copied_bytes"] = self._copier.copied_bytes
        if self._use is not None:
            self._use.touch()
            self._use.close()
        if self.error is not None:
            self.record["problem"] = self.error
        return self.record

    def _enter(self, root: Root) -> None:
        """Hold the data set against removal, and make its folder with what readers need first."""
        self.root = root
        self.home = root.folder("objects", self.list.id)
        self.folder = os.path.join(self.home, "data")
        self._use = Lock(root.folder("use", self.list.id))
        self._use.take(False, wait=True)
        self._use.touch()
        about = files.read_json(os.path.join(self.home, ABOUT))
        if about is None or (about.get("boot") != _boot_id() and not self._is_complete()):
            self._lay_out()

    def _lay_out(self) -> None:
        """Make the folder, once. Left by a node that went down while copying, it may hold files without their bytes."""
        lock = Lock(self.root.folder("locks", self.list.id))
        try:
            lock.take(True, wait=True)
            about = files.read_json(os.path.join(self.home, ABOUT))
            if about is not None and about.get("boot") == _boot_id():
                return
            grave = cache.bury(self.root, self.list.id)
            if grave is not None:
                shutil.rmtree(grave, ignore_errors=True)
            for folder in (self.home, self.folder, os.path.join(self.home, "parts"), os.path.join(self.home, WANTS)):
                self.root.make(folder)
            if self.list.manifest is not None:
                _write(os.path.join(self.folder, listing.MANIFEST), self.list.manifest)
            about = {"source": self.list.folder, "id": self.list.id, "boot": _boot_id()}
            _write(os.path.join(self.home, ABOUT), files.to_json(about))
        finally:
            lock.close()

    def _is_complete(self) -> bool:
        """All files are there, and their bytes are on disk or at least of this boot."""
        record = files.read_json(os.path.join(self.home, COMPLETE))
        return record is not None and bool(record.get("synced") or record.get("boot") == _boot_id())

    def _bring(self) -> None:
        lock = Lock(self.root.folder("locks", self.list.id))
        try:
            while not lock.take(True):
                if self._stop.wait(0.02):
                    return
                if self._is_complete():
                    self._finished("shared")
                    return
            self._copy()
        except SourceChanged as why:
            self.error = "%s changed or is damaged: %s" % (self.source, why)
            _write(os.path.join(self.home, PROBLEM), self.error.encode("utf-8", "replace"))
            self.say(self.error)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            if str(error.filename or "").startswith(self.root.path):
                self.path = self.source
                self._fall_back("%s cannot be written: %s" % (self.root.path, reason))
            else:
                self.error = "%s cannot be read: %s" % (error.filename or self.source, reason)
                self.say(self.error)
        finally:
            lock.close()
            self._over = True
            with self.arrived:
                self.arrived.notify_all()

    def _copy(self) -> None:
        """Holding the lock: bring what lacks, in this node's order; what does not fit is linked to the source."""
        _remove(os.path.join(self.home, PROBLEM))
        turn = listing.rotation(self.environ, socket.gethostname())
        units = listing.node_order(self.list.units, turn)
        missing = [unit for unit in units if not all(self._is_copied(name) for name in unit)]
        needed = sum(self.list.items[name].size for unit in missing for name in unit)
        if not missing:
            return self._finished("shared", sync=True)
        gone = cache.make_room(self.root, needed, self.environ, keep=self.list.id) if needed else []
        room = cache.free_bytes(self.root, self.environ)
        fitting, rest = _fit(missing, self.list.items, room)
        if gone:
            self.record["removed"] = gone
        threads = self.threads or (16 if self.list.bytes < _SMALL_FILE * len(self.list.items) else 4)
        parts = os.path.join(self.home, "parts")
        self._copier = Copier(self.list.folder, self.folder, parts, threads, self._note)
        began = time.monotonic()
        try:
            if fitting:
                self._copier.run(_Queue(fitting, self.list.items, os.path.join(self.home, WANTS), self._is_copied))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            rest = [unit for unit in units if not all(self._is_copied(name) for name in unit)]
            for name in files.names_in(parts):
                _remove(os.path.join(parts, name))
        if self._stop.is_set() and not rest:
            return None
        self.record["seconds"] = round(time.monotonic() - began, 4)
        if rest:
            self._link(rest)
        self._finished("staged" if fitting else "source", sync=not rest)
        return None

    def _link(self, rest: List[Tuple[str, ...]]) -> None:
        """What does not fit is read where it is: a link in the place of each file, so no reader sees a gap."""
        size = 0
        for unit in rest:
            for name in unit:
                path = os.path.join(self.folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if not os.path.lexists(path):
                    os.symlink(os.path.join(self.list.folder, name), path)
                size += self.list.items[name].size if os.path.islink(path) else 0
        self.record["left_at_source_bytes"] = size
        told = (self.name, size // 10**6, self.list.bytes // 10**6)
        self.say("%s: no room for %d MB of %d MB, which are read from the source" % told)

    def _finished(self, how: str, sync: bool = False) -> None:
        """Everything can be read. That it will still be so after a crash is only said when the bytes are on disk."""
        self.record["how"] = how
        if self._copier is not None:
            self.record["copied_bytes"] = self._copier.copied_bytes
        mark = os.path.join(self.home, COMPLETE)
        if sync:
            _write(mark, files.to_json({"boot": _boot_id(), "bytes": self.list.bytes}))
        self._over = True
        with self.arrived:
            self.arrived.notify_all()
        if sync:
            for name in self.list.items:
                if self._stop.is_set():
                    return
                _sync(os.path.join(self.folder, name))
            _write(mark, files.to_json({"boot": _boot_id(), "bytes": self.list.bytes, "synced": True}))

    def _fall_back(self, reason: str) -> None:
        self.record.update(how="source", note=reason)
        self.say("%s is read from the source: %s" % (self.name, reason))

    def _ready(self) -> bool:
        first = all(self._has(name) for name in self.list.units[0])
        if first:
            self.record.setdefault("first_s", round(time.monotonic() - self._began, 4))
        return first and self.list.partial and not self.wait_all

    def _has(self, name: str) -> bool:
        """Whether a file can be read: it is a copy, or a link to the source."""
        try:
            return os.stat(os.path.join(self.folder, name)).st_size == self.list.items[name].size
        except OSError:
            return False

    def _is_copied(self, name: str) -> bool:
        return self._has(name) and not os.path.islink(os.path.join(self.folder, name))

    def _note(self, item: Item) -> None:
        _remove(os.path.join(self.home, WANTS, flat(item.name)))
        with self.arrived:
            self.arrived.notify_all()


class _Queue:
    """What to copy next: what a reader waits for, else the next in order. Called with the copier's lock held."""

    def __init__(
        self,
        units: List[Tuple[str, ...]],
        items: Dict[str, Item],
        wants: str,
        has: Callable[[str], bool],
    ) -> None:
        self._units = list(units)
        self._items = items
        self._wants = wants
        self._has = has
        self._now: List[str] = []

    def __call__(self) -> Optional[Item]:
        while not self._now:
            if not self._units:
                return None
            wanted = set(files.names_in(self._wants)) if len(self._units) > 1 else set()
            first = self._units[0]
            chosen = next((unit for unit in self._units if wanted & set(unit)), first) if wanted else first
            self._units.remove(chosen)
            self._now = [name for name in chosen if not self._has(name)]
        return self._items[self._now.pop(0)]


def _fit(units: List[Tuple[str, ...]], items: Dict[str, Item], room: int) -> Tuple[Any, Any]:
    """Units that fit into the room, in order, and the rest."""
    fitting: List[Tuple[str, ...]] = []
    rest: List[Tuple[str, ...]] = []
    for unit in units:
        size = sum(items[name].size for name in unit)
        if not rest and size <= room:
            room -= size
            fitting.append(unit)
        else:
            rest.append(unit)
    return fitting, rest


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _write(path: str, data: bytes) -> None:
    files.replace(path, data, sync=False)


def _sync(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


__all__ = ["ABOUT", "COMPLETE", "PROBLEM", "WANTS", "Listing", "Stage", "StageError"]
