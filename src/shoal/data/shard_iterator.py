"""Shard the samples of a Python iterator. DST appears complete or not at all; a killed call starts over."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shoal import __version__
from shoal.data import manifest as manifests
from shoal.data.dataset import KEY
from shoal.data.manifest import Manifest, Shard
from shoal.data.scan import escape_name
from shoal.data.shard_files import shard_name
from shoal.data.shard_plan import ShardSettings
from shoal.data.shard_writer import FORMATS, FieldValue, ShardWriter, open_writer
from shoal.errors import InputError
from shoal.kernel import files

_MB = 1_000_000


def shard_samples(
    samples: Iterable[Mapping[str, Any]],
    dest: str,
    settings: ShardSettings = ShardSettings(),  # noqa: B008 (immutable)
    *,
    name: str | None = None,
    buffer: int = 10_000,
) -> Manifest:
    """Write samples, each a dict of fields, into the new data set `dest`; after an error there is none.

    Values are bytes, text, whole numbers (as `cls`), or lists and dicts (as JSON). `__key__` names a sample; without
    it samples are numbered. Order is mixed within `buffer` samples with the settings' seed; None keeps it.
    """
    settings.check()
    if settings.format not in FORMATS or settings.format == "squashfs":
        raise InputError(f"samples cannot be sharded as {settings.format!r}", hint="format tar or tfrecord")
    if os.path.exists(dest):
        raise InputError(f"{dest} exists already", hint="choose a folder that does not exist yet")
    folder = f"{dest.rstrip('/')}.sharding-{os.getpid()}"
    os.makedirs(folder)
    try:
        state = _SampleShardWriter(folder, settings)
        for sample in samples if settings.seed is None else _shuffle_buffer(samples, buffer, settings.seed):
            state.add(sample)
        result = state.finish(name or os.path.basename(dest.rstrip("/")))
        files.replace(os.path.join(folder, manifests.MANIFEST_NAME), manifests.encode_manifest(result))
        os.rename(folder, dest)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return result


class _SampleShardWriter:
    def __init__(self, folder: str, settings: ShardSettings) -> None:
        self._folder = folder
        self._settings = settings
        self._open: ShardWriter | None = None
        self._shards: list[Shard] = []
        self._fields: dict[str, None] = {}
        self._keys: set[str] = set()
        self._bytes = 0
        self._count = 0

    def add(self, sample: Mapping[str, Any]) -> None:
        key = escape_name(str(sample[KEY])) if KEY in sample else f"{self._count:09d}"
        if key in self._keys:
            raise InputError(f"two samples have the key {key!r}", hint=f"give each a {KEY} of its own, or none")
        base = key.rpartition("/")[2]
        if "." in base or not base:
            raise InputError(f"{key!r} cannot be a key: in tar shards the field begins at the first dot")
        self._keys.add(key)
        values = [FieldValue(field, _field_bytes(field, value)) for field, value in sample.items() if field != KEY]
        if not values:
            raise InputError(f"sample {key!r} has no field")
        label = sample.get("cls")
        number = label if isinstance(label, int) and not isinstance(label, bool) else None
        if number is not None:
            values = [value for value in values if value.field != "cls"]
        if self._open is None:
            self._open = open_writer(
                self._settings.format, self._folder, shard_name(len(self._shards), self._settings.format)
            )
        self._open.add(key, values, number, 0)
        self._fields.update(dict.fromkeys([value.field for value in values] + (["cls"] if number is not None else [])))
        self._count += 1
        limit_mb = self._settings.shard_mb if self._shards else self._settings.first_mb or self._settings.shard_mb
        if self._open.at >= min(limit_mb, self._settings.shard_mb) * _MB:
            self._close()

    def _close(self) -> None:
        if self._open is not None:
            with self._open as shard:
                self._shards.append(shard.finish())
                self._bytes += shard.bytes
            self._open = None

    def finish(self, name: str) -> Manifest:
        self._close()
        if not self._count:
            raise InputError("there is nothing to shard: the iterator gave no sample")
        fields = list(self._fields)
        return Manifest(
            version=manifests.MANIFEST_VERSION,
            name=name,
            id=manifests.dataset_id(self._shards, fields, []),
            format=self._settings.format,
            samples=self._count,
            bytes=self._bytes,
            shards=self._shards,
            fields=fields,
            seed=self._settings.seed,
            source={
                "path": "an iterator",
                "settings": self._settings._asdict(),
                "sharded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            },
            tool=f"shoal {__version__}",
        )


def _field_bytes(field: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, (dict, list, tuple, float)):
        return json.dumps(value).encode()
    raise InputError(
        f"field {field!r} holds a {type(value).__name__}, which is not bytes, text, a number, a list or a dict"
    )


def _shuffle_buffer(samples: Iterable[Mapping[str, Any]], size: int, seed: int) -> Iterator[Mapping[str, Any]]:
    """Each sample leaves the buffer at a random time."""
    generator = random.Random(seed)  # noqa: S311 (an order, not a secret)
    waiting: list[Mapping[str, Any]] = []
    for sample in samples:
        waiting.append(sample)
        if len(waiting) >= max(1, size):
            place = generator.randrange(len(waiting))
            waiting[place], waiting[-1] = waiting[-1], waiting[place]
            yield waiting.pop()
    generator.shuffle(waiting)
    yield from waiting
