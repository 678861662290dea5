"""Preemption with a grace time, on a real Slurm: steps are told at once, the batch script when the time is up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import MakeSandbox
from launching import Launching
from project import read_record
from shoal.sandbox import parse_partitions
from waiting import wait_until

pytestmark = pytest.mark.slurm

#: Saves and leaves when it is told to, as a program should; started again, it has nothing left to do.
SAVES = """\
import os, signal, sys, time
def save(number, frame):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
name = [os.environ.get(name, "").replace("/", ".") for name in ("SHOAL_RUN", "SHOAL_REPLICA", "RANK")]
open(os.path.join("marks", "-".join(name)), "a").close()
while os.environ["SHOAL_ATTEMPT"] == "1":
    time.sleep(0.05)
"""


def test_what_left_politely_in_the_grace_time_goes_on_when_the_job_comes_again(
    tmp_path: Path, make_sandbox: MakeSandbox
) -> None:
    """All are started by srun: the ranks of runs, replicas, and the engines of a pack."""
    cluster = make_sandbox(
        "grace", nodes=4, partitions=parse_partitions("high:1d,low:1d"), settings=(("KillWait", "20"),)
    )
    ranks = 'launch = "srun"\nrequest = { nodes = 2, gpus = 1 }'
    replicas = 'launch = { mode = "replicas", replicas_per_node = 2 }\nrequest = { gpus = 2 }'
    project = Launching(tmp_path, cluster, ranks=ranks, replicas=replicas)
    for program in ("ranks.py", "replicas.py", "packed.py"):
        project.write(program, SAVES)
    project.write("shoal.toml", (project.root / "shoal.toml").read_text() + "\n[clusters.slurm]\npartition = 'low'\n")
    project.slurm("scontrol", "update", "PartitionName=low", "GraceTime=25")
    project.submit("000_replicas_0", "replicas --mem=1000M --time=10")
    # Two tasks of an array: the last one has the array's own number.
    project.shoal("submit", project.script("001_a/001_ranks.sh", "ranks --mem=50M --time=10"), "--seeds", "0-1")
    words = ("pack", "--nodes", 2, "--gpus", 1, "--slots", 1, "--time", "10m", "--mem", "100M", "--set", "k=1,2")
    project.shoal(*words, "--", sys.executable, "-S", "packed.py", "{k}")
    wait_until(
        lambda: len(list((project.root / "marks").iterdir())) == 8, 120, "ranks, replicas and packed runs have begun"
    )
    project.slurm("sbatch", "--partition=high", "--nodes=4", "--exclusive", "-o", "/dev/null", "--wrap=true")

    def ends() -> list[Path]:
        return list((project.home / "runs").glob("*/*/attempt.1.end"))

    wait_until(lambda: len(ends()) == 5, 60, "all have left")
    left = [read_record(path) for path in ends()]
    assert [(end["exit_code"], end["stopped_by"], end["success"]) for end in left] == [(0, "SIGTERM", False)] * 5
    wait_until(lambda: {run["state"] for run in project.status().values()} == {"completed"}, 120, "all completed")
    assert {run["attempt"] for run in project.status().values()} == {2}
    assert len(project.submissions()) == 3, "Slurm has started the same jobs again"
