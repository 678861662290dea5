"""A run on a real Slurm from submission to end: requeue, scripts by hand, exit codes, cancelling, two clusters."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from conftest import MakeSandbox
from project import Project, env_of
from shoal.sandbox import PartitionSpec, Sandbox
from terminal import run_in_terminal
from waiting import wait_until

pytestmark = pytest.mark.slurm

RUN = "001_a/000_train_0"
REQUEST = "--time=5 --mem=50M"


def test_a_requeued_run_goes_on_in_its_folder_from_its_newest_checkpoint(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    words = f"train {REQUEST} -- save=2 save=10 print=from-attempt first=waits"
    project.shoal("submit", project.script("001_a/000_train_0.sh", words))
    first = project.wait_started(RUN)
    said = Path(env_of(first, "SHOAL_OUTPUT_DIR")) / "attempt-1.out"
    wait_until(said.read_text, 30, "it has saved twice and spoken")
    job_id = project.status()[RUN]["job_id"]
    project.slurm("scontrol", "requeue", job_id)
    second = project.wait_started(RUN, 2)
    run = project.wait(RUN, "completed")
    assert (run["attempt"], run["job_id"]) == (2, job_id)
    for name in ("SHOAL_OUTPUT_DIR", "WANDB_RUN_ID", "WANDB_NAME", "WANDB_RUN_GROUP", "SHOAL_RUN", "SLURM_JOB_ID"):
        assert env_of(first, name) == env_of(second, name) != ""
    assert [env_of(mark, "SHOAL_ATTEMPT") for mark in (first, second)] == ["1", "2"]
    assert env_of(first, "SHOAL_RESUME_FROM") == ""
    assert env_of(second, "SHOAL_RESUME_FROM") == f"{env_of(first, 'SHOAL_OUTPUT_DIR')}/model_10.pth"
    folder = Path(run["output_dir"])
    assert (folder / "attempt-1.out").read_text() == (folder / "attempt-2.out").read_text() == "from-attempt\n"
    assert len(project.submissions()) == 1


def test_a_late_job_of_an_old_generation_is_fenced_before_any_user_code(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    script = project.script("001_a/000_train_0.sh", f"train {REQUEST} -- exit=3")
    project.shoal("submit", script)
    project.wait(RUN, "failed")
    (old,) = project.submissions()
    project.shoal("submit", script)
    wait_until(lambda: project.wait(RUN, "failed")["attempt"] == 2, 30, "the second attempt failed")
    began = len(project.marks(RUN))
    late = _sbatch(
        project, old / "script.sh", "--job-name", json.loads((old / "submission.json").read_text())["job_name"]
    )
    assert "nothing to do here" in late and "submitted again (generation 2)" in late
    assert len(project.marks(RUN)) == began == 2


def test_a_second_job_under_the_same_token_takes_the_run_over(tmp_path: Path, cluster: Sandbox) -> None:
    """What a controller does that replays a submission: the same script, the same name, another id. Slurm knows the
    second job, and will end the first sooner or later; so that one hands over."""
    project = Project(tmp_path, cluster)
    project.shoal("submit", project.script("001_a/000_train_0.sh", f"train {REQUEST} -- wait=go"))
    project.wait_started(RUN)
    (only,) = project.submissions()
    name = json.loads((only / "submission.json").read_text())["job_name"]
    project.slurm("sbatch", "-o", str(tmp_path / "second.out"), "--job-name", name, str(only / "script.sh"))
    project.wait_started(RUN, 2)
    assert project.records(RUN, "attempt.1.end")[0]["stopped_by"] == "handover"
    project.write("go", "")
    project.wait(RUN, "completed")
    assert "completed already" in _sbatch(project, only / "script.sh", "--job-name", name)
    assert len(project.marks(RUN, "end")) == 1, "one has run to its end"


def test_the_saved_script_does_the_same_under_sbatch_and_bash(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    project.shoal("submit", project.script("001_a/000_train_0.sh", f"train {REQUEST} -- wait=go exit=3"))
    project.wait_started(RUN)
    saved = project.submissions()[0] / "script.sh"
    refused = project.bash(saved, code=1)
    assert "not started" in refused.err and "is running" in refused.err
    project.write("go", "")
    project.wait(RUN, "failed")

    project.slurm("sbatch", "-o", str(tmp_path / "again.out"), str(saved))
    again = project.wait_started(RUN, 2)
    assert again["args"] == ["wait=go", "exit=3"] and env_of(again, "SHOAL_ATTEMPT") == "2"
    run = wait_until(lambda: _at(project, 2, "failed"), 30, "the second attempt failed")
    assert run["job_id"] == env_of(again, "SLURM_JOB_ID") and run["exit_code"] == 3
    assert project.bash(saved, code=3).err.count("attempt 3") >= 1
    assert _at(project, 3, "failed")
    folders = {env_of(mark, "SHOAL_OUTPUT_DIR") for mark in project.marks(RUN)}
    assert len(folders) == 3

    project.script("001_a/000_train_0.sh", f"train {REQUEST} -- wait=go")
    project.shoal("submit", "experiments/001_a")
    wait_until(lambda: _at(project, 4, "completed"), 30, "the fourth attempt completed")
    for folder in project.submissions():
        if (folder / "script.sh").exists() and len(project.marks(RUN)) == 4:
            assert "completed already (attempt 4)" in project.bash(folder / "script.sh", code=1).err
    assert len(project.marks(RUN)) == 4


def test_a_script_submitted_by_hand_and_requeued_keeps_its_folder(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    project.shoal("submit", project.script("001_a/000_train_0.sh", f"train {REQUEST} -- exit=3"))
    project.wait(RUN, "failed")
    waits = 'mark("start")\nif os.environ["SHOAL_ATTEMPT"] == "2":\n    time.sleep(60)'
    project.write("train.py", (project.root / "train.py").read_text().replace('mark("start")', waits))
    saved = project.submissions()[0] / "script.sh"
    job_id = project.slurm("sbatch", "--parsable", "-o", "/dev/null", str(saved)).strip()
    second = project.wait_started(RUN, 2)
    project.slurm("scontrol", "requeue", job_id)
    third = project.wait_started(RUN, 3)
    assert env_of(third, "SHOAL_OUTPUT_DIR") == env_of(second, "SHOAL_OUTPUT_DIR")
    assert (env_of(third, "SHOAL_ATTEMPT"), env_of(third, "SLURM_JOB_ID")) == ("3", job_id)
    assert wait_until(lambda: _at(project, 3, "failed"), 30, "the third attempt failed")["job_id"] == job_id
    assert len(project.submissions()) == 2


def test_the_saved_script_of_an_array_runs_all_of_it_by_hand(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    script = project.script("001_a/000_train.sh", f"train {REQUEST} -- exit=3")
    project.shoal("submit", script, "--seeds", "0-2")
    names = [f"001_a/000_train_{seed}" for seed in range(3)]
    for name in names:
        project.wait(name, "failed")
    (folder,) = project.submissions()
    array = project.slurm("sbatch", "--parsable", "-o", "/dev/null", str(folder / "script.sh")).strip()
    for index, name in enumerate(names):
        run = wait_until(partial(_at, project, 2, "failed", name), 60, f"{name} failed again")
        assert run["job_id"] == f"{array}_{index}"
    assert project.bash(folder / "script.sh", code=3)
    assert [len(project.marks(name)) for name in names] == [3, 3, 3]


@pytest.mark.parametrize(("do", "code", "reason"), [
    ("exit=1", 1, "exit code 1"), ("exit=7", 7, "exit code 7"), ("exit=300", 44, "exit code 44"),
    ("kill=9", 137, "killed by SIGKILL"), ("kill=15", 143, "killed by SIGTERM"), ("kill=11", 139, "killed by SIGSEGV"),
])  # fmt: skip
def test_slurm_sees_the_exit_code_of_the_program(
    do: str, code: int, reason: str, tmp_path: Path, cluster: Sandbox
) -> None:
    project = Project(tmp_path, cluster)
    project.shoal("submit", project.script("001_a/000_train_0.sh", f"train {REQUEST} -- {do}"))
    run = project.wait(RUN, "failed")
    assert (run["exit_code"], run["reason"]) == (code, reason)
    # The end is on record before the agent has left, so Slurm may still call the job running.
    state = ("squeue", "-h", "-j", run["job_id"], "-t", "all", "-o", "%t")
    wait_until(lambda: project.slurm(*state) == "F\n", 20, "the job has ended for Slurm too")
    assert f"ExitCode={code}:0" in project.slurm("scontrol", "show", "job", run["job_id"])
    assert project.status()[RUN]["reason"] == reason


def test_a_run_that_slurm_stopped_is_cancelled_by_whom_slurm_says(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    for number, words in enumerate(("wait=never", "polite wait=never")):
        project.script(f"001_a/{number:03}_train_0.sh", f"train {REQUEST} -- {words}")
    project.shoal("submit", "experiments/001_a", "--layout", "job")
    for name in ("001_a/000_train_0", "001_a/001_train_0"):
        project.wait_started(name)
        project.slurm("scancel", project.status()[name]["job_id"])
        assert project.wait(name, "cancelled")["slurm_state"] == "CANCELLED"
        assert not any(end["success"] for end in project.records(name, "attempt.*.end"))


def test_cancel_stops_waiting_running_and_single_tasks_and_nothing_else(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    project.script("001_a/000_train_0.sh", f"train {REQUEST} --hold -- wait=go")
    project.script("001_a/001_train_0.sh", f"train {REQUEST} -- wait=go")
    array = project.script("002_b/000_train.sh", f"train {REQUEST} -- wait=go")
    project.shoal("submit", "experiments/001_a", "--layout", "job")
    project.shoal("submit", array, "--seeds", "0-2")
    for name in ("001_a/001_train_0", "002_b/000_train_0", "002_b/000_train_1", "002_b/000_train_2"):
        project.wait_started(name)
    assert "would cancel" in project.shoal("cancel", "001_a/000_train_0", "--dry-run").out
    assert "--yes" in project.shoal("cancel", "001_a", code=2).err
    project.shoal("cancel", "001_a", "--yes")
    project.shoal("cancel", "002_b/000_train_1")
    for name in ("001_a/000_train_0", "001_a/001_train_0", "002_b/000_train_1"):
        assert project.wait(name)["state"] == "cancelled"
    assert project.marks("001_a/000_train_0") == []
    project.write("go", "")
    for name in ("002_b/000_train_0", "002_b/000_train_2"):
        project.wait(name, "completed")
    assert "nothing to cancel" in project.shoal("cancel", "001_a", "002_b").out
    project.script("001_a/000_train_0.sh", f"train {REQUEST} -- wait=go")
    project.shoal("submit", "experiments/001_a/000_train_0.sh")
    project.wait("001_a/000_train_0", "completed")
    project.assert_ran_once("001_a/000_train_0")


def test_a_program_that_ends_with_zero_after_a_signal_is_not_done(tmp_path: Path, make_sandbox: MakeSandbox) -> None:
    # The agent has time to write down the end, also on a busy machine.
    project = Project(tmp_path, make_sandbox("polite", nodes=1, gpus=0, settings=(("KillWait", "20"),)))
    project.shoal("submit", project.script("001_a/000_train_0.sh", f"train {REQUEST} -- polite wait=never"))
    project.wait_started(RUN)
    project.shoal("cancel", RUN)
    assert project.wait(RUN)["state"] == "cancelled"
    (end,) = wait_until(lambda: project.records(RUN, "attempt.*.end"), 20, "the end record is there")
    assert end["exit_code"] == 0 and not end["success"]


def test_a_run_that_uses_too_much_memory_is_oom(tmp_path: Path, cluster: Sandbox) -> None:
    if not cluster.layout.load().cgroups:  # type: ignore[union-attr]
        pytest.skip("this machine lets no one limit memory")
    toml = '[steps.eat]\ncommand = ["sh", "-c", "sleep 1; tail /dev/zero; exit 0"]\n'
    project = Project(tmp_path, cluster, toml=toml)
    project.shoal("submit", project.script("001_a/000_eat_0.sh", "eat --time=5 --mem=30M"))
    run = project.wait("001_a/000_eat_0")
    assert run["state"] == "oom" and "memory" in run["reason"]


def test_a_run_over_its_time_limit_is_timeout(tmp_path: Path, make_sandbox: MakeSandbox) -> None:
    project = Project(tmp_path, make_sandbox("limit", nodes=1, gpus=0))
    project.shoal("submit", project.script("001_a/000_train_0.sh", "train --time=1 --mem=50M -- polite wait=never"))
    project.wait_started(RUN)
    job_id = project.status()[RUN]["job_id"]
    project.slurm("scontrol", "update", f"JobId={job_id}", "EndTime=now+1")
    run = project.wait(RUN, deadline_s=120)
    assert run["state"] == "timeout" and run["slurm_state"] == "TIMEOUT", run


def test_the_same_script_runs_on_two_clusters_with_other_partitions(tmp_path: Path, make_sandbox: MakeSandbox) -> None:
    east = make_sandbox("east", nodes=1, gpus=2, partitions=(PartitionSpec("a100-east"), PartitionSpec("cpu-east")))
    west = make_sandbox("west", nodes=1, gpus=4, partitions=(PartitionSpec("gpu_west"),))
    toml = f"""
[clusters.{east.spec.name}]
partition = {{ fake = "a100-east", default = "cpu-east" }}
env = {{ TEST_WHERE = "east" }}
[clusters.{west.spec.name}]
partition = "gpu_west"
gres = "gpus-per-node"
env = {{ TEST_WHERE = "west" }}
"""
    for sandbox, where, partition in ((east, "east", "a100-east"), (west, "west", "gpu_west")):
        project = Project(tmp_path, sandbox, name=where, toml=toml)
        script = project.script("001_a/000_train_0.sh", "train --time=5 --mem=50M --gres=gpu:fake:1")
        project.shoal("submit", script)
        run = project.wait(RUN, "completed")
        assert f"Partition={partition} " in project.slurm("scontrol", "show", "job", run["job_id"])
        assert env_of(project.marks(RUN)[0], "TEST_WHERE") == where
    elsewhere = project.shoal("status", "--json", SLURM_CONF=str(east.conf_path)).json["runs"][0]
    assert elsewhere["state"] == "completed"


def test_a_project_folder_with_odd_characters_works(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster, name="50%j müde \"q\" $(x) 'y'")
    project.shoal("submit", project.script("001_a/000_train_0.sh"))
    assert project.wait(RUN, "completed")["output_dir"].startswith(str(project.root))
    project.assert_ran_once(RUN)


def test_a_job_gets_the_callers_locale_and_no_option_variables_change_it(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    script = project.script("001_a/000_train_0.sh")
    project.shoal("submit", script, LC_ALL="C.UTF-8", SBATCH_PARTITION="low", SBATCH_HOLD="1", SLURM_NTASKS="3")
    run = project.wait(RUN, "completed")
    assert "Partition=main " in project.slurm("scontrol", "show", "job", run["job_id"])
    assert env_of(project.marks(RUN)[0], "LC_ALL") == "C.UTF-8"


def test_run_follows_to_the_end_and_logs_show_what_was_printed(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    good = project.script("001_a/000_train_0.sh", f"train {REQUEST} -- print=hello")
    done = project.shoal("run", good)
    assert "hello" in done.out
    assert project.shoal("logs", RUN).out == "hello\n"
    assert project.shoal("logs", "000_train_0", "--json").json["logs"][0]["text"] == "hello\n"
    bad = project.script("001_a/001_train_0.sh", f"train {REQUEST} -- exit=5")
    assert "001_a/001_train_0 failed: exit code 5" in project.shoal("run", bad, code=4).err


def test_inside_a_job_a_script_runs_here(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    script = project.script("001_a/000_train_0.sh", f"train {REQUEST}")
    env = [f"{name}={project.env[name]}" for name in ("PATH", "HOME")]
    assert "completed 001_a/000_train_0" in project.slurm("srun", "--mem=100M", "env", *env, "bash", str(script))
    project.assert_ran_once(RUN)
    assert json.loads((project.submissions()[0] / "submission.json").read_text())["backend"] == "local"


def _at(project: Project, attempt: int, state: str, name: str = RUN) -> dict[str, object] | None:
    run = project.status(name)[name]
    return run if (run["attempt"], run["state"]) == (attempt, state) else None


def _sbatch(project: Project, script: Path, *flags: str) -> str:
    """Submit a script by hand, wait until its job has left, and return what it printed."""
    out = project.root / "by-hand.out"
    project.slurm("sbatch", "--wait", "-o", str(out), *flags, str(script))
    return out.read_text()


def test_following_a_run_that_is_started_over_shows_only_the_new_attempt(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    project.shoal("run", project.script("001_a/000_train_0.sh", f"train {REQUEST} -- print=old exit=1"), code=4)
    again = project.shoal("run", project.script("001_a/000_train_0.sh", f"train {REQUEST} -- print=new"))
    assert "new\n" in again.out and "old\n" not in again.out


def test_on_a_terminal_several_runs_are_counted_and_sent_only_after_a_yes(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    words = ["submit", str(project.script("001_a/000_train.sh", f"train {REQUEST} --gres=gpu:2")), "--seeds", "0-3"]

    def answered(answer: bytes, *more: str) -> str:
        return run_in_terminal([*words, *more], project.root, typed=answer, base=project.env, NO_COLOR="1")

    refused = answered(b"n\n")
    assert "4 runs as 1 job on cluster" in refused and "0.667 GPU-hours and 5m00s" in refused
    assert "nothing was submitted" in refused and not project.submissions()
    sent = answered(b"y\n")
    assert "submit them? [y/N]" in sent and "shoal watch 001_a" in sent and len(project.submissions()) == 1
    assert "submit them?" not in answered(b"", "--rerun", "--yes"), "--yes asks nothing"


def test_a_plan_tells_how_long_all_of_it_takes_at_most(tmp_path: Path, cluster: Sandbox) -> None:
    """All at once, so many at a time, and one stage after another."""
    project = Project(tmp_path, cluster)
    request = '[request]\ntime = "10m"\nmemory = "50M"\n'
    train = project.write("experiments/001_a/000_train.toml", f'step = "train"\nseeds = "0-4"\n{request}')
    later = f'step = "evaluate"\nseeds = "0-4"\nstart_from = "000_train_{{seed}}"\n{request}'
    project.write("experiments/001_a/010_evaluate.toml", later)

    def at_most(*words: object) -> float:
        return float(project.shoal("plan", "--json", *words).json["makespan_s"]) / 600

    assert [at_most(train), at_most(train, "--max-parallel", 2), at_most("experiments/001_a")] == [1, 3, 2]
