"""Verify, describe and unpack datasets of shoal and shards that other tools made.

`unpack` restores the files with their original names and bytes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from shoal.data import external_shards, formats, optional_packages, shard_writer
from shoal.data import manifest as manifests
from shoal.data.formats import int64_list
from shoal.data.manifest import INDEX_SUFFIX, INT64, IndexedSample, Manifest, Shard, ShardIndex, is_intact, open_index
from shoal.data.shard_writer import disk_errors_at, file_checksum
from shoal.errors import InputError, ShoalError
from shoal.job import crc32
from shoal.units import shorten_list


class ShardProblem(NamedTuple):
    shard: str
    message: str


class VerifyResult(NamedTuple):
    """What a check found; `how` says how deep it went: checksums, structure, or sizes."""

    path: str
    shards: int
    bytes: int
    how: str
    problems: list[ShardProblem]


def find_dataset(path: str) -> tuple[str, Manifest]:
    """(folder, manifest) of whatever a person points at."""
    if (place := manifests.find_manifest(path)) is not None:
        return os.path.dirname(place) or ".", manifests.load_manifest(place)
    if not os.path.exists(path) and not any(letter in path for letter in "*?["):
        raise InputError(f"there is no {path}", hint=f"ls {os.path.dirname(path) or '.'}")
    return external_shards.describe_external(path)


def verify_dataset(
    path: str, *, quick: bool = False, progress: Callable[[int, int], None] = lambda done, total: None
) -> VerifyResult:
    """Compare every shard with its manifest; shards without one are read through. Damage is reported, not raised."""
    folder, manifest = find_dataset(path)
    made_here = bool(manifest.id)
    total, done = sum(shard.size for shard in manifest.shards), 0
    problems: list[ShardProblem] = []

    def look(shard: Shard) -> list[ShardProblem]:
        place = os.path.join(folder, shard.name)
        try:
            size = os.path.getsize(place)
            if size != shard.size:
                return [ShardProblem(shard.name, f"has {size} bytes and should have {shard.size}")]
            if quick:
                return []
            return _compare_shard(folder, shard) if made_here else _check_structure(place)
        except FileNotFoundError:
            return [ShardProblem(shard.name, "is missing")]
        except OSError as error:
            return [ShardProblem(shard.name, f"cannot be read: {(error.strerror or str(error)).lower()}")]

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for shard, found in zip(manifest.shards, pool.map(look, manifest.shards), strict=True):
            problems += found
            done += shard.size
            progress(done, total)
    how = "sizes" if quick else "checksums" if made_here else "structure"
    return VerifyResult(path, len(manifest.shards), total, how, problems)


def _compare_shard(folder: str, shard: Shard) -> list[ShardProblem]:
    found: list[ShardProblem] = []
    path = os.path.join(folder, shard.name)
    if shard.index_size:
        try:
            with open(path + INDEX_SUFFIX, "rb") as file:
                data = file.read()
            if f"{crc32(data):08x}" != shard.index_crc32 or not is_intact(data):
                found.append(ShardProblem(shard.name + INDEX_SUFFIX, "does not have the checksum of the manifest"))
        except FileNotFoundError:
            found.append(ShardProblem(shard.name + INDEX_SUFFIX, "is missing"))
    if file_checksum(path)[1] != shard.crc32:
        where = "" if found else _damaged_samples(path)
        found.append(ShardProblem(shard.name, f"does not have the checksum of the manifest{where}"))
    return found


def _damaged_samples(path: str) -> str:
    """Which samples are hit, from the checksums in the index."""
    if not os.path.exists(path + INDEX_SUFFIX):
        return ""
    index = open_index(path + INDEX_SUFFIX)
    hit: list[str] = []
    with open(path, "rb") as file:
        for number in range(len(index)):
            sample = index.sample(number)
            for member in sample.members:
                file.seek(member.offset)
                if crc32(file.read(member.size)) != member.crc:
                    hit.append(f"{sample.key.decode('utf-8', 'backslashreplace')}.{member.field}")
    if not hit:
        return ": all samples are intact, the bytes between them are not"
    return f": {shorten_list(hit, 3)} altered"


def _check_structure(path: str) -> list[ShardProblem]:
    try:
        with open(path, "rb") as file:
            if external_shards.format_of(path) == "tar":
                for _ in formats.tar_members(file, path):
                    pass
            else:
                for _ in formats.read_records(file, path, optional_packages.crc32c()):
                    pass
    except ShoalError as error:
        return [ShardProblem(os.path.basename(path), error.message.replace(path + " ", ""))]
    return []


def describe_dataset(path: str) -> dict[str, Any]:
    """What is in a data set, as one document."""
    folder, manifest = find_dataset(path)
    samples, size, fields = manifest.samples, manifest.bytes, list(manifest.fields)
    if not manifest.id:
        indexes = [external_shards.index_for(os.path.join(folder, shard.name)) for shard in manifest.shards]
        samples = sum(len(index) for index in indexes)
        size = int(sum(int(index.columns["size"].sum()) for index in indexes))
        fields = list(dict.fromkeys(field for index in indexes for field in index.fields))
    return {
        "name": manifest.name,
        "path": folder,
        "id": manifest.id or None,
        "format": manifest.format,
        "samples": samples,
        "bytes": size,
        "bytes_on_disk": manifest.size,
        "shards": len(manifest.shards),
        "largest_shard_bytes": max((shard.size for shard in manifest.shards), default=0),
        "fields": fields,
        "classes": len(manifest.classes),
        "seed": manifest.seed,
        "source": manifest.source,
        "left_out": manifest.left_out,
        "tool": manifest.tool or None,
    }


class ExtractResult(NamedTuple):
    path: str
    files: int
    bytes: int


def extract_dataset(
    path: str, dest: str, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> ExtractResult:
    """Write the files of a data set into the new folder `dest`, each compared with its checksum; all or nothing."""
    folder, manifest = find_dataset(path)
    dest = dest.rstrip("/")
    if os.path.exists(dest) and (not os.path.isdir(dest) or os.listdir(dest)):
        raise InputError(f"{dest} exists already", hint="choose a folder that does not exist yet")
    temp = f"{dest}.unpacking-{os.getpid()}"
    total, done, count = sum(shard.size for shard in manifest.shards), 0, 0
    size = 0
    try:
        if manifest.format == "squashfs":
            shard_writer.extract_squashfs(os.path.join(folder, manifest.shards[0].name), temp)
            for where, _, names in os.walk(temp):
                count += len(names)
                size += sum(os.lstat(os.path.join(where, name)).st_size for name in names)
        else:
            os.makedirs(temp)
            for shard in manifest.shards:
                files, written = _extract_shard(os.path.join(folder, shard.name), temp)
                count, size, done = count + files, size + written, done + shard.size
                progress(done, total)
        os.rename(temp, dest)
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    return ExtractResult(dest, count, size)


def _extract_shard(path: str, dest: str) -> tuple[int, int]:
    index = open_index(path + INDEX_SUFFIX) if os.path.exists(path + INDEX_SUFFIX) else external_shards.index_for(path)
    files = size = 0
    with open(path, "rb") as shard:
        for number in range(len(index)):
            for name, data in _sample_files(index, index.sample(number), shard.fileno(), path):
                _write_file(os.path.join(os.fsencode(dest), name), data, path)
                files, size = files + 1, size + len(data)
    return files, size


def _sample_files(index: ShardIndex, sample: IndexedSample, fd: int, path: str) -> list[tuple[bytes, bytes]]:
    """(name, bytes) of a sample's files. What shoal added when it sharded files, such as class numbers, is no file."""
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
    """A name that stays in the dest's folder, whatever an archive says."""
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
