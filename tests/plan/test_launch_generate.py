"""`shoal generate` for every launch: scripts that a person can read, that bash accepts, and that Slurm runs."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from launching import Launching
from project import Project, assert_clear_error
from shoal.sandbox import Sandbox
from waiting import wait_until

MULOCO = ("--config-file", "config/muloco.py", "--nodes", "4", "--gpus-per-node", "8", "--cpus-per-node", "128")


def generated(tmp_path: Path, *flags: str) -> str:
    script = Project(tmp_path).shoal("generate", *MULOCO, *flags).out
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    return script


def test_replicas_on_slices_of_a_node(tmp_path: Path) -> None:
    script = generated(tmp_path, "--num-ft-replicas-per-node", "4", "--nodes-per-replica", "1")
    for line in (
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --cpus-per-task=32",
        "#SBATCH --no-kill",
        "torchft_lighthouse --min_replicas 9 --bind '[::]:0'",
        "--cpus-per-task=32 --gres=gpu:2",
        "torchrun --standalone --nproc-per-node=2",
        'fault_tolerance.enable=True fault_tolerance.replica_id="$replica" '
        'fault_tolerance.group_size="$NUM_REPLICA_GROUPS"',
        'replica "$i" "${hosts[i / 4]}" &',
        '[ "$finished" -ge 9 ] || exit "$first"',
    ):
        assert line in script, line


def test_replicas_over_several_nodes(tmp_path: Path) -> None:
    script = generated(tmp_path, "--nodes-per-replica", "2")
    for line in (
        "#SBATCH --ntasks-per-node=1",
        "--nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=128 --gres=gpu:8",
        'torchrun --nnodes=2 "--rdzv-id=$SLURM_JOB_ID-$replica-$attempt" --rdzv-backend=c10d '
        '"--rdzv-endpoint=${nodes%%,*}:$((20000 + SLURM_JOB_ID % 10000))" --nproc-per-node=8',
        'replica "$i" "$(IFS=,; echo "${hosts[*]:i * 2:2}")" &',
    ):
        assert line in script, line


def test_one_task_per_gpu_learns_its_rank_inside_the_task(tmp_path: Path) -> None:
    script = generated(tmp_path, "--launch", "srun")
    assert "srun --kill-on-bad-exit=1 --ntasks-per-node=8 --cpus-per-task=16" in script
    assert "'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; exec \"$@\"' rank" in script
    assert 'export MASTER_ADDR="$head" MASTER_PORT="$port"' in script


@pytest.mark.parametrize("launch", ["accelerate", "deepspeed"])
def test_presets_learn_their_machine_inside_the_task(tmp_path: Path, launch: str) -> None:
    script = generated(tmp_path, "--launch", launch)
    assert "#SBATCH --ntasks-per-node=1" in script
    assert '_rank=$SLURM_NODEID"' in script


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--num-ft-replicas-per-node", "3"], "8 GPUs per node cannot be divided among 3 replicas"),
        (["--nodes-per-replica", "3"], "4 nodes cannot be divided into replicas of 3 nodes"),
        (["--launch", "srun", "--num-ft-replicas-per-node", "2"], "has no effect with --launch srun"),
        (["--launch", "mpi"], "there is no launch 'mpi'"),
    ],
)
def test_what_cannot_be_launched_is_not_written(tmp_path: Path, flags: list[str], words: str) -> None:
    assert_clear_error(Project(tmp_path).shoal("generate", *MULOCO, *flags, code=None), 2, words)


@pytest.mark.slurm
def test_a_generated_script_of_replicas_trains_and_tells_the_truth(tmp_path: Path, host_cluster: Sandbox) -> None:
    launch = 'launch = { mode = "replicas", replicas_per_node = 2, min_replicas = 2, restarts = 0 }\n'
    launch += 'request = { nodes = 1, gpus = 2, cpus = 2, time = "10m" }\nenv = { SHOAL_OUTPUT_DIR = "." }'
    project = Launching(tmp_path, host_cluster, diloco=launch)
    (project.root / "logs").mkdir()
    jobs = {}
    for code, words in (("0:0", "--rounds 3"), ("1:0", "--no-such-flag")):
        script = f"job{code[0]}.sh"
        project.shoal("generate", "--step", "diloco", f"--extra-args={words}", "--output-file", script)
        path = f"{Path(project.env['PATH'].split(':')[0])}:{project.env['PATH']}"
        jobs[code] = project.run(["sbatch", "--parsable", script], PATH=path).out.strip()
    for code, job in jobs.items():
        told = wait_until(partial(_ended, project, job), 120, f"job {job} ended")
        assert f"ExitCode={code}" in told
    log = (project.root / "logs" / f"{jobs['0:0']}.out").read_text()
    assert log.count("finished") == 2


def _ended(project: Launching, job: str) -> str:
    told = project.slurm("scontrol", "show", "job", job)
    return told if "JobState=COMPLETED" in told or "JobState=FAILED" in told else ""
