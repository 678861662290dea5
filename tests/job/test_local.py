"""Experiment scripts on this machine: train, posttrain, evaluate, resume; nothing overwritten; folders in order."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from project import Project, assert_clear_error, end_process, env_of
from shoal.views.details import run_events

pytestmark = pytest.mark.slow

PRETRAIN = "001_example/000_pretrain1_0"
POSTTRAIN = "001_example/010_posttrain1_0"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_script_run_with_bash_trains_here_and_its_path_names_everything(project: Project) -> None:
    done = project.bash(
        project.script("001_example/000_pretrain1_0.sh", "train --gres=gpu:4 --time=3-0 -- print=hello")
    )
    (mark,) = project.marks(PRETRAIN)
    wanted = {
        "SHOAL_RUN": PRETRAIN,
        "SHOAL_EXPERIMENT": "001_example",
        "SHOAL_STEP": "pretrain1",
        "SHOAL_SEED": "0",
        "SHOAL_ATTEMPT": "1",
        "SHOAL_RESUME_FROM": "",
        "WANDB_NAME": PRETRAIN,
        "WANDB_RUN_GROUP": "001_example",
        "WANDB_RESUME": "allow",
    }
    assert {name: mark["env"][name] for name in wanted} == wanted
    folder = Path(env_of(mark, "SHOAL_OUTPUT_DIR"))
    assert folder.parent == project.root / "outputs/training/001_example/000_pretrain1_0"
    assert len(folder.name) == len("20261115_101500") and mark["cwd"] == str(project.root)
    assert (folder / "attempt-1.out").read_text() == "hello\n"
    assert "hello" in done.err and f"completed {PRETRAIN}" in done.out


def test_an_exported_variable_is_the_runs_configuration_and_part_of_it(project: Project) -> None:
    script = project.script(
        "001_example/000_pretrain1_0.sh", 'export TEST_CONFIG="$TEST_CONFIG image_architecture=regnety_032"', "train"
    )
    project.bash(script, TEST_CONFIG="base=1", TEST_ELSE="not the experiment's")
    (mark,) = project.marks(PRETRAIN)
    assert env_of(mark, "TEST_CONFIG") == "base=1 image_architecture=regnety_032"
    (spec,) = project.records(PRETRAIN, "spec.*.json")
    assert spec["env"]["TEST_CONFIG"] == "base=1 image_architecture=regnety_032" and "TEST_ELSE" not in spec["env"]
    assert "completed already" in project.bash(script, TEST_CONFIG="base=1").out
    assert_clear_error(project.bash(script, code=None, TEST_CONFIG="base=2"), 2, "base=2", "--rerun")
    assert len(project.marks(PRETRAIN)) == 1


def test_post_training_begins_at_the_newest_checkpoint_of_a_named_run(project: Project) -> None:
    project.bash(project.script("001_example/000_pretrain1_0.sh", "train -- save=2 save=10 save=9"))
    checkpoint = f"{project.status()[PRETRAIN]['output_dir']}/model_10.pth"
    for word, number in (("000_pretrain1_0", "010"), (PRETRAIN, "011"), (checkpoint, "012")):
        script = project.script(f"001_example/{number}_posttrain1_0.sh", f"posttrain {word}")
        assert "(step 10)" in project.bash(script).err
        assert env_of(project.marks(f"001_example/{number}_posttrain1_0")[0], "SHOAL_START_FROM") == checkpoint
    project.bash(project.script("001_example/020_evaluate_0.sh", "evaluate 000_pretrain1_0 -- more"))
    (mark,) = project.marks("001_example/020_evaluate_0")
    assert mark["args"] == [f"from={checkpoint}", "more"]
    assert env_of(mark, "SHOAL_OUTPUT_DIR").startswith(str(project.root / "outputs/evaluation/001_example"))


def test_post_training_without_a_checkpoint_is_refused(project: Project) -> None:
    project.bash(project.script("001_example/000_pretrain1_0.sh"))
    script = project.script("001_example/010_posttrain1_0.sh", "posttrain 000_pretrain1_0")
    assert_clear_error(project.bash(script, code=None), 2, "no checkpoint")
    wrong = project.script("001_example/011_posttrain1_0.sh", "posttrain 000_pretrain2_0")
    assert_clear_error(
        project.bash(wrong, code=None), 2, "001_example/000_pretrain2_0, which does not exist", "did you mean"
    )
    for path in ("/nowhere/model_1.pth", "outputs/training/001_example/000_pretrain1_0/20200101_000000"):
        gone = project.script("001_example/012_posttrain1_0.sh", f"posttrain {path}")
        assert_clear_error(project.bash(gone, code=None), 2, f"no file or directory {path}")
    assert project.marks(POSTTRAIN) == [] and len(project.submissions()) == 1


def test_resume_says_where_it_continues_and_does_so_in_the_same_folder(project: Project) -> None:
    project.bash(project.script("001_example/000_pretrain1_0.sh", "train -- save=3 save=12 exit=9"), code=9)
    dry = project.shoal("resume", PRETRAIN, "--dry-run")
    assert "model_12.pth (step 12)" in dry.err and len(project.marks(PRETRAIN)) == 1
    resumed = project.bash(project.script("001_example/001_again_0.sh", "resume 000_pretrain1_0"), code=9)
    assert "continues from" in resumed.err and "model_12.pth (step 12)" in resumed.err
    first, second = project.marks(PRETRAIN)
    assert env_of(second, "SHOAL_RESUME_FROM").endswith("/model_12.pth")
    for name in ("SHOAL_OUTPUT_DIR", "WANDB_RUN_ID", "SHOAL_RUN"):
        assert env_of(first, name) == env_of(second, name)
    folder = project.status()[PRETRAIN]["output_dir"]
    assert project.shoal("resume", os.path.relpath(folder, project.root), code=9)
    assert len(project.marks(PRETRAIN)) == 3
    assert sorted(path.name for path in Path(folder).glob("attempt-*.out")) == [f"attempt-{k}.out" for k in (1, 2, 3)]


def test_resume_is_refused_without_a_checkpoint_and_when_done(project: Project) -> None:
    project.bash(project.script("001_example/000_pretrain1_0.sh", "train -- exit=1"), code=1)
    assert_clear_error(project.shoal("resume", PRETRAIN, code=None), 2, "no checkpoint model_*.pth")
    project.bash(project.script("001_example/001_pretrain1_0.sh", "train -- save=1"))
    assert_clear_error(project.shoal("resume", "001_pretrain1_0", code=None), 2, "completed already", "--rerun")
    assert_clear_error(project.shoal("resume", "nothing", code=None), 2, "no run named 'nothing'")
    project.bash(project.script("001_example/002_evaluate_0.sh", "evaluate -- exit=1"), code=1)
    assert_clear_error(project.shoal("resume", "002_evaluate_0", code=None), 2, "checkpoint")
    assert len(project.marks(PRETRAIN)) == 1


def test_a_run_is_started_over_as_often_as_wanted_and_nothing_is_overwritten(project: Project) -> None:
    script = project.script("001_example/000_pretrain1_0.sh", "train -- save=1")
    project.bash(script)
    for _ in range(3):
        project.shoal("submit", script, "--rerun")
    folders = [env_of(mark, "SHOAL_OUTPUT_DIR") for mark in project.marks(PRETRAIN)]
    assert len(set(folders)) == 4 and all((Path(folder) / "model_1.pth").exists() for folder in folders)
    assert len({env_of(mark, "WANDB_RUN_ID") for mark in project.marks(PRETRAIN)}) == 4
    assert env_of(project.marks(PRETRAIN)[3], "SHOAL_RESUME_FROM") == ""
    assert len(project.records(PRETRAIN, "attempt.*.end")) == 4


def test_a_folder_is_submitted_in_order_and_later_scripts_find_what_earlier_ones_made(project: Project) -> None:
    project.script("001_example/2_posttrain1_0.sh", "posttrain 1_pretrain1_0")
    project.script("001_example/10_evaluate_0.sh", "evaluate 2_posttrain1_0")
    project.script("001_example/1_pretrain1_0.sh", "train -- save=5")
    project.shoal("submit", "experiments/001_example", code=4)  # posttrain saves nothing: the last one cannot start
    assert "has no checkpoint model_*.pth" in project.status()["001_example/10_evaluate_0"]["reason"]
    assert [len(project.marks(f"001_example/{stem}")) for stem in ("1_pretrain1_0", "2_posttrain1_0")] == [1, 1]
    project.script("001_example/2_posttrain1_0.sh", "posttrain 1_pretrain1_0 -- save=7")
    project.shoal("submit", "experiments/001_example", "--rerun", "--json")
    assert len(project.marks("001_example/10_evaluate_0")) == 1


def test_a_failing_run_gives_its_exit_code_and_several_give_four(project: Project) -> None:
    project.script("001_a/000_train_0.sh", "train -- exit=7")
    project.script("001_a/001_train_0.sh", "train")
    assert project.shoal("submit", "experiments/001_a", code=4)
    states = {name: run["state"] for name, run in project.status().items()}
    assert states == {"001_a/000_train_0": "failed", "001_a/001_train_0": "completed"}
    project.shoal("submit", "experiments/001_a/000_train_0.sh", code=7)
    assert (
        project.shoal("submit", "experiments/001_a/000_train_0.sh", "--json", code=7).json["runs"][0]["exit_code"] == 7
    )


def test_a_second_call_in_a_script_is_refused_before_anything_runs(project: Project) -> None:
    script = project.script("001_a/000_train_0.sh", "train -- one", "train -- two")
    assert_clear_error(project.shoal("submit", script, code=None), 2, "asked for twice")
    assert project.marks("001_a/000_train_0") == [] and not project.submissions()
    assert_clear_error(project.bash(script, code=None), 2, "args was one, now two")
    assert len(project.marks("001_a/000_train_0")) == 1


def test_an_unknown_step_is_told_with_those_that_exist(project: Project) -> None:
    script = project.script("001_a/000_train_0.sh", "finetune")
    assert project.bash(script, code=127)
    for step in ("train", "posttrain", "evaluate"):
        project.write("shoal.toml", "[steps.other]\ncommand = 'true'\n")
        script = project.script("001_a/000_train_0.sh", step)
        known = "posttrain takes a checkpoint or a run" if step == "posttrain" else "it has other"
        assert_clear_error(project.bash(script, code=None), 2, f"no step '{step}'", known)


def test_seeds_make_one_run_each(project: Project) -> None:
    script = project.script("001_a/000_train.sh", 'export TEST_S="$SHOAL_SEED"', 'train -- --seed "$SHOAL_SEED"')
    project.shoal("submit", script, "--seeds", "0-2,7")
    for seed in (0, 1, 2, 7):
        (mark,) = project.marks(f"001_a/000_train_{seed}")
        assert mark["args"] == ["--seed", str(seed)] and env_of(mark, "TEST_S") == env_of(mark, "SHOAL_SEED") == str(
            seed
        )


def test_on_local_in_the_script_or_on_the_command_line_runs_here(tmp_path: Path) -> None:
    """With a Slurm configured that does not even exist: nothing may ask it."""
    project = Project(tmp_path)
    project.env["SLURM_CONF"] = str(tmp_path / "slurm.conf")
    (tmp_path / "slurm.conf").write_text("ClusterName=nowhere\nSlurmctldHost=nowhere(127.0.0.1)\nSlurmctldPort=1\n")
    by_flag = project.script("001_a/000_train_0.sh", "train --on local")
    project.bash(by_flag)
    project.shoal("submit", project.script("001_a/001_train_0.sh", "train --on=local"))
    project.shoal("submit", project.script("001_a/002_train_0.sh", "train"), "--on", "local")
    project.bash(project.script("001_a/003_train_0.sh", "train"), SHOAL_ON="local")
    project.bash(project.script("001_a/004_train_0.sh", "train"), SLURM_JOB_ID="1", SLURM_JOB_NAME="interactive")
    assert [run["state"] for run in project.status().values()] == ["completed"] * 5
    assert project.shoal("plan", by_flag, "--rerun", "--json").json["cluster"] == "local"
    assert_clear_error(project.shoal("submit", "experiments/001_a", code=None), 2, "do not agree where to run")


def test_a_script_may_be_named_from_any_folder(project: Project) -> None:
    project.script("001_a/000_train_0.sh")
    project.script("002_b/000_train_0.sh")
    project.run(["shoal", "submit", "../002_b/000_train_0.sh"], cwd=project.root / "experiments/001_a")
    project.run(["bash", "000_train_0.sh"], cwd=project.root / "experiments/001_a")
    assert {name: run["state"] for name, run in project.status().items()} == {
        "001_a/000_train_0": "completed",
        "002_b/000_train_0": "completed",
    }


def test_ctrl_c_stops_the_run_and_says_so(project: Project) -> None:
    project.script("001_a/000_train_0.sh", "train -- wait=never")
    project.script("001_a/001_train_0.sh", "train")
    command = project.start("submit", "experiments/001_a")
    try:
        project.wait_started("001_a/000_train_0")
        command.send_signal(signal.SIGTERM)
        assert command.wait(300) == 130
    finally:
        command.communicate()
        end_process(command)
    assert project.status()["001_a/000_train_0"]["state"] == "cancelled"
    assert project.marks("001_a/001_train_0") == []


def test_cancel_stops_a_run_on_this_machine(project: Project) -> None:
    project.script("001_a/000_train_0.sh", "train -- wait=never")
    command = project.start("submit", "experiments/001_a")
    try:
        project.wait_started("001_a/000_train_0")
        assert "cancelled 001_a/000_train_0 (running" in project.shoal("cancel", "000_train_0").out
        assert command.wait(300) == 130
    finally:
        command.communicate()
        end_process(command)
    assert project.status()["001_a/000_train_0"]["state"] == "cancelled"


def test_a_command_killed_with_its_run_leaves_a_run_that_can_start_again(project: Project) -> None:
    script = project.script("001_a/000_train_0.sh", "train -- save=4 first=waits")
    command = project.start("submit", script)
    try:
        project.wait_started("001_a/000_train_0")
        (start,) = project.records("001_a/000_train_0", "attempt.*.start")
        os.kill(start["pid"], signal.SIGKILL)
    finally:
        command.communicate(timeout=300)
        end_process(command)
    assert project.status()["001_a/000_train_0"]["state"] == "lost"
    project.shoal("submit", script)
    assert project.status()["001_a/000_train_0"]["state"] == "completed"
    assert len(project.marks("001_a/000_train_0", "end")) == 1


def test_a_program_that_cannot_start_is_told_in_a_sentence(project: Project) -> None:
    project.write("shoal.toml", '[steps.train]\ncommand = "no-such-program --x"\n')
    done = project.bash(project.script("001_a/000_train_0.sh"), code=127)
    assert "cannot start no-such-program" in done.err
    run = project.status()["001_a/000_train_0"]
    assert run["state"] == "failed" and "cannot start no-such-program" in run["reason"]


def test_set_up_lines_that_fail_are_told_and_the_program_does_not_start(tmp_path: Path) -> None:
    project = Project(tmp_path, toml='[clusters.local]\nsetup = "false"\n')
    project.bash(project.script("001_a/000_train_0.sh"), code=1)
    assert "set-up" in project.status()["001_a/000_train_0"]["reason"] and project.marks("001_a/000_train_0") == []


def test_dry_run_and_plan_change_nothing(project: Project) -> None:
    script = project.script("001_a/000_train_0.sh")
    assert "001_a/000_train_0" in project.shoal("submit", script, "--dry-run").out
    plan = project.shoal("plan", "experiments/001_a", "--json").json
    assert [run["name"] for run in plan["runs"]] == ["001_a/000_train_0"] and len(plan["submissions"]) == 1
    wanted = {"name", "experiment", "step", "seed", "params", "request"}
    assert wanted <= set(plan["runs"][0])
    assert "would submit" in project.bash(project.script("001_a/001_train_0.sh", "train --dry-run")).out
    assert not project.home.exists() and not (project.root / "outputs").exists()


def test_status_json_has_the_promised_fields(project: Project) -> None:
    project.shoal("submit", project.script("001_a/000_train_0.sh"))
    document = project.shoal("status", "--json").json
    wanted = {"name", "state", "attempt", "job_id", "exit_code", "cause", "reason", "output_dir"}
    assert document["schema"] == 1 and wanted <= set(document["runs"][0])
    assert json.dumps(document)


def test_a_local_run_waits_for_its_own_set_up_and_not_for_the_begin_of_a_second(project: Project) -> None:
    project.shoal("submit", project.script("001_a/000_train_0.sh"), LC_ALL="de_DE.UTF-8")
    report = project.shoal("report", "--json").json
    (job,), (run,) = report["allocations"], report["runs"]
    (attempt,) = run["attempts"]
    assert run["submitted"] == attempt["submitted"] <= job["started"] <= attempt["started"] < job["ended"]
    assert attempt["set_up_wait_s"] == pytest.approx(attempt["started"] - job["started"], abs=0.001)
    (record,) = project.home.glob("submissions/*/allocation.*")
    assert "." in record.read_text().splitlines()[0].replace(",", "."), "bash 5 tells fractions of a second"


def test_a_run_stays_the_same_when_the_run_it_starts_from_has_a_newer_checkpoint(project: Project) -> None:
    pretrain = project.script("001_example/000_pretrain1_0.sh", "train -- save=1")
    posttrain = project.script("001_example/010_posttrain1_0.sh", "posttrain 000_pretrain1_0")
    project.bash(pretrain)
    project.bash(posttrain)
    project.shoal("submit", "--rerun", str(pretrain))
    assert "completed already" in project.bash(posttrain).out
    assert len(project.marks(POSTTRAIN)) == 1


def test_the_events_of_a_run_tell_when_its_attempt_began_and_ended(project: Project) -> None:
    """Start and end stand in one file, whose time is that of the end."""
    project.script("001_a/000_train_0.sh", "train -- wait=go")
    process = project.start("submit", "experiments/001_a/000_train_0.sh", "--on", "local")
    try:
        project.wait_started("001_a/000_train_0")
        seen = time.time()
        project.write("go", "")
        process.communicate(timeout=300)
    finally:
        end_process(process)
    found = {event["what"]: event["t"] for event in run_events(str(project.home), "001_a/000_train_0")}
    assert found["submitted"] <= found["attempt 1 started"] <= seen <= found["attempt 1 ended"]
