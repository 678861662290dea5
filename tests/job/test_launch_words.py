"""The exact command lines of every launcher, and what is read from what they print."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from shoal.describe.launches import _SETTINGS
from shoal.job import allocation
from shoal.job.launch import launcher, launcher_args, rank
from shoal.job.launch.geometry import LAUNCH_MODES, RANK_MODES, TORCH_LAUNCHERS, GeometryError
from shoal.job.launch.rank_group import RankGroup
from shoal.plan.batch_script import _LAUNCH_PARTS


def group(**changed: object) -> RankGroup:
    values: dict[str, object] = {
        "mode": "torchrun",
        "nodes": ["n1"],
        "processes": 2,
        "gpus": 2,
        "argv": ["python", "train.py"],
        "cwd": "/project",
        "log": "/logs/",
        "id": "12-1",
        "start": ["torchrun"],
        "wrapper": ["python3", "agent.pyz"],
    }
    return RankGroup(**{**values, **changed})  # type: ignore[arg-type]


RANK = ["python3", "agent.pyz", "rank", "/logs/group.json"]


def test_torchrun_on_one_node_needs_no_port() -> None:
    assert launcher_args.launcher_argv(group(), 0, None) == [
        "torchrun", "--standalone", "--nproc-per-node=2", "--no-python", *RANK,
    ]  # fmt: skip


def test_torchrun_on_two_nodes_says_who_serves_the_rendezvous() -> None:
    two = group(nodes=["n1", "n2"], address="10.0.0.1", port=20012, max_restarts=3)
    assert launcher_args.launcher_argv(two, 1, "10.0.0.2") == [
        "torchrun", "--nnodes=2", "--rdzv-id=12-1", "--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:20012",
        "--rdzv-conf=is_host=0", "--local-addr=10.0.0.2", "--nproc-per-node=2", "--max-restarts=3", "--no-python",
        *RANK,
    ]  # fmt: skip
    assert "--rdzv-conf=is_host=1" in launcher_args.launcher_argv(two, 0, "10.0.0.1")


def test_accelerate_is_told_its_machine() -> None:
    two = group(mode="accelerate", nodes=["n1", "n2"], address="10.0.0.1", port=20012, start=["accelerate", "launch"])
    assert launcher_args.launcher_argv(two, 1, None) == [
        "accelerate", "launch", "--num_machines=2", "--num_processes=4", "--machine_rank=1", "--max_restarts=0",
        "--main_process_ip=10.0.0.1", "--main_process_port=20012", "--multi_gpu", "--mixed_precision=no",
        "--dynamo_backend=no", "--no_python", *RANK,
    ]  # fmt: skip


def test_the_user_s_accelerate_options_win() -> None:
    one = group(mode="accelerate", start=["accelerate", "launch"], options=["--mixed_precision=bf16"])
    assert [word for word in launcher_args.launcher_argv(one, 0, None) if "mixed" in word] == ["--mixed_precision=bf16"]


def test_deepspeed_needs_no_ssh() -> None:
    two = group(mode="deepspeed", nodes=["n1", "n2"], address="10.0.0.1", port=20012, start=["deepspeed"])
    assert launcher_args.launcher_argv(two, 1, None) == [
        "deepspeed", "--hostfile=/logs/hosts", "--no_ssh", "--node_rank=1", "--master_addr=10.0.0.1",
        "--master_port=20012", "--no_python", "--no_local_rank", *RANK,
    ]  # fmt: skip
    assert launcher_args.deepspeed_hosts(two) == "n1 slots=2\nn2 slots=2\n"


@pytest.mark.parametrize("mode", ["mpi", "replicas", "process"])
def test_a_mode_without_a_launcher_is_refused(mode: str) -> None:
    with pytest.raises(GeometryError, match=f"launch mode '{mode}' has no launcher"):
        launcher_args.launcher_argv(group(mode=mode), 0, None)
    with pytest.raises(GeometryError):
        launcher_args.launcher_program(mode, ["python", "train.py"])


def test_every_launch_mode_has_its_entry_in_each_table() -> None:
    assert set(launcher_args.LAUNCHERS) == set(TORCH_LAUNCHERS)
    assert {*RANK_MODES, *TORCH_LAUNCHERS, "replicas"} == set(LAUNCH_MODES) == set(_LAUNCH_PARTS) == set(_SETTINGS)


def test_a_step_says_all_of_its_geometry() -> None:
    assert launcher_args.srun_argv(2, 4, 8, name="shoal") == [
        "srun", "--kill-on-bad-exit=1", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--job-name=shoal",
        "--input=none", "--cpus-per-task=8",
    ]  # fmt: skip
    assert launcher_args.step_share(2, 1000) == ["--exact", "--gres=gpu:2", "--mem=1000M"]
    assert launcher_args.step_share(0, None) == ["--exact", "--gres=none"]


@pytest.mark.parametrize(
    ("command", "start"),
    [
        (["python", "train.py"], ["python", "-m", "torch.distributed.run"]),
        (["/venv/bin/python3.11", "-m", "x"], ["/venv/bin/python3.11", "-m", "torch.distributed.run"]),
        (["./train.sh"], ["torchrun"]),
    ],
)
def test_torchrun_comes_from_the_environment_of_the_command(command: list[str], start: list[str]) -> None:
    assert launcher_args.launcher_program("torchrun", command) == start


def test_the_lighthouse_listens_on_a_port_of_its_own() -> None:
    settings = {"quorum_tick_ms": 100, "join_timeout_ms": 60000, "heartbeat_timeout_ms": 5000}
    assert launcher_args.lighthouse_argv(["torchft_lighthouse"], settings, 3, "[::]") == [
        "torchft_lighthouse", "--min_replicas=3", "--bind=[::]:0", "--quorum_tick_ms=100", "--join_timeout_ms=60000",
        "--heartbeat_timeout_ms=5000",
    ]  # fmt: skip


# --- what a rank refuses ----------------------------------------------------------------------------------------------


def environment(**changed: str) -> dict[str, str]:
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **changed}


def test_a_rank_that_fits_begins() -> None:
    assert rank.check_rank(group(), environment(CUDA_VISIBLE_DEVICES="0,1")) is None
    assert rank.check_rank(group(), environment()) is None, "nothing is known about GPUs"


def test_one_gpu_out_of_two_is_refused() -> None:
    problem = rank.check_rank(group(), environment(CUDA_VISIBLE_DEVICES="0"))
    assert problem is not None
    assert "sees 1 GPU (0), and the run asked for 2" in problem


def test_fewer_ranks_than_asked_for_are_refused() -> None:
    assert "1 ranks were started" in (rank.check_rank(group(), environment(WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")) or "")


def test_a_task_of_srun_has_its_place_by_slurm_s_numbers() -> None:
    slurm = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NTASKS": "4"}
    one = group(mode="srun", slurm=True, nodes=["n1", "n2"], address="10.0.0.1", port=20012)
    found = rank.rank_variables(one, {**slurm, "OMP_NUM_THREADS": "5"})
    assert {name: found[name] for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")} == {
        "RANK": "3", "LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4",
    }  # fmt: skip
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.1", "20012")
    assert "OMP_NUM_THREADS" not in found, "the user's own number stays"


# --- which rank failed first ------------------------------------------------------------------------------------------

SUMMARY = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-15_10:12:{second}
  host      : {host}
  rank      : {rank} (local_rank: 1)
  exitcode  : {code} (pid: 9204)
  error_file: <N/A>
"""


def cause(second: str, host: str, rank: int, code: int) -> str:
    return SUMMARY.format(second=second, host=host, rank=rank, code=code)


def test_the_first_failure_of_several_nodes_is_the_cause() -> None:
    text = cause("24", "n1", 0, 1) + SUMMARY.format(second="23", host="n2", rank=3, code=7)
    assert launcher.first_failure(text) == launcher.RankFailure("2026-11-15_10:12:23", "n2", 3, 7)


def test_a_rank_that_was_told_to_end_is_not_the_cause() -> None:
    text = cause("22", "n1", 0, -15) + SUMMARY.format(second="23", host="n2", rank=3, code=-9)
    assert launcher.first_failure(text) is not None
    assert launcher.first_failure(text).exit_code == 137  # type: ignore[union-attr]


def test_no_summary_means_the_launcher_s_own_code(tmp_path: object) -> None:
    assert launcher.first_exit_code(1, "/nowhere", 0) == 1
    assert launcher.first_exit_code(-9, "/nowhere", 0) == 137


# --- ports and interfaces ---------------------------------------------------------------------------------------------


def test_two_launchers_of_one_host_never_get_the_same_port() -> None:
    first, mark = allocation.reserve_port(77)
    second, other = allocation.reserve_port(77)
    assert first != second
    assert 20000 <= first < 30000
    for held in (mark, other):
        assert held is not None
        held.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_launchers_of_two_users_never_get_the_same_port() -> None:
    ours, mark = allocation.reserve_port(78)
    theirs, told = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setuid(65534)
            os.write(told, b"%d" % allocation.reserve_port(78)[0])
        finally:
            os._exit(0)
    os.close(told)
    with os.fdopen(theirs) as answer:
        assert int(answer.read()) not in (0, ours)
    os.waitpid(child, 0)
    assert mark is not None
    mark.close()


def test_a_port_that_somebody_listens_on_is_passed_over() -> None:
    first, mark = allocation.reserve_port(4242)
    assert mark is not None
    mark.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        second, other = allocation.reserve_port(4242)
    assert other is not None
    other.close()
    assert second != first


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    problem = allocation.check_interfaces({"NCCL_SOCKET_IFNAME": "ib7"})
    assert problem is not None
    assert "NCCL_SOCKET_IFNAME=ib7 names no interface" in problem
    assert "lo" in problem
    assert allocation.check_interfaces({"NCCL_SOCKET_IFNAME": "^docker", "GLOO_SOCKET_IFNAME": "lo"}) is None
    with pytest.raises(allocation.NoSuchInterface):
        allocation.interface_address("ib7")


def test_the_address_of_an_interface() -> None:
    assert allocation.interface_address("lo") == "127.0.0.1"


def test_an_address_is_never_one_that_only_this_host_can_reach() -> None:
    """A name may mean 127.0.1.1, ::1, nothing, or several networks; then the host's name is the better answer."""
    for peers in (["localhost"], ["127.0.1.1"], ["::1"], ["no-such-host.invalid"], []):
        assert allocation.reachable_address(peers, None) == socket.gethostname()


def test_the_address_is_the_one_that_leads_to_the_peer() -> None:
    own = []
    for name in allocation.interface_names():
        try:
            own.append(allocation.interface_address(name))
        except allocation.NoSuchInterface:  # it has no IPv4 address
            continue
    for address in own:
        if not address.startswith("127."):
            assert allocation.reachable_address(["no-such-host.invalid", "127.0.1.1", address], None) == address


@pytest.mark.slow
def test_torch_reads_an_ipv6_rendezvous_as_it_is_written() -> None:
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    two = group(nodes=["n1", "n2"], address="fd00::1", port=20012)
    word = next(word for word in launcher_args.launcher_argv(two, 1, "fd00::2") if word.startswith("--rdzv-endpoint="))
    assert parse_rendezvous_endpoint(word.partition("=")[2], default_port=-1) == ("fd00::1", 20012)


SRUN_SAID = """\
srun: error: n4: task 3: Exited with exit code 7
srun: launch/slurm: _step_signal: Terminating StepId=9.0
slurmstepd-n3: error: *** STEP 9.0 ON n3 CANCELLED AT 2026-11-15T18:13:13 ***
srun: error: n3: task 1: Terminated
"""


def test_a_task_that_srun_ended_because_of_another_does_not_lend_its_code(tmp_path: Path) -> None:
    """srun ends with the highest code, and a rank without a handler yet is killed by the signal: 143."""
    first, *_, last = SRUN_SAID.splitlines(keepends=True)
    cancelled = "slurmstepd-n3: error: *** STEP 9.0 ON n3 CANCELLED AT 2026-11-15T18:13:13 ***\n" + first + last
    for text, code, true in ((SRUN_SAID, 143, 7), (cancelled, 143, 143), (first, 7, 7), (last, 143, 143)):
        (tmp_path / "err").write_text(text)
        assert launcher.first_exit_code(code, str(tmp_path / "err"), 0) == true
