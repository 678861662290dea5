"""Sharding: CPU and wall time against GNU tar, source in memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.data.measure import FILES, Took, folder, heading, load, row, run, source, took, warm
from shoal.data import shard_dataset
from shoal.data.shard_plan import ShardSettings


def main() -> None:
    files = source()
    warm(files)
    print(
        f"Sharding {FILES} files (warm cache), best of 3 in turns; ours with checksums, shuffling, index and fsync.\n"
    )
    heading("writer", "wall s", "CPU s", "CPU / tar", "load")
    kinds = (("tar", 1), ("tar", 2), ("tfrecord", 2))
    with folder("shard") as place:
        writers = [partial(_tar, files, place / "x.tar")]
        writers += [partial(_shard, files, place / "out", format, workers) for format, workers in kinds]
        found: list[list[Took]] = [[] for _ in writers]
        for _ in range(3):  # in turns, so that a busy minute of the machine hits all of them
            for write, times in zip(writers, found, strict=True):
                times.append(write())
    tar, *ours = (min(times, key=lambda time: time.cpu_s) for times in found)
    row("GNU tar, one archive", tar.wall_s, tar.cpu_s, 1.0, load())
    for (format, workers), one in zip(kinds, ours, strict=True):
        row(f"shard, {format}, {workers} processes", one.wall_s, one.cpu_s, one.cpu_s / tar.cpu_s, load())
    print()


def _tar(files: Path, dest: Path) -> Took:
    dest.unlink(missing_ok=True)
    return took(lambda: run(["tar", "cf", dest, "-C", files, "."]))


def _shard(files: Path, dest: Path, format: str, workers: int) -> Took:
    run(["rm", "-rf", dest])
    return took(lambda: shard_dataset(str(files), str(dest), ShardSettings(format=format), workers=workers))


if __name__ == "__main__":
    main()
