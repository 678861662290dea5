"""A sweep under what clusters do: preemption by QOS, a node that dies. Each run ends done, with all its attempts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import MakeSandbox, cancel_all
from project import Project
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm

#: A dead node is noticed soon, and its job is not forgotten before anybody has looked.
SETTINGS = (("SlurmdTimeout", "5"), ("MessageTimeout", "5"), ("MinJobAge", "300"))
SWEEP_FILE = """\
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
    sweep_file = project.write("experiments/001_a/000_train.toml", SWEEP_FILE)
    project.shoal("submit", sweep_file)
    for name in NAMES:
        wait_saved(project, name)


def wait_saved(project: Project, name: str) -> None:
    """Wait until the first attempt has begun and has a checkpoint to go on from."""
    project.wait_started(name)
    saved = lambda: [one for one in (project.root / "outputs").glob(f"*/{name}/*/model_*") if one.read_text()]  # noqa: E731
    wait_until(saved, 30, f"{name} has saved")


def check_chain(project: Project, name: str) -> None:
    """Two attempts, in one folder, the second from the checkpoint of the first; one good end."""
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
    wait = "while [ ! -e seen ]; do sleep 0.2; done"
    project.slurm("sbatch", "--qos=high", "--nodes=2", "--exclusive", "-o", "/dev/null", "--wrap", wait)
    wait_until(lambda: {run["state"] for run in project.status().values()} == {"pending"}, 90, "both wait again")
    assert "requeued" in project.status()[NAMES[0]]["reason"]
    (project.root / "seen").touch()
    for name in NAMES:
        project.wait(name, "completed", deadline_s=180)
        check_chain(project, name)
    assert len(project.submissions()) == 1


def test_a_sweep_whose_node_dies_goes_on_elsewhere(tmp_path: Path, make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox("dying", nodes=3, settings=SETTINGS)
    project = Project(tmp_path, sandbox)
    submit(project)
    busy = project.slurm("squeue", "-h", "-o", "%N").split()
    sandbox.kill(busy[0], with_steps=True)

    def one_went_on() -> str | None:
        return next((one for one in NAMES if len(project.records(one, "attempt.*.start")) == 2), None)

    moved = wait_until(one_went_on, 180, "one run was started again", poll_s=0.5)
    project.wait(moved, "completed", deadline_s=120)
    check_chain(project, moved)
    assert [start["failed_nodes"] for start in project.records(moved, "attempt.*.start")] == [[], [busy[0]]]
    cancel_all(sandbox)


@pytest.fixture
def two_nodes(make_sandbox: MakeSandbox) -> Sandbox:
    return make_sandbox("two", nodes=2, settings=SETTINGS)


def power_cut(sandbox: Sandbox, node: str) -> None:
    """The node dies with everything on it, Slurm notices, and it comes back as if nothing had been."""
    sandbox.kill(node, with_steps=True)
    wait_until(lambda: "down" in sandbox.run("sinfo", "-hn", node, "-o", "%T").stdout, 60, f"{node} is down")
    sandbox.start_daemon(node)
    sandbox.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
    wait_until(lambda: "down" not in sandbox.run("sinfo", "-hn", node, "-o", "%T").stdout, 60, f"{node} is back")


def test_a_retry_avoids_the_node_that_failed_as_long_as_there_is_another(tmp_path: Path, two_nodes: Sandbox) -> None:
    project, name = Project(tmp_path, two_nodes), "001_a/000_train_0"
    project.script("001_a/000_train_0.sh", "train --time=10 --mem=50 --no-requeue -- save=1 first")
    project.shoal("submit", "experiments/001_a")
    project.wait_started(name)
    [bad] = project.slurm("squeue", "-h", "-o", "%N").split()
    [good] = set(two_nodes.nodes) - {bad}
    power_cut(two_nodes, bad)
    assert project.wait(name, "node_fail")["reason"] == f"the node failed ({bad})"
    assert "node failure" in project.shoal("why", name).out
    assert f"{bad} failed under it" in project.shoal("why", name).out
    assert f"{name} avoids {bad}, which failed" in project.shoal("plan", "experiments/001_a").out
    project.slurm("scontrol", "update", f"NodeName={good}", "State=DRAIN", "Reason=test")
    told = project.shoal("plan", "experiments/001_a").out
    assert f"cannot avoid {bad}, which failed: without it Slurm has no place" in told
    project.slurm("scontrol", "update", f"NodeName={good}", "State=RESUME")
    wait_until(lambda: f"avoids {bad}" in project.shoal("plan", "experiments/001_a").out, 60, "Slurm has a place again")
    assert f"avoids {bad}" in project.shoal("retry", "--cause", "node_fail").err
    project.wait(name, "completed")
    assert project.records(name, "attempt.*.start")[1]["nodes"] == good
    argv = [record for path in project.submissions() for record in [(path / "send.0").read_text()]]
    assert sum(f"--exclude={bad}" in text for text in argv) == 1


def test_a_job_that_comes_back_to_the_node_that_failed_moves_to_another(tmp_path: Path, two_nodes: Sandbox) -> None:
    project, name = Project(tmp_path, two_nodes), "001_a/000_train_0"
    first, second = two_nodes.nodes
    hold = project.slurm("sbatch", "--parsable", f"-w{second}", "--exclusive", "-o/dev/null", "--wrap=sleep 600")
    project.script("001_a/000_train_0.sh", "train --time=10 --mem=50 -- save=1 first")
    project.shoal("submit", "experiments/001_a")
    wait_saved(project, name)
    power_cut(two_nodes, first)
    wait_until(lambda: len(project.submissions()) == 2, 120, "it was handed over", poll_s=0.5)
    waiting = project.wait(name, "pending")
    assert f"ExcNodeList={first}" in project.slurm("scontrol", "show", "job", waiting["job_id"])
    project.slurm("scancel", hold.strip())
    project.wait(name, "completed", deadline_s=120)
    assert project.records(name, "attempt.*.start")[1]["nodes"] == second
    assert len(project.marks(name)) == 2 and len(project.marks(name, "end")) == 1
    assert project.records(name, "attempt.*.start")[1]["resume_from"].endswith("model_1.pth")
