"""Kill -9 of the command at every marked point of a submission: no run is lost and none runs twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from project import Project
from shoal.kernel.submission import FAILPOINTS
from shoal.sandbox import Sandbox

pytestmark = pytest.mark.slow

RUN = "001_a/000_train_0"
TASKS = [f"001_a/000_train_{seed}" for seed in range(4)]
#: What happens on this machine: the answer of sbatch has no part in it.
LOCAL_POINTS = [point for point in FAILPOINTS if point not in ("after-sbatch", "before-outcome", "before-report")]


@pytest.mark.slurm
@pytest.mark.parametrize("point", FAILPOINTS)
def test_a_job_runs_once_although_its_submission_was_killed(point: str, tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    script = project.script("001_a/000_train_0.sh", "train --time=5 --mem=50")
    project.shoal("submit", script, code=-9, SHOAL_FAILPOINT=point)
    _submit_until_done(project, script, [RUN])
    project.assert_ran_once(RUN)


@pytest.mark.slurm
@pytest.mark.parametrize("point", FAILPOINTS)
def test_every_task_of_an_array_runs_once_although_its_submission_was_killed(
    point: str, tmp_path: Path, cluster: Sandbox
) -> None:
    project = Project(tmp_path, cluster)
    script = project.script("001_a/000_train.sh", "train --time=5 --mem=50")
    project.shoal("submit", script, "--seeds", "0-3", code=-9, SHOAL_FAILPOINT=point)
    _submit_until_done(project, script, TASKS, "--seeds", "0-3")
    project.assert_ran_once(*TASKS)


@pytest.mark.parametrize("point", LOCAL_POINTS)
def test_a_run_on_this_machine_runs_once_although_its_command_was_killed(point: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    script = project.script("001_a/000_train_0.sh")
    project.shoal("submit", script, code=-9, SHOAL_FAILPOINT=point)
    assert project.marks(RUN) == []
    project.shoal("submit", script)
    assert project.status()[RUN]["state"] == "completed"
    project.assert_ran_once(RUN)


def _submit_until_done(project: Project, script: Path, names: list[str], *words: str) -> None:
    """What a person does: submit again whenever a run is not under way, and look until all completed."""
    for _ in range(3):
        project.shoal("submit", script, *words)
        states = [project.wait(name, "completed", "new", deadline_s=60)["state"] for name in names]
        if set(states) == {"completed"}:
            return
    raise AssertionError(f"after three more submissions: {states}")
