"""The manifest of a data set: what is in it, shard by shard, and where it came from. No manifest, no data set."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import msgspec

from shoal.errors import InputError, ShoalError

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1


class Shard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One big file. `crc32` is zlib's, of the whole file, which any Python can compute while copying."""

    name: str
    size: int
    samples: int = 0
    crc32: str = ""
    index_size: int = 0
    index_crc32: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A data set. `bytes` is what the samples hold, without the containers around them."""

    version: int
    name: str
    id: str
    format: str
    samples: int
    bytes: int
    shards: list[Shard]
    fields: list[str] = []
    classes: list[str] = []
    seed: int | None = None
    source: dict[str, Any] = {}
    left_out: list[str] = []
    tool: str = ""

    @property
    def size(self) -> int:
        """Bytes on disk, indexes included."""
        return sum(shard.size + shard.index_size for shard in self.shards)


def dataset_id(shards: list[Shard], fields: list[str], classes: list[str]) -> str:
    """The identity of the content: the same shards give the same id wherever and whenever they were made."""
    parts = [[shard.name, shard.size, shard.crc32, shard.samples] for shard in shards]
    return hashlib.sha256(json.dumps([parts, fields, classes]).encode()).hexdigest()[:24]


def encode_manifest(manifest: Manifest) -> bytes:
    return json.dumps(msgspec.to_builtins(manifest), indent=1).encode() + b"\n"


def find_manifest(path: str) -> str | None:
    """The path of the manifest that a person means by a folder or by the manifest itself; None if there is none."""
    if os.path.isdir(path):
        path = os.path.join(path, MANIFEST_NAME)
    return path if os.path.basename(path) == MANIFEST_NAME and os.path.isfile(path) else None


def load_manifest(path: str) -> Manifest:
    """Read the manifest of a data set given by its folder or by the manifest's path."""
    place = find_manifest(path)
    if place is None:
        raise InputError(
            f"there is no data set in {path}: it has no {MANIFEST_NAME}", hint=f"shoal data pack FOLDER {path}"
        )
    try:
        with open(place, "rb") as file:
            document = json.loads(file.read())
        version = document["version"]
        if version > MANIFEST_VERSION:
            raise InputError(
                f"{place} was written by a newer shoal (manifest version {version}, this one reads {MANIFEST_VERSION})",
                hint="pip install --upgrade shoal",
            )
        manifest = msgspec.convert(document, Manifest)
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise ShoalError(
            f"{place} is damaged: {error}", hint="copy it again from where the data set was packed"
        ) from None
    for shard in manifest.shards:
        if os.path.basename(shard.name) != shard.name or shard.name in ("", ".", ".."):
            raise ShoalError(f"{place} is damaged: {shard.name!r} is not the name of a shard")
    return manifest
