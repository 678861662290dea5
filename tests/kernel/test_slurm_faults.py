"""A controller that hangs, is down, or dies in the middle: nothing is lost or sent twice, and people are told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from conftest import MakeSandbox
from project import Project, assert_clear_error
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm

RUN = "001_a/000_train_0"
#: A controller that is gone is noticed after two seconds instead of five, and ended jobs are there to be counted.
QUICK = (("MessageTimeout", "2"), ("TCPTimeout", "1"), ("MinJobAge", "300"))


@pytest.fixture
def faulty(make_sandbox: MakeSandbox) -> Sandbox:
    return make_sandbox("faults", nodes=1, gpus=0, settings=QUICK)


def test_a_frozen_controller_leaves_the_submission_unknown_and_its_job_is_adopted_by_name(
    tmp_path: Path, faulty: Sandbox
) -> None:
    project = Project(tmp_path, faulty)
    script = project.script("001_a/000_train_0.sh")
    faulty.freeze("slurmctld")
    try:
        assert_clear_error(project.shoal("submit", script, code=None, SHOAL_SUBMIT_GRACE_S="330"), 5, "not known", RUN)
        seen = project.shoal("status", "--json", SHOAL_SUBMIT_GRACE_S="330").json
        assert seen["runs"][0]["state"] == "unknown" and seen["slurm_problem"]
        again = project.shoal("submit", script, code=None, SHOAL_SUBMIT_GRACE_S="330")
        assert "left alone" in again.out and len(project.submissions()) == 1
    finally:
        faulty.thaw("slurmctld")
    run = project.wait(RUN, "completed", deadline_s=60)
    outcome = json.loads((project.submissions()[0] / "send.0.outcome").read_text())
    assert outcome["kind"] == "accepted" and outcome["adopted"] and outcome["job_id"] == run["job_id"]
    project.shoal("submit", script)
    assert len(project.jobs()) == 1
    project.assert_ran_once(RUN)


def test_a_controller_that_is_down_records_no_failure_and_a_later_submission_works_once(
    tmp_path: Path, faulty: Sandbox
) -> None:
    project = Project(tmp_path, faulty)
    script = project.script("001_a/000_train_0.sh")
    faulty.stop_daemon("slurmctld")
    assert_clear_error(project.shoal("submit", script, code=None, timeout_s=60), 5, "cannot be reached")
    assert project.status()[RUN]["state"] == "new"
    faulty.start_daemon("slurmctld")
    project.shoal("submit", script)
    project.wait(RUN, "completed")
    assert len(project.jobs()) == 1
    project.assert_ran_once(RUN)


def test_a_job_that_a_crashed_controller_forgot_is_found_lost_and_runs_once_although_its_id_was_given_away(
    tmp_path: Path, faulty: Sandbox
) -> None:
    project = Project(tmp_path, faulty)
    held = project.script("001_a/000_train_0.sh", "train --time=5 --mem=50 --hold")
    # When the controller saves is its own affair: it comes back with the disk that it had before the submission.
    before = tmp_path / "before"
    faulty.stop_daemon("slurmctld")
    shutil.copytree(faulty.layout.save, before)
    faulty.start_daemon("slurmctld")
    project.shoal("submit", held)
    faulty.kill("slurmctld")
    shutil.rmtree(faulty.layout.save)
    shutil.copytree(before, faulty.layout.save)
    faulty.start_daemon("slurmctld")
    job_id = project.status()[RUN]["job_id"]
    stranger = project.slurm(
        "sbatch", "--parsable", "--job-name=stranger", "-o", "/dev/null", "--wrap=sleep 600"
    ).strip()
    assert stranger == job_id
    assert project.status()[RUN]["state"] == "unknown"
    _age_missing(project)
    run = project.status()[RUN]
    assert run["state"] == "lost" and run["attempt"] == 0
    project.script("001_a/000_train_0.sh", "train --time=5 --mem=50")
    project.shoal("submit", held)
    assert project.wait(RUN, "completed")["job_id"] != stranger
    project.assert_ran_once(RUN)
    assert project.slurm("squeue", "-h", "-j", stranger, "-o", "%j").strip() == "stranger"


def test_a_controller_that_restarts_under_a_running_run_loses_nothing(tmp_path: Path, faulty: Sandbox) -> None:
    project = Project(tmp_path, faulty)
    script = project.script("001_a/000_train_0.sh", "train --time=5 --mem=50 -- wait=go")
    project.shoal("submit", script)
    project.wait_started(RUN)
    faulty.stop_daemon("slurmctld")
    down = project.shoal("status")
    assert "running" in down.out and "warning: Slurm does not answer" in down.err
    faulty.start_daemon("slurmctld")
    assert project.status()[RUN]["state"] == "running"
    project.write("go", "")
    project.wait(RUN, "completed")
    project.assert_ran_once(RUN)


def test_a_cancelled_run_whose_controller_is_down_ends_itself_when_it_starts(tmp_path: Path, faulty: Sandbox) -> None:
    project = Project(tmp_path, faulty)
    project.shoal("submit", project.script("001_a/000_train_0.sh", "train --time=5 --mem=50 --hold"))
    job_id = project.status()[RUN]["job_id"]
    wait_until(lambda: list(faulty.layout.save.glob("hash.*/job.*")), 20, "the job is on the controller's disk")
    faulty.stop_daemon("slurmctld")
    assert_clear_error(project.shoal("cancel", RUN, code=None), 5, "Slurm")
    faulty.start_daemon("slurmctld")
    project.slurm("scontrol", "release", job_id)
    assert project.wait(RUN, "cancelled")["state"] == "cancelled"
    wait_until(lambda: not project.slurm("squeue", "-h", "-t", "PD,R,CG"), 30, "the job has left")
    assert project.marks(RUN) == []


def _age_missing(project: Project) -> None:
    """Slurm has not known the job for a minute and a half: what was noted of it, made older."""
    (path,) = project.home.glob("cache/watch-*.json")
    record = json.loads(path.read_text())
    record["seen"][RUN][1] -= 90
    path.write_text(json.dumps(record))
