"""Run a small example on this machine: a training that crashes, is resumed, post-trained with three seeds, evaluated.

shoal demo                      in a new folder under the system's temporary one
shoal demo --dir my-first       where you can look around afterwards
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.errors import InputError, ShoalError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, help="copy the example project there (must be new or empty)")


def run(args: argparse.Namespace) -> None:
    import tempfile

    target = args.dir.absolute() if args.dir else Path(tempfile.mkdtemp(prefix="shoal-demo-"))
    copy_project(target)
    run_demo(target, print)
    shoal = "shoal" if shutil.which("shoal") else os.path.abspath(sys.argv[0])
    print(f"\nLook around:\n  cd {target}\n  {shoal} logs 011_posttrain1_1\n  {shoal} report 001_example")


_EXPERIMENT = "experiments/001_example"
#: What is told, what is typed, and the exit code that it must have.
DEMO_STEPS: tuple[tuple[str, tuple[str, ...], dict[str, str], int], ...] = (
    (
        "A pre-training that fails half-way: its state, reason and log are kept.",
        ("bash", f"{_EXPERIMENT}/000_pretrain1_0.sh"),
        {"CRASH_AT": "25"},
        1,
    ),
    ("", ("shoal", "status"), {}, 0),
    ("Resume it: same name, same folder, from its newest checkpoint.", ("shoal", "resume", "000_pretrain1_0"), {}, 0),
    (
        "Now the whole experiment. Completed runs are left alone; three seeds of post-training start from the newest\n"
        "checkpoint of the pre-training, named and not pasted, and each is evaluated.",
        ("shoal", "submit", _EXPERIMENT),
        {},
        0,
    ),
    ("Everything has one name: run, folder, log, and on a cluster the Slurm job.", ("shoal", "status", "--all"), {}, 0),
)


def copy_project(target: Path) -> None:
    """Put the example project at `target`, which must not exist or be empty."""
    if target.exists() and any(target.iterdir()):
        raise InputError(f"{target} is not empty", hint=f"shoal demo --dir {target}-2")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(__file__).with_name("demo_project"), target, dirs_exist_ok=True, ignore=ignored)


def run_demo(target: Path, say: Callable[[str], None]) -> None:
    """Run the story in `target` on this machine; a step that does not go as told is an error."""
    # One list of what a person would type; the programs' own output appears as it does for them.
    program = os.path.abspath(sys.argv[0])
    base = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "SLURM_"))}
    env = {**base, "SHOAL_ON": "local", "PATH": f"{os.path.dirname(program)}{os.pathsep}{base.get('PATH', os.defpath)}"}
    for text, words, extra, expected in DEMO_STEPS:
        if text:
            say(f"\n# {text.replace(chr(10), chr(10) + '# ')}")
        say(f"$ {shlex.join(words)}")
        code = _run_demo_step(words, target, {**env, **extra})
        if code != expected:
            raise ShoalError(f"{shlex.join(words)} ended with {code}, not {expected}", hint=f"ls {target}")


def _run_demo_step(words: Sequence[str], folder: Path, env: dict[str, str]) -> int:
    sys.stdout.flush()
    return subprocess.run(words, cwd=folder, env=env, stderr=subprocess.STDOUT, check=False).returncode
