"""The Ray engine, with real Ray: on this machine and over the nodes of a Slurm job."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from project import Project
from shoal.agent.pack.ray_cluster import Cluster, RayProblem, ray_environment, sizes
from shoal.sandbox import Sandbox
from waiting import wait_until

QUICK = [sys.executable, "-S", "train.py"]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    made.env["SHOAL_ON"] = "local"
    yield made
    for pid in _of_ray(made):
        os.kill(pid, signal.SIGKILL)


def _of_ray(project: Project) -> list[int]:
    """Every process that has this project's token file in its environment: Ray's own, and what it started."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if f"RAY_AUTH_TOKEN_PATH={project.home}".encode() in environ:
                found.append(int(name))
    return found


def test_sizes_and_surroundings_are_the_allocations_and_not_the_machines() -> None:
    assert sizes(4, 2)[:2] == ["--num-cpus=4", "--num-gpus=2"]
    assert any(word.startswith("--object-store-memory=") for word in sizes(4, 2))
    env = ray_environment({"RAY_ADDRESS": "somebody:6379", "HOME": "/h", "PYTHONPATH": "/p"}, "/t")
    assert "RAY_ADDRESS" not in env and env["RAY_AUTH_MODE"] == "token" and env["RAY_AUTH_TOKEN_PATH"] == "/t"
    assert env["RAY_worker_niceness"] == "0" and env["PYTHONPATH"].endswith(":/p")


def test_runs_are_the_same_under_ray_and_nothing_of_it_is_left(project: Project) -> None:
    words = ("--engine", "ray", "--slots", 2, "--set", "what=exit=0,exit=7,print=hello,kill=9", "--json", "--", *QUICK)
    done = project.shoal("pack", *words, "{what}", code=4, timeout_s=200)
    runs = {run["name"].rpartition("what")[2]: run for run in done.json["runs"]}
    assert sorted(run["state"] for run in runs.values()) == ["done", "done", "failed", "failed"]
    assert sorted(run["exit_code"] for run in runs.values()) == [0, 0, 7, 137]
    assert len({bar["lane"] for bar in done.json["timeline"]}) == 2
    assert not _of_ray(project)
    (token,) = project.submissions()[0].glob("ray.*.token")
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


def test_killing_a_worker_of_ray_ends_its_run_which_is_tried_again(project: Project) -> None:
    words = ("pack", "--engine", "ray", "--slots", 2, "--set", "k=1:3:1", "--", *QUICK, "wait=go", "{k}")
    begun = project.start(*words)
    wait_until(lambda: len(list((project.root / "marks").iterdir())) >= 2, 120, "two runs have begun")
    worker = next(pid for pid in _of_ray(project) if b"SlotWorker" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: list((project.home / "runs").glob("*/*/attempt.1.end")), 60, "the lost run is recorded")
    project.write("go", "")
    _, said = begun.communicate(timeout=120)
    assert begun.returncode == 0, said
    ends = [json.loads(path.read_text()) for path in (project.home / "runs").glob("*/*/attempt.*.end")]
    assert sorted((end["stopped_by"] or "done") for end in ends) == ["done", "done", "done", "lost"]
    assert not _of_ray(project)


def test_without_ray_it_says_so_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RayProblem, match=r"pip install 'shoal\[ray\]'"):
        Cluster(str(tmp_path), 1, 0, 1, {}, {})


@pytest.mark.slurm
def test_ray_over_the_nodes_of_a_job(tmp_path: Path, make_sandbox: Callable[..., Sandbox]) -> None:
    """The nodes are hosts of their own here: own address, own processes."""
    project = Project(tmp_path, make_sandbox("ray", nodes=2, hosts=True))
    words = ("pack", "--engine", "ray", "--nodes", 2, "--gpus", 2, "--slots", 2, "--time", "10m", "--mem", "2G")
    project.shoal(*words, "--set", "k=1:6:1", "--", *QUICK, "wait=go", "{k}")
    wait_until(lambda: len(list((project.root / "marks").iterdir())) >= 4, 180, "four runs have begun")
    starts = [json.loads(path.read_text()) for path in (project.home / "runs").glob("*/*/attempt.1.start")]
    assert len({start["held"]["host"] for start in starts}) == 2, "slots on both nodes"
    assert len({start["engine"] for start in starts}) == 1, "one engine for all of them"
    project.write("go", "")
    wait_until(lambda: {run["state"] for run in project.status().values()} == {"done"}, 90, "all runs are done")
    wait_until(lambda: not project.slurm("squeue", "-h", "-t", "PD,R,CG").strip(), 60, "the job has ended")
    assert not _of_ray(project)
