"""What a launch makes of a request: ranks, tasks, CPUs, replicas; and the requests that cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from project import Project, assert_clear_error
from shoal.batch.sbatch_flags import parse_flags
from shoal.describe.cluster import UNNAMED, Cluster
from shoal.errors import InputError
from shoal.job.launch.geometry import (
    LAUNCH_DEFAULTS,
    LAUNCH_MODES,
    GeometryError,
    compute_geometry,
    describe_geometry,
    fold_to_one_node,
    slice_gpus,
)
from shoal.job.launch.replica_policy import ReplicaStates, replica_limits
from shoal.model import LaunchSettings, Request
from shoal.plan.sbatch_options import ResolvedRequest, resolve_request


def resolved(launch: str, *flags: str, settings: LaunchSettings | None = None, **request: Any) -> ResolvedRequest:
    cluster = Cluster(name=UNNAMED)
    return resolve_request(Request(**request), parse_flags(flags), cluster, {}, launch=launch, settings=settings)


@pytest.mark.parametrize(
    ("launch", "tasks", "cpus"),
    [("process", "1", "16"), ("torchrun", "1", "16"), ("srun", "8", "2"), ("accelerate", "1", "16")],
)
def test_tasks_and_their_cpus_follow_the_launch(launch: str, tasks: str, cpus: str) -> None:
    found = resolved(launch, nodes=2, gpus=8, cpus=16)
    assert (found.get("ntasks-per-node"), found.get("cpus-per-task"), found.get("gres")) == (tasks, cpus, "gpu:8")


def test_replicas_get_a_task_each_and_outlive_a_node() -> None:
    found = resolved("replicas", nodes=4, gpus=8, cpus=64, settings=LaunchSettings(replicas_per_node=4))
    assert (found.get("ntasks-per-node"), found.get("cpus-per-task")) == ("4", "16")
    assert ("no-kill", None) in found.options
    assert (found.geometry.replicas, found.geometry.min_replicas, found.geometry.replica_gpus) == (16, 9, 2)


def test_replicas_over_several_nodes() -> None:
    found = compute_geometry("replicas", {"nodes_per_replica": 2}, 4, 8, None)
    assert (found.replicas, found.tasks, found.replica_processes, found.min_replicas) == (2, 1, 8, 2)


@pytest.mark.parametrize(
    ("launch", "flags", "words"),
    [
        ("torchrun", ["--ntasks-per-node=8"], ["--ntasks-per-node=8 contradicts launch torchrun", "1 task"]),
        ("srun", ["--ntasks=1"], ["--ntasks=1 contradicts launch srun", "4 tasks"]),
        ("srun", ["--gpus-per-task=1"], ["--gpus-per-task=1 leaves open"]),
        ("torchrun", ["--nodes=2-4"], ["--nodes=2-4 leaves open"]),
    ],
)
def test_a_flag_that_contradicts_the_launch_is_refused(launch: str, flags: list[str], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        resolved(launch, *flags, nodes=2, gpus=4)
    assert all(word in error.value.message for word in words), error.value.message
    assert error.value.hint


def test_a_flag_that_says_the_same_is_accepted() -> None:
    assert resolved("srun", "--ntasks-per-node=4", nodes=2, gpus=4).get("ntasks-per-node") == "4"


@pytest.mark.parametrize(
    ("mode", "settings", "nodes", "gpus", "cpus", "words"),
    [
        ("replicas", {"replicas_per_node": 3}, 1, 8, None, "8 GPUs per node cannot be divided among 3 replicas"),
        ("replicas", {"nodes_per_replica": 2}, 3, 8, None, "3 nodes cannot be divided into replicas of 2"),
        ("replicas", {"nodes_per_replica": 2, "replicas_per_node": 2}, 4, 8, None, "not both"),
        ("replicas", {"replicas_per_node": 2, "min_replicas": 3}, 1, 2, None, "more than the 2 replicas"),
        ("replicas", {"replicas_per_node": 2, "min_finished": 3}, 1, 2, None, "more than the 2 replicas"),
        ("replicas", {"replicas_per_node": 2, "processes": 3}, 1, 0, None, "3 processes per node cannot be divided"),
        ("torchrun", {"processes": 8}, 1, 1, None, "8 processes per node are more than its 1 GPU"),
        ("torchrun", {"processes": 3}, 1, 8, None, "cannot be shared evenly"),
        ("srun", {}, 1, 8, 4, "4 CPUs per node are fewer than its 8 tasks"),
    ],
)
def test_what_does_not_fit_is_told_with_what_would(
    mode: str, settings: dict[str, int], nodes: int, gpus: int, cpus: int | None, words: str
) -> None:
    with pytest.raises(GeometryError) as error:
        compute_geometry(mode, settings, nodes, gpus, cpus)
    assert words in error.value.message
    assert error.value.hint


@given(
    mode=st.sampled_from([mode for mode in LAUNCH_MODES if mode != "process"]),
    nodes=st.integers(1, 8),
    gpus=st.integers(0, 8),
    replicas_per_node=st.none() | st.integers(1, 8),
    nodes_per_replica=st.none() | st.integers(1, 4),
)
def test_every_gpu_has_a_rank_and_every_rank_a_place(
    mode: str, nodes: int, gpus: int, replicas_per_node: int | None, nodes_per_replica: int | None
) -> None:
    settings = {"replicas_per_node": replicas_per_node, "nodes_per_replica": nodes_per_replica}
    try:
        found = compute_geometry(mode, settings if mode == "replicas" else {}, nodes, gpus, None)
    except GeometryError:
        return
    assert found.world == nodes * max(1, gpus) or (mode == "replicas" and gpus == 0)
    assert describe_geometry(found)
    folded = fold_to_one_node(found)
    assert (folded.nodes, folded.world, folded.replicas) == (1, found.world, found.replicas)
    if found.replicas:
        assert found.replicas // 2 < found.min_replicas <= found.replicas
        assert found.replicas * found.replica_processes * found.nodes_per_replica == found.world
        assert folded.replica_processes == found.replica_processes * found.nodes_per_replica


def test_gpus_are_cut_into_neighbouring_slices() -> None:
    assert slice_gpus(["0", "1", "2", "3"], 2) == [["0", "1"], ["2", "3"]]


# --- settings in shoal.toml -------------------------------------------------------------------------------------------


def plan_of(tmp_path: Any, launch: str, *flags: str) -> Project:
    project = Project(tmp_path)
    step = f"\n[steps.fit]\ncommand = ['python3', 'x.py']\nlaunch = {launch}\nrequest = {{ nodes = 2, gpus = 4 }}\n"
    project.write("shoal.toml", (project.root / "shoal.toml").read_text() + step)
    project.script("001_a/000_fit_0.sh", f"fit {' '.join(flags)}")
    return project


def test_the_plan_shows_processes_gpus_and_ports(tmp_path: Any) -> None:
    project = plan_of(tmp_path, "'torchrun'")
    told = project.shoal("plan", "experiments", "--on", "slurm", "--json").json
    assert told["notes"] == [
        "torchrun: 2 nodes x 4 processes = 8 ranks with 1 GPU each; rendezvous on the first node, "
        "port from 20000-29999 by job id"
    ]
    script = told["submissions"][0]["script"]
    assert "export SHOAL_NODES=2 SHOAL_GPUS_PER_NODE=4" in script
    assert "#SBATCH --ntasks-per-node=1" in script


def test_launch_on_the_command_line_replaces_the_step_s(tmp_path: Any) -> None:
    project = plan_of(tmp_path, "{ mode = 'replicas', replicas_per_node = 2 }", "--launch", "srun")
    assert "#SBATCH --ntasks-per-node=4" in project.shoal("plan", "experiments", "--on", "slurm", "--script").out


def test_a_wrong_launch_is_told_with_its_line(tmp_path: Any) -> None:
    project = plan_of(tmp_path, "{ mode = 'replicas', replica_per_node = 2 }")
    assert_clear_error(project.shoal("plan", "experiments", code=None), 2, "shoal.toml:", "replicas_per_node")


def test_a_setting_of_another_mode_is_refused(tmp_path: Any) -> None:
    project = plan_of(tmp_path, "{ mode = 'srun', min_replicas = 2 }")
    assert_clear_error(project.shoal("plan", "experiments", code=None), 2, "shoal.toml:", "min_replicas")


def test_an_unknown_launch_on_the_command_line_is_refused(tmp_path: Any) -> None:
    project = plan_of(tmp_path, "'torchrun'", "--launch", "torchrum")
    assert_clear_error(project.shoal("plan", "experiments", code=None), 2, "did you mean torchrun")


def test_gpus_that_do_not_divide_are_refused_before_anything_is_submitted(tmp_path: Any) -> None:
    project = plan_of(tmp_path, "{ mode = 'replicas', replicas_per_node = 3 }")
    done = project.shoal("plan", "experiments", "--on", "slurm", code=None)
    assert_clear_error(done, 2, "4 GPUs per node cannot be divided among 3 replicas", "replicas_per_node = 2")


@pytest.mark.slow
def test_launch_settings_are_part_of_what_a_run_is(tmp_path: Any) -> None:
    digests = []
    for number, launch in enumerate(("'torchrun'", "{ mode = 'torchrun', max_restarts = 2 }")):
        (tmp_path / str(number)).mkdir()
        told = plan_of(tmp_path / str(number), launch).shoal("plan", "experiments", "--on", "slurm", "--json").json
        digests.append(told["runs"][0]["digest"])
    assert digests[0] != digests[1], json.dumps(digests)


# --- what becomes of replicas -----------------------------------------------------------------------------------------


def board(replicas: int = 3, least: int = 2, **changed: Any) -> ReplicaStates:
    made = ReplicaStates(replica_limits({**LAUNCH_DEFAULTS, **changed}, replicas, least))
    for number in made.to_start(0.0):
        made.started(number, 0.0)
    return made


def test_a_dead_replica_is_started_again_while_the_others_go_on() -> None:
    one = board()
    assert one.ended(1, 137, 10.0) == LAUNCH_DEFAULTS["backoff_s"]
    assert one.verdict() is None
    assert one.to_start(10.0) == []
    assert one.to_start(11.0) == [1]
    assert one.started(1, 11.0) == 2


def test_each_further_restart_waits_longer_up_to_a_bound() -> None:
    one = board(restarts=2, backoff_s=1.0)
    assert one.ended(0, 1, 1.0) == 1.0
    one.started(0, 2.0)
    assert one.ended(0, 1, 3.0) == 2.0
    one.started(0, 5.0)
    assert one.ended(0, 1, 6.0) is None
    assert one.lost == {0: 1}
    assert one.verdict() is None, "two of three are still a quorum"
    assert one.ended(1, 9, 7.0) is not None


def test_a_replica_that_lived_long_gets_its_tries_back() -> None:
    one = board(restarts=1, healthy_s=100.0)
    assert one.ended(0, 1, 1.0) is not None
    one.started(0, 2.0)
    assert one.ended(0, 1, 500.0) is not None


def test_without_a_quorum_the_run_fails_with_the_first_real_code() -> None:
    one = board(restarts=0)
    one.ended(0, 7, 1.0)
    assert one.verdict() is None
    one.ended(2, 9, 2.0)
    assert one.verdict() == 7


def test_after_one_has_finished_nobody_is_started_again() -> None:
    one = board()
    one.ended(0, 1, 1.0)
    one.ended(1, 0, 1.1)
    assert one.due == {}
    assert one.ended(2, 0, 1.2) is None
    assert one.verdict() == 0, "the majority finished"


def test_fewer_finished_than_asked_for_is_a_failure() -> None:
    one = board(min_finished=3)
    one.ended(0, 0, 1.0)
    one.ended(1, 0, 1.0)
    one.ended(2, 5, 1.0)
    assert one.verdict() == 5


def test_who_stands_still_while_others_move_hangs() -> None:
    one = board(hang_s=60.0)
    one.moved(2, 0.0)
    one.moved(0, 100.0)
    one.moved(1, 100.0)
    assert one.hanging_replicas(50.0) == []
    assert one.hanging_replicas(101.0) == [2]
    assert one.hanging_replicas(500.0) == [], "when all stand still nobody can tell which one is to blame"


def test_a_replica_that_has_not_said_a_word_may_still_be_starting() -> None:
    one = board(hang_s=60.0)
    one.moved(2, 0.0, speaks=False)
    for now in (100.0, 200.0, 300.0):
        one.moved(0, now)
        one.moved(1, now)
        assert one.hanging_replicas(now + 1.0) == ([] if now < 300.0 else [2])
    one.ended(2, 137, 301.0)
    one.started(2, 302.0)
    one.moved(0, 400.0)
    assert one.hanging_replicas(401.0) == [1], "a new attempt starts anew"


def test_replicas_that_leave_after_the_first_have_time_for_it() -> None:
    one = board(hang_s=15.0)
    for number in range(3):
        one.moved(number, 10.0)
    one.ended(0, 0, 11.0)
    assert one.hanging_replicas(100.0) == []
    assert one.hanging_replicas(131.0) == [1, 2]


def test_a_straggler_without_a_quorum_is_not_waited_for() -> None:
    one = board()
    one.ended(0, 0, 10.0)
    one.ended(1, 0, 10.0)
    assert one.hanging_replicas(100.0) == []
    assert one.hanging_replicas(200.0) == [2]


def test_a_replica_that_came_back_too_late_is_waited_for_only_briefly() -> None:
    one = board()
    one.ended(2, 137, 5.0)
    one.started(2, 6.0)
    one.ended(0, 0, 10.0)
    one.ended(1, 0, 10.0)
    assert one.hanging_replicas(30.0) == []
    assert one.hanging_replicas(40.0) == [2]
