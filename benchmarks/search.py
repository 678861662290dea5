"""Searches: 60 trials of 0.3 s on 4 slots against their bound, and TPE as shoal asks it beside plain Optuna.

python -m benchmarks search
python -m benchmarks.search --seeds 20

Quality is a matter of pure functions and needs no runs: four slots, trials of log-normal length, best value after 60.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna

from shoal.kernel.trials import STARTUP_TRIALS, BoundTrial, Trial
from shoal.search.sampling import distributions, sample_point

SHOAL = Path(sys.executable).with_name("shoal")
SLOTS, TRIALS, LENGTH_S = 4, 60, 0.3
BOUND_S = TRIALS * LENGTH_S / SLOTS
PROGRAM = """\
import json, math, os, sys, time
time.sleep(0.3)
loss = (math.log10(float(sys.argv[1])) + 2) ** 2 + float(sys.argv[2])
with open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "metrics.json"), "w") as file:
    json.dump({"loss": loss}, file)
"""
SEARCH = """\
[search]
metric = "loss"
trials = 60
sampler = "SAMPLER"
"""
FILE = f"""\
command = [PYTHON, "-I", "-S", "train.py", "{{lr}}", "{{x}}"]
{SEARCH}
[sweep]
lr = {{ log_uniform = [1e-5, 1] }}
x = {{ uniform = [0, 1] }}
"""
SPACE: dict[str, dict[str, Any]] = {
    "lr": {"log_uniform": [1e-5, 1.0]},
    "depth": {"integers": [1, 12]},
    "dropout": {"uniform": [0.0, 0.6]},
    "optimizer": {"choice": ["sgd", "adam", "muon"]},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    speed()
    quality(seeds)


def speed() -> None:
    print("| 60 trials of 0.3 s, 4 slots | s | bound s | ratio | goal |\n|---|---|---|---|---|")
    for sampler in ("", "random", "tpe"):
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
            engine_s, command_s = _search(Path(name), sampler)
        name = sampler or "the same as a sweep, no search"
        for what, seconds in (("first start to last end", engine_s), ("all of `shoal submit`", command_s)):
            ratio = seconds / BOUND_S
            print(
                f"| {name}: {what} | {seconds:.2f} | {BOUND_S:.2f} | {ratio:.2f} | 1.4 |",
                flush=True,
            )


def _search(folder: Path, sampler: str) -> tuple[float, float]:
    (folder / "shoal.toml").write_text("snapshot = false\n")
    (folder / "train.py").write_text(PROGRAM)
    path = folder / "experiments/001_s/000_train.toml"
    path.parent.mkdir(parents=True)
    text = FILE.replace("SAMPLER", sampler) if sampler else FILE.replace(SEARCH, "num_samples = 60\n")
    path.write_text(text.replace("PYTHON", json.dumps(sys.executable)))
    env = {**os.environ, "SHOAL_ON": "local", "HOME": str(folder)}
    begin = time.monotonic()
    words = [SHOAL, "submit", path, "--layout", "pack", "--slots", str(SLOTS), "-q"]
    subprocess.run([str(word) for word in words], cwd=folder, env=env, check=True, capture_output=True)
    command_s = time.monotonic() - begin
    report = subprocess.run([str(SHOAL), "report", "--json"], cwd=folder, env=env, check=True, capture_output=True)
    attempts = [attempt for run in json.loads(report.stdout)["runs"] for attempt in run["attempts"]]
    ends, starts = [one["ended"] for one in attempts], [one["started"] for one in attempts]
    return max(ends) - min(starts), command_s


def training_loss(params: Mapping[str, Any]) -> float:
    """As a training answers to its settings; the best is 0.2."""
    rate = (math.log10(params["lr"]) + 2.5 + 0.1 * params["depth"]) ** 2
    penalty = {"sgd": 0.05, "adam": 0.02, "muon": 0.0}[params["optimizer"]]
    others = 0.004 * abs(params["depth"] - 8) + 0.2 * (params["dropout"] - 0.1) ** 2
    return 0.2 + 0.05 * float(rate) + float(others) + penalty


Ask = Callable[[int, list[tuple[int, dict[str, Any], float]], list[dict[str, Any]]], dict[str, Any]]


def quality(seeds: int) -> None:
    print(
        f"\n| best of 60 trials, 4 slots, {seeds} seeds (min 0.2) | median | mean | standard error |\n|---|---|---|---|"
    )
    makers: dict[str, Callable[[int], Ask]] = {
        "random": lambda seed: _ask_shoal(seed, "random"),
        "plain Optuna TPE (ask and tell)": _ask_optuna,
        "shoal TPE (study from records)": lambda seed: _ask_shoal(seed, "tpe"),
        "shoal CMA-ES (generations from records)": lambda seed: _ask_shoal(seed, "cmaes"),
    }
    for name, make in makers.items():
        best = [_simulate(make(seed), seed) for seed in range(seeds)]
        error = statistics.stdev(best) / math.sqrt(len(best)) if len(best) > 1 else math.nan
        print(f"| {name} | {statistics.median(best):.4f} | {statistics.mean(best):.4f} | {error:.4f} |", flush=True)


def _simulate(ask: Ask, seed: int) -> float:
    """Four slots; an ask knows what has ended by then, and the points under way."""
    lengths = random.Random(seed)
    running: list[tuple[float, int, dict[str, Any]]] = []
    ended: list[tuple[int, dict[str, Any], float]] = []
    now = 0.0
    for trial in range(TRIALS):
        if len(running) == SLOTS:
            now, number, params = heapq.heappop(running)
            ended.append((number, params, training_loss(params)))
        point = ask(trial, ended, [params for _, _, params in running])
        heapq.heappush(running, (now + lengths.lognormvariate(0, 0.5), trial, point))
    return min(training_loss(params) for _, _, params in (*((0.0, n, p) for n, p, _ in ended), *running))


def _ask_shoal(seed: int, sampler: str) -> Ask:
    source = random.Random(seed + 1000)

    def drawn() -> dict[str, Any]:
        return {
            "lr": 10 ** source.uniform(-5, 0),
            "depth": source.randint(1, 12),
            "dropout": source.uniform(0, 0.6),
            "optimizer": source.choice(SPACE["optimizer"]["choice"]),
        }

    def ask(
        trial: int, ended: list[tuple[int, dict[str, Any], float]], running: list[dict[str, Any]]
    ) -> dict[str, Any]:
        if sampler == "random" or (sampler == "tpe" and trial < STARTUP_TRIALS):
            return drawn()
        known = [_trial(n, params, "completed", value, at) for at, (n, params, value) in enumerate(ended)]
        known += [_trial(TRIALS + at, params, "running", None, 0) for at, params in enumerate(running)]
        search = {"trial": trial, "sampler": sampler, "seed": seed, "space": SPACE, "direction": "min"}
        point = sample_point(search, {}, known)
        return drawn() if point is None else point["params"]

    return ask


def _trial(number: int, params: dict[str, Any], state: str, value: float | None, at: int) -> Trial:
    return Trial(f"t{number}", BoundTrial(number, params, {}, [None], "tpe", 0, 0.0), state, value, None, float(at))


def _ask_optuna(seed: int) -> Ask:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    space = distributions(SPACE)
    asked: dict[int, Any] = {}
    told: set[int] = set()

    def ask(
        trial: int, ended: list[tuple[int, dict[str, Any], float]], running: list[dict[str, Any]]
    ) -> dict[str, Any]:
        for number, _, value in ended:
            if number not in told:
                study.tell(asked[number], value)
                told.add(number)
        asked[trial] = study.ask(space)
        return dict(asked[trial].params)

    return ask


if __name__ == "__main__":
    main()
