"""What machines read: every document validates against the published schema, errors included; and completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from made_up import MadeUp, picture
from shoal.cli import COMMANDS
from shoal.model import STATES
from shoal.views.completing import SCRIPTS, candidates

jsonschema = pytest.importorskip("jsonschema")
referencing = pytest.importorskip("referencing")

SCHEMAS = Path(__file__).parent.parent / "docs" / "schema"
SHOAL = Path(sys.executable).with_name("shoal")


def validator(name: str) -> Any:
    found = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    resources = [(one["$id"], referencing.Resource.from_contents(one)) for one in found.values()]
    return jsonschema.Draft202012Validator(found[name], registry=referencing.Registry().with_resources(resources))


@pytest.fixture
def made(tmp_path: Path) -> MadeUp:
    return picture(tmp_path / "project")


def shoal(made: MadeUp, *words: str) -> str:
    env = {**os.environ, "PATH": f"{SHOAL.parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run([SHOAL, *words], cwd=made.root, env=env, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("status", ["status"]),
        ("status", ["status", "--state", "failed", "--tasks"]),
        ("why", ["why", "001_lr/000_train_3"]),
        ("why", ["why", "001_lr/000_train_0"]),
        ("why", ["why", "002_new/000_train_0"]),
        ("logs", ["logs", "001_lr/000_train_3"]),
        ("logs", ["logs", "001_lr", "-n", "1"]),
        ("logs", ["logs", "--errors"]),
        ("report", ["report", "001_lr"]),
        ("report", ["report"]),
        ("error", ["why", "nothing"]),
        ("error", ["status", "--state", "broken"]),
    ],
)
def test_json_is_as_published(made: MadeUp, schema: str, words: list[str]) -> None:
    document = json.loads(shoal(made, *words, "--json"))
    errors = [f"{list(error.absolute_path)}: {error.message}" for error in validator(schema).iter_errors(document)]
    assert errors == []


def test_lines_of_a_watch_are_as_published(made: MadeUp) -> None:
    lines = shoal(made, "watch", "001_lr/000_train_3", "001_lr/000_train_0", "--all", "--json").splitlines()
    assert len(lines) == 3
    for line in lines:
        validator("watch").validate(json.loads(line))


def test_schemas_are_schemas_and_know_every_state() -> None:
    for path in SCHEMAS.glob("*.json"):
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))
    run = json.loads((SCHEMAS / "run.json").read_text())
    assert set(run["properties"]["state"]["enum"]) == set(STATES)


def test_every_published_key_of_a_run_is_there_and_no_other(made: MadeUp) -> None:
    run = json.loads(shoal(made, "status", "--json"))["runs"][0]
    assert set(run) == set(json.loads((SCHEMAS / "run.json").read_text())["properties"])


def test_completion_knows_commands_flags_runs_and_states(made: MadeUp) -> None:
    def at_end(*words: str) -> list[str]:
        return candidates(["shoal", *words], len(words), made.home)

    assert at_end("sta") == ["status"] and set(at_end("")) >= {name for group in COMMANDS.values() for name in group}
    assert at_end("logs", "--err") == ["--err", "--errors"]
    assert "001_lr/000_train_3" in at_end("why", "001_lr/000_") and at_end("why", "002")[0] == "002_new"
    assert "000_train_0" in at_end("why", "000_train")
    assert at_end("status", "--state", "failed,o") == ["failed,oom"]
    assert at_end("status", "--columns", "+gp") == ["+gpus", "+gpu"]
    assert at_end("nonsense", "x") == [] and at_end("submit", "exp") == []
    assert candidates(["shoal", "why", ""], 2, None) == []


def test_the_shells_own_lines_work_and_slurm_is_not_asked(made: MadeUp, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    for program in ("squeue", "sacct", "scontrol", "sinfo"):
        (trap / program).write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
        (trap / program).chmod(0o755)
    words = "COMP_WORDS=(shoal why 001_lr/000_train_3); COMP_CWORD=2"
    line = f'eval "$(shoal completion bash)"; {words}; _shoal; echo "${{COMPREPLY[@]}}"'
    env = {**os.environ, "PATH": f"{trap}{os.pathsep}{SHOAL.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], cwd=made.root, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["001_lr/000_train_3"] and not (tmp_path / "asked").exists()
    assert set(SCRIPTS) == {"bash", "zsh", "fish"}
    assert "which shell" in subprocess.run([SHOAL, "completion"], capture_output=True, text=True, timeout=60).stderr
