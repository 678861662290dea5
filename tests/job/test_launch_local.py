"""Launch modes on this machine, without Slurm: the same variables, logs, signals and ends as in a job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launching import Launching, assert_nothing_left, find_process, while_running
from project import assert_clear_error, end_process, read_record
from waiting import wait_until

pytestmark = pytest.mark.slow

TORCHRUN = 'launch = { mode = "torchrun", processes = 2 }'
SRUN = 'launch = { mode = "srun", processes = 2 }'

# Only rank 1 fails, after it spoke: torchrun ends the other ranks of that start wherever they are, even before a word.
FAILS_ONCE = """
import os, sys
start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("start", start, flush=True)
if start == 0 and os.environ["RANK"] == "1":
    sys.exit(3)
"""


def test_srun_mode_here_gives_each_rank_its_variables_and_its_log(tmp_path: Path) -> None:
    project = Launching(tmp_path, show=SRUN)
    project.submit("000_show_0", "show -- hello 'a b'")
    ranks = [note["env"] for note in project.notes("001_a/000_show_0")]
    assert [(rank["RANK"], rank["LOCAL_RANK"], rank["WORLD_SIZE"]) for rank in ranks] == [
        ("0", "0", "2"), ("1", "1", "2"),
    ]  # fmt: skip
    assert ranks[0]["MASTER_PORT"] == ranks[1]["MASTER_PORT"]
    assert ranks[0]["PYTHONUNBUFFERED"] == "1"
    assert project.notes("001_a/000_show_0")[0]["args"] == ["hello", "a b"]
    folder = project.output("001_a/000_show_0")
    assert (folder / "attempt-1.out").read_text().splitlines()[1:] == ["rank 0 speaks"], "after the launcher's line"
    assert (folder / "attempt-1.launch" / "rank-1.out").read_text() == "rank 1 speaks\n"


def test_a_failing_rank_ends_the_others_and_its_code_is_the_run_s(tmp_path: Path) -> None:
    project = Launching(tmp_path, show=SRUN)
    project.script("001_a/000_show_0.sh", "show -- fail=1:7 wait")
    assert project.shoal("submit", "experiments", code=None).code == 7
    assert project.status()["001_a/000_show_0"]["exit_code"] == 7
    assert "rank 1 has a problem" in project.log("001_a/000_show_0"), "the cause is shown where people look first"
    assert_nothing_left(project.root)


def test_torchrun_here_trains_with_as_many_ranks_as_asked_for(tmp_path: Path) -> None:
    project = Launching(tmp_path, ddp=TORCHRUN)
    project.submit("000_ddp_0", "ddp -- --steps 4")
    assert [said["rank"] for said in project.says("001_a/000_ddp_0", "start")] == [0, 1]
    losses = [said["loss"] for said in project.says("001_a/000_ddp_0", "step") if said["rank"] == 0]
    assert losses[-1] < losses[0]
    record = json.loads((project.launch_folder("001_a/000_ddp_0") / "rank-1.json").read_text())
    assert (record["world_size"], record["local_rank"]) == (2, 1)


def test_accelerate_here_starts_as_many_ranks_as_asked_for(tmp_path: Path) -> None:
    project = Launching(tmp_path, accel='launch = { mode = "accelerate", processes = 2 }')
    project.submit("000_accel_0", "accel")
    said = project.says("001_a/000_accel_0", "accelerated")
    assert [(one["rank"], one["world"], one["sum"]) for one in said] == [(0, 2, 2.0), (1, 2, 2.0)]


def test_a_failing_rank_under_torchrun_gives_its_own_code(tmp_path: Path) -> None:
    """torchrun itself ends with 1, whatever happened."""
    project = Launching(tmp_path, show=TORCHRUN)
    project.script("001_a/000_show_0.sh", "show -- fail=1:9")
    project.start("submit", "experiments").communicate(timeout=300)
    assert project.status()["001_a/000_show_0"]["exit_code"] == 9


def test_torchrun_starts_its_ranks_again_if_asked_and_each_start_has_its_log(tmp_path: Path) -> None:
    project = Launching(tmp_path, again=TORCHRUN.replace(" }", ", max_restarts = 1 }"))
    project.write("again.py", FAILS_ONCE)
    name = project.submit("000_again_0", "again")
    folder = project.launch_folder(name)
    assert (folder / "rank-1.out").read_text() == "start 0\n"
    assert (folder / "rank-1.restart-1.out").read_text() == "start 1\n"
    assert project.status()[name]["state"] == "completed"


@pytest.mark.parametrize("launch", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_sigterm_and_sigusr1_reach_every_rank_once_and_a_polite_end_is_0(tmp_path: Path, launch: str) -> None:
    """SIGUSR1 kills a plain torchrun, and after SIGTERM it ends with 1 although all ranks left with 0."""
    project = Launching(tmp_path, show=launch)
    project.script("001_a/000_show_0.sh", "show -- wait")
    running = project.start("submit", "experiments")
    try:
        project.wait_notes("001_a/000_show_0", 2, running=running)
        agent = read_record(next((project.home / "runs/001_a/000_show_0").glob("attempt.1.start")))["pid"]
        os.kill(agent, signal.SIGUSR1)
        os.kill(agent, signal.SIGTERM)
        running.communicate(timeout=300)
    finally:
        end_process(running)
    saved = project.notes("001_a/000_show_0", "saved")
    assert [sorted(note["got"]) for note in saved] == [["SIGTERM", "SIGUSR1"]] * 2
    end = project.records("001_a/000_show_0", "attempt.1.end")[0]
    assert (end["exit_code"], end["stopped_by"], end["success"]) == (0, "SIGTERM", False)
    assert_nothing_left(project.root)


@pytest.mark.parametrize("victim", ["agent", "launcher", "torchrun", "rank"])
def test_sigkill_of_any_process_leaves_no_orphan(tmp_path: Path, victim: str) -> None:
    """torchrun gives its ranks sessions of their own, and a rank has a child that nobody ends."""
    project = Launching(tmp_path, show=TORCHRUN)
    project.script("001_a/000_show_0.sh", "show -- wait")
    running = project.start("submit", "experiments")
    try:
        notes = project.wait_notes("001_a/000_show_0", 2, running=running)
        agent = read_record(next((project.home / "runs/001_a/000_show_0").glob("attempt.1.start")))["pid"]
        victims: dict[str, Callable[[], int]] = {
            "agent": lambda: agent,
            "launcher": lambda: find_process(project.root, ".pyz", "launch", "plan.json"),
            "torchrun": lambda: find_process(project.root, "torch.distributed.run"),
            "rank": lambda: notes[1]["pid"],
        }
        os.kill(victims[victim](), signal.SIGKILL)
        running.communicate(timeout=300)
    finally:
        end_process(running)
    assert_nothing_left(project.root)
    if victim in ("rank", "torchrun"):
        assert project.status()["001_a/000_show_0"]["exit_code"] == 137


def test_replicas_here_train_together_and_their_loss_falls(tmp_path: Path) -> None:
    project = Launching(tmp_path, diloco='launch = { mode = "replicas", replicas_per_node = 3, min_replicas = 3 }')
    project.submit("000_diloco_0", "diloco -- --rounds 4")
    name = "001_a/000_diloco_0"
    ends = project.says(name, "end")
    assert [end["replica"] for end in ends] == [0, 1, 2]
    assert len({json.dumps(end["weights"]) for end in ends}) == 1, "all replicas end with the same weights"
    losses = [said["loss"] for said in project.says(name, "round") if said["replica"] == 0]
    assert losses[-1] < losses[0]
    assert len({said["lighthouse"] for said in project.says(name, "start")}) == 1
    assert "Lighthouse listening on" in (project.launch_folder(name) / "lighthouse.log").read_text()


def test_a_replica_killed_here_comes_back_and_the_run_succeeds(tmp_path: Path) -> None:
    project = Launching(tmp_path, diloco='launch = { mode = "replicas", replicas_per_node = 3 }')
    project.script("001_a/000_diloco_0.sh", "diloco -- --rounds 60 --pause 0.05")
    name = "001_a/000_diloco_0"
    running = project.start("submit", "experiments")
    try:
        wait_until(while_running(running, lambda: len(project.says(name, "round")) >= 6), 180, "the replicas train")
        victim = next(said["pid"] for said in project.says(name, "start") if said["replica"] == 1)
        os.kill(victim, signal.SIGKILL)
        running.communicate(timeout=300)
    finally:
        end_process(running)
    assert project.status()[name]["state"] == "completed"
    assert "replica 1 ended with code 137 and starts again" in project.log(name)
    assert (project.launch_folder(name) / "replica-1.attempt-2.out").exists()
    assert {end["round"] for end in project.says(name, "end")} == {60}
    assert_nothing_left(project.root)


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_program_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    project = Launching(tmp_path)
    project.write("shoal.toml", '[steps.lost]\ncommand = ["./nothing.py"]\nlaunch = "torchrun"\n')
    project.script("001_a/000_lost_0.sh", "lost")
    project.shoal("submit", "experiments", code=None)
    assert "there is no program ./nothing.py" in project.log("001_a/000_lost_0")


def test_a_missing_torch_is_one_sentence(tmp_path: Path) -> None:
    bare = next(path for path in ("/usr/bin/python3", f"{sys.base_prefix}/bin/python3") if not _has_torch(path))
    project = Launching(tmp_path)
    project.write("shoal.toml", f'[steps.lost]\ncommand = ["{bare}", "show.py"]\nlaunch = "torchrun"\n')
    project.script("001_a/000_lost_0.sh", "lost")
    assert project.shoal("submit", "experiments", code=None).code == 127
    said = f"torch is not installed in the job's environment: {bare} -m pip install torch"
    assert said in project.log("001_a/000_lost_0")


def _has_torch(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0


def test_a_missing_lighthouse_is_one_sentence(tmp_path: Path) -> None:
    project = Launching(tmp_path)
    toml = '[steps.lost]\ncommand = ["python3", "show.py"]\nlaunch = { mode = "replicas", replicas_per_node = 2 }\n'
    project.write("shoal.toml", toml)
    project.script("001_a/000_lost_0.sh", "lost")
    bare = os.pathsep.join(part for part in os.defpath.split(os.pathsep) if "venv" not in part)
    project.shoal("submit", "experiments", code=None, PATH=f"{bare}:/usr/bin:/bin")
    assert "torchft is not installed in the job's environment: pip install torchft" in project.log("001_a/000_lost_0")


def test_an_interface_that_does_not_exist_stops_the_run_before_it_waits(tmp_path: Path) -> None:
    project = Launching(tmp_path, show='launch = { mode = "torchrun", processes = 2, interface = "ib7" }')
    project.script("001_a/000_show_0.sh", "show")
    project.shoal("submit", "experiments", code=None)
    assert "names no interface" in project.log("001_a/000_show_0") or "no network interface ib7" in project.log(
        "001_a/000_show_0"
    )
    assert project.status()["001_a/000_show_0"]["exit_code"] == 78


def test_more_processes_than_gpus_is_refused(tmp_path: Path) -> None:
    project = Launching(tmp_path, show='launch = { mode = "torchrun", processes = 4 }\nrequest = { gpus = 2 }')
    project.script("001_a/000_show_0.sh", "show")
    assert_clear_error(project.shoal("submit", "experiments", code=None), 2, "4 processes per node are more than its 2")


def test_fewer_gpus_than_asked_for_are_told_before_anything_starts(tmp_path: Path) -> None:
    project = Launching(tmp_path, show='launch = "torchrun"\nrequest = { gpus = 2 }')
    project.script("001_a/000_show_0.sh", "show")
    project.shoal("submit", "experiments", code=None, CUDA_VISIBLE_DEVICES="0")
    assert "this machine has 1 GPU and the run asks for 2: --gpus-per-node=1" in project.log("001_a/000_show_0")


def test_one_process_in_a_job_is_not_taken_for_a_task_of_srun() -> None:
    """Lightning would train one rank out of eight on an eighth of the data (seed of many tears)."""
    from shoal.job.launch.launch_spec import process_environment

    env = process_environment(
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "1", "SLURM_CPUS_PER_TASK": "8", "PATH": sys.prefix}
    )
    assert env == {
        "SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "8", "SRUN_CPUS_PER_TASK": "8", "OMP_NUM_THREADS": "8",
        "PATH": sys.prefix,
    }  # fmt: skip
