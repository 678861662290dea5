"""Packs beside what people use instead: makespan against the bound, and the cost of a run that does nothing.

    python -m benchmarks.pack            prints a table; all engines in one run, on 4 slots
    python -m benchmarks.pack --quick    fewer runs

Compared where installed: GNU parallel, HyperQueue (its Python API), plain Ray GPU tasks and Ray Tune. Every figure is
also given as a ratio against the lower bound or against shoal, because this machine is shared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SHOAL = str(Path(sys.executable).with_name("shoal"))
UNIT_S, COUNT, SLOTS = 0.085, 20, 4
BOUND_S = max(UNIT_S * COUNT, UNIT_S * COUNT * (COUNT + 1) / 2 / SLOTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--queued", action="store_true", help="only 10,000 queued runs")
    args = parser.parse_args()
    if args.queued:
        _show("10,000 runs that do nothing", [("shoal slots", lambda: noops_by_shoal(10_000))])
        return
    empty = 200 if args.quick else 1000
    print(f"20 sleeps of {UNIT_S} k s on {SLOTS} slots; no schedule is shorter than {BOUND_S:.3f} s")
    sleeps: list[tuple[str, Callable[[], str]]] = [
        ("shoal slots, longest first", lambda: sleeps_by_shoal("slots", True)),
        ("shoal slots, as given", lambda: sleeps_by_shoal("slots", False)),
        ("GNU parallel, longest first", sleeps_by_parallel),
        ("HyperQueue, longest first", sleeps_by_hyperqueue),
        ("shoal ray, longest first", lambda: sleeps_by_shoal("ray", True)),
        ("Ray GPU tasks, as given", sleeps_by_ray),
        ("Ray Tune, as given", sleeps_by_tune),
    ]
    _show("sleeps", sleeps)
    _show(
        f"{empty} runs that do nothing",
        [
            ("shoal slots, 20 runs", lambda: noops_by_shoal(20)),
            ("shoal slots", lambda: noops_by_shoal(empty)),
            ("GNU parallel", lambda: noops_by_parallel(empty)),
            ("HyperQueue", lambda: noops_by_hyperqueue(empty)),
        ],
    )


def _show(title: str, rows: list[tuple[str, Callable[[], str]]]) -> None:
    print(f"\n{title}")
    for name, measure in rows:
        try:
            with _silence():
                told = measure()
            print(f"  {name:<30} {told}", flush=True)
        except (ImportError, FileNotFoundError) as error:
            print(f"  {name:<30} not here ({error})", flush=True)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Engines talk, some of them from C: whatever is written meanwhile goes nowhere."""
    sys.stdout.flush()
    kept, nowhere = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        yield
    finally:
        sys.stdout.flush()
        for stream, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nowhere)


def _ratio(seconds: float) -> str:
    return f"{seconds:7.3f} s   {seconds / BOUND_S:.3f} of the bound"


def sleeps_by_shoal(engine: str, costs: bool) -> str:
    with _folder() as folder:
        file = Path(folder, "commands.txt")
        if not costs:
            file.write_text("".join(f"sleep {UNIT_S * k:.3f}\n" for k in range(1, COUNT + 1)))
            words = ["pack", "--slots", str(SLOTS), "--engine", engine, "--json", str(file)]
        else:
            values = ",".join(f"{UNIT_S * k:.3f}" for k in range(1, COUNT + 1))
            words = ["pack", "--slots", str(SLOTS), "--engine", engine, "--json", "--set", f"k={values}", "--cost", "k"]
            words += ["--", "sleep", "{k}"]
        done = _shoal(words, folder)
        return _ratio(json.loads(done)["makespan_s"])


def noops_by_shoal(count: int) -> str:
    with _folder() as folder:
        nothing_s = statistics.median(_timed([sys.executable, "-c", "pass"]) for _ in range(5))
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
        _shoal(["pack", "--slots", str(SLOTS), "-q", "--set", f"k=1:{count}:1", "--", "/bin/true", "{k}"], folder)
        seconds, after = time.time() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        # The end stands behind the start, on a line of its own.
        ends = [json.loads(p.read_text().splitlines()[-1]) for p in Path(folder).glob(".shoal/runs/*/*/attempt.1.end")]
        first, last = min(end["began"] for end in ends), max(end["ended"] for end in ends)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        engine = json.loads(next(Path(folder).glob(".shoal/submissions/*/engine.*.end")).read_text())
        return (
            f"{(last - first) / count * 1000:6.2f} ms a run in the engine, {seconds / count * 1000:.2f} ms in all, "
            f"{cpu / count * 1000:.2f} CPU-ms; first run after {first - begin:.2f} s, "
            f"{(first - begin) / nothing_s:.0f} times `python -c pass`; {len(ends)} durable ends; "
            f"the engine had {engine['max_rss_mb']:.0f} MB"
        )


def sleeps_by_parallel() -> str:
    lengths = [f"{UNIT_S * k:.3f}" for k in range(COUNT, 0, -1)]
    return _ratio(_timed([_parallel(), "-j", str(SLOTS), "sleep", ":::", *lengths]))


def noops_by_parallel(count: int) -> str:
    seconds = _timed([_parallel(), "-j", str(SLOTS), "/bin/true", ":::", *map(str, range(count))])
    return f"{seconds / count * 1000:6.2f} ms a run"


def sleeps_by_hyperqueue() -> str:
    return _ratio(_hyperqueue([["sleep", f"{UNIT_S * k:.3f}"] for k in range(COUNT, 0, -1)]))


def noops_by_hyperqueue(count: int) -> str:
    return f"{_hyperqueue([['/bin/true', str(k)] for k in range(count)]) / count * 1000:6.2f} ms a run"


def _hyperqueue(commands: list[list[str]]) -> float:
    """Server and worker in this process, as its wheel allows; its `wait` looks once a second."""
    from hyperqueue import Job, LocalCluster
    from hyperqueue.cluster import WorkerConfig

    with _folder() as folder, LocalCluster() as cluster:
        cluster.start_worker(WorkerConfig(cores=SLOTS))
        client = cluster.client()
        warm = Job(default_workdir=folder)
        warm.program(["/bin/true"], stdout=None, stderr=None)
        client.wait_for_jobs([client.submit(warm)])
        job = Job(default_workdir=folder)
        for command in commands:
            job.program(command, stdout=None, stderr=None)
        begin = time.monotonic()
        client.wait_for_jobs([client.submit(job)])
        return time.monotonic() - begin


def sleeps_by_ray() -> str:
    ray = _ray()
    try:
        task = ray.remote(num_gpus=1)(_sleep)
        ray.get(task.remote(0.0))
        begin = time.monotonic()
        ray.get([task.remote(UNIT_S * k) for k in range(1, COUNT + 1)])
        return _ratio(time.monotonic() - begin)
    finally:
        ray.shutdown()


def sleeps_by_tune() -> str:
    ray = _ray()
    try:
        from ray import tune

        def trainable(config: dict[str, float]) -> None:
            _sleep(config["s"])

        lengths = [UNIT_S * k for k in range(1, COUNT + 1)]
        tuner = tune.Tuner(tune.with_resources(trainable, {"gpu": 1}), param_space={"s": tune.grid_search(lengths)})
        begin = time.monotonic()
        tuner.fit()
        return _ratio(time.monotonic() - begin)
    finally:
        ray.shutdown()


def _ray() -> Any:
    import ray

    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(num_cpus=SLOTS, num_gpus=SLOTS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    return ray


def _sleep(seconds: float) -> None:
    subprocess.run(["sleep", str(seconds)], check=True)


def _parallel() -> str:
    found = shutil.which("parallel")
    if found is None:
        raise FileNotFoundError("apt-get install parallel")
    return found


def _timed(argv: list[str]) -> float:
    begin = time.monotonic()
    subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.monotonic() - begin


def _shoal(words: list[str], folder: str) -> str:
    # People's Python keeps compiled files; the first call here makes them.
    hidden = ("SLURM", "SHOAL_", "PYTHONDONTWRITEBYTECODE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    done = subprocess.run([SHOAL, *words], cwd=folder, env=env, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="shoal-bench-", ignore_cleanup_errors=True)


if __name__ == "__main__":
    main()
