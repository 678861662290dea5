"""Packs on a real Slurm: one job, several nodes, pilots, time limits, and jobs that are killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from project import Project, assert_clear_error, read_record
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm

TOML = """\
step = "train"
command = [{python}, "-S", {train}, {words}]
cost = "k"
[sweep]
k = "1:{runs}:1"
[request]
gpus = 1
cpus = 1
memory = "50M"
"""


@pytest.fixture
def project(tmp_path: Path, quiet_cluster: Sandbox) -> Iterator[Project]:
    yield Project(tmp_path, quiet_cluster)


def sweep(project: Project, runs: int, *words: str, extra: str = "") -> Path:
    """experiments/001_depth/000_train.toml: `runs` runs with k = 1 ..."""
    text = TOML.format(
        python=json.dumps(sys.executable),
        train=json.dumps(str(project.root / "train.py")),
        words=", ".join(json.dumps(word) for word in ("k{k}", *words)),
        runs=runs,
    )
    return project.write("experiments/001_depth/000_train.toml", text + extra)


def wait_all(project: Project, *wanted: str, deadline_s: float = 90) -> dict[str, dict[str, Any]]:
    def look() -> dict[str, dict[str, Any]] | None:
        found = project.status()
        return found if {run["state"] for run in found.values()} <= set(wanted) else None

    return wait_until(look, deadline_s, f"all runs are {' or '.join(wanted)}", poll_s=0.5)


def held(project: Project) -> list[dict[str, Any]]:
    records = [read_record(path) for path in (project.home / "runs").glob("*/*/attempt.*.start")]
    return [{**record["held"], "host": record["host"], "job_id": record["job_id"]} for record in records]


def good_ends(project: Project) -> list[int]:
    found: dict[str, int] = {}
    for path in (project.home / "runs").glob("*/*/attempt.*.end"):
        if read_record(path)["success"]:
            found[path.parent.name] = found.get(path.parent.name, 0) + 1
    return list(found.values())


def job_of(project: Project) -> str:
    (folder,) = project.submissions()
    return str(json.loads((folder / "send.0.outcome").read_text())["job_id"])


def test_a_sweep_is_one_job_whose_gpus_are_lent_in_turn(project: Project) -> None:
    path = sweep(project, 8)
    done = project.shoal("submit", path, "--layout", "pack", "--gpus", 4, "--time", "5m", "--json")
    assert {run["did"] for run in done.json["runs"]} == {"submitted"}
    assert len({run["job_id"] for run in done.json["runs"]}) == 1
    runs = wait_all(project, "completed")
    assert len(runs) == 8 and good_ends(project) == [1] * 8
    assert len(project.jobs()) == 1
    assert {gpu for one in held(project) for gpu in one["gpus"]} == {"0", "1", "2", "3"}
    again = project.shoal("submit", path, "--layout", "pack", "--gpus", 4, "--json")
    assert {run["did"] for run in again.json["runs"]} == {"left alone"}


def test_while_the_job_runs_those_without_a_slot_are_waiting(project: Project) -> None:
    path = sweep(project, 3, "wait=go")
    project.shoal("submit", path, "--layout", "pack", "--gpus", 1, "--time", "5m")
    wait_until(lambda: "running" in {run["state"] for run in project.status().values()}, 60, "one run has begun")
    assert sorted(run["state"] for run in project.status().values()) == ["running", "waiting", "waiting"]
    project.write("go", "")
    wait_all(project, "completed")


def test_several_nodes_pull_from_one_queue(project: Project) -> None:
    path = sweep(project, 12, "wait=go")
    project.shoal("submit", path, "--layout", "pack", "--nodes", 2, "--gpus", 2, "--time", "5m")
    wait_until(lambda: len(held(project)) == 4, 60, "four runs have begun")
    assert len({one["engine"] for one in held(project)}) == 2, "an engine on each node"
    project.write("go", "")
    wait_all(project, "completed")
    assert good_ends(project) == [1] * 12


def test_a_node_with_nothing_left_to_do_is_given_back_before_the_job_ends(project: Project) -> None:
    path = sweep(project, 2, "wait=go{k}")
    project.shoal("submit", path, "--layout", "pack", "--nodes", 2, "--gpus", 1, "--shrink", "--time", "5m")
    wait_until(lambda: len(held(project)) == 2, 60, "a run has begun on each node")
    job = job_of(project)
    batch_node = project.slurm("squeue", "-h", "-j", job, "-o", "%B").strip()
    node_of = {run: _node_of_engine(project, run) for run in project.status()}
    run, other = next((run, node) for run, node in node_of.items() if node != batch_node)
    project.write(f"go{run[-1]}", "")

    def nodes() -> list[str]:
        return project.slurm("squeue", "-h", "-j", job, "-o", "%N|%T").strip().split("|")

    wait_until(lambda: nodes() == [batch_node, "RUNNING"], 60, "the job goes on with one node", poll_s=0.5)
    wait_until(lambda: {*project.slurm("sinfo", "-h", "-N", "-n", other, "-o", "%t").split()} == {"idle"}, 60, "idle")
    assert {run["state"] for run in project.status().values()} == {"running", "completed"}
    project.write("go1", "")
    project.write("go2", "")
    wait_all(project, "completed")
    assert good_ends(project) == [1] * 2
    assert not list(project.root.glob("slurm_job_*")), "scontrol's scripts about the new size are not left behind"


def _node_of_engine(project: Project, run: str) -> str:
    start = read_record(project.home / "runs" / run / "attempt.1.start")
    words = Path(f"/proc/{start['pid']}/environ").read_text().split("\0")
    return next(word.partition("=")[2] for word in words if word.startswith("SLURMD_NODENAME="))


def test_pilots_share_a_queue_and_end_when_it_is_empty(project: Project) -> None:
    path = sweep(project, 9, "wait=go")
    project.shoal("submit", path, "--pilots", 3, "--time", "5m")
    wait_until(lambda: len(held(project)) == 3, 60, "three runs have begun")
    assert len({one["job_id"] for one in held(project)}) == 3, "each pilot is a job of its own"
    project.write("go", "")
    wait_all(project, "completed")
    assert good_ends(project) == [1] * 9
    wait_until(lambda: not project.slurm("squeue", "-h", "-t", "PD,R").strip(), 60, "no pilot is left")


def test_a_cancelled_job_leaves_waiting_runs_for_the_next_submit(project: Project) -> None:
    path = sweep(project, 4, "wait=go")
    project.shoal("submit", path, "--layout", "pack", "--gpus", 2, "--time", "5m")
    wait_until(lambda: len(held(project)) == 2, 60, "two runs have begun")
    project.slurm("scancel", job_of(project))
    runs = wait_all(project, "cancelled", "new")
    assert sorted(run["state"] for run in runs.values()) == ["cancelled", "cancelled", "new", "new"]
    project.write("go", "")
    project.shoal("submit", path, "--layout", "pack", "--gpus", 2, "--time", "5m")
    wait_all(project, "completed")
    assert good_ends(project) == [1] * 4


def test_a_killed_engine_ends_its_job_and_the_next_submit_continues(project: Project) -> None:
    path = sweep(project, 4, "wait=go")
    project.shoal("submit", path, "--layout", "pack", "--gpus", 2, "--time", "5m")
    wait_until(lambda: len(held(project)) == 2, 60, "two runs have begun")
    start = read_record(next((project.home / "runs").glob("*/*/attempt.1.start")))
    os.kill(start["pid"], signal.SIGKILL)
    wait_until(lambda: not project.slurm("squeue", "-h", "-t", "PD,R,CG").strip(), 60, "the job has ended")
    runs = project.status()
    assert sorted(run["state"] for run in runs.values()) == ["lost", "lost", "new", "new"]
    project.write("go", "")
    project.shoal("submit", path, "--layout", "pack", "--gpus", 2, "--time", "5m")
    wait_all(project, "completed")
    assert good_ends(project) == [1] * 4


def test_what_the_time_limit_leaves_over_continues_in_a_follow_up_job(project: Project) -> None:
    path = sweep(project, 3, "wait=go")
    project.shoal("submit", path, "--layout", "pack", "--gpus", 2, "--time", "2m", "--warn", "95s", "--grace", "5s")
    wait_until(lambda: len(held(project)) >= 2, 60, "two runs have begun")
    first = job_of(project)
    wait_until(lambda: list(project.submissions()[0].glob("send.1.outcome")), 90, "a follow-up job was submitted")
    project.write("go", "")
    runs = wait_all(project, "completed", deadline_s=120)
    assert good_ends(project) == [1] * 3
    assert any(run["job_id"] != first for run in runs.values())
    stopped = [end for end in _ends(project) if end["stopped_by"]]
    assert {end["stopped_by"] for end in stopped} == {"walltime"}


def _ends(project: Project) -> list[dict[str, Any]]:
    return [read_record(path) for path in (project.home / "runs").glob("*/*/attempt.*.end")]


def test_a_run_that_cannot_fit_is_refused_before_anything_is_submitted(project: Project) -> None:
    path = sweep(project, 2, extra="")
    done = project.shoal("submit", path, "--layout", "pack", "--gpus", 2, "--gpus-per-run", 4, code=2)
    assert "never fits" in done.err
    assert not project.home.exists() or not project.submissions()


@pytest.mark.parametrize("words", [("--gpus", 1), ("--nodes", 2, "--engine", "ray", "--gpus", 1)])
def test_shrinking_what_cannot_shrink_is_one_sentence(project: Project, words: tuple[object, ...]) -> None:
    done = project.shoal("submit", sweep(project, 2), "--layout", "pack", "--shrink", *words, code=2)
    assert_clear_error(done, 2, "--shrink gives idle nodes back")


def test_a_share_on_the_sweep_file_lets_runs_share_the_one_gpu_that_is_asked_for(project: Project) -> None:
    path = sweep(project, 4, "wait=go")
    path.write_text(path.read_text().replace("gpus = 1", "gpus = 0.25"))
    plan = project.shoal("plan", path, "--layout", "pack", "--slots", 4, "--time", "5m", "--json").json
    assert {run["request"]["gpus"] for run in plan["runs"]} == {1}
    project.shoal("submit", path, "--layout", "pack", "--slots", 4, "--time", "5m")
    wait_until(lambda: len(held(project)) == 4, 60, "four runs have begun")
    assert {(*one["gpus"], one["share"]) for one in held(project)} == {("0", 0.25)}
    assert "gpu:1\n" in project.slurm("scontrol", "show", "job", job_of(project))
    project.write("go", "")
    wait_all(project, "completed")
    assert {
        start["env"]["SHOAL_GPU_MEMORY_FRACTION"] for run in project.status() for start in project.marks(run)[:1]
    } == {"0.2250"}


def test_commands_go_to_slurm_as_one_job(project: Project) -> None:
    done = project.shoal(
        "pack", "--on", "slurm", "--slots", 2, "--time", "5m", "--set", "k=1:4:1", "--", *_quick(), "{k}"
    )
    assert "4 submitted" in done.out
    wait_all(project, "completed")
    assert len(project.jobs()) == 1


def _quick() -> list[str]:
    return [sys.executable, "-S", "train.py"]
