"""Packing: CPU and wall time against GNU tar, source in memory."""

from __future__ import annotations

from benchmarks.data.measure import HOME, best, folder, run, source, table, took, warm
from shoal.data import pack
from shoal.data.planning import Settings


def main() -> None:
    files = source()
    warm(files)
    rows: list[list[object]] = []
    with folder("pack") as place:
        tar = best(lambda: took(lambda: run(["tar", "cf", place / "x.tar", "-C", files, "."])))
        (place / "x.tar").unlink()
        for format in ("tar", "tfrecord"):
            for workers in (1, 2):

                def once(format: str = format, workers: int = workers) -> object:
                    run(["rm", "-rf", place / "out"])
                    return took(lambda: pack(str(files), str(place / "out"), Settings(format=format), workers=workers))

                ours = best(once)  # type: ignore[arg-type]
                rows.append([f"pack, {format}, {workers} process", ours.wall_s, ours.cpu_s, ours.cpu_s / tar.cpu_s])
    rows.insert(0, ["GNU tar, one archive", tar.wall_s, tar.cpu_s, 1.0])
    print(
        f"Packing {files} (warm cache), best of 3; ours includes checksums, shuffling, index, fsync.\n".replace(
            str(HOME), "$HOME"
        )
    )
    table(["writer", "wall s", "CPU s", "CPU / tar"], rows)
