"""Shards that other tools made: which they are, and an index for each, built on first use and then kept.

Indexes are in the user's cache directory and never beside the shards, which may belong to others or be read-only. An
index is found by the shard's path, size and time, so that of a shard that changed is not used again.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

from shoal.data import formats, optional_packages
from shoal.data import manifest as manifests
from shoal.data.manifest import (
    INDEX_SUFFIX,
    INT64,
    NO_LABEL,
    IndexBuilder,
    IndexedSample,
    Manifest,
    SampleMember,
    Shard,
    ShardIndex,
    open_index,
    write_index,
)
from shoal.errors import InputError, ShoalError

_TAR_SUFFIXES, _TFRECORD_SUFFIXES = (".tar",), (".tfrecord", ".tfrecords", ".tfrec")


def format_of(path: str) -> str | None:
    """tar or tfrecord by the name ("train.tfrecord-00000-of-00010" too); None for anything else."""
    name = os.path.basename(path).lower()
    if name.endswith((INDEX_SUFFIX, ".idx", "_index")):
        return None
    if name.endswith(_TAR_SUFFIXES):
        return "tar"
    return "tfrecord" if any(ending in name for ending in _TFRECORD_SUFFIXES) else None


def describe_external(path: str) -> tuple[str, Manifest]:
    """A folder, shard or pattern of shards without a manifest, as (folder, manifest); counts are not known yet."""
    if os.path.isdir(path):
        names = [os.path.join(path, name) for name in sorted(os.listdir(path))]
    else:
        names = sorted(glob.glob(path))
    shards = [name for name in names if format_of(name) and os.path.isfile(name)]
    formats = {str(format_of(name)) for name in shards}
    if not shards:
        raise InputError(
            f"there is no data set in {path}: no {manifests.MANIFEST_NAME} and no shard",
            hint="shoal data shard FOLDER DEST",
        )
    folders = {os.path.dirname(name) for name in shards}
    if len(formats) > 1 or len(folders) > 1:
        raise InputError(f"{path} mixes formats or folders of shards", hint="name one pattern, such as 'train-*.tar'")
    listed = [Shard(name=os.path.basename(name), size=os.path.getsize(name)) for name in shards]
    name = os.path.basename(path.rstrip("/")) or path
    made = Manifest(
        version=manifests.MANIFEST_VERSION, name=name, id="", format=formats.pop(), samples=0, bytes=0, shards=listed
    )
    return folders.pop() or ".", made


def index_for(path: str) -> ShardIndex:
    """The index of a shard: the one beside it, the one in the cache, or a new one. ShoalError: the shard is damaged."""
    status = os.stat(path)
    kept = cached_path(path)
    for place in (path + INDEX_SUFFIX, kept):
        try:
            index = open_index(place)
        except (FileNotFoundError, ShoalError):
            continue
        if index.shard.get("size") == status.st_size:
            return index
    data = build_index(path)
    try:
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        write_index(kept, data)
        return open_index(kept)
    except OSError:
        return ShardIndex(data, path)


def cached_path(path: str) -> str:
    status = os.stat(path)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    text = f"{os.path.realpath(path)}\0{status.st_size}\0{status.st_mtime_ns}"
    name = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return os.path.join(base, "shoal", "index", name + INDEX_SUFFIX)


def build_index(path: str) -> bytes:
    """An index from the shard alone. Checksums of members are not in it: nobody computed them when it was made."""
    builder = IndexBuilder()
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if format_of(path) == "tar":
            _index_tar(file, path, builder)
        else:
            _index_tfrecord(file, path, builder)
    return builder.finish({"name": os.path.basename(path), "size": size, "crc32": "", "unchecked": True})


def _index_tar(file: BinaryIO, path: str, builder: IndexBuilder) -> None:
    key: bytes | None = None
    members: list[SampleMember] = []

    def close() -> None:
        if key is not None:
            builder.add(IndexedSample(key, tuple(members), _label_of(members, lambda m: _bytes_at(file, m))))

    for member in list(formats.tar_members(file, path)):
        base = member.name.rpartition(b"/")[2]
        if base.startswith(b"__") and base.endswith(b"__"):
            continue  # WebDataset's own notes are no samples.
        this, field = formats.split_member_name(member.name)
        if this != key or any(known.field == field for known in members):
            close()
            key, members = this, []
        members.append(SampleMember(field or "bin", member.offset, member.size, 0, member.name))
    close()


def _index_tfrecord(file: BinaryIO, path: str, builder: IndexBuilder) -> None:
    for number, (offset, data) in enumerate(formats.read_records(file, path, optional_packages.crc32c())):
        key = b"%09d" % number
        try:
            found = formats.find_features(data)
        except ValueError:
            builder.add(IndexedSample(key, (SampleMember("record", offset, len(data), 0),)))
            continue
        members = []
        for feature in found:
            if feature.name == formats.KEY_FEATURE:
                key = data[feature.offset : feature.offset + feature.size]
                continue
            members.append(SampleMember(feature.name, offset + feature.offset, feature.size, 0, b"", feature.kind))
        builder.add(IndexedSample(key, tuple(members), _label_of(members, partial(_member_bytes, data, offset))))


def _label_of(members: list[SampleMember], read: Callable[[SampleMember], bytes]) -> int:
    """The class number that a `cls` member holds, so that reading it later costs nothing."""
    for member in members:
        if member.field == "cls" and member.size <= 20:
            data = read(member)
            try:
                if member.kind == INT64:
                    numbers = formats.int64_list(data)
                    return numbers[0] if len(numbers) == 1 else NO_LABEL
                return int(data)
            except ValueError:
                return NO_LABEL
    return NO_LABEL


def _member_bytes(data: bytes, start: int, member: SampleMember) -> bytes:
    return data[member.offset - start : member.offset - start + member.size]


def _bytes_at(file: BinaryIO, member: SampleMember) -> bytes:
    file.seek(member.offset)
    return file.read(member.size)
