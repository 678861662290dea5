"""Trackers agree without code: the real W&B, MLflow, TensorBoard and Comet find the run's name in its environment."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from project import Project
from shoal.job import trackers

#: The file store, which needs no server, wants to be asked for; a busy machine is slow to read it.
QUIET_MLFLOW = {"MLFLOW_ALLOW_FILE_STORE": "true", "SHOAL_MLFLOW_S": "120"}
RUN = "001_example/000_pretrain1_0"
SPEC = {"experiment": "001_example", "stem": "000_pretrain1_0", "step": "pretrain1", "seed": 0, "tracker_id": "an-id"}

WANDB = """\
import wandb
with wandb.init(project="test", dir=os.environ["SHOAL_OUTPUT_DIR"]) as run:
    run.log({"loss": 1.0})
    told = {"id": run.id, "name": run.name, "group": run.group, "dir": run.dir, "type": run.job_type, "tags": run.tags}
"""
MLFLOW = """\
import mlflow
with mlflow.start_run() as run:
    mlflow.log_metric("loss", 1.0, step=int(os.environ["SHOAL_ATTEMPT"]))
    found = mlflow.MlflowClient().get_run(run.info.run_id)
    told = {"id": run.info.run_id, "name": found.info.run_name, "tags": dict(found.data.tags),
            "experiment": mlflow.get_experiment(found.info.experiment_id).name}
"""
COMET = """\
import comet_ml
run = comet_ml.start(online=False)
run.log_metric("loss", 1.0)
told = {"id": run.get_key(), "name": run.get_name(), "project": run.project_name}
run.end()
"""
#: The first attempt fails after it has used the tracker and saved a checkpoint, so that the second one continues.
PROGRAM = """\
import json, os, sys
{tracker}
with open(os.path.join(sys.argv[1], os.environ["SHOAL_ATTEMPT"] + ".json"), "w") as file:
    json.dump(told, file)
with open(os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "model_1.pth"), "w") as file:
    file.write("x")
sys.exit(1 if os.environ["SHOAL_ATTEMPT"] == "1" else 0)
"""


def tracked_project(folder: Path, tracker: str, **env: str) -> tuple[Project, Path]:
    """A project whose program uses a tracker, and its script."""
    project = Project(folder)
    project.write("tracked.py", PROGRAM.format(tracker=tracker))
    command = json.dumps([sys.executable, str(project.root / "tracked.py"), str(folder)])
    project.write(
        "shoal.toml", f'[steps.train]\ncommand = {command}\noutput = "training"\ncheckpoint = "model_*.pth"\n'
    )
    project.env |= env
    return project, project.script("001_example/000_pretrain1_0.sh", "train")


def told_by(folder: Path, attempt: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{attempt}.json").read_text())
    return found


@pytest.mark.slow
def test_two_attempts_of_a_run_are_one_run_of_wandb(tmp_path: Path) -> None:
    project, script = tracked_project(tmp_path, WANDB, WANDB_MODE="offline", WANDB_SILENT="true")
    project.bash(script, code=1)
    project.shoal("resume", RUN, "--yes")
    first, second = told_by(tmp_path, 1), told_by(tmp_path, 2)
    assert first["id"] == second["id"] and first["id"].startswith("001_example-000_pretrain1_0-")
    for told in (first, second):
        assert (told["name"], told["group"], told["type"]) == (RUN, "001_example", "pretrain1")
        assert set(told["tags"]) == {"001_example", "pretrain1", "seed0"}
        (kept,) = Path(told["dir"]).parent.glob("run-*.wandb")
        assert kept.name == f"run-{first['id']}.wandb"
    again = project.shoal("submit", script, "--rerun")
    third = told_by(tmp_path, 3)
    assert third["id"] != first["id"] and third["name"] == RUN, again.out


@pytest.mark.slow
def test_two_attempts_of_a_run_are_one_run_of_mlflow(tmp_path: Path) -> None:
    """With a store that all runs share; a rerun is another MLflow run of the same name."""
    project, script = tracked_project(tmp_path, MLFLOW, MLFLOW_TRACKING_URI=f"file:{tmp_path}/store", **QUIET_MLFLOW)
    project.bash(script, code=1)
    project.shoal("resume", RUN, "--yes")
    first, second = told_by(tmp_path, 1), told_by(tmp_path, 2)
    assert first["id"] == second["id"]
    for told in (first, second):
        assert (told["name"], told["experiment"], told["tags"]["shoal.run"]) == (RUN, "001_example", RUN)
    project.shoal("submit", script, "--rerun")
    third = told_by(tmp_path, 3)
    assert third["id"] != first["id"] and third["name"] == RUN


@pytest.mark.slow
def test_an_mlflow_server_that_does_not_answer_costs_two_seconds_and_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        project, script = tracked_project(tmp_path, "told = {}", MLFLOW_TRACKING_URI=address)
        project.bash(script, code=1)
        project.shoal("resume", RUN, "--yes")
    log = Path(project.status()[RUN]["output_dir"], "attempt-2.out").read_text()
    assert "this attempt is a new MLflow run: cannot search for the earlier one: no answer within 2 s" in log


@pytest.mark.slow
def test_without_mlflow_a_second_attempt_starts_as_always(tmp_path: Path) -> None:
    project, script = tracked_project(tmp_path, "told = {'run': os.environ.get('MLFLOW_RUN_ID')}")
    python = tmp_path / "python3"  # a Python that finds no packages
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    toml = (project.root / "shoal.toml").read_text().replace(json.dumps(sys.executable), json.dumps(str(python)))
    project.write("shoal.toml", toml)
    project.env["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:1"
    project.bash(script, code=1)
    project.shoal("resume", RUN, "--yes")
    assert told_by(tmp_path, 2) == {"run": None}


@pytest.mark.slow
def test_comet_offline_has_the_name_and_one_key_for_all_attempts(tmp_path: Path) -> None:
    project, script = tracked_project(tmp_path, COMET, COMET_LOGGING_CONSOLE="ERROR", COMET_DISABLE_AUTO_LOGGING="1")
    project.bash(script, code=1)
    project.shoal("resume", RUN, "--yes")
    first, second = told_by(tmp_path, 1), told_by(tmp_path, 2)
    assert first["id"] == second["id"] and first["id"].isalnum() and 32 <= len(first["id"]) <= 50
    assert (first["name"], first["project"]) == (RUN, "001_example")
    assert list(Path(project.status()[RUN]["output_dir"], "comet").glob("*.zip"))


@pytest.mark.slow
def test_aim_continues_one_run_with_the_lines_of_the_page(tmp_path: Path) -> None:
    """Aim has no variable for a run; the first attempt is killed, so that Aim's lock stays."""
    pytest.importorskip("aim")
    page = (Path(__file__).parents[2] / "docs/trackers.md").read_text()
    lines = page.partition("```python aim\n")[2].partition("```")[0]
    used = (
        'tracked = [metric.name for metric in run.metrics() if metric.name == "loss"]\n'
        'told = {"id": run.hash, "name": run.name, "experiment": run.experiment, "tracked": tracked}\n'
        'run.track(1.0, name="loss", step=int(os.environ["SHOAL_ATTEMPT"]))\n'
        'run.close() if os.environ["SHOAL_ATTEMPT"] == "2" else None\n'
    )
    (tmp_path / "aim").mkdir()
    project, script = tracked_project(tmp_path, lines + used, AIM_STORE=str(tmp_path / "aim"))
    program = project.root / "tracked.py"
    killed = (
        program.read_text().replace("sys.exit(1 if", "os.kill(os.getpid(), 9) if").replace(" else 0)", " else None")
    )
    program.write_text(killed)
    project.bash(script, code=137)
    project.shoal("resume", RUN, "--yes")
    first, second = told_by(tmp_path, 1), told_by(tmp_path, 2)
    assert first["id"] == second["id"] and (second["name"], second["experiment"]) == (RUN, "001_example")
    assert (first["tracked"], second["tracked"]) == ([], ["loss"])


@pytest.mark.slow
def test_tensorboard_files_stay_with_their_run_also_from_a_relative_path(tmp_path: Path) -> None:
    """`SummaryWriter()` writes to runs/ in the working directory, which is the run's own."""
    tracker = (
        "from torch.utils.tensorboard import SummaryWriter\n"
        "for place in (None, os.environ['TENSORBOARD_LOGGING_DIR']):\n"
        "    with SummaryWriter(place) as writer:\n"
        "        writer.add_scalar('loss', 0.25, 7)\n"
        "sys.exit(0)\n"
    )
    project, script = tracked_project(tmp_path, tracker)
    subprocess.run(["git", "init", "-q"], cwd=project.root, check=True)
    command = json.dumps([sys.executable, "tracked.py", str(tmp_path)])
    project.write("shoal.toml", f'[steps.train]\ncommand = {command}\noutput = "training"\n')
    project.bash(script)
    folder = Path(project.status()[RUN]["output_dir"])
    relative = list(folder.glob("work/project/runs/*/events.out.tfevents.*"))
    named = list((folder / "tensorboard").glob("events.out.tfevents.*"))
    assert len(relative) == len(named) == 1 and not (project.root / "runs").exists()
    assert "0.25" in project.shoal("results").out


def test_what_the_user_set_stays() -> None:
    env = {"WANDB_NAME": "mine", "COMET_EXPERIMENT_KEY": "", "MLFLOW_EXPERIMENT_ID": "7", "WANDB_DIR": "/scratch"}
    trackers.set_tracker_variables(env, SPEC, "/out", "")
    assert (env["WANDB_NAME"], env["WANDB_DIR"]) == ("mine", "/scratch") and "COMET_EXPERIMENT_KEY" not in env
    assert "MLFLOW_EXPERIMENT_NAME" not in env and env["WANDB_RUN_ID"] == env["SHOAL_TRACKER_ID"] == "an-id"
    assert "WANDB_GIT_COMMIT" not in env


def test_a_run_submitted_inside_a_run_has_names_of_its_own() -> None:
    env = {"WANDB_ENTITY": "team"}
    trackers.set_tracker_variables(env, SPEC, "/out", "")
    trackers.remove_inherited(env)
    trackers.set_tracker_variables(env, {**SPEC, "stem": "001_inner_0", "tracker_id": "other"}, "/inner", "abc")
    assert (env["WANDB_RUN_ID"], env["WANDB_NAME"], env["WANDB_DIR"]) == ("other", "001_example/001_inner_0", "/inner")
    assert env["WANDB_ENTITY"] == "team" and env["WANDB_GIT_COMMIT"] == "abc"


def test_tags_that_wandb_refuses_are_left_out() -> None:
    env: dict[str, str] = {}
    trackers.set_tracker_variables(env, {**SPEC, "experiment": "e" * 65, "seed": None}, "/out", "")
    assert env["WANDB_TAGS"] == "pretrain1"


def test_mlflow_is_searched_only_where_an_earlier_attempt_may_have_used_it(tmp_path: Path) -> None:
    env: dict[str, str] = {}
    trackers.set_tracker_variables(env, SPEC, "/out", "")
    assert not trackers.continues_mlflow_run(env, 2, str(tmp_path))
    (tmp_path / "mlruns").mkdir()
    assert trackers.continues_mlflow_run(env, 2, str(tmp_path)) and not trackers.continues_mlflow_run(
        env, 1, str(tmp_path)
    )
    assert not trackers.continues_mlflow_run({**env, "MLFLOW_RUN_ID": "mine"}, 2, str(tmp_path))
    assert trackers.continues_mlflow_run({**env, "MLFLOW_TRACKING_URI": "http://x"}, 2, "/nowhere")


def test_a_sweep_of_wandb_around_the_command_is_told(tmp_path: Path) -> None:
    project = Project(tmp_path)
    done = project.shoal("submit", project.script("001_a/000_train_0.sh"), "--dry-run", WANDB_SWEEP_ID="abc")
    assert "WANDB_SWEEP_ID is set" in done.out
