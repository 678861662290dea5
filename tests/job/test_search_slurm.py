"""Searches on a real Slurm: two pilots, one of which is cancelled in the middle, and an array whose tasks ask once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_search_here import PATIENT, PROGRAM, assert_each_ran_with_its_parameters, assert_sampled, bound, search_file

from project import Project
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm
#: The sampler is a process of the job: with 50 MB the kernel killed it, and the later trials were random.
REQUEST = '[request]\ngpus = 1\ncpus = 1\nmemory = "300M"\ntime = "5m"\n'


def made(folder: Path, cluster: Sandbox) -> Project:
    project = Project(folder, cluster)
    project.env |= PATIENT
    project.write("learn.py", f"ROOT = {str(project.root)!r}\n{PROGRAM}")
    return project


def with_request(path: Path) -> Path:
    path.write_text(path.read_text() + REQUEST)
    return path


def wait_completed(project: Project, trials: int) -> None:
    def look() -> bool:
        states = [run["state"] for run in project.status().values()]
        return states.count("completed") == trials

    wait_until(look, 120, f"{trials} trials completed", poll_s=0.5)


def test_two_pilots_share_a_search_and_a_cancelled_one_loses_nothing(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = made(tmp_path, quiet_cluster)
    path = with_request(search_file(project, 16, "wait=go"))
    project.shoal("submit", path, "--pilots", 2, "--gpus", 1, "--time", "5m")
    name = "001_s/000_train_t000"

    def both() -> list[dict[str, Any]]:
        found = [one for trial in (0, 1) for one in project.records(f"001_s/000_train_t00{trial}", "attempt.1.start")]
        return found if len({one["job_label"] for one in found}) == 2 else []

    start, _ = wait_until(both, 60, "each pilot has begun a trial")
    before = bound(project)
    project.slurm("scancel", start["job_label"])  # the id of the first task is that of the whole array
    folder = project.home / "runs" / name
    closed = ("attempt.1.end", "attempt.1.lost.*")  # by its pilot, or by the other one that saw it gone
    wait_until(lambda: any(list(folder.glob(kind)) for kind in closed), 60, "its attempt is over")
    project.write("go", "")
    wait_completed(project, 16)
    assert bound(project)[: len(before)] == before, "what was bound is kept"
    assert_each_ran_with_its_parameters(project, 16, times=2)
    assert_sampled(bound(project))


def test_a_cancelled_pack_goes_on_where_it_was(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = made(tmp_path, quiet_cluster)
    path = with_request(search_file(project, 4, "wait=go", search='sampler = "random"'))
    project.shoal("submit", path, "--layout", "pack", "--gpus", 1, "--time", "5m")
    wait_until(lambda: bound(project), 60, "the first trial is bound")
    before = bound(project)
    project.shoal("cancel", "001_s", "--yes")
    wait_until(lambda: not project.queue("%i", "-t", "running"), 60, "its job has ended")
    project.write("go", "")
    project.shoal("submit", path, "--layout", "pack", "--gpus", 1, "--time", "5m")
    wait_completed(project, 4)
    assert bound(project)[:1] == before
    assert_each_ran_with_its_parameters(project, 4, times=2)


def test_tasks_of_an_array_ask_once_at_their_start(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = made(tmp_path, quiet_cluster)
    path = with_request(search_file(project, 12))
    project.shoal("submit", path, "--layout", "array", "--max-parallel", 2)
    wait_completed(project, 12)
    assert_each_ran_with_its_parameters(project, 12)
    assert_sampled(bound(project))
    assert all(one["job_id"] for one in bound(project)) and max(one["known"] for one in bound(project)) >= 9
