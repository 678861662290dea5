"""Several commands at once on the same runs: each run is claimed by one of them and runs once."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from project import Project, end_process
from shoal.sandbox import Sandbox

pytestmark = pytest.mark.slow


@pytest.mark.slurm
@pytest.mark.parametrize("commands", [2, 4])
def test_commands_that_race_on_a_folder_of_scripts_submit_each_run_once(
    commands: int, tmp_path: Path, cluster: Sandbox
) -> None:
    project = Project(tmp_path, cluster)
    for number in range(6):
        project.script(f"001_a/{number:03}_train_0.sh")
    _race(project, commands, "submit", "experiments/001_a", "--layout", "job")
    names = [f"001_a/{number:03}_train_0" for number in range(6)]
    for name in names:
        project.wait(name, "completed")
    project.assert_ran_once(*names)
    assert set(Counter(project.jobs()).values()) == {1} and len(project.jobs()) == 6


@pytest.mark.slurm
def test_commands_that_race_on_an_array_submit_each_task_once(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    project.script("001_a/000_train.sh")
    _race(project, 4, "submit", "experiments/001_a/000_train.sh", "--seeds", "0-11")
    names = [f"001_a/000_train_{seed}" for seed in range(12)]
    for name in names:
        project.wait(name, "completed")
    project.assert_ran_once(*names)
    assert len(project.jobs()) == 12


def test_commands_that_race_on_this_machine_run_the_run_once(tmp_path: Path) -> None:
    project = Project(tmp_path)
    script = project.script("001_a/000_train_0.sh")
    _race(project, 4, "submit", script)
    assert project.status()["001_a/000_train_0"]["state"] == "completed"
    project.assert_ran_once("001_a/000_train_0")


def test_people_who_look_while_commands_race_change_nothing(tmp_path: Path) -> None:
    """`status` settles what nobody acknowledged; it must not give up what another command is about to send."""
    project = Project(tmp_path)
    names = []
    for number in range(4):
        project.script(f"001_a/{number:03}_train_0.sh")
        names.append(f"001_a/{number:03}_train_0")
    submitting = project.start("submit", "experiments/001_a")
    try:
        while submitting.poll() is None:
            project.shoal("status", "--json", SHOAL_SUBMIT_GRACE_S="0.01")
        out, err = submitting.communicate()
    finally:
        end_process(submitting)
    assert submitting.returncode == 0, out + err
    project.assert_ran_once(*names)


def _race(project: Project, count: int, *words: object) -> None:
    started: list[subprocess.Popen[str]] = []
    try:
        started += [project.start(*words) for _ in range(count)]
        for command in started:
            out, err = command.communicate(timeout=300)
            assert command.returncode == 0 and "Traceback" not in err, out + err
    finally:
        for command in started:
            end_process(command)
