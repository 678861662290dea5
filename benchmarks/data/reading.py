"""Reading one epoch, shuffled, one process: ours and the rivals, warm; and cold against what fio gets from the disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import shoal.data
from benchmarks.data.measure import FILES, HOME, RIVALS, note, source, table, warm
from shoal.data import pack
from shoal.data.benching import drop_cache
from shoal.data.planning import Settings

TRIES = 5
#: Once is enough to tell: half a minute each with 50,000 files.
_SLOW = ("MosaicML Streaming, random", "LitData, random")
_READERS = Path(__file__).with_name("readers.py")


def shards() -> Path:
    """Our shards of the source, of 64 MB like the rivals'."""
    goal = HOME / f"shards-{FILES}"
    if not goal.exists():
        pack(str(source()), str(goal), Settings(shard_mb=64))
    return goal


def rival(writer: str) -> Path:
    goal = HOME / f"{writer}-{FILES}"
    if not (goal / "done").exists():
        shutil.rmtree(goal, ignore_errors=True)
        note(f"{writer} ...")
        subprocess.run([str(RIVALS), str(_READERS), writer, str(source()), str(goal)], check=True, stdout=sys.stderr)
        (goal / "done").touch()
    return goal


def read(name: str, folder: Path, tries: int = 3, cold: bool = False) -> dict[str, Any]:
    """The best of some epochs, each in a process of its own."""
    found: list[dict[str, Any]] = []
    for _ in range(tries):
        if cold:
            drop_cache(str(folder))
        done = subprocess.run(
            [RIVALS or sys.executable, str(_READERS), name, str(folder)], check=True, capture_output=True, text=True
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
        assert found[-1]["samples"] == FILES, (name, found[-1])
    return min(found, key=lambda one: float(one["wall_s"]))


def main() -> None:
    ours, files = shards(), source()
    places: list[tuple[str, Path]] = [
        ("shoal, random", ours),
        ("shoal, random, views", ours),
        ("shoal, random, checked", ours),
        ("shoal, stream", ours),
        ("shoal, stream, views", ours),
        ("folder of files", files),
    ]
    if RIVALS:
        places += [
            ("webdataset", ours),
            ("MosaicML Streaming", rival("write_mosaic")),
            ("LitData", rival("write_litdata")),
            ("MosaicML Streaming, random", rival("write_mosaic")),
            ("LitData, random", rival("write_litdata")),
        ]
    else:
        note("rivals left out: set SHOAL_BENCH_RIVALS to a Python that has them")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, _ in places}
    for turn in range(TRIES):  # round after round, so that a busy minute of the machine hits all of them
        for name, folder in places:
            if turn and name in _SLOW:
                continue
            warm(folder)
            found[name].append(read(name, folder, tries=1))
    rate = {name: max(one["samples"] / one["wall_s"] for one in found[name]) for name, _ in places}
    cpu_us = {name: min(1e6 * one["cpu_s"] / one["samples"] for one in found[name]) for name, _ in places}
    rows: list[list[object]] = [
        [
            name,
            rate[name] / 1e3,
            cpu_us[name],
            min(float(one["first_s"]) for one in found[name]),
            rate["shoal, random"] / rate[name],
            cpu_us[name] / cpu_us["shoal, random"],
            cpu_us[name] / cpu_us["shoal, random, views"],
        ]
        for name, _ in places
    ]
    print(f"Reading {FILES} samples once, shuffled; DataLoader, batch 64, no worker; warm cache; best of {TRIES};")
    print(f"load {os.getloadavg()[0]:.1f}. A byte of every page is looked at: LitData hands out views, as ours can.\n")
    table(
        ["reader", "thousand/s", "CPU us", "first batch s", "random: faster, wall", "less CPU", "views: less CPU"], rows
    )
    _cold(ours)
    _resume(ours)


def _cold(ours: Path) -> None:
    if shutil.which("fio") is None:
        note("cold reading left out: apt-get install fio")
        return
    tries: list[tuple[float, ...]] = []
    for _ in range(3):  # in turns: the disk is shared with others, too
        limit = _fio(ours)
        epochs = [read(name, ours, tries=1, cold=True) for name in ("shoal, random", "shoal, stream")]
        tries.append((limit, *(one["bytes"] / one["wall_s"] / 1e6 for one in epochs)))
    files = read("folder of files", source(), tries=1, cold=True)
    names = ("fio, random reads of 60 KiB, queue depth 16, O_DIRECT", "shoal, random order", "shoal, stream")
    rows: list[list[object]] = []
    for place, name in enumerate(names):
        rows.append([name, *(f"{one[place]:.0f}" for one in tries), max(one[place] / one[0] for one in tries)])
    rows.append(["folder of files", f"{files['bytes'] / files['wall_s'] / 1e6:.0f}", "", "", ""])
    print(f"Cold cache (dropped with posix_fadvise before every epoch), MB/s; load {os.getloadavg()[0]:.1f}.\n")
    table(["reader", "1", "2", "3", "of fio, best"], rows)


def _fio(folder: Path) -> float:
    """Random reads of a sample's size over the same files, past the page cache."""
    drop_cache(str(folder))
    words = "--name=x --rw=randread --bs=60k --direct=1 --ioengine=libaio --iodepth=16 --runtime=4 --time_based"
    words += " --norandommap --file_service_type=random --blockalign=4k --readonly --output-format=json"
    names = ":".join(str(path) for path in sorted(folder.glob("*.tar")) if path.stat().st_size > 1 << 24)
    done = subprocess.run(
        ["fio", *words.split(), f"--filename={names}"], check=True, capture_output=True, text=True, cwd=HOME
    )
    return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"]) / 1e6


def _resume(ours: Path) -> None:
    data = shoal.data.open(str(ours), fields=("jpg", "cls"))
    stream = data.stream(seed=0, epoch=3, rank=0, world=1)
    state = {**stream.state_dict(), "position": int(len(data) * 0.9)}
    began = time.perf_counter()
    fresh = shoal.data.open(str(ours), fields=("jpg", "cls")).stream(rank=0, world=1)
    fresh.load_state_dict(state)
    next(iter(fresh))
    took_ms = 1e3 * (time.perf_counter() - began)
    print(f"Resume at 90 % of an epoch: {took_ms:.1f} ms from opening the data to the first sample.\n")
