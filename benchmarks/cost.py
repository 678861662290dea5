"""Hours of `shoal report` beside sacct, for jobs of every kind, on a sandbox with accounting.

    python -m benchmarks.cost

Each row is an experiment: GPU-seconds allocated and requested, and the queue wait, ours and Slurm's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.sandbox import Sandbox, SandboxSpec

SHOAL = Path(sys.executable).with_name("shoal")
SETTINGS = """\
snapshot = false
[steps.train]
command = ["bash", "-c", "sleep {seconds}"]
request = {{ cpus = 1, memory = "60M", time = "5m", gpus = 1 }}
[clusters.sandbox]
setup = ["sleep {set_up}"]
"""
PACK = ("pack", "--on", "sandbox", "--time", "5m", "--mem", "200M")


class World:
    """Projects on one cluster, one for each row."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self.folder, self.sandbox = folder, sandbox
        self.env = sandbox.env({**os.environ, "PATH": f"{SHOAL.parent}{os.pathsep}{os.environ['PATH']}"})

    def project(self, name: str, seconds: int = 10, set_up: int = 0) -> Path:
        root = self.folder / name
        (root / "experiments" / "001_a").mkdir(parents=True)
        (root / "shoal.toml").write_text(SETTINGS.format(seconds=seconds, set_up=set_up))
        return root

    def shoal(self, root: Path, *words: str) -> str:
        done = subprocess.run([SHOAL, *words], cwd=root, env=self.env, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 4):
            raise SystemExit(f"{words}: {done.stderr}")
        return done.stdout

    def submit(self, root: Path, flags: str = "", *words: str) -> None:
        script = root / "experiments" / "001_a" / "000_train_0.sh"
        script.write_text(f'source "$(shoal shell)"\ntrain {flags}\n')
        self.shoal(root, "submit", "--on", "sandbox", *words, str(script))


def alone(world: World) -> Path:
    world.submit(root := world.project("a run alone"))
    return root


def set_up(world: World) -> Path:
    world.submit(root := world.project("15 s of set-up", set_up=15))
    return root


def exclusive(world: World) -> Path:
    world.submit(root := world.project("--exclusive"), "--exclusive")
    return root


def pack(world: World, name: str, *words: str) -> Path:
    root = world.project(name)
    world.shoal(root, *PACK, "--name", "p", *words)
    return root


def killed(world: World) -> Path:
    """The agent and its guard are killed after 15 s."""
    world.submit(root := world.project("agent killed", seconds=600))
    deadline = time.monotonic() + 60
    while not (starts := list(root.glob(".shoal/runs/*/*/attempt.1.start"))):
        if time.monotonic() > deadline:
            raise SystemExit("the run did not start")
        time.sleep(0.2)
    time.sleep(15)
    start = json.loads(starts[0].read_text().splitlines()[0])
    for pid in (start["pid"], start["agent_pid"]):
        os.kill(pid, signal.SIGKILL)
    return root


ROWS: list[Callable[[World], Path]] = [
    alone,
    set_up,
    lambda world: pack(world, "pack, idle tail", "--gpus", "2", "--set", "s=5,6,20", "--", "sleep", "{s}"),
    lambda world: pack(world, "pack, 1 run on 2 GPUs", "--gpus", "2", "--", "sleep", "10"),
    lambda world: pack(
        world, "pack, 2 nodes x 2 GPUs", "--gpus", "2", "--nodes", "2", "--set", "s=5,6,7,20,8", "--", "sleep", "{s}"
    ),
    lambda world: pack(
        world,
        "8 runs of a quarter GPU",
        "--gpus",
        "1",
        "--gpus-per-run",
        "0.25",
        "--no-mps",
        "--set",
        "i=0:7:1",
        "--",
        "bash",
        "-c",
        "sleep 5; echo {i}",
    ),
    exclusive,
    killed,
]


def figures(world: World, root: Path) -> tuple[str, ...]:
    report: dict[str, Any] = json.loads(world.shoal(root, "report", "--json"))
    ids = ",".join(one["job_id"] for one in report["allocations"])
    argv = ["sacct", "-X", "-D", "-n", "-P", "-j", ids, "-o", "ElapsedRaw,TimelimitRaw,Eligible,Start,AllocTRES"]
    env = {**world.env, "SLURM_TIME_FORMAT": "%s"}
    allocated = requested = wait = 0
    for line in subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.splitlines():
        elapsed, minutes, eligible, start, tres = line.split("|")
        gpus = next((int(part.partition("=")[2]) for part in tres.split(",") if part.startswith("gres/gpu=")), 0)
        allocated += gpus * int(elapsed)
        requested += gpus * int(minutes) * 60
        wait = max(wait, int(start) - int(eligible))
    hours, queue = report["gpu_hours"], report["queue_wait"] or {"max_s": 0}
    return (
        root.name,
        f"{hours['allocated'] * 3600:.1f} / {allocated}",
        f"{hours['requested'] * 3600:.0f} / {requested}",
        f"{queue['max_s']:.0f} / {wait}",
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sandbox = Sandbox(SandboxSpec(name=f"cost{os.getpid()}", nodes=4, gpus=4, accounting=True))
        sandbox.up(deadline_s=180)
        try:
            world = World(Path(folder), sandbox)
            roots = [row(world) for row in ROWS]
            deadline = time.monotonic() + 300
            while sandbox.run("squeue", "-h").stdout and time.monotonic() < deadline:
                time.sleep(1)
            time.sleep(5)  # slurmdbd hears of ends a little later
            print("| case | allocated, GPU-s: ours / Slurm | requested: ours / Slurm | longest queue wait, s |")
            print("|---|---|---|---|")
            for root in roots:
                print(f"| {' | '.join(figures(world, root))} |")
        finally:
            sandbox.down()


if __name__ == "__main__":
    main()
