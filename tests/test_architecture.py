"""docs/architecture.md is true: what it names exists, and a traced run calls the functions of its walk in order."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from test_imports import ORDER

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "shoal"
TEXT = (ROOT / "docs" / "architecture.md").read_text("utf-8")
#: `plan/submissions.py`, `plan/submissions.py:plan_submissions`, `tests/golden`, `kernel/`
_FILE = re.compile(r"`((?:docs|tests|plugins)/[\w./-]+|[\w./-]+(?:\.py|\.md|/))(?::(\w+))?`")
#: Directories of a user's project, which are not in this repository.
_USER_DIRECTORIES = (".shoal/", "experiments/")
PROJECT = """\
[steps.train]
command = ["/bin/true"]
launch = "srun"
request = { cpus = 1, memory = "10M", time = "10m" }
"""
#: Appends each function of ours to a file when it is called first, not what happens while a module is imported.
HOOK = """\
import os, sys, threading
_seen = set()
def _is_ours(path):
    return ("/shoal/" in path or "/shoal_agent/" in path) and not path.endswith("__main__.py")
def _called(frame, event, _):
    key = (frame.f_code.co_filename, frame.f_code.co_name)
    if event != "call" or key in _seen or not _is_ours(key[0]):
        return
    back = frame
    while back is not None:
        if back.f_code.co_name == "<module>" and _is_ours(back.f_code.co_filename):
            return
        back = back.f_back
    _seen.add(key)
    log = os.open(TRACE_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, "\\t".join(key).encode() + b"\\n")
    os.close(log)
threading.setprofile(_called)
sys.setprofile(_called)
"""
#: The agent of the traced project begins with the hook, too: it traces itself, its launcher and its ranks.
DRIVER = """\
import sys
log, hook, *words = sys.argv[1:]
from shoal.cli import main
from shoal.job import zipapp
zipapp._MAIN_SOURCE = f"TRACE_FILE = {log + '.job'!r}\\n{hook}{zipapp._MAIN_SOURCE}"
exec(f"TRACE_FILE = {log!r}\\n{hook}")
sys.exit(main(words))
"""


def _path(name: str) -> Path:
    return ROOT / name if name.startswith(("src/", "docs/", "tests/", "plugins/", "CHANGELOG")) else SRC / name


@cache
def _defined(path: Path) -> set[str]:
    """Functions, methods, classes and values of a module."""
    tree = ast.parse(path.read_text("utf-8"))
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _named(text: str) -> list[tuple[str, str]]:
    """(file, function or nothing) for what a text names, in its order."""
    return [(name, inside) for name, inside in _FILE.findall(text) if not name.startswith(_USER_DIRECTORIES)]


def _walk(heading: str) -> str:
    """The text of one half of the walk, without what only happens on Slurm."""
    part = TEXT.split(f"\n### {heading}\n", 1)[1].split("\n##", 1)[0].split("\n\n`shoal status`", 1)[0]
    return re.sub(r"^   - On Slurm:.*\n(?:     .*\n)*", "", part + "\n", flags=re.MULTILINE)


def test_every_file_and_function_that_the_page_names_exists() -> None:
    named = _named(TEXT)
    assert len(named) > 150, "the pattern finds too little"
    missing = [name for name, _ in named if not _path(name).exists()]
    unknown = [
        f"{name}:{inside}"
        for name, inside in named
        if inside and _path(name).exists() and inside not in _defined(_path(name))
    ]
    assert (missing, unknown) == ([], [])


def test_the_page_lists_every_package_in_import_order() -> None:
    table = TEXT.split("\n## Packages\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `(\w+)(?:\.py|/)` \| \S", table, re.MULTILINE)
    assert rows == list(ORDER)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """(file, function) in the order of first calls, of the command and of the job, of one run on this machine."""
    root = tmp_path_factory.mktemp("project")
    (root / "shoal.toml").write_text(PROJECT)
    script = root / "experiments" / "001_a" / "000_train_0.sh"
    script.parent.mkdir(parents=True)
    script.write_text('source "$(shoal shell)"\ntrain\n')
    log = root.parent / "calls"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "SLURM_"))}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(log), HOOK, "submit", str(script), "--on", "local"],
        cwd=root,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert len(list((root / ".shoal" / "runs" / "001_a" / "000_train_0").glob("attempt.1.end"))) == 1
    return {"command": _calls(log), "job": _calls(log.with_name("calls.job"))}


def _calls(log: Path) -> list[tuple[str, str]]:
    lines = (line.split("\t") for line in log.read_text().splitlines())
    return [(re.split(r"/src/shoal/|/shoal_agent/", path)[-1], function) for path, function in lines]


@pytest.mark.slow
@pytest.mark.parametrize(("heading", "side"), [("The submitting side", "command"), ("Inside the job", "job")])
def test_a_traced_run_passes_the_walk_in_its_order(
    traced: dict[str, list[tuple[str, str]]], heading: str, side: str
) -> None:
    calls, named = traced[side], _named(_walk(heading))
    steps = [step for step in named if step[1]]
    assert len(steps) > 25, "the walk is not read as it is written"
    assert [step for step in steps if step not in calls] == []
    order = [calls.index(step) for step in steps]
    assert [step for step, here, before in zip(steps[1:], order[1:], order, strict=False) if here <= before] == []
    files = {name for name, _ in calls}
    # The start of the zip is text in zipapp.py; it runs under the name of the zip.
    assert {name for name, inside in named if not inside} - files - {"job/zipapp.py"} == set()
