"""The way back: files again, under the names and with the bytes that they had."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

from shoal.data import foreign, squash
from shoal.data.checking import find_dataset
from shoal.data.disk import disk_errors_at
from shoal.data.index import INDEX_SUFFIX, INT64, IndexedSample, ShardIndex, open_index
from shoal.data.tfrecord import int64_list
from shoal.errors import InputError, ShoalError
from shoal.job import crc32


class ExtractResult(NamedTuple):
    path: str
    files: int
    bytes: int


def extract_dataset(
    path: str, goal: str, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> ExtractResult:
    """Write the files of a data set into the new folder `goal`, each compared with its checksum; all or nothing."""
    folder, manifest = find_dataset(path)
    goal = goal.rstrip("/")
    if os.path.exists(goal) and (not os.path.isdir(goal) or os.listdir(goal)):
        raise InputError(f"{goal} exists already", hint="choose a folder that does not exist yet")
    temp = f"{goal}.unpacking-{os.getpid()}"
    total, done, count = sum(shard.size for shard in manifest.shards), 0, 0
    size = 0
    try:
        if manifest.format == "squashfs":
            squash.extract_squashfs(os.path.join(folder, manifest.shards[0].name), temp)
            for where, _, names in os.walk(temp):
                count += len(names)
                size += sum(os.lstat(os.path.join(where, name)).st_size for name in names)
        else:
            os.makedirs(temp)
            for shard in manifest.shards:
                files, written = _extract_shard(os.path.join(folder, shard.name), temp)
                count, size, done = count + files, size + written, done + shard.size
                progress(done, total)
        os.rename(temp, goal)
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    return ExtractResult(goal, count, size)


def _extract_shard(path: str, goal: str) -> tuple[int, int]:
    index = open_index(path + INDEX_SUFFIX) if os.path.exists(path + INDEX_SUFFIX) else foreign.index_for(path)
    files = size = 0
    with open(path, "rb") as shard:
        for number in range(len(index)):
            for name, data in _sample_files(index, index.sample(number), shard.fileno(), path):
                _write_file(os.path.join(os.fsencode(goal), name), data, path)
                files, size = files + 1, size + len(data)
    return files, size


def _sample_files(index: ShardIndex, sample: IndexedSample, fd: int, path: str) -> list[tuple[bytes, bytes]]:
    """(name, bytes) of a sample's files. What shoal added when it packed files, such as class numbers, is no file."""
    from_files = any(member.path for member in sample.members)
    found = []
    for member in sample.members:
        if from_files and not member.path:
            continue
        data = os.pread(fd, member.size, member.offset)
        if len(data) != member.size or (crc32(data) != member.crc and not index.shard.get("unchecked")):
            key = sample.key.decode("utf-8", "backslashreplace")
            raise ShoalError(
                f"{path} is damaged: {key}.{member.field} has a wrong checksum", hint=f"shoal data verify {path}"
            )
        if member.kind == INT64:
            data = b" ".join(b"%d" % number for number in int64_list(data))
        field = member.field.encode("utf-8", "surrogateescape")
        found.append((_safe_path(member.path or sample.key + b"." + field), data))
    return found


def _safe_path(name: bytes) -> bytes:
    """A name that stays in the goal's folder, whatever an archive says."""
    parts = [part for part in name.split(b"/") if part not in (b"", b".", b"..")]
    return b"/".join(parts) or b"_"


def _write_file(path: bytes, data: bytes, shard: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with disk_errors_at(os.fsdecode(path)), open(path, "xb") as file:
            file.write(data)
    except FileExistsError:
        with open(path, "rb") as there:
            if there.read() == data:
                return
        name = os.fsdecode(path)
        raise ShoalError(f"{shard} holds two different files for {name!r}") from None
