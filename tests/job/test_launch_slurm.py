"""Launch modes on a real Slurm whose nodes have their own addresses: DDP, srun mode, Lightning, signals, ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launching import Launching, assert_nothing_left
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm

TWO_BY_TWO = "request = { nodes = 2, gpus = 2, cpus = 4, time = '10m' }"
TORCHRUN = f'launch = "torchrun"\n{TWO_BY_TWO}'
SRUN = f'launch = "srun"\n{TWO_BY_TWO}'


@pytest.mark.parametrize("launch", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_the_same_program_trains_over_two_nodes_in_both_modes(
    tmp_path: Path, host_cluster: Sandbox, launch: str
) -> None:
    project = Launching(tmp_path, host_cluster, ddp=launch)
    name = project.submit("000_ddp_0", "ddp -- --steps 6")
    project.wait(name, "completed")
    starts = sorted(project.says(name, "start"), key=lambda said: said["rank"])
    assert [(said["rank"], said["world"], said["gpus"]) for said in starts] == [(rank, 4, "0,1") for rank in range(4)]
    assert len({said["host"] for said in starts}) == 2
    losses = [said["loss"] for said in project.says(name, "step") if said["rank"] == 0]
    assert losses[-1] < losses[0]
    ranks = [json.loads(path.read_text()) for path in sorted(project.launch_folder(name).glob("rank-*.json"))]
    assert [rank["gpu"] for rank in ranks] == ["0", "1", "0", "1"], "the map of ranks to GPUs is written down"
    assert (project.launch_folder(name) / "rank-3.out").read_text()


def test_output_and_errors_of_ranks_keep_their_order_and_a_failed_rank_is_quoted(
    tmp_path: Path, host_cluster: Sandbox
) -> None:
    """srun reads output and errors from two pipes; what a rank writes must not go through it."""
    program = (
        "import glob, os, sys, time\nfor number in range(300):\n    print('out', number)\n"
        "    print('err', number, file=sys.stderr)\n"
        "said = os.environ['SHOAL_OUTPUT_DIR'] + '/said-'\nopen(said + os.environ['RANK'], 'w').close()\n"
        "while len(glob.glob(said + '*')) < 4: time.sleep(0.05)\n"  # its end is the end of the others
        "if os.environ['RANK'] == '2': raise ValueError('no samples')\ntime.sleep(600)\n"
    )
    project = Launching(tmp_path, host_cluster, tasks=SRUN, elastic=TORCHRUN)
    names: list[str] = []
    for mode in ("tasks", "elastic"):
        project.write(f"{mode}.py", program)
        names.append(project.submit(f"00{len(names)}_{mode}_0", mode))
    expected = [f"{word} {number}" for number in range(300) for word in ("out", "err")]
    for name in names:
        run = project.wait(name, "failed", deadline_s=120)
        assert run["error_line"] == "ValueError: no samples", run
        for rank in range(4):
            lines = project.shoal("logs", name, "-n", 0, "--rank", rank).out.splitlines()
            assert [line for line in lines if line.startswith(("out ", "err "))] == expected, (name, rank)


def test_each_task_of_srun_mode_finds_what_env_programs_and_slurm_programs_read(
    tmp_path: Path, host_cluster: Sandbox
) -> None:
    project = Launching(tmp_path, host_cluster, show=SRUN)
    name = project.submit("000_show_0", "show")
    project.wait(name, "completed")
    notes = project.notes(name)
    assert [note["env"]["RANK"] for note in notes] == ["0", "1", "2", "3"]
    assert [note["env"]["LOCAL_RANK"] for note in notes] == ["0", "1", "0", "1"]
    for note in notes:
        env = note["env"]
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["SLURM_NTASKS"]) == ("4", "2", "4")
        assert env["MASTER_ADDR"].startswith("10."), "an address that other nodes reach, not a name or 127.0.1.1"
    assert len({note["env"]["MASTER_PORT"] for note in notes}) == 1


def test_a_lightning_program_has_as_many_ranks_as_gpus_in_both_modes(tmp_path: Path, host_cluster: Sandbox) -> None:
    one_node = 'launch = "torchrun"\nrequest = { nodes = 1, gpus = 2, cpus = 4, time = "10m" }'
    project = Launching(tmp_path, host_cluster, fit=SRUN, fit_torchrun=one_node)
    runs = {project.submit("000_fit_0", "fit"): 4, project.submit("001_fit_0", "fit_torchrun"): 2}
    for name, world in runs.items():
        project.wait(name, "completed", deadline_s=120)
        said = project.says(name, "fit")
        assert sorted(one["rank"] for one in said) == list(range(world))
        assert {(one["world"], one["samples"]) for one in said} == {(world, 64)}, "all of the data, once"


def test_accelerate_and_deepspeed_start_their_ranks_on_both_nodes(tmp_path: Path, host_cluster: Sandbox) -> None:
    """Their own launchers, one on each node, told where they are; programs that know nothing of either."""
    on_cpus = 'launch = { mode = "accelerate", processes = 2 }\nrequest = { nodes = 2, cpus = 4, time = "10m" }'
    project = Launching(tmp_path, host_cluster, accel=on_cpus, ddp=TORCHRUN.replace("torchrun", "deepspeed"))
    accel, deep = project.submit("000_accel_0", "accel"), project.submit("001_ddp_0", "ddp -- --steps 2")
    for name in (accel, deep):
        project.wait(name, "completed", deadline_s=200)
    said = project.says(accel, "accelerated")
    assert sorted((one["rank"], one["world"], one["sum"]) for one in said) == [(rank, 4, 4.0) for rank in range(4)]
    starts = project.says(deep, "start")
    assert sorted((one["rank"], one["world"], one["gpus"]) for one in starts) == [(rank, 4, "0,1") for rank in range(4)]
    assert len({one["host"] for one in said}) == len({one["host"] for one in starts}) == 2


def test_a_failing_rank_on_another_node_ends_the_job_with_its_code(tmp_path: Path, host_cluster: Sandbox) -> None:
    project = Launching(tmp_path, host_cluster, show=TORCHRUN, show_srun=SRUN)
    runs = [
        project.submit("000_show_0", "show -- fail=3:7 wait"),
        project.submit("001_show_0", "show_srun -- fail=3:7 wait"),
    ]
    for name in runs:
        assert project.wait(name, "failed")["exit_code"] == 7
        assert "rank 3 has a problem" in project.log(name)


@pytest.mark.parametrize("launch", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_scancel_lets_every_rank_save_once(tmp_path: Path, host_cluster: Sandbox, launch: str) -> None:
    """Slurm tells the steps and the batch script; no rank may hear of it twice, or its saving would be cut short."""
    project = Launching(tmp_path, host_cluster, show=launch)
    name = project.submit("000_show_0", "show -- wait")
    project.wait_notes(name, 4)
    project.slurm("scancel", str(project.status()[name]["job_id"]))
    saved = project.wait_notes(name, 4, "saved")
    assert [note["got"] for note in saved] == [["SIGTERM"]] * 4
    project.wait(name)
    assert_nothing_left(project.root)


def test_a_stop_by_shoal_itself_reaches_every_rank(tmp_path: Path, host_cluster: Sandbox) -> None:
    """SIGUSR1 to the batch script alone, as `--signal=B:USR1@90` sends it, and then SIGTERM in the same way.

    The last task of an array has the array's own number, and Slurm would answer for all of them.
    """
    project = Launching(tmp_path, host_cluster, show=TORCHRUN)
    project.shoal("submit", project.script("001_a/000_show.sh", "show -- wait"), "--seeds", "0-1")
    other, name = "001_a/000_show_0", "001_a/000_show_1"
    for one in (other, name):
        project.wait_notes(one, 4)
    job = str(project.status()[name]["job_id"])
    project.slurm("scancel", "--batch", "--signal=USR1", job)
    project.wait_notes(name, 4, "SIGUSR1")  # Slurm may deliver two signals in any order
    project.slurm("scancel", "--batch", "--signal=TERM", job)
    saved = project.wait_notes(name, 4, "saved")
    assert [sorted(note["got"]) for note in saved] == [["SIGTERM", "SIGUSR1"]] * 4
    project.wait(name, "cancelled", "failed")
    end = project.records(name, "attempt.1.end")[0]
    assert (end["exit_code"], end["stopped_by"]) == (0, "SIGTERM")
    assert project.status()[other]["state"] == "running" and not project.notes(other, "saved")


def test_two_jobs_on_the_same_nodes_do_not_meet(tmp_path: Path, host_cluster: Sandbox) -> None:
    half = 'launch = "torchrun"\nrequest = { nodes = 4, gpus = 1, cpus = 2, time = "10m" }'
    project = Launching(tmp_path, host_cluster, show=half)
    runs = [project.submit(f"00{number}_show_0", "show -- wait") for number in range(2)]
    ports = []
    for name in runs:
        notes = project.wait_notes(name, 4)
        assert {note["env"]["WORLD_SIZE"] for note in notes} == {"4"}
        group = json.loads((project.launch_folder(name) / "group.json").read_text())
        ports.append((group["port"], group["id"]))
    assert ports[0][0] != ports[1][0]
    assert ports[0][1] != ports[1][1]
    for name in runs:
        project.slurm("scancel", str(project.status()[name]["job_id"]))
        project.wait(name)


def test_a_requeued_job_continues_from_its_checkpoint(tmp_path: Path, host_cluster: Sandbox) -> None:
    project = Launching(tmp_path, host_cluster, ddp=TORCHRUN)
    name = project.submit("000_ddp_0", "ddp -- --steps 40 --save-every 2 --pause 0.2")
    job = str(project.status()[name]["job_id"])
    wait_until(lambda: list(project.root.glob(f"outputs/*/{name}/*/model_*.pth")), 60, "a checkpoint")
    project.slurm("scontrol", "requeue", job)  # while it still trains, for some eight seconds
    project.wait(name, "completed", deadline_s=150)
    again = project.says(name, "start", attempt=2)
    assert sorted(said["rank"] for said in again) == [0, 1, 2, 3]
    assert {said["step"] > 0 for said in again} == {True}
