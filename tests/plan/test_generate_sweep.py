"""Sweep scripts that call MuLoCo's generator through a shell, run by `shoal generate -- COMMAND` as they are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from project import Project, assert_clear_error
from shoal.sandbox import Sandbox
from waiting import wait_until

#: Loops over learning rates, one generated script for each, then sbatch within a budget of nodes.
SWEEP = """\
import os, re, subprocess, time

FOLDER = "jobs/generated"
os.makedirs(FOLDER, exist_ok=True)


def nodes_in_queue():
    lines = subprocess.run(["squeue", "-h", "-o", "%D"], capture_output=True, text=True).stdout.split()
    return sum(int(line) for line in lines)


count = 0
for rate in RATES:
    overrides = f"optimizer.lr={rate} training.steps=3 metrics.suffix='' parallelism.mode='never'"
    os.system(
        f"python generate_job_file.py --config-file config/ddp/small.py --job-name lr{rate} --partition main "
        f"--nodes 1 --gpus-per-node 2 --ntasks-per-node 1 --cpus-per-node 2 --mem 1G --time 00:05:00 --use-ddp "
        f"--num-ft-replicas-per-node 2 --mail-type NONE --output logs/%j.out --error logs/%j.err "
        f'--extra-args "{overrides}" --output-file {FOLDER}/rate_{count}.sh'
    )
    count += 1
for name in sorted(os.listdir(FOLDER)):
    text = open(os.path.join(FOLDER, name)).read()
    needed = int(re.search(r"#SBATCH +--nodes=([0-9]+)", text).group(1))
    while nodes_in_queue() + needed > 2:
        time.sleep(0.2)
    os.system(f"sbatch {os.path.join(FOLDER, name)}")
"""
TRAIN = """\
import os, sys
if os.environ["RANK"] == "0":
    with open("trained", "a") as file:
        file.write(" ".join([os.environ["WORLD_SIZE"], *sys.argv[1:]]) + "\\n")
"""


class Sweep(Project):
    """MuLoCo's layout: jobs/, config/ and torchtitan/train.py, without the generator itself."""

    def __init__(self, folder: Path, cluster: Sandbox | None = None) -> None:
        super().__init__(folder, cluster)
        self.write("shoal.toml", "")
        self.write("torchtitan/train.py", TRAIN)
        self.write("config/ddp/small.py", "")
        (self.root / "logs").mkdir()
        self.sweep(0.25, 0.5)

    def sweep(self, *rates: float) -> None:
        self.write("jobs/sweep.py", SWEEP.replace("RATES", repr(list(rates))))

    def generated(self, name: str) -> str:
        return (self.root / "jobs/generated" / name).read_text()

    def trained(self) -> list[str]:
        path = self.root / "trained"
        return path.read_text().splitlines() if path.exists() else []

    def wait_trained(self) -> int:
        """How many jobs have trained when none is left."""
        wait_until(lambda: not self.slurm("squeue", "-h").strip(), 60, "no job is left")
        return len(self.trained())


def test_the_calls_of_a_sweep_write_scripts_and_nothing_is_submitted(tmp_path: Path) -> None:
    project = Sweep(tmp_path)
    done = project.shoal("generate", "--dry-run", "--partition", "other", "--", "python", "jobs/sweep.py")
    assert done.out.count("not submitted: sbatch jobs/generated/rate_") == 2
    assert "optimizer.lr=0.25 training.steps=3 metrics.suffix= parallelism.mode=never" in project.generated("rate_0.sh")
    assert "#SBATCH --partition=other" in project.generated("rate_1.sh")
    assert "--num-ft-replicas-per-node has no effect with --use-ddp" in done.err


@pytest.mark.slow
def test_an_edited_sweep_writes_its_new_values(tmp_path: Path) -> None:
    project = Sweep(tmp_path)
    project.shoal("generate", "--dry-run", "--", "python3", "-u", "jobs/sweep.py")
    project.sweep(0.75, 0.5)
    project.shoal("generate", "--dry-run", "--", "python3", "-u", "jobs/sweep.py")
    assert "optimizer.lr=0.75" in project.generated("rate_0.sh")
    assert "#SBATCH --job-name=lr0.75" in project.generated("rate_0.sh")


@pytest.mark.slow
def test_calls_that_fail_are_not_hidden_by_the_sweep(tmp_path: Path) -> None:
    project = Sweep(tmp_path)
    project.shoal("generate", "--dry-run", "--", "python", "jobs/sweep.py")
    edited = project.root / "jobs/generated/rate_0.sh"
    edited.write_text(edited.read_text() + "# mine\n")
    project.sweep(0.75, 0.5)
    done = project.shoal("generate", "--dry-run", "--", "python", "jobs/sweep.py", code=None)
    assert done.code == 1
    assert "error: 1 of the calls of generate_job_file.py failed" in done.err
    assert "rate_0.sh was edited" in done.err
    assert done.err.count("error: not submitted, because a call of generate_job_file.py failed: sbatch jobs/") == 2
    assert "not submitted: sbatch" not in done.out
    assert "optimizer.lr=0.25" in edited.read_text()


def test_the_exit_code_is_the_commands(tmp_path: Path) -> None:
    project = Sweep(tmp_path)
    project.shoal("generate", "--", "python", "-c", "raise SystemExit(7)", code=7)
    assert project.shoal("generate", "--", "python", "-c", "import sys; print(sys.prefix)").out.strip() == sys.prefix
    assert_clear_error(project.shoal("generate", "--", "no-such-program", code=None), 2, "'no-such-program' not found")
    assert_clear_error(project.shoal("generate", "--dry-run", code=None), 2, "--dry-run has no effect")


@pytest.mark.slurm
def test_an_edited_sweep_submits_and_trains_its_new_values(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = Sweep(tmp_path, quiet_cluster)
    words = "2 --job.config_file config/ddp/small.py --cfg_options optimizer.lr={} training.steps=3 metrics.suffix= "
    words += "parallelism.mode=never"
    project.shoal("generate", "--", "python", "jobs/sweep.py")
    assert project.wait_trained() == 2
    project.sweep(0.75, 1.5)
    project.shoal("generate", "--", "python", "jobs/sweep.py")
    assert project.wait_trained() == 4
    assert sorted(project.trained()) == [words.format(rate) for rate in (0.25, 0.5, 0.75, 1.5)]
