"""Stage a dataset: one copy per node, shared by all jobs there.

A run starts when all of it is there, so that any program that lists the directory sees everything. With `wait="first"`
it starts at the first shard: for programs that read with shoal.data, which waits for what is still being copied.

One job of a node copies and the others wait for it; if it ends or is killed, the next one continues with what is there.
Which job copies is not written down: it is the one that holds a kernel lock. Where there is no space or no scratch, the
path handed over is the source itself, and the record says why.
"""

import errno
import os
import socket
import threading
import time
from typing import Any, Callable, Dict, Mapping, Optional

from . import cache, dataset_copy
from .cache import CacheRoot, FileLock
from .dataset_copy import CopyQueue, DatasetCopy, NotStageable, split_by_size
from .file_copy import RANGE_BYTES, Copier, CopyItem, SourceChanged

_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_SMALL_FILE_BYTES = 1 << 20


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
        wait: str = "all",
        threads: Optional[int] = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.name = name
        self.source = os.path.abspath(source)
        self.environ = environ
        self.profile = profile
        self.wait_first = wait == "first"
        self.threads = threads
        self.say = say
        self.path = self.source
        self.record: Dict[str, Any] = {"name": name, "source": self.source, "how": "source", "copied_bytes": 0}
        self.arrived = threading.Condition()
        self.error: Optional[str] = None
        self._began = time.monotonic()
        self._thread: Optional[threading.Thread] = None
        self._stop = threading.Event()
        self._close_oldest = False
        self._copier: Optional[Copier] = None
        self._use: Optional[FileLock] = None
        self._sync_soon: Callable[[str], None] = lambda name: None

    def begin(self) -> None:
        """Decide where the data will be and start to bring it. StageError: there is no such data."""
        self._began = time.monotonic()
        try:
            self.list = dataset_copy.read_source(self.source)
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
            if root.group is not None and not self._is_open_to(root.group):
                root = cache.private_root(root)
                notes.append("the group of the scratch folder may not read the source: the copy is this user's own")
            self._lock_dataset(root)
        except OSError as error:
            self.close()
            return self._fall_back("%s cannot be used: %s" % (root.path, (error.strerror or str(error)).lower()))
        if self.environ.get(cache.LIMIT_VARIABLE) and cache.parse_size(self.environ[cache.LIMIT_VARIABLE]) is None:
            notes.append(
                "%s=%s is not a size, and is ignored" % (cache.LIMIT_VARIABLE, self.environ[cache.LIMIT_VARIABLE])
            )
        self.record.update(how="shared", notes=notes)
        self.say("%s goes to %s, from %s" % (self.name, root.path, "; ".join([root.named, *notes])))
        self.path = os.path.join(self.copy.folder, self.list.entry) if self.list.entry else self.copy.folder
        if self.copy.is_complete() and not self._broken():
            self._finished("shared")
        else:
            self._thread = threading.Thread(target=self._bring, daemon=True)
            self._thread.start()
        return None

    def wait(self, deadline_s: Optional[float] = None) -> str:
        """The path to hand over, as soon as the run may start; StageError if that will never be.

        A run may start when all is there; at the first shard if it asked for that and a manifest tells what lacks.
        """
        end = None if deadline_s is None else time.monotonic() + deadline_s
        while self._thread is not None and not self._close_oldest and not self._ready():
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
        while self._thread is not None and self._thread.is_alive() and not self._close_oldest:
            with self.arrived:
                self.arrived.wait(0.02)

    def join(self) -> None:
        """Wait until everything is there, and on disk."""
        if self._thread is not None:
            self._thread.join()

    def current_record(self) -> Dict[str, Any]:
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

    def _is_open_to(self, group: int) -> bool:
        """Whether a group can read the source: its manifest and first unit, which stand for all of it."""
        names = [*self.list.units[0], *([dataset_copy.MANIFEST_FILE] if self.list.manifest is not None else [])]
        return all(cache.is_group_readable(os.path.join(self.list.folder, name), group) for name in names)

    def _lock_dataset(self, root: CacheRoot) -> None:
        """Hold the data set against removal, and make its folder with what readers need first."""
        self.copy = DatasetCopy(root, self.list)
        self._use = FileLock(root.folder("use", self.list.id))
        self._use.take(False, wait=True)
        self._use.touch()
        self.copy.lay_out()

    def _bring(self) -> None:
        root = self.copy.root
        lock = FileLock(root.folder("locks", self.list.id))
        try:
            while not lock.take(True):
                if self._stop.wait(0.02):
                    return
                if self.copy.is_complete() and not self.copy.broken():
                    self._finished("shared")
                    return
            self._copy_missing()
        except SourceChanged as why:
            self.error = "%s changed or is damaged: %s" % (self.source, why)
            self.copy.note_problem(self.error)
            self.say(self.error)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            if str(error.filename or "").startswith(root.path):
                self.path = self.source
                self._fall_back("%s cannot be written: %s" % (root.path, reason))
            else:
                self.error = "%s cannot be read: %s" % (error.filename or self.source, reason)
                self.say(self.error)
        finally:
            lock.close()
            self._close_oldest = True
            with self.arrived:
                self.arrived.notify_all()

    def _broken(self) -> bool:
        """Whether a complete copy has lost something; that is logged, and it is copied again."""
        broken = self.copy.broken()
        if broken:
            self.record["damaged"] = broken
            more = " and %d more" % (len(broken) - 3) if len(broken) > 3 else ""
            values = (self.name, ", ".join(broken[:3]), more, self.copy.folder)
            self.say("%s: %s%s in %s: damaged or lost, copied again" % values)
        return bool(broken)

    def _copy_missing(self) -> None:
        """Holding the lock: bring what lacks, in this node's order; what does not fit is linked to the source."""
        copy = self.copy
        copy.note_problem(None)
        units = dataset_copy.node_order(self.list.units, dataset_copy.node_rotation(self.environ, socket.gethostname()))
        missing = copy.missing(units)
        if not missing:
            return self._finished("shared", sync=True)
        needed = sum(self.list.items[name].size for unit in missing for name in unit)
        gone = cache.make_room(copy.root, needed, self.environ, keep=self.list.id) if needed else []
        if gone:
            self.record["removed"] = gone
        fitting, rest = split_by_size(missing, self.list.items, cache.free_bytes(copy.root, self.environ))
        threads = self.threads or (16 if self.list.bytes < _SMALL_FILE_BYTES * len(self.list.items) else 8)
        self._copier = Copier(self.list.folder, copy.folder, copy.parts, threads, self._note)
        began = time.monotonic()
        try:
            with copy.syncing() as self._sync_soon:
                self._copier.run(CopyQueue(fitting, copy))
        except OSError as error:
            if error.errno not in _DISK_FULL_ERRNOS:
                raise
            rest = copy.missing(units)
            copy.drop_parts()
        if self._stop.is_set() and not rest:
            return None
        self.record["seconds"] = round(time.monotonic() - began, 4)
        if rest:
            size = self.record["left_at_source_bytes"] = copy.link(rest)
            values = (self.name, size // 10**6, self.list.bytes // 10**6)
            self.say("%s: no room for %d MB of %d MB, which are read from the source" % values)
        self._finished("staged" if fitting else "source", sync=not rest)
        return None

    def _finished(self, how: str, sync: bool = False) -> None:
        """Everything can be read. That it will still be so after a crash is only said when the bytes are on disk."""
        self.record["how"] = how
        if self._copier is not None:
            self.record["copied_bytes"] = self._copier.copied_bytes
        if sync:
            self.copy.note_complete(synced=False)
        self._close_oldest = True
        with self.arrived:
            self.arrived.notify_all()
        if sync and self.copy.sync(self._stop.is_set):
            self.copy.note_complete(synced=True)

    def _fall_back(self, reason: str) -> None:
        self.record.update(how="source", note=reason)
        self.say("%s is read from the source: %s" % (self.name, reason))

    def _ready(self) -> bool:
        first = all(self.copy.has(name) for name in self.list.units[0])
        if first:
            self.record.setdefault("first_s", round(time.monotonic() - self._began, 4))
        return first and self.list.partial and self.wait_first

    def _note(self, item: CopyItem) -> None:
        self.copy.arrived(item.name)
        if (
            item.size > RANGE_BYTES
        ):  # Many small ones are synced together at the end: one by one they would stop the copy.
            self._sync_soon(item.name)
        with self.arrived:
            self.arrived.notify_all()
