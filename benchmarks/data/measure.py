"""Wall time, CPU time, cold caches, and the data set of all measurements."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from shoal.data.bench import drop_cache

HOME = Path(os.environ.get("SHOAL_BENCH_DIR", "/tmp/shoal-bench-data"))
FILES = int(os.environ.get("SHOAL_BENCH_FILES", "5000"))
#: A Python with webdataset, mosaicml-streaming and litdata beside shoal; without it the rivals are left out.
RIVALS = os.environ.get("SHOAL_BENCH_RIVALS")
CLASSES = 100


class Took(NamedTuple):
    wall_s: float
    cpu_s: float
    value: Any = None


def source() -> Path:
    """FILES files of 20 to 100 KiB (53 KB on average) that do not compress, in 100 class folders; made once."""
    folder = HOME / f"source-{FILES}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        dice = random.Random(1)
        small, large, usual = 20 << 10, 100 << 10, 35 << 10
        for number in range(FILES):
            place = folder / "files" / f"class{number % CLASSES:03d}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"img_{number:06d}.jpg").write_bytes(os.urandom(int(dice.triangular(small, large, usual))))
        (folder / "done").touch()
    return folder / "files"


def warm(folder: Path) -> None:
    """Bring all of it to memory, in sequence: in which pieces the kernel keeps a file decides what reading costs."""
    os.sync()  # What was written before is not to be paid for by what is measured next.
    drop_cache(str(folder))
    for where, _, names in os.walk(folder):
        for name in names:
            with Path(where, name).open("rb", buffering=0) as file:
                while file.read(1 << 22):
                    pass


def took(call: Callable[[], Any]) -> Took:
    """One call with the CPU time of this process and of the children that ended in it."""
    before = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    began = time.perf_counter()
    value = call()
    wall = time.perf_counter() - began
    after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(before, after, strict=True))
    return Took(wall, cpu, value)


def run(argv: Sequence[str | Path]) -> None:
    subprocess.run([str(word) for word in argv], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def folder(name: str) -> Iterator[Path]:
    """An empty folder that is gone afterwards."""
    path = HOME / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    heading(*header)
    for cells in rows:
        row(*cells)
    print(flush=True)


def heading(*cells: str) -> None:
    """The top of a table whose rows come one by one: what was measured stays, whatever happens to the rest."""
    row(*cells)
    print("|" + "---|" * len(cells), flush=True)


def row(*cells: object) -> None:
    words = (f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells)
    print("| " + " | ".join(words) + " |", flush=True)


def load() -> str:
    """How many processes want to run on this machine: above its cores, wall times tell of others too."""
    return f"{os.getloadavg()[0]:.1f}"


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
