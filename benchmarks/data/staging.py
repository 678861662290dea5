"""Staging from the slow store: against the link, against cp and tar, while training, and by many jobs at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import shoal.data
from benchmarks.data.measure import FILES, HOME, folder, note, run, source, table
from benchmarks.data.reading import shards
from benchmarks.data.store import BUSY, SEED, missing, slow
from shoal.agent.staging import Stage
from shoal.data.benching import drop_cache
from shoal.data.for_torch import Loader


def main() -> None:
    if (why := missing()) is not None:
        note(f"staging left out: {why}")
        return
    shards(), source()
    for what, (latency_us, mb_per_s) in (("seed's storage", SEED), ("busy parallel file system", BUSY)):
        _methods(what, latency_us, mb_per_s)
    _epochs(*SEED)
    _jobs(*SEED)


def _methods(what: str, latency_us: int, mb_per_s: float) -> None:
    """Every method once, each with a fresh mount, so that nothing of the store is in memory."""
    ours, files, tar = shards(), source(), _one_tar()
    size = sum(path.stat().st_size for path in ours.iterdir())
    floor = size / mb_per_s / 1e6
    rows: list[list[object]] = []

    def timed(name: str, base: Path, work: Callable[[Path, Path], float | None]) -> float:
        drop_cache(str(base))
        with folder("to") as goal, slow(base.parent, latency_us, mb_per_s) as mount:
            began = time.perf_counter()
            first = work(mount / base.name, goal)
            seconds = time.perf_counter() - began
        rows.append([name, seconds, "-" if first is None else f"{first:.2f}"])
        return seconds

    def by_stage(place: Path, goal: Path) -> float:
        stage = Stage("bench", str(place), {"SHOAL_SCRATCH": str(goal)})
        began = time.perf_counter()
        stage.begin()
        stage.wait()
        first = time.perf_counter() - began
        stage.wait_copied()
        stage.close()
        return first

    staged = min(timed(f"shoal data stage (try {k})", ours, by_stage) for k in (1, 2))
    timed("cp of the shards, one by one", ours, lambda place, goal: run(["cp", "-r", place, goal]))
    timed("cp -r of the folder", files, lambda place, goal: run(["cp", "-r", place, goal]))
    timed("copy one tar, then extract it", tar, _copy_and_extract)
    for row in rows:
        row += [floor / float(str(row[1])), float(str(row[1])) / staged]
    print(f"{what}: {latency_us / 1e3:g} ms per operation, {mb_per_s:g} MB/s; {FILES} files, {size / 1e6:.0f} MB;")
    print(f"cold; the link alone needs {floor:.2f} s for the shards.\n")
    table(["method", "seconds", "first shard s", "of the link", "stage is faster by"], rows)


def _one_tar() -> Path:
    path = HOME / f"tar-{FILES}" / "data.tar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        run(["tar", "cf", path, "-C", source(), "."])
    return path.parent


def _copy_and_extract(place: Path, goal: Path) -> None:
    run(["cp", place / "data.tar", goal])
    run(["tar", "xf", goal / "data.tar", "-C", goal])


def _epochs(latency_us: int, mb_per_s: float) -> None:
    """One epoch while staging goes on: as fast as it can, and with a model that takes its time."""
    ours = shards()
    size = sum(path.stat().st_size for path in ours.iterdir())
    rows: list[list[object]] = []
    for name, rate in (("as fast as possible", None), ("model at 2,000 samples/s", 2000.0)):
        drop_cache(str(ours))
        with folder("to") as goal, slow(ours.parent, latency_us, mb_per_s) as mount:
            began = time.perf_counter()
            place, end = _stage_elsewhere(str(mount / ours.name), str(goal))
            data = shoal.data.open(place, fields=("jpg", "cls"))
            first, count, due = 0.0, 0, 0.0
            # One worker reads ahead, as in any training: reading and computing overlap.
            for size_of_batch in Loader(data, batch_size=64, workers=1, rank=0, world=1, collate=len):
                count += size_of_batch
                first = first or time.perf_counter() - began
                due = max(due, time.perf_counter()) + (size_of_batch / rate if rate else 0)
                time.sleep(max(0.0, due - time.perf_counter()))
            seconds = time.perf_counter() - began
            end()
        assert count == FILES
        floor = max(size / mb_per_s / 1e6, FILES / rate if rate else 0)
        rows.append([name, first, seconds, floor, seconds / floor])
    print(
        "One epoch while the data is being staged, nothing local before (the seed's storage); DataLoader, one worker.\n"
    )
    table(["training", "first batch s", "epoch s", "max(compute, link) s", "ratio"], rows)


def _stage_elsewhere(source: str, scratch: str) -> tuple[str, Callable[[], None]]:
    """Stage in a process of its own, as the agent of a job does; returns when the run may start."""
    ours, theirs = multiprocessing.Pipe()

    def work() -> None:
        stage = Stage("bench", source, {"SHOAL_SCRATCH": scratch})
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
    drop_cache(str(ours))
    with folder("to") as goal, slow(ours.parent, latency_us, mb_per_s) as mount:
        env = {**os.environ, "SHOAL_SCRATCH": str(goal)}
        code = "import sys; from shoal.cli import main; sys.exit(main())"
        argv = [sys.executable, "-c", code, "data", "stage", str(mount / ours.name), "--json"]
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
    print(f"{failed} failed; a ninth job on the warm node is ready after {warm_ms:.1f} ms.\n")
