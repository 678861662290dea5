"""Samples of runs (NVML) beside nvidia-smi over the same time, on a real GPU.

    python -m benchmarks gpu_samples     (needs CUDA and torch in this Python; says so where there is none)

A program multiplies matrices for a known part of each tenth of a second and holds a known amount of memory. Each row is
a `shoal pack` of it: mean utilisation and peak memory by shoal and by nvidia-smi, and busy GPU-seconds of the report.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.pack_gpu import gpu_here

SHOAL = (sys.executable, "-m", "shoal")
#: Arguments: part of the time that is busy, seconds, GiB to hold.
LOAD = """\
import sys, time
import torch
part, seconds, gib = float(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
held = torch.empty(int(gib * 2**30), dtype=torch.uint8, device="cuda")
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
begin, busy = time.monotonic(), 0.0
while (now := time.monotonic()) < begin + seconds:
    while time.monotonic() < now + 0.1 * part:
        a @ a
        torch.cuda.synchronize()
    busy += time.monotonic() - now if part else 0.0
    time.sleep(max(0.0, now + 0.1 - time.monotonic()))
print("busy %.4f" % (busy / (time.monotonic() - begin)))
"""
ALONE = ("--slots", "1", "--gpus-per-run", "1", "--set", "k=1")
SHARED = ("--slots", "2", "--gpus-per-run", "0.5", "--no-mps", "--set", "k=1,2")
#: (what, seconds between samples, flags of pack, arguments of the program)
CASES: Sequence[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = (
    ("always busy", "0.5", ALONE, ("1", "20", "8")),
    ("busy half of the time", "0.5", ALONE, ("0.5", "60", "8")),
    ("busy half of the time, samples every 10 s (default)", "10", ALONE, ("0.5", "60", "8")),
    ("busy a fifth of the time", "0.5", ALONE, ("0.2", "20", "8")),
    ("holds memory only", "0.5", ALONE, ("0", "10", "24")),
    ("two runs share the GPU", "0.5", SHARED, ("0.3", "20", "8")),
)


class Sample(NamedTuple):
    t: float
    percent: float
    memory_mb: float


def main() -> None:
    if not (gpu := gpu_here()):
        return
    print(
        f"{gpu}\n\n| program | utilisation: shoal / nvidia-smi | peak memory, MiB | busy GPU-s: report / nvidia-smi |"
    )
    print("|---|---|---|---|")
    for what, every_s, flags, arguments in CASES:
        folder = Path(tempfile.mkdtemp(prefix="shoal-gpu-"))
        try:
            print(f"| {what} | {' | '.join(measure(folder, every_s, flags, arguments))} |", flush=True)
        finally:
            shutil.rmtree(folder)


def measure(folder: Path, every_s: str, flags: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
    """Run one case beside nvidia-smi; its cells of the table."""
    (folder / "load.py").write_text(LOAD)
    (folder / "shoal.toml").write_text("snapshot = false\n")
    fields = "--query-gpu=timestamp,utilization.gpu,memory.used"
    log = (folder / "smi.csv").open("w+")
    smi = subprocess.Popen(
        ["nvidia-smi", fields, "--format=csv,noheader,nounits", "-lms", "500", "-i", "0"], stdout=log
    )
    try:
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "0", "SHOAL_SAMPLE_S": every_s}
        argv = [*SHOAL, "pack", "--on", "local", *flags, "--", sys.executable, "load.py", *arguments, "{k}"]
        subprocess.run(argv, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    finally:
        smi.terminate()
        smi.wait()
    done = subprocess.run([*SHOAL, "report", "--json"], cwd=folder, check=True, capture_output=True, text=True)
    log.seek(0)
    records = [json.loads(path.read_text()) for path in folder.glob(".shoal/runs/*/*/attempt.1.use")]
    memory_mb = max(gpu["peak_memory_mb"] for record in records for gpu in record["gpus"])
    return compare(json.loads(done.stdout), memory_mb, read_samples(log.read()))


def read_samples(text: str) -> list[Sample]:
    found = []
    for row in csv.reader(io.StringIO(text)):
        if len(row) == 3:  # the last line may be cut off
            t = datetime.strptime(row[0].strip(), "%Y/%m/%d %H:%M:%S.%f").astimezone().timestamp()
            found.append(Sample(t, float(row[1]), float(row[2])))
    return found


def compare(report: dict[str, Any], memory_mb: float, samples: Sequence[Sample]) -> tuple[str, ...]:
    attempts = [one for run in report["runs"] for one in run["attempts"]]
    begin, end = min(one["started"] for one in attempts), max(one["ended"] for one in attempts)
    inside = [one for one in samples if begin <= one.t <= end]
    theirs = sum(one.percent for one in inside) / len(inside)
    ours = sum(one["mean_gpu_percent"] for one in attempts) / len(attempts)
    return (
        f"{ours:.1f} / {theirs:.1f} %",
        f"{memory_mb:,.0f} / {max(one.memory_mb for one in inside):,.0f}",
        f"{report['gpu_hours']['busy'] * 3600:.1f} / {theirs / 100 * (end - begin):.1f}",
    )


if __name__ == "__main__":
    main()
