"""Packing: CPU and wall time against GNU tar, source in memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.data.measure import FILES, Took, best, folder, run, source, table, took, warm
from shoal.data import pack
from shoal.data.planning import Settings


def main() -> None:
    files = source()
    warm(files)
    rows: list[list[object]] = []
    with folder("pack") as place:
        tar = best(lambda: took(lambda: run(["tar", "cf", place / "x.tar", "-C", files, "."])), 2)
        (place / "x.tar").unlink()
        for format, workers in (("tar", 1), ("tar", 2), ("tfrecord", 2)):
            ours = best(partial(_pack, files, place / "out", format, workers), 2)
            rows.append([f"pack, {format}, {workers} processes", ours.wall_s, ours.cpu_s, ours.cpu_s / tar.cpu_s])
    rows.insert(0, ["GNU tar, one archive", tar.wall_s, tar.cpu_s, 1.0])
    print(f"Packing {FILES} files (warm cache), best of 2; ours includes checksums, shuffling, index and fsync.\n")
    table(["writer", "wall s", "CPU s", "CPU / tar"], rows)


def _pack(files: Path, goal: Path, format: str, workers: int) -> Took:
    run(["rm", "-rf", goal])
    return took(lambda: pack(str(files), str(goal), Settings(format=format), workers=workers))
