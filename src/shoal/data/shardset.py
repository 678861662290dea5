"""The bytes of a dataset's shards: which file, whether it is staged yet, and many reads at once.

While staging runs, a missing shard is requested and waited for; if no process copies any more, it is read at the
source. What a copy has lost, or has with a wrong checksum, is read at the source too, with a warning.

Files are opened per thread, so none is closed while another thread reads from it; a fork shares them safely, because
every read gives its offset.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from shoal.data import external_shards, prefetch
from shoal.data import manifest as manifests
from shoal.data.manifest import INDEX_SUFFIX, Manifest, ShardIndex, open_index
from shoal.errors import InputError, ShoalError
from shoal.job import cache, crc32, dataset_copy
from shoal.kernel import files

_POLL_S = 0.005
#: How long nobody may hold the copier's lock before the source is read instead: a job that dies hands over at once.
_LOCK_TIMEOUT_S = 0.5
#: Who has read so much of a data set from the disk reads on.
_SEQUENTIAL_SHARE = 0.02
#: What goes with a shard set to another process: paths, not open files and maps.
_PICKLED_FIELDS = ("folder", "manifest", "staged", "source", "mapped", "checked")
#: Just below the largest piece that changes how much freed memory glibc keeps.
_MALLOC_THRESHOLD = 31 << 20


class ShardSet:
    """Shards of a data set by number. `staged` is the folder of a staging cache that this one is in, or None.

    With `mapped` the files are mapped into memory, and what is read are views of that: nothing is copied. `checked`
    compares indexes and values with their checksums.
    """

    def __init__(
        self,
        folder: str,
        manifest: Manifest,
        staged: str | None = None,
        source: str | None = None,
        mapped: bool = False,
        checked: bool = True,
    ) -> None:
        self.mapped = mapped
        self.checked = checked
        self.folder = folder
        self.manifest = manifest
        self.staged = staged
        self.source = source
        self._indexes: dict[int, ShardIndex] = {}
        self._maps: dict[int, memoryview] = {}
        self._local = threading.local()
        self._most_files = max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self.watch = prefetch.CacheMonitor()
        self._missed = 0
        self._damaged: set[str] = set()
        self._abandoned = False
        _keep_freed_memory()

    def __len__(self) -> int:
        return len(self.manifest.shards)

    def __getstate__(self) -> dict[str, object]:
        """For workers that are spawned: paths travel, open files and maps do not."""
        return {key: getattr(self, key) for key in _PICKLED_FIELDS}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def index(self, shard: int) -> ShardIndex:
        """A shard's index. It is small, and so read at the source if the shard is still on its way."""
        if shard not in self._indexes:
            name = self.manifest.shards[shard].name
            index = self._stored_index(shard) if self.manifest.shards[shard].index_size else None
            if index is None:
                index = external_shards.index_for(self.path(shard))
            if index.shard.get("size") != self.manifest.shards[shard].size:
                raise ShoalError(f"{index.place} does not belong to {name}", hint=f"shoal data verify {self.folder}")
            self._indexes[shard] = index
        return self._indexes[shard]

    def _stored_index(self, shard: int) -> ShardIndex | None:
        """The index that was sharded with the shard. It has the labels, so a damaged one is never used."""
        entry = self.manifest.shards[shard]
        damage: ShoalError | None = None
        for folder in (self.folder, self.source):
            path = os.path.join(folder or "", entry.name + INDEX_SUFFIX)
            try:
                index = open_index(path) if folder is not None else None
            except FileNotFoundError:
                continue
            except ShoalError as error:
                index, damage = None, error
            if index is not None and self.checked and entry.index_crc32 not in ("", f"{crc32(index.data):08x}"):
                index, damage = None, ShoalError(f"{path} is damaged: it has a wrong checksum")
            if index is not None:
                if damage is not None:
                    self._note_damage(entry.name + INDEX_SUFFIX, str(damage))
                return index
        if damage is not None:
            raise ShoalError(damage.message, hint=f"shoal data verify {self.folder}")
        return None

    def is_here(self, shard: int) -> bool:
        return os.path.exists(os.path.join(self.folder, self.manifest.shards[shard].name))

    def path(self, shard: int) -> str:
        """Where a shard can be read, waiting for it if it is being staged."""
        name = self.manifest.shards[shard].name
        path = os.path.join(self.folder, name)
        if os.path.exists(path):
            return path
        if self.staged is None:
            raise ShoalError(f"{path} is missing", hint=f"shoal data verify {self.folder}")
        return self._wait_for(shard, path)

    def request(self, numbers: Sequence[int]) -> None:
        """These shards are needed next, in this order: where they are being staged, they come before the others."""
        for number in numbers if self.staged is not None else ():
            if not self.is_here(number):
                name = self.manifest.shards[number].name
                try:
                    os.close(
                        os.open(
                            os.path.join(str(self.staged), dataset_copy.REQUESTS_DIR, name),
                            os.O_WRONLY | os.O_CREAT,
                            0o644,
                        )
                    )
                except OSError:
                    return  # Only a prefetch: without it the shard comes in its turn.

    def _wait_for(self, shard: int, path: str) -> str:
        home, free_since = str(self.staged), None
        lock = os.path.join(os.path.dirname(os.path.dirname(home)), "locks", os.path.basename(home))
        self.request([shard])
        while not os.path.exists(path):
            if os.path.exists(os.path.join(home, dataset_copy.PROBLEM_FILE)):
                with open(os.path.join(home, dataset_copy.PROBLEM_FILE), encoding="utf-8") as file:
                    raise ShoalError(file.read(), hint=f"shoal data verify {self.source}")
            if cache.is_locked(lock):
                free_since, self._abandoned = None, False
            elif free_since is None:
                free_since = time.monotonic()
            if free_since is not None and (self._abandoned or time.monotonic() - free_since > _LOCK_TIMEOUT_S):
                self._abandoned = True
                return os.path.join(str(self.source), self.manifest.shards[shard].name)
            time.sleep(_POLL_S)
        return path

    def open(self, shard: int) -> int:
        """A descriptor of the shard, of this thread's; at most a quarter of what the process may open."""
        try:
            table: _FileDescriptors = self._local.files
        except AttributeError:
            table = self._local.files = _FileDescriptors()
        fd = table.get(shard)
        if fd is None:
            if len(table) >= self._most_files:
                os.close(table.popitem(last=False)[1])
            fd = table[shard] = os.open(self.path(shard), os.O_RDONLY | os.O_CLOEXEC)
        return fd

    def _map(self, shard: int) -> memoryview:
        whole = self._maps.get(shard)
        if whole is None:
            whole = self._maps[shard] = memoryview(mmap.mmap(self.open(shard), 0, access=mmap.ACCESS_READ))
        return whole

    def read(self, shards: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> list[Any]:
        """The bytes at many places, one after the other; `will_read` before, so that the disk works on all at once."""
        if len(set(shards)) > self._most_files:
            half = len(shards) // 2
            first = self.read(shards[:half], offsets[:half], sizes[:half])
            return first + self.read(shards[half:], offsets[half:], sizes[half:])
        fds = [self.open(shard) for shard in shards]
        found: list[Any]
        if self.mapped:
            maps = [self._map(shard) for shard in shards]
            found = [whole[at : at + size] for whole, at, size in zip(maps, offsets, sizes, strict=True)]
        else:
            pread = os.pread
            found = [pread(fd, size, offset) for fd, size, offset in zip(fds, sizes, offsets, strict=True)]
        for place, data in enumerate(found):
            if len(data) != sizes[place]:
                found[place] = self._read_rest(shards[place], fds[place], data, sizes[place], offsets[place])
        return found

    def _read_rest(self, shard: int, fd: int, begin: Any, size: int, offset: int) -> bytes:
        data = bytes(begin)
        while data and len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
            data += more
        if len(data) != size:
            return self.read_again(shard, offset, size, None, f"is cut off: {size} bytes at {offset} are not there")
        return data

    def read_again(self, shard: int, offset: int, size: int, crc: int | None, problem: str) -> bytes:
        """What a damaged copy should have held, from the source; ShoalError where that is damaged or not known."""
        name = self.manifest.shards[shard].name
        damage = f"{os.path.join(self.folder, name)} {problem}"
        if self.source is not None:
            try:
                with open(os.path.join(self.source, name), "rb", buffering=0) as file:
                    data = os.pread(file.fileno(), size, offset)
            except OSError:
                data = b""
            if len(data) == size and crc in (None, crc32(data)):
                self._note_damage(name, damage)
                return data
        raise ShoalError(damage, hint=f"shoal data verify {self.folder}")

    def _note_damage(self, name: str, damage: str) -> None:
        """Tell it once, and leave a note beside the copy, so that the next job here copies the file again."""
        if name in self._damaged:
            return
        self._damaged.add(name)
        warnings.warn(f"{damage}; what it should hold is read from {self.source}", RuntimeWarning, stacklevel=2)
        try:
            os.close(
                os.open(os.path.join(str(self.staged), dataset_copy.DAMAGED_DIR, name), os.O_WRONLY | os.O_CREAT, 0o644)
            )
        except OSError:
            pass  # The next job compares sizes only, and the next reader finds what this one found.

    def will_read(self, shards: Sequence[int], offsets: Sequence[int], sizes: Sequence[int], now: bool) -> None:
        """Have these places brought to memory, if some of them are not there; `now`: because they are read next.

        Who reads much in an order that nobody knows beforehand gets everything brought, if there is room for it.
        """
        some = self.watch.sample_ranges()
        if not self.watch.misses(self._places(shards[some], offsets[some], sizes[some])):
            return
        # Who touches a mapped page before the kernel was told waits for more than that page.
        prefetch.prefetch_ranges(self._places(shards, offsets, sizes), wait=now and self.mapped)
        if now:
            before, self._missed = self._missed, self._missed + sum(sizes)
            limit = _SEQUENTIAL_SHARE * sum(shard.size for shard in self.manifest.shards)
            if before < limit <= self._missed:
                self.prefetch_shards(range(len(self)))

    def in_memory(self, shards: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> list[bool | None]:
        return [prefetch.is_cached(fd, at + size // 2) for fd, at, size in self._places(shards, offsets, sizes)]

    def _places(self, shards: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> prefetch.FileRanges:
        """These ranges, without those of shards that are still being staged."""
        known = getattr(self._local, "files", {})
        fds = {shard: self.open(shard) for shard in set(shards) if shard in known or self.is_here(shard)}
        return [(fds[s], at, size) for s, at, size in zip(shards, offsets, sizes, strict=True) if s in fds]

    def prefetch_shards(self, numbers: Sequence[int]) -> None:
        """All of these shards are read soon: have those that are here brought to memory, if there is room."""
        shards = [self.manifest.shards[number] for number in numbers]
        if sum(shard.size for shard in shards) <= prefetch.prefetch_budget():
            prefetch.prefetch_files([os.path.join(self.folder, shard.name) for shard in shards])


class _FileDescriptors(OrderedDict[int, int]):
    """Descriptors by shard, closed with the thread or the data set that they belong to."""

    def __del__(self) -> None:
        for fd in self.values():
            os.close(fd)


def _keep_freed_memory() -> None:
    """Let the next batch use the memory of the last one.

    glibc returns freed memory to the kernel, which hands it out again page by page, each one cleared: as much work as
    the reading itself. Once a large piece was freed, it keeps twice that size (mallopt(3)). This one comes from calloc
    and is never touched.
    """
    bytes(_MALLOC_THRESHOLD)


def find_shards(path: str) -> ShardSet:
    """The shards of a data set, of a staged one, or of a folder, file or pattern of shards made elsewhere."""
    if not os.path.exists(path) and (source := _source_of(path)) is not None:
        path = source
    if os.path.basename(path) == manifests.MANIFEST_NAME:
        path = os.path.dirname(path) or "."
    home = os.path.dirname(os.path.abspath(path))
    about = (
        files.read_json(os.path.join(home, dataset_copy.ABOUT_FILE))
        if os.path.basename(os.path.abspath(path)) == "data"
        else None
    )
    staged, source = (home, str(about["source"])) if about and "source" in about else (None, None)
    if manifests.find_manifest(path) is not None:
        manifest = manifests.load_manifest(path)
        if manifest.format == "squashfs":
            image = os.path.join(path, manifest.shards[0].name)
            raise InputError(
                f"{path} is a squashfs image, to be mounted and read as a folder", hint=f"squashfuse {image} /mnt/data"
            )
        return ShardSet(path, manifest, staged, source)
    if not os.path.exists(path) and not any(letter in path for letter in "*?["):
        raise InputError(f"there is no {path}", hint=f"ls {os.path.dirname(path) or '.'}")
    folder, manifest = external_shards.describe_external(path)
    return ShardSet(folder, manifest)


def _source_of(path: str) -> str | None:
    """Where the data of a SHOAL_DATA_ variable came from, for a node on which nothing was staged."""
    try:
        sources: dict[str, str] = json.loads(os.environ.get("SHOAL_DATA_SOURCES") or "{}")
    except ValueError:
        return None
    return sources.get(path)
