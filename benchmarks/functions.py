"""Functions as runs beside submitit, in one run on a sandbox: submission, result latency, a killed job, a pack, import.

    pip install submitit; python -m benchmarks.functions

Slurm calls are counted by wrappers around its programs in front of the PATH. Needs the extra `functions`.
"""

from __future__ import annotations

import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shoal
from shoal.sandbox import Sandbox, SandboxSpec

COUNT = 20
PACKED = 1000
SOURCE = """\
import os, time

def double(x):
    return 2 * x

def stamp(x):
    time.sleep(1)
    return time.time()

def killed(x):
    os.kill(os.getpid(), 9)
"""
PROGRAMS = ("sbatch", "squeue", "sacct", "scontrol", "sinfo", "scancel", "sacctmgr")


class SlurmCalls:
    """Counts how often programs of Slurm are started through the PATH."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "calls"
        self.log.touch()
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in PROGRAMS:
            real = subprocess.run(["which", name], capture_output=True, text=True, check=False).stdout.strip()
            if real:
                (self.bin / name).write_text(f'#!/bin/sh\necho {name} >> "{self.log}"\nexec {real} "$@"\n')
                (self.bin / name).chmod(0o755)

    def take(self) -> str:
        """The calls since the last look, in words."""
        names = self.log.read_text().split()
        self.log.write_text("")
        return ", ".join(f"{names.count(name)} {name}" for name in PROGRAMS if name in names) or "none"


def timed(do: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    found = do()
    return time.perf_counter() - begin, found


def with_shoal(work: Any, calls: SlurmCalls) -> list[str]:
    request = shoal.Request(cpus=1, memory="60M", time="5m")
    shoal.submit(work.double, -1, request=request).result()  # the agent's zip, bytecode
    calls.take()
    # The first command that submits several runs asks what the cluster allows; its answers are kept for 5 minutes.
    first_s, first = timed(lambda: shoal.map(work.double, [-2, -3], request=request))
    first_calls = calls.take()
    first.wait()
    calls.take()
    submit_s, runs = timed(lambda: shoal.map(work.double, range(COUNT), request=request))
    sent = calls.take()
    wait_s, results = timed(runs.results)
    assert results == [2 * number for number in range(COUNT)]
    rows = [
        f"first map: submitted after {first_s:.2f} s ({first_calls})",
        f"map of {COUNT}: submitted after {submit_s:.2f} s ({sent}), all results {wait_s:.2f} s later ({calls.take()})",
        loop_time(work, request, calls),
    ]
    late = []
    for number in range(5):
        run = shoal.submit(work.stamp, number, request=request)
        run.result()
        seen = time.time()
        assert run.view.ended is not None
        late.append(seen - run.view.ended)
    rows.append(f"result seen {statistics.median(late):.2f} s after its end (median of 5, max {max(late):.2f} s)")
    bad = shoal.submit(work.killed, 1, request=request)
    wait_s, error = timed(bad.exception)
    rows.append(f"killed job: {type(error).__name__} {wait_s:.1f} s after its submission")
    return rows


def loop_time(work: Any, request: shoal.Request, calls: SlurmCalls) -> str:
    calls.take()
    begin_cpu = time.process_time()
    loop_s, runs = timed(lambda: [shoal.submit(work.double, 500 + number, request=request) for number in range(5)])
    spent_ms = 1000 * (time.process_time() - begin_cpu) / len(runs)
    each = f"{loop_s / len(runs):.2f} s each, {spent_ms:.0f} ms of it processor time"
    text = f"submit in a loop: {each} ({calls.take()} for {len(runs)})"
    for run in runs:
        run.wait()
    return text


def with_submitit(work: Any, calls: SlurmCalls, folder: Path) -> list[str]:
    import submitit

    executor: Any = submitit.AutoExecutor(folder=folder / "submitit", cluster="slurm")
    executor.update_parameters(timeout_min=5, slurm_mem="60M", cpus_per_task=1)
    executor.submit(work.double, -1).result()
    calls.take()
    submit_s, jobs = timed(lambda: executor.map_array(work.double, range(COUNT)))
    sent = calls.take()
    wait_s, results = timed(lambda: [job.result() for job in jobs])
    assert results == [2 * number for number in range(COUNT)]
    rows = [
        f"map_array of {COUNT}: submitted after {submit_s:.2f} s ({sent}), "
        f"all results {wait_s:.2f} s later ({calls.take()})"
    ]
    late = []
    for number in range(5):
        ended = executor.submit(work.stamp, number).result()
        late.append(time.time() - ended)
    rows.append(f"result seen {statistics.median(late):.2f} s after its end (median of 5, max {max(late):.2f} s)")
    bad = executor.submit(work.killed, 1)
    wait_s, error = timed(bad.exception)
    rows.append(f"killed job: {type(error).__name__} {wait_s:.1f} s after its submission")
    return rows


def packed(work: Any) -> str:
    """Runs of a pack on this machine, with the warm start that packs of functions have."""
    began = time.perf_counter()
    runs = shoal.map(work.double, range(10_000, 10_000 + PACKED), on="local", slots=os.cpu_count())
    submit_s = time.perf_counter() - began
    runs.wait()
    first = min(run.view.started or 0 for run in runs)
    last = max(run.view.ended or 0 for run in runs)
    assert runs.results() == [2 * number for number in range(10_000, 10_000 + PACKED)]
    each_ms = 1000 * (last - first) / PACKED
    return f"{PACKED} functions in a local pack: claimed after {submit_s:.1f} s, {each_ms:.1f} ms each, first to last"


def import_time() -> str:
    def median_ms(code: str) -> float:
        took = [timed(lambda: subprocess.run([sys.executable, "-c", code], check=True))[0] for _ in range(15)]
        return 1000 * statistics.median(took)

    bare, with_import = median_ms("pass"), median_ms("import shoal")
    return f"import shoal: {with_import:.0f} ms, python -c pass: {bare:.0f} ms ({with_import / bare:.2f} times)"


def main() -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(import_time())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = folder / "project"
        root.mkdir()
        (root / "shoal.toml").write_text("")
        (root / "functions_work.py").write_text(SOURCE)
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        os.chdir(root)
        sys.path.insert(0, str(root))
        work = importlib.import_module("functions_work")
        print(packed(work), flush=True)
        sandbox = Sandbox(SandboxSpec(name=f"b{os.getpid()}", nodes=2, cpus=16, accounting=True))
        sandbox.up()
        try:
            calls = SlurmCalls(folder)
            os.environ.update(sandbox.env())
            os.environ["PATH"] = f"{calls.bin}{os.pathsep}{os.environ['PATH']}"
            os.environ["PYTHONPATH"] = str(root)  # submitit's jobs import from here
            for row in with_shoal(work, calls):
                print(f"shoal     {row}", flush=True)
            for row in with_submitit(work, calls, folder):
                print(f"submitit  {row}", flush=True)
        finally:
            sandbox.down()


if __name__ == "__main__":
    main()
