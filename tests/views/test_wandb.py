"""The tracker agrees without code: the real wandb, offline, finds the run's id, name and group in its environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from project import Project

RUN = "001_example/000_pretrain1_0"
PROGRAM = """\
import json, os, sys
import wandb
with wandb.init(project="test", dir=os.environ["SHOAL_OUTPUT_DIR"]) as run:
    run.log({"loss": 1.0})
    told = {"id": run.id, "name": run.name, "group": run.group, "dir": run.dir}
with open(os.path.join(sys.argv[1], os.environ["SHOAL_ATTEMPT"] + ".json"), "w") as file:
    json.dump(told, file)
with open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "model_1.pth"), "w") as file:
    file.write("x")
sys.exit(1 if os.environ["SHOAL_ATTEMPT"] == "1" else 0)
"""


def test_two_attempts_of_a_run_are_one_run_of_the_tracker(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="pip install -e '.[test]' brings wandb")
    project = Project(tmp_path)
    project.write("wb.py", PROGRAM)
    command = json.dumps([sys.executable, str(project.root / "wb.py"), str(tmp_path)])
    project.write(
        "shoal.toml", f'[steps.train]\ncommand = {command}\noutput = "training"\ncheckpoint = "model_*.pth"\n'
    )
    script = project.script("001_example/000_pretrain1_0.sh", "train")
    project.env |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    project.bash(script, code=1)
    project.shoal("resume", RUN, "--yes")
    first, second = (json.loads((tmp_path / f"{attempt}.json").read_text()) for attempt in (1, 2))
    assert first["id"] == second["id"] and first["id"].startswith("001_example-000_pretrain1_0-")
    for told in (first, second):
        assert (told["name"], told["group"]) == (RUN, "001_example")
        (kept,) = Path(told["dir"]).parent.glob("run-*.wandb")
        assert kept.name == f"run-{first['id']}.wandb"
    again = project.shoal("submit", script, "--again")
    third = json.loads((tmp_path / "3.json").read_text())
    assert third["id"] != first["id"] and third["name"] == RUN, again.out
