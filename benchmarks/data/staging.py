"""Staging from the slow store: against the link, against cp and tar, while training, and by many jobs at once.

python -m benchmarks.data.staging [seed | busy | epochs | jobs]...        all of them without a name
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import shoal.data
from benchmarks.data.measure import FILES, HOME, folder, heading, load, note, row, run, source, warm
from benchmarks.data.reading import shards
from benchmarks.data.store import BUSY, SEED, missing, slow
from shoal.data.for_torch import Loader
from shoal.job.staging import Stage

#: Copying a folder takes minutes, every file as long as the next: so many are copied, and the time scaled to all.
COPIED = 5000
_SHOAL = [sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())"]


def main(*names: str) -> None:
    if (why := missing()) is not None:
        note(f"staging left out: {why}")
        return
    parts: dict[str, Callable[[], None]] = {
        "seed": partial(_methods, "seed's storage", *SEED),
        "busy": partial(_methods, "busy parallel file system", *BUSY),
        "epochs": partial(_epochs, *SEED),
        "jobs": partial(_jobs, *SEED),
    }
    for name in names or parts:
        parts[name]()


def _methods(what: str, latency_us: int, mb_per_s: float) -> None:
    """Every method with a fresh mount: nothing is known on this side, and the store has its bytes in memory."""
    ours, files, tar = shards(), source(), _one_tar()
    size = sum(path.stat().st_size for path in ours.iterdir())
    floor = size / mb_per_s / 1e6
    folders = sorted(files.iterdir())
    some = folders[: max(1, len(folders) * COPIED // FILES)]
    print(f"{what}: {latency_us / 1e3:g} ms per operation, {mb_per_s:g} MB/s; {FILES} files, {size / 1e6:.0f} MB;")
    print(f"the link alone needs {floor:.2f} s for the shards.\n")
    heading("method", "seconds", "first shard s", "of the link", "stage is faster by", "load")
    staged = float("inf")

    def timed(name: str, base: Path, work: Callable[[Path, Path], float | None], scale: float = 1.0) -> float:
        warm(base)
        with folder("to") as dest, slow(base.parent, latency_us, mb_per_s) as mount:
            began = time.perf_counter()
            first = work(mount / base.name, dest)
            seconds = (time.perf_counter() - began) * scale
        faster = seconds / min(staged, seconds)
        row(name, seconds, "-" if first is None else f"{first:.2f}", floor / seconds, faster, load())
        return seconds

    for turn in (1, 2):
        staged = min(staged, timed(f"staging in a job (try {turn})", ours, _stage))
    timed("shoal data stage: its start, and fsync at the end", ours, _by_command)
    timed("cp of the shards, one by one", ours, lambda place, dest: run(["cp", "-r", place, dest]))
    name = (
        f"cp -r of {len(some)} of {len(folders)} folders, scaled to all" if some != folders else "cp -r of the folder"
    )
    scale = len(folders) / len(some)
    timed(name, files, lambda place, dest: run(["cp", "-r", *(place / one.name for one in some), dest]), scale)
    timed("copy one tar, then extract it", tar, _copy_and_extract)
    print()


def _stage(place: Path, dest: Path) -> float:
    stage = Stage("bench", str(place), {"SHOAL_SCRATCH": str(dest)}, wait="first")
    began = time.perf_counter()
    stage.begin()
    stage.wait()
    first = time.perf_counter() - began
    stage.wait_copied()
    stage.close()
    return first


def _by_command(place: Path, dest: Path) -> None:
    argv = [*_SHOAL, "data", "stage", str(place)]
    subprocess.run(argv, env={**os.environ, "SHOAL_SCRATCH": str(dest)}, check=True, capture_output=True)


def _one_tar() -> Path:
    path = HOME / f"tar-{FILES}" / "data.tar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        run(["tar", "cf", path, "-C", source(), "."])
    return path.parent


def _copy_and_extract(place: Path, dest: Path) -> None:
    run(["cp", place / "data.tar", dest])
    run(["tar", "xf", dest / "data.tar", "-C", dest])


def _epochs(latency_us: int, mb_per_s: float) -> None:
    """One epoch while staging goes on: as fast as it can, and with a model that takes its time."""
    ours = shards()
    size = sum(path.stat().st_size for path in ours.iterdir())
    print(
        "One epoch while the data is being staged, nothing local before (the seed's storage); DataLoader, one worker.\n"
    )
    heading("training", "first batch s", "epoch s", "max(compute, link) s", "ratio", "load")
    for name, rate in (("as fast as possible", None), ("model at 2,000 samples/s", 2000.0)):
        warm(ours)
        with folder("to") as dest, slow(ours.parent, latency_us, mb_per_s) as mount:
            first, seconds = _epoch(str(mount / ours.name), str(dest), rate)
        floor = max(size / mb_per_s / 1e6, FILES / rate if rate else 0)
        row(name, first, seconds, floor, seconds / floor, load())
    print()


def _epoch(place: str, scratch: str, rate: float | None) -> tuple[float, float]:
    """(seconds to the first batch, seconds of the epoch) of a training that takes `rate` samples a second.

    The model is a sleep. What it oversleeps on a busy machine is made up for in the next step, so that only waiting
    for data makes the epoch longer than the computing is.
    """
    began = time.perf_counter()
    path, end = _stage_elsewhere(place, scratch)
    data = shoal.data.open(path, fields=("jpg", "cls"))
    first, count, clock = 0.0, 0, time.perf_counter()
    # One worker reads ahead, as in any training: reading and computing overlap.
    batches = iter(Loader(data, batch_size=64, workers=1, rank=0, world=1, collate=len))
    asked = clock
    for size in batches:
        got = time.perf_counter()
        first = first or got - began
        count += size
        clock += got - asked + (size / rate if rate else 0)
        time.sleep(max(0.0, clock - time.perf_counter()))
        asked = time.perf_counter()
    seconds = max(clock, time.perf_counter()) - began
    end()
    assert count == FILES
    return first, seconds


def _stage_elsewhere(source: str, scratch: str) -> tuple[str, Callable[[], None]]:
    """Stage in a process of its own, as the agent of a job does; returns when the run may start."""
    ours, theirs = multiprocessing.Pipe()

    def work() -> None:
        stage = Stage("bench", source, {"SHOAL_SCRATCH": scratch}, wait="first")
        stage.begin()
        theirs.send(stage.wait())
        stage.join()
        stage.close()

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    return ours.recv(), child.join


def _jobs(latency_us: int, mb_per_s: float) -> None:
    """Eight jobs of one node at once, each its own process; then one more on the warm node."""
    ours = shards()
    warm(ours)
    with folder("to") as dest, slow(ours.parent, latency_us, mb_per_s) as mount:
        env = {**os.environ, "SHOAL_SCRATCH": str(dest)}
        argv = [*_SHOAL, "data", "stage", str(mount / ours.name), "--json"]
        began = time.perf_counter()
        jobs = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) for _ in range(8)]
        outs = [job.communicate()[0] for job in jobs]
        seconds = time.perf_counter() - began
        records = [json.loads(out) for out in outs]
        stage = Stage("bench", str(mount / ours.name), env)
        began = time.perf_counter()
        stage.begin()
        stage.wait()
        warm_ms = 1e3 * (time.perf_counter() - began)
        stage.close()
    failed = sum(job.returncode != 0 for job in jobs)
    moved = sum(record["copied_bytes"] for record in records) / records[0]["bytes"]
    floor = records[0]["bytes"] / mb_per_s / 1e6
    print(
        f"Eight jobs on a node: {seconds:.1f} s for all (the link needs {floor:.1f} s), bytes moved {moved:.2f} times,"
    )
    print(
        f"{failed} failed; a ninth job on the warm node is ready after {warm_ms:.1f} ms; load {load()}.\n", flush=True
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
