"""Is it all there, and what is it: verify and info, for data sets of shoal and for shards made elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from shoal.data import foreign, needs, tar, tfrecord
from shoal.data import manifest as manifests
from shoal.data.index import SUFFIX, is_intact, open_index
from shoal.data.manifest import Manifest, Shard
from shoal.data.squash import checksum_of
from shoal.errors import InputError, ShoalError
from shoal.job import crc32
from shoal.units import listed


class Problem(NamedTuple):
    shard: str
    message: str


class Verified(NamedTuple):
    """What a check found; `how` says how deep it went: checksums, structure, or sizes."""

    path: str
    shards: int
    bytes: int
    how: str
    problems: list[Problem]


def locate(path: str) -> tuple[str, Manifest]:
    """(folder, manifest) of whatever a person points at."""
    if (place := manifests.find(path)) is not None:
        return os.path.dirname(place) or ".", manifests.load(place)
    if not os.path.exists(path) and not any(letter in path for letter in "*?["):
        raise InputError(f"there is no {path}", hint=f"ls {os.path.dirname(path) or '.'}")
    return foreign.describe(path)


def verify(
    path: str, *, quick: bool = False, progress: Callable[[int, int], None] = lambda done, total: None
) -> Verified:
    """Compare every shard with its manifest; shards without one are read through. Damage is reported, not raised."""
    folder, manifest = locate(path)
    made_here = bool(manifest.id)
    total, done = sum(shard.size for shard in manifest.shards), 0
    problems: list[Problem] = []

    def look(shard: Shard) -> list[Problem]:
        place = os.path.join(folder, shard.name)
        try:
            size = os.path.getsize(place)
            if size != shard.size:
                return [Problem(shard.name, f"has {size} bytes and should have {shard.size}")]
            if quick:
                return []
            return _compare(folder, shard) if made_here else _structure(place)
        except FileNotFoundError:
            return [Problem(shard.name, "is missing")]
        except OSError as error:
            return [Problem(shard.name, f"cannot be read: {(error.strerror or str(error)).lower()}")]

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for shard, found in zip(manifest.shards, pool.map(look, manifest.shards), strict=True):
            problems += found
            done += shard.size
            progress(done, total)
    how = "sizes" if quick else "checksums" if made_here else "structure"
    return Verified(path, len(manifest.shards), total, how, problems)


def _compare(folder: str, shard: Shard) -> list[Problem]:
    found: list[Problem] = []
    path = os.path.join(folder, shard.name)
    if shard.index_size:
        try:
            with open(path + SUFFIX, "rb") as file:
                data = file.read()
            if f"{crc32(data):08x}" != shard.index_crc32 or not is_intact(data):
                found.append(Problem(shard.name + SUFFIX, "does not have the checksum of the manifest"))
        except FileNotFoundError:
            found.append(Problem(shard.name + SUFFIX, "is missing"))
    if checksum_of(path)[1] != shard.crc32:
        where = "" if found else _where(path)
        found.append(Problem(shard.name, f"does not have the checksum of the manifest{where}"))
    return found


def _where(path: str) -> str:
    """Which samples are hit, from the checksums in the index."""
    if not os.path.exists(path + SUFFIX):
        return ""
    index = open_index(path + SUFFIX)
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
    return f": {listed(hit, 3)} altered"


def _structure(path: str) -> list[Problem]:
    try:
        with open(path, "rb") as file:
            if foreign.format_of(path) == "tar":
                for _ in tar.members(file, path):
                    pass
            else:
                for _ in tfrecord.records(file, path, needs.crc32c()):
                    pass
    except ShoalError as error:
        return [Problem(os.path.basename(path), error.message.replace(path + " ", ""))]
    return []


def info(path: str) -> dict[str, Any]:
    """What is in a data set, as one document."""
    folder, manifest = locate(path)
    samples, size, fields = manifest.samples, manifest.bytes, list(manifest.fields)
    if not manifest.id:
        indexes = [foreign.index_for(os.path.join(folder, shard.name)) for shard in manifest.shards]
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
