"""What an end owes, a retry or a follow-up, is done by whoever comes next when Slurm was away at that moment (D6)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import MakeSandbox
from project import Project
from shoal.kernel import submission
from shoal.kernel.records import FollowUp
from shoal.kernel.slurm import after_current_job
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slow

#: Fails at its first attempt, once the file "go" is there.
PROGRAM = """\
import os, sys, time
while not os.path.exists("go"):
    time.sleep(0.05)
with open("ran", "a") as file:
    file.write(os.environ["SHOAL_RUN"] + "\\n")
sys.exit(int(sys.argv[1]) if os.environ["SHOAL_ATTEMPT"] == "1" else 0)
"""
TOML = """
[clusters.here]
match = {{ host = "*" }}
env = {{ SHOAL_OWED_S = "1" }}
[steps.work]
command = [{python}, "program.py"]
request = {{ time = "5m", memory = "50M" }}
recovery = {{ max_retries = {{ failed = 2 }}, max_follow_ups = 2, continue_exit_code = 85 }}
"""
RUN, SCRIPT = "001_a/000_work", "experiments/001_a/000_work.toml"


@pytest.fixture
def slurm(make_sandbox: MakeSandbox) -> Iterator[Sandbox]:
    yield make_sandbox("owed", nodes=2)


def make(folder: Path, cluster: Sandbox, code: int = 1) -> Project:
    project = Project(folder, cluster, toml=TOML.format(python=json.dumps(sys.executable)))
    project.env["SHOAL_OWED_S"] = "1"
    project.write("program.py", PROGRAM)
    project.write(SCRIPT, f'step = "work"\nargs = ["{code}"]\n')
    return project


def ran(project: Project) -> list[str]:
    path = project.root / "ran"
    return path.read_text().split() if path.exists() else []


def end_without_controller(project: Project, cluster: Sandbox) -> None:
    """The run is on its node, the controller goes away, and the run ends."""
    project.shoal("submit", SCRIPT)
    project.wait(RUN, "running")
    cluster.stop_daemon("slurmctld")
    (project.root / "go").touch()
    wait_until(lambda: project.records(RUN, "attempt.1.end"), 60, "the run has ended")
    wait_until(lambda: list((project.home / "owed").glob("*")), 30, "its job has found that Slurm does not answer")


@pytest.mark.slurm
@pytest.mark.parametrize("code", [1, 85])
def test_a_retry_that_slurm_could_not_take_is_sent_by_status_and_by_no_plan(
    tmp_path: Path, slurm: Sandbox, code: int
) -> None:
    project = make(tmp_path, slurm, code)
    end_without_controller(project, slurm)
    told = project.status()[RUN]
    assert (told["state"], told["reason"]) == ("waiting", submission.FOLLOW_UP_REASON)
    assert "waiting already" in project.shoal("submit", SCRIPT).out
    slurm.start_daemon("slurmctld")
    wait_until(lambda: "is UP" in project.slurm("scontrol", "ping"), 30, "the controller answers")
    for look in (["plan", SCRIPT], ["submit", "--dry-run", SCRIPT], ["why", RUN], ["results"], ["report"], ["doctor"]):
        project.shoal(*look, code=None)
        assert len(project.submissions()) == 1, look
    note = f"note: {RUN} continues as job "
    wait_until(lambda: note in project.shoal("status").err, 60, "a status sends the retry and says so")
    wait_until(lambda: project.status()[RUN]["state"] == "completed", 90, "the retry completed", poll_s=0.5)
    assert ran(project) == [RUN] * 2 and len(project.submissions()) == 2
    assert project.records(RUN, "attempt.1.end")[0]["next"]["cause"] == ("failed" if code == 1 else "continue")


@pytest.mark.slurm
def test_several_who_look_send_one_retry(tmp_path: Path, slurm: Sandbox) -> None:
    project = make(tmp_path, slurm)
    end_without_controller(project, slurm)
    slurm.start_daemon("slurmctld")
    wait_until(lambda: "is UP" in project.slurm("scontrol", "ping"), 30, "the controller answers")
    looking = [project.start("status") for _ in range(4)]
    for command in looking:
        assert command.wait(300) == 0
    wait_until(lambda: project.status()[RUN]["state"] == "completed", 90, "the retry completed", poll_s=0.5)
    assert ran(project) == [RUN] * 2 and len(project.records(RUN, "attempt.*.end")) == 2


@pytest.mark.slurm
def test_a_cancelled_run_owes_nothing_any_more(tmp_path: Path, slurm: Sandbox) -> None:
    project = make(tmp_path, slurm)
    end_without_controller(project, slurm)
    project.shoal("cancel", RUN, code=None)
    slurm.start_daemon("slurmctld")
    wait_until(lambda: project.status()[RUN]["state"] == "cancelled", 60, "it is cancelled")
    project.shoal("status")
    assert ran(project) == [RUN] and len(project.submissions()) == 1


@pytest.mark.slurm
def test_a_job_that_ends_sends_what_others_owe(tmp_path: Path, slurm: Sandbox) -> None:
    project = make(tmp_path, slurm)
    script = project.script("002_b/000_train_0.sh", "train --time=5 --mem=50 -- wait=finish")
    project.shoal("submit", script)
    project.wait("002_b/000_train_0", "running")
    end_without_controller(project, slurm)
    slurm.start_daemon("slurmctld")
    wait_until(lambda: "is UP" in project.slurm("scontrol", "ping"), 30, "the controller answers")
    (project.root / "finish").touch()
    wait_until(lambda: len(ran(project)) == 2, 90, "nobody looked, and the retry has run")
    wait_until(lambda: project.status()[RUN]["state"] == "completed", 60, "the retry completed")
    assert not list((project.home / "owed").iterdir())


@pytest.mark.slurm
def test_a_pack_whose_time_was_up_without_a_controller_is_continued_by_the_next_look(
    tmp_path: Path, slurm: Sandbox
) -> None:
    project = make(tmp_path, slurm)
    text = 'step = "train"\nseeds = "0-2"\nargs = ["wait=finish"]\n[request]\nmemory = "50M"\n'
    path = project.write("experiments/003_c/000_train.toml", text)
    project.shoal("submit", path, "--layout", "pack", "--gpus", 2, "--time", "2m", "--warn", "95s", "--grace", "5s")
    wait_until(lambda: sum(len(project.marks(f"003_c/000_train_{seed}")) for seed in range(3)), 60, "a run has begun")
    slurm.stop_daemon("slurmctld")
    [folder] = project.submissions()
    wait_until(lambda: list(folder.glob("engine.*.end")), 90, "the time of the pack is up")
    [log] = folder.glob("slurm-*.out")
    wait_until(lambda: "Slurm does not answer" in log.read_text(), 60, "its job has given up")
    (project.root / "finish").touch()
    slurm.start_daemon("slurmctld")
    wait_until(
        lambda: {run["state"] for run in project.status().values()} == {"completed"}, 120, "all completed", poll_s=0.5
    )
    assert len(list(folder.glob("send.*.outcome"))) == 2


@pytest.mark.parametrize(
    ("standing", "refused", "cancels", "still"),
    [(2, False, (), True), (3, False, (), False), (2, True, (), False), (2, False, (2,), False),
     (2, False, (3,), False), (2, False, (1,), True)],
)  # fmt: skip
def test_an_end_is_owed_what_follows_until_a_later_generation_stands(
    standing: int, refused: bool, cancels: tuple[int, ...], still: bool
) -> None:
    assert submission.is_follow_up_pending(FollowUp("oom"), 2, standing, refused, (1, 2, 3), cancels) is still
    assert not submission.is_follow_up_pending(None, 2, standing, refused, (1, 2, 3), cancels)


def test_others_leave_it_to_the_ending_job_for_a_while_and_to_whoever_tried_last() -> None:
    assert not submission.is_follow_up_due(100.0, None, 130.0, {})
    assert submission.is_follow_up_due(100.0, None, 161.0, {})
    assert not submission.is_follow_up_due(100.0, 150.0, 161.0, {})
    assert submission.is_follow_up_due(100.0, 150.0, 161.0, {"SHOAL_OWED_S": "5"})


def test_a_time_that_a_wrong_clock_wrote_does_not_put_it_off() -> None:
    """Chaos, seed 8: an engine ended while its clock was 11 minutes ahead, and its follow-up job waited for that."""
    assert submission.is_follow_up_due(790.0, None, 100.0, {})
    assert not submission.is_follow_up_due(130.0, None, 100.0, {}), "two hosts may differ by a little"


def test_a_job_waits_only_for_the_job_that_sends_it() -> None:
    """Chaos, seed 10: a controller that had lost its state gave old numbers again, and two follow-up jobs that commands
    had sent waited for each other."""
    job, task = {"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "1"}
    assert after_current_job("7", job) == ["--dependency=afterany:7"]
    assert after_current_job("8_1", task) == after_current_job("8_1", {**task, "SLURM_JOB_ID": "8"})
    assert after_current_job("8_1", task) == ["--dependency=afterany:8_1"]
    assert after_current_job("7", {}) == after_current_job("7", task) == []
