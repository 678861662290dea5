"""Sweeps on a real Slurm: arrays up to the cluster's limit, how many at once, reconciling and pruning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from conftest import MakeSandbox, cancel_all
from project import Project
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm

SWEEP_FILE = """\
step = "train"
seeds = "0-3"
args = ["wait=go"]
[sweep]
lr = [0.1, 0.2, 0.3]
[request]
time = "5m"
memory = "50M"
"""


@pytest.fixture
def project(tmp_path: Path, cluster: Sandbox) -> Iterator[Project]:
    yield Project(tmp_path, cluster)
    cancel_all(cluster)


def sweep_file(project: Project, text: str = SWEEP_FILE) -> Path:
    return project.write("experiments/002_depth/000_train.toml", text)


def states(project: Project) -> Counter[str]:
    return Counter(run["state"] for run in project.status().values())


def go(project: Project) -> None:
    (project.root / "go").touch()


def wait_all_done(project: Project, count: int) -> None:
    wait_until(lambda: states(project) == {"completed": count}, 120, f"{count} runs completed", poll_s=0.5)


def test_many_equal_runs_are_as_many_arrays_as_the_limit_demands(tmp_path: Path, make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox("arrays", settings=(("MaxArraySize", "5"),))
    project = Project(tmp_path, sandbox)
    go(project)
    project.shoal("submit", sweep_file(project))
    assert len(project.submissions()) == 3
    wait_all_done(project, 12)
    project.assert_ran_once(*project.status())
    again = project.shoal("submit", sweep_file(project))
    assert "12 runs: 12 left alone" in again.out
    assert len(project.submissions()) == 3
    cancel_all(sandbox)


def test_a_sweep_that_shrinks_is_told_and_pruned_only_on_request(project: Project) -> None:
    project.shoal("submit", sweep_file(project))
    for name in project.status():
        project.wait_started(name)
    smaller = sweep_file(project, SWEEP_FILE.replace("[0.1, 0.2, 0.3]", "[0.1, 0.3]").replace("0-3", "0-1"))
    plan = project.shoal("plan", "--json", smaller).json
    gone = {run["name"] for run in plan["removed"]}
    assert len(gone) == 8 and all(run["left_alone"] for run in plan["runs"])
    told = project.shoal("submit", smaller)
    assert "8 active runs are no longer described" in told.err
    assert states(project) == {"running": 12}
    names = sorted((project.home / "sweeps").rglob("*"))
    other = sweep_file(project, smaller.read_text().replace("[0.1, 0.3]", "[0.1, 0.4]").replace("wait=go", "wait=stop"))
    refused = project.shoal("submit", "--prune", other, code=2)
    assert "with other settings" in refused.err
    assert states(project) == {"running": 12}, "an order that is refused cancels nothing"
    assert sorted((project.home / "sweeps").rglob("*")) == names, "and keeps no names"
    smaller = sweep_file(project, SWEEP_FILE.replace("[0.1, 0.2, 0.3]", "[0.1, 0.3]").replace("0-3", "0-1"))
    pruned = project.shoal("submit", "--prune", "--json", smaller).json["runs"]
    assert {run["name"] for run in pruned if run["did"] == "cancelled"} == gone
    for name in gone:
        project.wait(name, "cancelled")
    go(project)
    wait_until(lambda: states(project) == {"completed": 4, "cancelled": 8}, 60, "the rest completed")


def test_different_requests_become_different_arrays_and_max_parallel_holds_over_all(project: Project) -> None:
    text = SWEEP_FILE.replace('seeds = "0-3"', 'seeds = "0-1"') + '[[requests]]\nwhen = "lr > 0.25"\ncpus = 2\n'
    project.shoal("submit", "--max-parallel", "1", sweep_file(project, text))
    assert len(project.submissions()) == 2
    wait_until(lambda: states(project)["running"] == 1, 60, "one run is under way")
    jobs = project.queue("%E|%t")
    assert len([job for job in jobs if "afterany" in job]) >= 1
    assert len([job for job in jobs if job.endswith("|R")]) == 1
    go(project)
    wait_all_done(project, 6)
    starts = sorted(
        (record["began"], record["ended"])
        for name in project.status()
        for record in project.records(name, "attempt.*.end")
    )
    assert all(end <= begin + 0.5 for (_, end), (begin, _) in pairwise(starts))
