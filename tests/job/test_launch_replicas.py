"""Fault-tolerant replicas on a real Slurm with real torchft: they train, die, hang, lose their lighthouse or a node."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from conftest import MakeSandbox
from launching import Launching, assert_nothing_left, find_process, processes_of
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm

FOUR = """launch = {{ mode = "replicas", replicas_per_node = 2, join_timeout_ms = 10000{more} }}
request = {{ nodes = 2, gpus = {gpus}, cpus = {cpus}, time = "10m" }}"""


#: Beside the four, on the same nodes and without GPUs.
PAIR = 'launch = { mode = "replicas", replicas_per_node = 1 }\nrequest = { nodes = 2, cpus = 2, time = "10m" }'


def four(more: str = "", gpus: int = 2, cpus: int = 4) -> str:
    return FOUR.format(more=f", {more}" if more else "", gpus=gpus, cpus=cpus)


def pid_of(project: Launching, replica: int) -> int:
    """The pid on this machine of a replica's rank, whatever it is called inside its node."""
    found = []
    for pid, words in processes_of(project.root).items():
        if "diloco.py" in words and "rank" not in words and ".pyz" not in " ".join(words):
            env = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if b"SHOAL_REPLICA=%d" % replica in env:
                found.append(pid)
    assert found, processes_of(project.root)
    return found[0]


def rounds(project: Launching, name: str, replica: int) -> list[dict[str, Any]]:
    return [said for said in project.says(name, "round") if said["replica"] == replica]


def wait_training(project: Launching, name: str, count: int = 3) -> None:
    wait_until(lambda: all(len(rounds(project, name, one)) >= count for one in range(4)), 90, f"{name} trains")


def test_a_killed_replica_comes_back_while_two_jobs_share_the_nodes(tmp_path: Path, host_cluster: Sandbox) -> None:
    project = Launching(tmp_path, host_cluster, diloco=four(), diloco_plain=PAIR)
    one = project.submit("000_diloco_0", "diloco -- --rounds 50 --pause 0.05")
    wait_training(project, one)
    os.kill(pid_of(project, 1), signal.SIGKILL)
    other = project.submit("001_diloco_0", "diloco_plain -- --rounds 3")
    for name in (one, other):
        project.wait(name, "completed", deadline_s=150)
    assert "replica 1 ended with code 137 and starts again in 0.2 s" in project.log(one)
    starts = project.says(one, "start")
    assert {said["replica"] for said in starts} == {0, 1, 2, 3}
    assert (project.launch_folder(one) / "replica-1.attempt-2.out").exists()
    assert len({said["host"] for said in starts}) == 2
    first = {said["replica"]: said["gpus"] for said in starts}
    assert sorted(first.values()) == ["0", "0", "1", "1"], "each replica has its own GPU of its node"
    ends = [said for said in project.says(one, "end") if said["round"] == 50]
    assert len(ends) >= 3
    assert len({json.dumps(end["weights"]) for end in ends}) == 1
    assert rounds(project, one, 0)[-1]["loss"] < rounds(project, one, 0)[0]["loss"]
    assert {said["replicas"] for said in project.says(other, "round")} == {2}, "the other job never met the first"
    lighthouses = [{said["lighthouse"] for said in project.says(name, "start")} for name in (one, other)]
    assert len(lighthouses[0]) == len(lighthouses[1]) == 1
    assert lighthouses[0] != lighthouses[1]
    assert_nothing_left(project.root)


def test_replicas_over_two_nodes_each_train_with_all_their_ranks(tmp_path: Path, host_cluster: Sandbox) -> None:
    launch = 'launch = { mode = "replicas", nodes_per_replica = 2 }\nrequest = { nodes = 4, gpus = 1, cpus = 2 }'
    project = Launching(tmp_path, host_cluster, diloco=launch)
    name = project.submit("000_diloco_0", "diloco --time=10 -- --rounds 4")
    project.wait(name, "completed", deadline_s=150)
    ends = {(end["replica"], end["rank"]): end["host"] for end in project.says(name, "end")}
    assert sorted(ends) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(set(ends.values())) == 4
    assert rounds(project, name, 0)[-1]["loss"] < rounds(project, name, 0)[0]["loss"]
    assert (project.launch_folder(name) / "replica-1.attempt-1.rank-1.out").exists(), "one log for each rank"


def test_a_lost_lighthouse_restarts_the_run_from_its_checkpoints(tmp_path: Path, host_cluster: Sandbox) -> None:
    project = Launching(tmp_path, host_cluster, diloco=four("min_replicas = 4"))
    name = project.submit("000_diloco_0", "diloco -- --rounds 25 --pause 0.1")
    wait_training(project, name)
    os.kill(find_process(project.root, "torchft_lighthouse"), signal.SIGKILL)
    project.wait(name, "completed", deadline_s=150)
    assert "the lighthouse is gone: all replicas start over from their checkpoints" in project.log(name)
    again = [said for said in project.says(name, "start") if said["round"] > 0]
    assert sorted(said["replica"] for said in again) == [0, 1, 2, 3]
    assert (project.launch_folder(name) / "lighthouse-2.log").exists()
    assert_nothing_left(project.root)


def test_a_replica_that_hangs_is_killed_and_started_again(tmp_path: Path, host_cluster: Sandbox) -> None:
    project = Launching(tmp_path, host_cluster, diloco=four('hang_after = "15s", min_replicas = 3'))
    name = project.submit("000_diloco_0", "diloco -- --rounds 40 --pause 0.15 --hang 2:5")
    project.wait(name, "completed", deadline_s=180)
    assert "replica 2 has written nothing for" in project.log(name)
    assert (project.launch_folder(name) / "replica-2.attempt-2.out").exists()


def test_killing_the_supervisor_ends_the_job_and_every_replica(tmp_path: Path, host_cluster: Sandbox) -> None:
    project = Launching(tmp_path, host_cluster, show=four())
    name = project.submit("000_show_0", "show -- wait")
    project.wait_notes(name, 4)
    os.kill(find_process(project.root, "launch", "plan.json"), signal.SIGKILL)
    assert project.wait(name)["exit_code"] == 137
    assert_nothing_left(project.root)


def test_a_cancelled_run_lets_its_replicas_save_and_leave(tmp_path: Path, host_cluster: Sandbox) -> None:
    project = Launching(tmp_path, host_cluster, show=four())
    name = project.submit("000_show_0", "show -- wait")
    project.wait_notes(name, 4)
    project.shoal("cancel", name)
    assert project.wait(name)["state"] == "cancelled"
    assert [note["got"] for note in project.notes(name, "saved")] == [["SIGTERM"]] * 4
    assert_nothing_left(project.root)


def test_a_lost_node_takes_only_its_own_replicas(tmp_path: Path, make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox("loss", nodes=3, gpus=2, cpus=8, hosts=True, settings=(("SlurmdTimeout", "5"),))
    launch = 'launch = { mode = "replicas", replicas_per_node = 1, restarts = 1 }\nrequest = { nodes = 3, cpus = 2 }'
    project = Launching(tmp_path, sandbox, diloco=launch)
    name = project.submit("000_diloco_0", "diloco --time=10 -- --rounds 150 --pause 0.1")
    wait_until(lambda: all(len(rounds(project, name, one)) >= 2 for one in range(3)), 90, f"{name} trains")
    sandbox.kill(sandbox.nodes[2], with_steps=True)
    run = project.wait(name, deadline_s=240)
    assert run["state"] == "completed", project.log(name)
    assert {end["replica"] for end in project.says(name, "end")} == {0, 1}
