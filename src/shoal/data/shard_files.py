"""Shard a directory or a list of files in parallel, and estimate the result for --dry-run from a few of the files.

DST.sharding/ holds the shards while the command runs. A killed command leaves it, and the same command continues with
the missing shards; DST itself appears complete, by one rename, or not at all.
"""

from __future__ import annotations

import errno
import gc
import os
import random
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from shoal import __version__
from shoal.data import manifest as manifests
from shoal.data import shard_writer
from shoal.data.file_selection import NameFilter
from shoal.data.manifest import INDEX_SUFFIX, Manifest, Shard, open_index
from shoal.data.scan import SourceScan, scan_source
from shoal.data.shard_plan import ShardPlan, ShardSettings, plan_shards
from shoal.data.shard_workers import read_file, write_shards
from shoal.data.shard_writer import FORMATS
from shoal.errors import InputError, ShoalError
from shoal.job import crc32
from shoal.kernel import files

Progress = Callable[[int, int], None]


class ShardingResult(NamedTuple):
    """What `data shard` did. `reused` shards were there already, from a command that did not end."""

    path: str
    manifest: Manifest
    reused: int
    seconds: float
    scan: SourceScan
    existed: bool = False


def prepare_sharding(source: str, settings: ShardSettings) -> ShardPlan:
    """Look at the source and decide everything; refuses what cannot be sharded unless told to leave it out."""
    if settings.format == "squashfs":
        settings = _check_image_settings(settings)
    found = scan_source(
        source,
        group=settings.group,
        label=settings.label,
        path_column=settings.path_column,
        split=settings.split,
        names=NameFilter(settings.include, settings.exclude),
    )
    if found.bad and not settings.skip_bad:
        more = f" (and {len(found.bad) - 1} more)" if len(found.bad) > 1 else ""
        raise InputError(f"cannot shard {found.bad[0]}{more}", hint="--skip-bad leaves such files out and lists them")
    if not found.samples:
        raise InputError(f"there is nothing to shard in {source}: {found.bad[0]}")
    return plan_shards(found, settings)


def _check_image_settings(settings: ShardSettings) -> ShardSettings:
    """An image holds the folder as it is: what chooses files or classes has no effect, and is refused."""
    plain = ShardSettings()
    for name in ("group", "label", "split", "include", "exclude"):
        if getattr(settings, name) != getattr(plain, name):
            raise InputError(f"--{name} has no effect with --format squashfs", hint="--format tar")
    return settings._replace(label="none", include=("*",))


def shard_dataset(
    source: str,
    dest: str,
    settings: ShardSettings = ShardSettings(),  # noqa: B008 (immutable)
    *,
    workers: int | None = None,
    overwrite: bool = False,
    name: str | None = None,
    progress: Progress = lambda done, total: None,
) -> ShardingResult:
    """Write the shards of `source` into the new folder `dest`. After an error or a kill `dest` is as it was before."""
    began = time.monotonic()
    dest = dest.rstrip("/") or dest
    _refuse_nested(source, dest)
    if settings.format not in FORMATS:
        raise InputError(f"there is no format {settings.format!r}", hint=f"--format {'|'.join(FORMATS)}")
    with _gc_disabled():
        plan = prepare_sharding(source, settings)
    if (there := _existing_dataset(dest, plan, overwrite)) is not None:
        return ShardingResult(dest, there, 0, time.monotonic() - began, plan.scan, True)
    try:
        result, reused = _write_dataset(
            plan, source, dest, name or os.path.basename(dest), workers, overwrite, progress
        )
    except OSError as error:
        # Another command sharded the same and was faster: its data set has the name.
        lost = error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
        if not lost or (there := _existing_dataset(dest, plan, overwrite)) is None:
            raise
        shutil.rmtree(dest + ".sharding", ignore_errors=True)
        return ShardingResult(dest, there, 0, time.monotonic() - began, plan.scan, True)
    return ShardingResult(dest, result, reused, time.monotonic() - began, plan.scan)


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """Python looks for circles among all objects again and again while their number grows: half the time of a scan."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _write_dataset(
    plan: ShardPlan, source: str, dest: str, name: str, workers: int | None, overwrite: bool, progress: Progress
) -> tuple[Manifest, int]:
    """Write what lacks into the folder beside the dest, then give it the dest's name: (manifest, shards reused)."""
    folder, left_out, reused = dest + ".sharding", list(plan.scan.bad), 0
    _begin_directory(folder, plan, source)
    if plan.settings.format == "squashfs":
        shards = [shard_writer.make_squashfs(source, folder, workers)]
    else:
        done = finished_shards(folder, plan)
        reused = len(done)
        shards, bad = write_shards(plan, folder, done, workers, progress)
        left_out += bad
    result = _manifest(plan, source, name, shards, left_out)
    _publish(folder, dest, result, overwrite)
    return result, reused


def shard_name(number: int, format: str) -> str:
    return f"shard-{number:06d}{FORMATS[format]}"


def finished_shards(folder: str, plan: ShardPlan) -> dict[int, Shard]:
    """Shards that an earlier command finished: the index is written last, and names the size of what it belongs to."""
    done = {}
    for number in range(plan.shards):
        path = os.path.join(folder, shard_name(number, plan.settings.format))
        try:
            shard = read_shard(path)
            if os.path.getsize(path) == shard.size:
                done[number] = shard
        except (FileNotFoundError, ShoalError):
            continue
    return done


def read_shard(path: str) -> Shard:
    """What a shard's index says about it."""
    index = open_index(path + INDEX_SUFFIX)
    with open(path + INDEX_SUFFIX, "rb") as file:
        data = file.read()
    return Shard(
        name=index.shard["name"],
        size=index.shard["size"],
        samples=len(index),
        crc32=index.shard["crc32"],
        index_size=len(data),
        index_crc32=f"{crc32(data):08x}",
    )


def _refuse_nested(source: str, dest: str) -> None:
    inside, outside = os.path.realpath(dest), os.path.realpath(source)
    if os.path.isdir(source) and (inside + "/").startswith(outside.rstrip("/") + "/"):
        raise InputError(f"{dest} is inside the source {source}")


def _existing_dataset(dest: str, plan: ShardPlan, overwrite: bool) -> Manifest | None:
    """The data set at the dest if it is exactly the one asked for; anything else there is refused or replaced."""
    if manifests.find_manifest(dest) is not None:
        try:
            there = manifests.load_manifest(dest)
        except ShoalError:
            if overwrite:
                return None
            raise
        if there.source.get("digest") == plan.digest:
            return there
        if not overwrite:
            raise InputError(
                f"{dest} holds a data set that was sharded from something else, or before the source changed",
                hint="--overwrite replaces it when the new one is complete",
            )
    elif os.path.exists(dest) and (not os.path.isdir(dest) or os.listdir(dest)):
        raise InputError(f"{dest} exists and is not a data set", hint="choose a folder that does not exist yet")
    return None


def _begin_directory(folder: str, plan: ShardPlan, source: str) -> None:
    os.makedirs(folder, exist_ok=True)
    note = os.path.join(folder, "plan.json")
    record = files.to_json({"digest": plan.digest, "source": os.path.abspath(source)})
    if files.create_exclusive(note, record):
        return
    before = files.read_json(note)
    if before is None:  # another command of the same source completed in between, and gave the directory its name
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), note)
    if before.get("digest") != plan.digest:
        if before.get("source") != os.path.abspath(source):
            raise InputError(
                f"{folder} holds an unfinished dataset of {before.get('source')}", hint=f"rm -r {folder}   # forgets it"
            )
        raise InputError(
            f"{source} or the settings changed since the sharding in {folder} began",
            hint=f"rm -r {folder}   # and begin again with what is there now",
        )


def _manifest(plan: ShardPlan, source: str, name: str, shards: Sequence[Shard], left_out: list[str]) -> Manifest:
    fields = sorted({field for sample in plan.scan.samples for field, _ in sample.files})
    if plan.settings.format != "squashfs":
        fields += ["cls"] if any(sample.label is not None for sample in plan.scan.samples) else []
        fields += ["json"] if any(sample.row for sample in plan.scan.samples) else []
    samples = sum(shard.samples for shard in shards)
    provenance: dict[str, Any] = {
        "path": os.path.abspath(source),
        "digest": plan.digest,
        "files": sum(len(sample.files) for sample in plan.scan.samples),
        "bytes": plan.bytes,
        "skipped": [one._asdict() for one in plan.scan.skipped],
        "settings": {
            **plan.settings._asdict(),
            "include": [*plan.settings.include],
            "exclude": [*plan.settings.exclude],
        },
        "sharded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "sharded_on": socket.gethostname(),
        "python": ".".join(map(str, sys.version_info[:3])),
    }
    fields = list(dict.fromkeys(fields))
    classes = plan.scan.classes
    return Manifest(
        version=manifests.MANIFEST_VERSION,
        name=name,
        id=manifests.dataset_id(list(shards), fields, classes),
        format=plan.settings.format,
        samples=samples,
        bytes=plan.bytes,
        shards=list(shards),
        fields=fields,
        classes=classes,
        seed=plan.settings.seed,
        source=provenance,
        left_out=left_out,
        tool=f"shoal {__version__}",
    )


def _publish(folder: str, dest: str, result: Manifest, overwrite: bool) -> None:
    """Give the finished folder its name, and free it of what killed or simultaneous commands left in it."""
    files.replace(os.path.join(folder, manifests.MANIFEST_NAME), manifests.encode_manifest(result))
    old = None
    if overwrite and manifests.find_manifest(dest) is not None:
        old = f"{dest}.old-{os.getpid()}"
        os.rename(dest, old)
    os.rename(folder, dest)
    wanted = {shard.name for shard in result.shards} | {shard.name + INDEX_SUFFIX for shard in result.shards}
    for left in set(os.listdir(dest)) - wanted - {manifests.MANIFEST_NAME}:
        os.unlink(os.path.join(dest, left))
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


_SAMPLED_FILES, _SAMPLING_S = 200, 2.0


class ShardingEstimate(NamedTuple):
    source: str
    samples: int
    files: int
    bytes: int
    shards: int
    seconds: float
    scan: SourceScan


def estimate_sharding(source: str, settings: ShardSettings, workers: int | None = None) -> ShardingEstimate:
    """Look at the source and read some of it. Writes nothing."""
    plan = prepare_sharding(source, settings)
    names = [file for sample in plan.scan.samples for _, file in sample.files]
    generator = random.Random(0)  # noqa: S311 (a choice of files, not a secret)
    began, size, count = time.perf_counter(), 0, 0
    for file in generator.sample(names, min(_SAMPLED_FILES, len(names))):
        try:
            size += len(read_file(plan.scan.root, file))
        except (OSError, ShoalError):
            continue
        count += 1
        if time.perf_counter() - began > _SAMPLING_S:
            break
    spent = time.perf_counter() - began
    # Most of a small file's time is opening it, so files count and bytes do not; writing costs about as much again.
    seconds = 2 * spent * len(names) / max(1, count) / max(1, min(workers or os.cpu_count() or 1, plan.shards))
    shards = 1 if settings.format == "squashfs" else plan.shards
    return ShardingEstimate(
        source,
        len(plan.scan.samples),
        len(names),
        plan.bytes,
        shards,
        seconds,
        plan.scan,
    )
