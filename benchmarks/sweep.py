"""Sweeps: ten thousand runs expanded and planned, submitted in as few sbatch calls as arrays allow, and reconciled.

python -m benchmarks sweep

Processor seconds are told beside wall time, because the machine is shared; the goals are about an idle one.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from shoal.actions.prepare import SubmitTarget, prepare_submission
from shoal.describe import read_scripts
from shoal.describe.project import find_project
from shoal.kernel import files
from shoal.plan.cluster_choice import choose_cluster
from shoal.sandbox import Sandbox, SandboxSpec

SHOAL = Path(sys.executable).with_name("shoal")
SWEEP_FILE = """\
step = "train"
command = ["true", "{depth}", "{seed}"]
seeds = "0-9"
require = ["depth * lr <= 100"]
[sweep]
depth = "1:100"
lr = "0.1:1.0:0.1"
[derived]
steps = "depth * 100 // 3"
[request]
cpus = 1
memory = "10M"
time = "10m"
"""
RUNS = 10_000
LARGEST_ARRAY = 1001


def main() -> None:
    print("| what | wall s | processor s | baseline (wall s) | ratio | goal |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
        folder = Path(name)
        sweep_file = make_project(folder)
        plan(folder, sweep_file)
        settings = (("MaxArraySize", str(LARGEST_ARRAY)), ("MaxJobCount", "50000"))
        with Sandbox(SandboxSpec(name=f"bench{os.getpid()}", nodes=2, settings=settings)) as sandbox:
            for node in sandbox.nodes:
                sandbox.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=benchmark")
            submit(folder, sweep_file, {**sandbox.env(), "HOME": name})


def plan(folder: Path, sweep_file: Path) -> None:
    """In one process, because a command's start-up is measured elsewhere (spine)."""
    project = find_project(folder, os.environ)
    cluster = choose_cluster(project, "local", os.environ)

    def expand_and_plan() -> None:
        asked = read_scripts([sweep_file], project, os.environ).asked
        order = prepare_submission(asked, SubmitTarget(project, cluster, os.environ))
        assert len(order.submissions) == RUNS

    def encode() -> None:
        record = json.loads(
            json.dumps({"params": {"depth": 1, "lr": 0.1}, "command": ["true"], "env": {}, "request": {}})
        )
        for number in range(RUNS):
            json.dumps({**record, "name": f"000_train_{number}"}, sort_keys=True)

    best = min((measure(expand_and_plan) for _ in range(5)), key=lambda one: one[0])
    row("expand and plan 10,000 runs", best, f"{RUNS:,} json.dumps", measure(encode)[0], "1 s")


def submit(folder: Path, sweep_file: Path, env: dict[str, str]) -> None:
    calls = folder / "calls"
    shim = folder / "bin" / "sbatch"
    shim.parent.mkdir()
    real = subprocess.run(["which", "sbatch"], capture_output=True, text=True, check=True).stdout.strip()
    shim.write_text(f'#!/bin/sh\necho x >> {calls}\nexec {real} "$@"\n')
    shim.chmod(0o755)
    arrays = -(-RUNS // LARGEST_ARRAY)

    def bare() -> None:
        for _ in range(arrays):
            run(
                ["sbatch", f"--array=0-{LARGEST_ARRAY - 2}", "--mem=10M", "-o", "/dev/null", "--wrap", "true"],
                folder,
                env,
            )
        plain = folder / "outputs" / "durable"  # where it is no part of the code that is kept
        plain.mkdir(parents=True)
        for number in range(2 * RUNS):
            files.create_exclusive(str(plain / f"{number}.json"), b'{"small": "file"}\n' * 20)

    baseline = measure(bare)[0]
    shimmed = {**env, "PATH": f"{shim.parent}:{SHOAL.parent}:{os.environ['PATH']}"}
    took = measure(lambda: run([str(SHOAL), "submit", "-q", str(sweep_file)], folder, shimmed))
    count = len(calls.read_text().split())
    row(
        f"submit 10,000 runs: {count} sbatch calls", took, f"{arrays} sbatch + {2 * RUNS:,} durable files", baseline,
        f"{arrays} calls",
    )  # fmt: skip

    def read_specs() -> None:
        for path in (folder / ".shoal" / "runs").glob("*/*/spec.1.json"):
            json.loads(path.read_bytes())

    again = min(measure(lambda: run([str(SHOAL), "submit", "-q", str(sweep_file)], folder, shimmed)) for _ in range(3))
    row("submit again: nothing to do for 10,000", again, "read 10,000 specs", measure(read_specs)[0], "2 s")
    assert len(calls.read_text().split()) == count


def make_project(folder: Path) -> Path:
    (folder / "shoal.toml").write_text('[steps.train]\ncommand = "true"\n')
    sweep_file = folder / "experiments" / "001_sweep" / "000_train.toml"
    sweep_file.parent.mkdir(parents=True)
    sweep_file.write_text(SWEEP_FILE)
    return sweep_file


def run(argv: list[str], cwd: Path, env: dict[str, str]) -> None:
    subprocess.run(argv, cwd=cwd, env=env, check=True, stdout=subprocess.DEVNULL)


def measure(work: Callable[[], None]) -> tuple[float, float]:
    """Wall and processor seconds, children included."""

    def used() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(one.ru_utime + one.ru_stime for one in both)

    wall, processor = time.perf_counter(), used()
    work()
    return time.perf_counter() - wall, used() - processor


def row(what: str, took: tuple[float, float], baseline: str, base: float, goal: str) -> None:
    print(
        f"| {what} | {took[0]:.2f} | {took[1]:.2f} | {baseline} ({base:.2f}) | {took[0] / base:.1f} | {goal} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
