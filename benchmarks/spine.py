"""The spine: start-up against a bare Python, a thousand runs as an array against sbatch alone, status of ten thousand.

python -m benchmarks spine
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shoal.kernel import files
from shoal.sandbox import Sandbox, SandboxSpec

SHOAL = Path(sys.executable).with_name("shoal")
PROJECT = """
[steps.train]
command = "true"
request = { cpus = 1, time = "10m" }
"""
SCRIPT = 'source "$(shoal shell)"\nexport CONFIG="seed=$SHOAL_SEED rate=0.1"\ntrain --mem=10M\n'


def main() -> None:
    print("| what | measured | baseline | ratio | goal |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        start_up(Path(folder))
        spec = SandboxSpec(
            name=f"bench{os.getpid()}", nodes=2, settings=(("MaxArraySize", "20000"), ("MaxJobCount", "50000"))
        )
        with Sandbox(spec) as sandbox:
            env = {**sandbox.env(), "PATH": f"{SHOAL.parent}:{os.environ['PATH']}"}
            # Nothing shall run meanwhile: the figures are about submitting and looking, not about sleeping jobs.
            for node in sandbox.nodes:
                sandbox.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=benchmark")
            array(Path(folder) / "array", env)
            status(Path(folder) / "status", env)


def start_up(folder: Path) -> None:
    (folder / "shoal.toml").write_text(PROJECT)
    bare = median(lambda: run([sys.executable, "-c", "pass"], folder), 40)
    for words in (["--help"], ["status"]):
        took = median(partial(run, [str(SHOAL), *words], folder), 40)
        row(f"`shoal {' '.join(words)}`, empty project", took, "`python -c pass`", bare, "3")


def array(folder: Path, env: dict[str, str]) -> None:
    """1,000 runs of one script against `sbatch --array` and the writing of 1,000 small durable files, one by one."""
    bare = once(lambda: run(["sbatch", "--array=0-999", "--mem=10M", "-o", "/dev/null", "--wrap", "true"], folder, env))
    plain = folder.parent / "durable"
    plain.mkdir()

    def write() -> None:
        for number in range(1000):
            files.create_exclusive(str(plain / f"{number}.json"), b'{"small": "file"}\n' * 20)

    durable = once(write)
    make_project(folder)
    took = once(lambda: run([str(SHOAL), "submit", "-q", f"{SCRIPT_PATH}", "--seeds", "0-999"], folder, env))
    row("1,000 runs submitted as one array", took, "`sbatch --array` + 1,000 durable files", bare + durable, "3")
    again = once(lambda: run([str(SHOAL), "submit", "-q", f"{SCRIPT_PATH}", "--seeds", "0-999"], folder, env))
    row("the same again: nothing to do", again, "the first time", took, "-")


def status(folder: Path, env: dict[str, str]) -> None:
    """10,000 runs in Slurm's queue; warm, with Slurm's programs counted."""
    make_project(folder)
    run([str(SHOAL), "submit", "-q", f"{SCRIPT_PATH}", "--seeds", "0-9999"], folder, env)
    shims = folder / "shims"
    shims.mkdir()
    for program in ("squeue", "sacct", "sinfo", "scontrol"):
        real = subprocess.run(["which", program], capture_output=True, text=True, check=True).stdout.strip()
        (shims / program).write_text(f'#!/bin/sh\necho {program} >> {folder}/asked\nexec {real} "$@"\n')
        (shims / program).chmod(0o755)
    counted = {**env, "PATH": f"{shims}:{env['PATH']}"}
    run([str(SHOAL), "status"], folder, counted)
    (folder / "asked").unlink()
    run([str(SHOAL), "status"], folder, counted)
    asked = (folder / "asked").read_text().split()
    took = median(lambda: run([str(SHOAL), "status"], folder, env), 5)
    squeue = median(lambda: run(["squeue", "--me", "-r", "-t", "all"], folder, env), 5)
    row(
        f"`shoal status`, 10,000 runs, all queued ({' + '.join(asked)})",
        took,
        "`squeue -r`",
        squeue,
        "2 s, 1 + 1 calls",
    )


SCRIPT_PATH = "experiments/001_bench/000_train.sh"


def make_project(folder: Path) -> None:
    (folder / SCRIPT_PATH).parent.mkdir(parents=True)
    (folder / "shoal.toml").write_text(PROJECT)
    (folder / SCRIPT_PATH).write_text(SCRIPT)


def run(words: list[str], folder: Path, env: dict[str, str] | None = None) -> None:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{words} ended with {done.returncode}: {done.stderr}")


def once(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median(work: Callable[[], None], times: int) -> float:
    return statistics.median(once(work) for _ in range(times))


def row(what: str, took: float, baseline: str, base: float, goal: str) -> None:
    def spell(seconds: float) -> str:
        return f"{seconds:.2f} s" if seconds >= 0.5 else f"{seconds * 1000:.0f} ms"

    print(f"| {what} | {spell(took)} | {baseline}: {spell(base)} | {took / base:.2f} | {goal} |", flush=True)


if __name__ == "__main__":
    main()
