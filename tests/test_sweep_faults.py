"""A sweep under what clusters do: preemption by QOS, a node that dies. Each run ends done, its chain of tries whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import MakeSandbox, cancel_all
from project import Project
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm

PAGE = """\
step = "train"
args = ["save={n}", "first"]
[sweep]
n = [3, 4]
[request]
time = "10m"
memory = "50M"
cpus = 16
"""
NAMES = ("001_a/000_train_n3", "001_a/000_train_n4")


def submit(project: Project) -> None:
    page = project.write("experiments/001_a/000_train.toml", PAGE)
    project.shoal("submit", page)
    for name in NAMES:
        project.wait_started(name)


def check_chain(project: Project, name: str) -> None:
    """Two tries, in one folder, the second from the checkpoint of the first; one good end."""
    starts = project.records(name, "attempt.*.start")
    assert len(starts) == 2 and starts[0]["output_dir"] == starts[1]["output_dir"]
    assert starts[1]["resume_from"].endswith(f"model_{name[-1]}.pth")
    assert [end["success"] for end in project.records(name, "attempt.*.end")].count(True) == 1
    assert len(project.marks(name, "end")) == 1


@pytest.fixture
def accounting(accounting_cluster: Sandbox) -> Iterator[Sandbox]:
    yield accounting_cluster
    cancel_all(accounting_cluster)


def test_a_preempted_sweep_goes_on_from_its_checkpoints(tmp_path: Path, accounting: Sandbox) -> None:
    project = Project(tmp_path, accounting)
    submit(project)
    project.slurm(
        "sbatch", "--parsable", "--qos=high", "--nodes=2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3"
    )
    wait_until(lambda: all(project.status(name)[name]["state"] == "pending" for name in NAMES), 90, "both wait again")
    assert "requeued" in project.status(NAMES[0])[NAMES[0]]["cause"]
    for name in NAMES:
        project.wait(name, "done", deadline_s=180)
        check_chain(project, name)
    assert len(project.submissions()) == 1


def test_a_sweep_whose_node_dies_goes_on_elsewhere(tmp_path: Path, make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox("dying", nodes=3, settings=(("SlurmdTimeout", "5"), ("MessageTimeout", "5")))
    project = Project(tmp_path, sandbox)
    submit(project)
    busy = project.slurm("squeue", "-h", "-o", "%N").split()
    sandbox.kill(busy[0], with_steps=True)

    def one_went_on() -> str | None:
        return next((one for one in NAMES if len(project.records(one, "attempt.*.start")) == 2), None)

    moved = wait_until(one_went_on, 180, "one run was started again", poll_s=0.5)
    project.wait(moved, "done", deadline_s=120)
    check_chain(project, moved)
    cancel_all(sandbox)
