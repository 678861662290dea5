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

from benchmarks.data.measure import FILES, HOME, RIVALS, note, source, table, warm
from shoal.data import shard_dataset
from shoal.data.bench import drop_cache
from shoal.data.shard_plan import ShardSettings

TRIES = 5
#: No further round is begun after so many seconds; rivals in fully random order are read this far, and once.
_ENOUGH_S, _ENOUGH_SAMPLES = 200, 2000
_READERS = Path(__file__).with_name("readers.py")


def shards() -> Path:
    """Our shards of the source, of 64 MB like the rivals'."""
    dest = HOME / f"shards-{FILES}"
    if not dest.exists():
        shard_dataset(str(source()), str(dest), ShardSettings(shard_mb=64))
    return dest


def rival(writer: str) -> Path:
    dest = HOME / f"{writer}-{FILES}"
    if not (dest / "done").exists():
        shutil.rmtree(dest, ignore_errors=True)
        note(f"{writer} ...")
        subprocess.run([str(RIVALS), str(_READERS), writer, str(source()), str(dest)], check=True, stdout=sys.stderr)
        (dest / "done").touch()
    return dest


def read(name: str, folder: Path, cold: bool = False, most: int = FILES) -> dict[str, Any]:
    """One epoch in a process of its own, or the first `most` samples of it."""
    if cold:
        drop_cache(str(folder))
    argv = [RIVALS or sys.executable, str(_READERS), name, str(folder), str(most)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert min(FILES, most) <= found["samples"] <= FILES, (name, found)
    found["us"], found["cpu_us"] = (1e6 * found[key] / found["samples"] for key in ("wall_s", "cpu_s"))
    found["mb_s"] = found["bytes"] / found["wall_s"] / 1e6
    note(f"{'cold' if cold else 'warm'} {name}: {found['us']:.1f} us a sample, {found['cpu_us']:.1f} of them CPU")
    return found


def main() -> None:
    ours = shards()
    _warm(ours)
    _cold(ours)
    _resume(ours)


def _warm(ours: Path) -> None:
    places: list[tuple[Path, list[str]]] = [
        (ours, ["shoal, random", "shoal, random, views", "shoal, random, unchecked"]),
        (ours, ["shoal, stream", "shoal, stream, views"]),
        (source(), ["folder of files"]),
    ]
    if RIVALS:
        places[1][1].append("webdataset")
        places += [(rival("write_mosaic"), ["MosaicML Streaming"]), (rival("write_litdata"), ["LitData"])]
    else:
        note("rivals left out: set SHOAL_BENCH_RIVALS to a Python that has them")
    found: dict[str, list[dict[str, Any]]] = {name: [] for _, names in places for name in names}
    began = time.monotonic()
    rounds = 0
    while rounds < TRIES and time.monotonic() - began < _ENOUGH_S:
        for folder, names in places:  # round after round, so that a busy minute of the machine hits all of them
            warm(folder)
            for name in names:
                found[name].append(read(name, folder))
        rounds += 1
    if RIVALS:
        for name, writer in (("MosaicML Streaming, random", "write_mosaic"), ("LitData, random", "write_litdata")):
            warm(rival(writer))
            found[name] = [read(name, rival(writer), most=_ENOUGH_SAMPLES)]
    print(f"Reading {FILES} samples once, shuffled; DataLoader, batch 64, no worker; warm cache; best of {rounds};")
    print(f"load {os.getloadavg()[0]:.1f}. A byte of every page is looked at: LitData hands out views, as ours can.\n")
    us, cpu_us = ({name: min(one[key] for one in tries) for name, tries in found.items()} for key in ("us", "cpu_us"))
    rows: list[list[object]] = [
        [
            name,
            1e3 / us[name],
            cpu_us[name],
            min(float(one["first_s"]) for one in found[name]),
            *(times[name] / times[of] for of in ("shoal, random", "shoal, random, views") for times in (us, cpu_us)),
        ]
        for name in found
    ]
    table(["reader", "thousand/s", "CPU us", "first batch s", "bytes: faster", "CPU", "views: faster", "CPU"], rows)


def _cold(ours: Path) -> None:
    if shutil.which("fio") is None:
        note("cold reading left out: apt-get install fio")
        return
    names = ("shoal, random", "shoal, stream, fully shuffled", "shoal, stream")
    rounds = []
    for _ in range(3):  # in turns: the disk is shared with others, too
        rounds.append([_fio(ours), *(read(name, ours, cold=True) for name in names)])
    rows: list[list[object]] = []
    for place, name in enumerate(("fio, random reads of 52 KiB, queue depth 16, O_DIRECT", *names)):
        speeds = [one[place]["mb_s"] for one in rounds]
        of_fio = max(one[place]["mb_s"] / one[0]["mb_s"] for one in rounds)
        rows.append(
            [name, *(f"{speed:.0f}" for speed in speeds), of_fio, min(float(one[place]["cpu_us"]) for one in rounds)]
        )
    files = read("folder of files", source(), cold=True)
    rows.append(["folder of files", f"{files['mb_s']:.0f}", "", "", "", files["cpu_us"]])
    print(f"Cold cache (dropped with posix_fadvise before every epoch), MB/s; load {os.getloadavg()[0]:.1f}.\n")
    table(["reader", "1", "2", "3", "of fio, best", "CPU us a sample"], rows)


def _fio(folder: Path) -> dict[str, Any]:
    """Random reads of a sample's size over the same files, past the page cache."""
    drop_cache(str(folder))
    words = "--name=x --rw=randread --bs=52k --direct=1 --ioengine=libaio --iodepth=16 --runtime=4 --time_based"
    words += " --norandommap --file_service_type=random --blockalign=4k --readonly --thread --output-format=json"
    names = ":".join(str(path) for path in sorted(folder.glob("*.tar")) if path.stat().st_size > 1 << 24)
    done = subprocess.run(
        ["fio", *words.split(), f"--filename={names}"], check=True, capture_output=True, text=True, cwd=HOME
    )
    job = json.loads(done.stdout)["jobs"][0]
    reads = job["read"]
    cpu_us = (job["usr_cpu"] + job["sys_cpu"]) / 100 * reads["runtime"] * 1e3 / reads["total_ios"]
    note(f"fio: {reads['bw_bytes'] / 1e6:.0f} MB/s, {cpu_us:.1f} us of CPU a read")
    return {"mb_s": reads["bw_bytes"] / 1e6, "cpu_us": cpu_us}


def _resume(ours: Path) -> None:
    """At 90 % of an epoch, each time in a new process that has torch, as a training has."""
    for what in ("in memory", "not in memory"):
        found = []
        for _ in range(3):
            if what != "in memory":
                drop_cache(str(ours))
            argv = [RIVALS or sys.executable, str(_READERS), "resume", str(ours)]
            found.append(json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout))
        opening, loading = (", ".join(f"{one[key]:.0f}" for one in found) for key in ("resume_ms", "import_ms"))
        print(f"Resume at 90 % of an epoch, data {what}: {opening} ms from opening to the first sample;")
        print(f"importing shoal.data before that took {loading} ms; load {os.getloadavg()[0]:.1f}.\n", flush=True)


if __name__ == "__main__":
    main()
