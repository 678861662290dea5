"""Many runs: processor time, calls on files and memory of looks at 20,000 ended runs, and of reading 40 bash scripts.

python -m benchmarks.scale [--old ../base] [--runs 20000] [--repeats 3] [--project DIR]

`--old` is a checkout of another commit; both are measured on the same project, with the interpreter and the libraries
of this one. `--project` is one with so many runs that was made before; else one is made, and ten minutes are waited.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from made_up import MadeUp

RUNS_PER_EXPERIMENT = 1000
SCRIPTS = 40
_SCRIPT = '#!/bin/bash\nsource "$(shoal shell)"\nexport LR=0.{n}\ntrain --time=1:00:00 -- --lr $LR\n'


class Measured(NamedTuple):
    cpu_s: float
    peak_mb: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--old", type=Path)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--project", type=Path)
    args = parser.parse_args()
    here = Path(__file__).parent.parent
    versions = {**({"old": args.old.resolve()} if args.old else {}), "new": here}
    print(f"| what | {' | '.join(versions)} |\n|---|{'---|' * len(versions)}")
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
        looks(args.project or Path(name) / "runs", args.runs, versions, args.repeats)
        scripts(Path(name) / "scripts", versions, args.repeats)


def looks(folder: Path, count: int, versions: dict[str, Path], repeats: int) -> None:
    if not folder.exists():
        make_runs(folder, count)
    row = f"`status`, {count:,} ended runs"
    first, second, calls = {}, {}, {}
    for version, checkout in versions.items():
        shutil.rmtree(folder / ".shoal" / "cache", ignore_errors=True)
        first[version] = run(checkout, ["status"], folder)
        for _ in range(count // 2000):  # metrics are read for 2 s in each look
            run(checkout, ["status"], folder)
        second[version] = [run(checkout, ["status"], folder) for _ in range(repeats)]
        calls[version] = count_calls(checkout, ["status"], folder)
    print_row(f"{row}, first look, processor s", [f"{one.cpu_s:.2f}" for one in first.values()])
    cpu = [f"{statistics.median(one.cpu_s for one in many):.2f}" for many in second.values()]
    print_row(f"{row}, nothing has changed, processor s", cpu)
    print_row(f"{row}, nothing has changed, calls on files", [f"{one:,}" for one in calls.values()])
    print_row(f"{row}, peak memory, MB", [f"{max(one.peak_mb for one in many):.0f}" for many in second.values()])


def make_runs(folder: Path, count: int) -> None:
    """19 of 20 have completed, the others failed."""
    made = MadeUp(folder, now=time.time())
    for number in range(count):
        name = f"{number // RUNS_PER_EXPERIMENT:03}_sweep/000_train_{number % RUNS_PER_EXPERIMENT}"
        failed = number % 20 == 1
        made.run(name, "failed" if failed else "completed", err=b"ValueError: no\n" if failed else b"")
    time.sleep(601)  # the output of runs that ended less than 10 minutes ago is looked at each time


def scripts(folder: Path, versions: dict[str, Path], repeats: int) -> None:
    experiment = folder / "experiments" / "001_a"
    experiment.mkdir(parents=True)
    (folder / "shoal.toml").write_text('[steps.train]\ncommand = "true"\n')
    for number in range(SCRIPTS):
        (experiment / f"{number:03}_train_0.sh").write_text(_SCRIPT.format(n=number))
    words = ["plan", "experiments/001_a", "--on", "local"]
    found = [
        statistics.median(run(checkout, words, folder).cpu_s for _ in range(repeats)) for checkout in versions.values()
    ]
    print_row(f"`plan` of {SCRIPTS} bash scripts, processor s", [f"{one:.2f}" for one in found])


def argv_and_env(checkout: Path, words: list[str]) -> tuple[list[str], dict[str, str]]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "SLURM_CONF")}
    path = f"{Path(sys.executable).parent}:{env['PATH']}"  # scripts start `shoal`
    return [sys.executable, "-m", "shoal", *words], {**env, "PATH": path, "PYTHONPATH": str(checkout / "src")}


def run(checkout: Path, words: list[str], folder: Path) -> Measured:
    """With all that it starts."""
    argv, env = argv_and_env(checkout, words)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(argv, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{argv} ended with exit code {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(cpu_s, used.ru_maxrss / 1024)


def count_calls(checkout: Path, words: list[str], folder: Path) -> int:
    """Of everything below the project's directory, as strace sees it."""
    argv, env = argv_and_env(checkout, words)
    trace = folder / "trace"
    traced = ["strace", "-f", "-y", "-e", "trace=%file,%desc", "-o", str(trace), *argv]
    subprocess.run(traced, env=env, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    state = re.compile(rf"{re.escape(str(folder))}/(?:\.shoal|outputs)/")
    lines = trace.read_text(errors="replace").splitlines()
    trace.unlink()
    return sum(1 for line in lines if state.search(line))


def print_row(what: str, values: list[str]) -> None:
    print(f"| {what} | {' | '.join(values)} |", flush=True)


if __name__ == "__main__":
    main()
