"""Searches while engines, samplers and commands are killed at random: `make search-chaos SEEDS=20`, or

cd tests && python -m search_chaos --seeds 20

For each seed: 60 trials on 4 slots of this machine, three rounds that end with a kill -9, then one that is left alone.
Judged from what the program itself wrote down and from the records: a trial is lost if it has not completed, and ran
twice if it has two good ends, if two of its attempts overlapped, or if they had different parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from project import Project, end_process, project_here
from shoal.kernel import best_trial
from shoal.kernel.trials import TrialReader

TRIALS, SLOTS, ROUNDS = 60, 4, 3
PROGRAM = """\
import json, math, os, sys, time
def mark(what):
    line = {"what": what, "t": time.monotonic(), "args": sys.argv[1:]}
    with open(os.path.join(ROOT, "marks", os.environ["SHOAL_RUN"].replace("/", ".")), "a") as file:
        file.write(json.dumps(line) + "\\n")
mark("start")
time.sleep(0.1)
with open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "metrics.json"), "w") as file:
    json.dump({"loss": (math.log10(float(sys.argv[1])) + 2) ** 2 + float(sys.argv[2])}, file)
mark("end")
"""
FILE = """\
command = [{python}, "-I", "-S", {program}, "{{lr}}", "{{x}}"]
[search]
metric = "loss"
trials = {trials}
seed = {seed}
[sweep]
lr = {{ log_uniform = [1e-5, 1] }}
x = {{ uniform = [0, 1] }}
"""


class Verdict(NamedTuple):
    lost: list[str]
    twice: list[str]
    kills: list[str]
    best: float


def search_under_faults(folder: Path, seed: int, rounds: int = ROUNDS) -> Verdict:
    project = project_here(folder, SHOAL_LEASE_S="3")
    project.write("learn.py", f"ROOT = {str(project.root)!r}\n{PROGRAM}")
    words = {"python": json.dumps(sys.executable), "program": json.dumps(str(project.root / "learn.py"))}
    path = project.write("experiments/001_s/000_train.toml", FILE.format(trials=TRIALS, seed=seed, **words))
    source = random.Random(seed)
    command = ("submit", path, "--layout", "pack", "--slots", SLOTS)
    kills = []
    for _ in range(rounds):
        begun = project.start(*command)
        try:
            kills.append(_kill_one(project, begun, source))
        finally:
            end_process(begun)
    for _ in range(5):
        project.shoal(*command, code=None)
        if not _unfinished(project):
            break
    return _judge(project, kills)


def _kill_one(project: Project, begun: subprocess.Popen[str], source: random.Random) -> str:
    """Kill an engine, its sampler or the command, at a moment in the life of the pack."""
    seen = len(_bound(project))
    until = time.monotonic() + 60
    after = source.randint(1, 14)
    while len(_bound(project)) < min(TRIALS, seen + after) and begun.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    whom = source.choice(["engine", "engine", "sampler", "command"])
    if whom == "command":
        return whom
    wanted = b"shoal.search" if whom == "sampler" else b".pyz"
    victims = [pid for pid in _below(begun.pid) if wanted in _command_line(pid)]
    if victims:
        _signal(source.choice(victims))
    if whom == "sampler":
        begun.wait(300)  # the search goes on with random draws
    return whom if victims else "nothing"


def _below(pid: int) -> list[int]:
    """All descendants of a process."""
    try:
        children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []
    return [found for child in children for found in (child, *_below(child))]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _bound(project: Project) -> list[Path]:
    return list((project.home / "search" / "001_s").glob("*.json"))


def _unfinished(project: Project) -> list[str]:
    found = {name for name, run in project.status().items() if run["state"] == "completed"}
    names = [f"001_s/000_train_t{number:03d}" for number in range(TRIALS)]
    return [name for name in names if name not in found]


def _judge(project: Project, kills: list[str]) -> Verdict:
    lost = _unfinished(project)
    twice = []
    for number in range(TRIALS):
        name = f"001_s/000_train_t{number:03d}"
        good = [end for end in project.records(name, "attempt.*.end") if end["success"]]
        starts, ends = project.marks(name), project.marks(name, "end")
        if len(good) > 1 or len({str(mark["args"]) for mark in starts}) > 1 or _overlap(starts, ends):
            twice.append(name)
    trials = TrialReader(str(project.home), "001_s", "000_train", "loss").read()
    best = best_trial(trials, "min")
    return Verdict(lost, twice, kills, best.value if best is not None and best.value is not None else float("nan"))


def _overlap(starts: list[dict[str, Any]], ends: list[dict[str, Any]]) -> bool:
    """Whether a program began while another one of the same trial ran, which then came to its end: more of them end
    after a start than begin from there on."""
    return any(
        sum(end["t"] > begun["t"] for end in ends) > sum(start["t"] >= begun["t"] for start in starts)
        for begun in starts
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    lost = twice = 0
    for seed in range(args.first, args.first + args.seeds):
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="search-chaos-") as name:
            verdict = search_under_faults(Path(name), seed)
        lost, twice = lost + len(verdict.lost), twice + len(verdict.twice)
        told = f"lost {len(verdict.lost)}, twice {len(verdict.twice)}, best {verdict.best:.4f}"
        print(f"seed {seed}: {told}, killed {', '.join(verdict.kills)}; {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{args.seeds} seeds x {TRIALS} trials: lost {lost}, twice {twice}")
    return 1 if lost or twice else 0


if __name__ == "__main__":
    sys.exit(main())
