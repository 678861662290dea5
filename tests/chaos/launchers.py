"""What is tested: shoal, a loop over sbatch with marker files, and submitit; each is driven by its commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from chaos.plan import Plan
from chaos.world import LEASE_S, World
from ledger import keeping_ledger
from project import SHOAL, Project

LAYOUTS = {
    "001_jobs": ("--layout", "job", "--on", "here"),
    "002_array": ("--layout", "array", "--on", "here"),
    "003_pack": ("--layout", "pack", "--slots", "2", "--time", "5m", "--on", "here"),
    "004_pilots": ("--layout", "pilots", "--pilots", "2", "--slots", "1", "--time", "5m", "--on", "here"),
    "005_local": ("--on", "local"),
}
RUNS_EACH = {"001_jobs": 4, "002_array": 4, "003_pack": 4, "004_pilots": 4, "005_local": 2}
RUNS = [f"{layout}/000_work_{seed}" for layout, count in RUNS_EACH.items() for seed in range(count)]
TOML = """
[clusters.here]
match = {{ host = "*" }}
setup = "export SHOAL_LEASE_S={lease} SHOAL_GRACE_S=2 LD_PRELOAD={library} CHAOS_CLOCK={clock}"

[steps.work]
command = [{python}, "-S", {program}, "plan", "save"]
checkpoint = "model_*.pth"
"""
SWEEP_FILE = 'step = "work"\nseeds = "0-{last}"\n[request]\ntime = "5m"\nmemory = "50M"\n'


class Said(NamedTuple):
    """What a launcher says about a run."""

    state: str
    exit_code: int | None


class Launcher(Protocol):
    agent_word: str
    """A word in the command line of the processes that stand between Slurm and the program."""
    state_dir: Path
    root: Path

    @property
    def env(self) -> Mapping[str, str]: ...

    def argv(self, kind: str, pick: int) -> list[str]: ...

    def submit_argv(self, runs: list[str]) -> list[list[str]]: ...

    def parse_status(self, text: str) -> dict[str, Said]: ...


class ShoalLauncher:
    def __init__(self, world: World, plan: Plan) -> None:
        words = {
            "lease": LEASE_S,
            "library": world.clock_library,
            "clock": world.clock,
            "python": json.dumps(sys.executable),
            "program": json.dumps(world.ledger.program),
        }
        project = keeping_ledger(Project(world.disk, world.sandbox, toml=TOML.format(**words)), world.ledger)
        for layout, count in RUNS_EACH.items():
            project.write(f"experiments/{layout}/000_work.toml", SWEEP_FILE.format(last=count - 1))
        project.env.update(SHOAL_LEASE_S=str(LEASE_S), SHOAL_SUBMIT_GRACE_S="12", SHOAL_GRACE_S="2")
        self.root = project.root
        self.env = project.env
        self.state_dir = project.home
        self.agent_word = str(project.home / "agent")

    def argv(self, kind: str, pick: int) -> list[str]:
        layout = list(LAYOUTS)[pick % len(LAYOUTS)]
        run = RUNS[pick % len(RUNS)]
        words = {
            "submit": ["submit", f"experiments/{layout}", *LAYOUTS[layout], "--yes"],
            "retry": ["retry", layout],
            "resume": ["resume", run],
            "cancel": ["cancel", run, "--yes"],
            "status": ["status", "--json"],
        }
        return [str(SHOAL), *words[kind]]

    def submit_argv(self, runs: list[str]) -> list[list[str]]:
        layouts = sorted({run.partition("/")[0] for run in runs})
        return [self.argv("submit", list(LAYOUTS).index(layout)) for layout in layouts]

    def parse_status(self, text: str) -> dict[str, Said]:
        return {run["name"]: Said(run["state"], run["exit_code"]) for run in json.loads(text)["runs"]}


class ScriptLauncher:
    """A launcher that is one small script (naive.py, with_submitit.py) with the words submit, cancel and status."""

    def __init__(self, world: World, plan: Plan, python: str, script: str, agent_word: str) -> None:
        self.root = self.state_dir = world.disk / "launcher"
        self.root.mkdir()
        self.agent_word = agent_word
        self.env = {**world.sandbox.env(), "TMPDIR": str(world.folder)}
        config = {"runs": RUNS, "program": world.ledger.program, "env": world.clock_env(), "python": sys.executable}
        (world.folder / "config.json").write_text(json.dumps(config))
        self._command = [python, str(Path(__file__).with_name(script)), str(self.root), f"{world.folder}/config.json"]

    def argv(self, kind: str, pick: int) -> list[str]:
        word = kind if kind in ("status", "cancel") else "submit"
        return [*self._command, word, *([RUNS[pick % len(RUNS)]] if word == "cancel" else [])]

    def submit_argv(self, runs: list[str]) -> list[list[str]]:
        return [self.argv("submit", 0)]

    def parse_status(self, text: str) -> dict[str, Said]:
        return {name: Said(state, code) for name, (state, code) in json.loads(text).items()}


def make_launcher(name: str, world: World, plan: Plan) -> Launcher:
    if name == "shoal":
        return ShoalLauncher(world, plan)
    if name == "naive":
        return ScriptLauncher(world, plan, sys.executable, "naive.py", str(world.sandbox.layout.spool))
    return ScriptLauncher(world, plan, submitit_python(), "with_submitit.py", "submitit.core._submit")


def submitit_python() -> str:
    """The Python of an environment that has submitit, made when it is asked for; `CHAOS_VENV` says where."""
    folder = Path(os.environ.get("CHAOS_VENV") or "/tmp/shoal-chaos-submitit")
    python = folder / "bin" / "python"
    if not python.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "submitit==1.5.4"], check=True)
    return str(python)
