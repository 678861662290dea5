"""shoal submit asks the doctor first: errors stop it with code 3, --force overrules, and our own scripts are clean."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from project import Project
from shoal.doctor.check import check_text
from shoal.sandbox import Sandbox

SPREAD = """
[steps.spread]
command = ["torchrun", "--nproc-per-node=4", "program.py"]
output = "spread"
request = { nodes = 2, gpus = 4, cpus = 8, memory = "100M", time = "5m" }
"""


@pytest.mark.slurm
def test_an_error_stops_the_submission_and_force_overrules_it(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = Project(tmp_path, quiet_cluster, toml=SPREAD)
    project.script("001_a/000_spread_0.sh", "spread")
    refused = project.shoal("submit", "experiments/001_a", code=3)
    assert "runs on the first of 2 nodes only" in refused.err
    assert "(G12)" in refused.err
    assert "--force" in refused.err
    assert project.jobs() == []
    forced = project.shoal("submit", "experiments/001_a", "--force")
    assert "note: G12" in forced.err
    assert len(project.jobs()) == 1


@pytest.mark.slurm
def test_a_warning_is_told_and_does_not_stop(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = Project(tmp_path, quiet_cluster)
    project.script("001_a/000_train_0.sh", "train --time=24 --mem=50")
    done = project.shoal("submit", "experiments/001_a")
    assert "note: D10: --time=24 is 24m for Slurm" in done.err
    assert "note: D14: --mem=50 is 50 MB" in done.err
    project.wait("001_a/000_train_0", "completed")


@pytest.mark.slurm
def test_plan_refuses_what_submit_would_refuse(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = Project(tmp_path, quiet_cluster, toml=SPREAD)
    project.script("001_a/000_spread_0.sh", "spread")
    project.shoal("plan", "experiments/001_a", code=3)
    project.shoal("plan", "experiments/001_a", "--force")


@pytest.mark.slurm
def test_our_own_batch_scripts_are_clean(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = Project(tmp_path, quiet_cluster)
    project.script("001_a/000_train_0.sh", "train --time=00:05:00 --mem=50M --gres=gpu:1 --cpus-per-task=2")
    project.script("002_b/000_train.sh", "train --time=00:05:00 --mem=50M --cpus-per-task=2")
    project.shoal("submit", "experiments/001_a")
    project.shoal("submit", "experiments/002_b", "--seeds", "0-3")
    scripts = [folder / "script.sh" for folder in project.submissions()]
    assert len(scripts) == 2
    for path in scripts:
        found = [one for one in check_text(path.read_text(), str(path)) if one.severity != "hint"]
        assert found == [], path.read_text()


def test_what_shoal_generates_is_clean(tmp_path: Path) -> None:
    toml = '[clusters.c]\nmatch = { host = "*" }\ngpus_per_node = 8\ncpus_per_node = 64\nmemory_per_node = "500G"\n'
    project = Project(tmp_path, toml=toml)
    for gpus, words in (
        (8, ["--use-ddp", "--nodes", "1"]),
        (8, ["--use-ddp", "--nodes", "4"]),
        (1, ["--launch", "process", "--nodes", "1"]),
    ):
        out = project.shoal("generate", "--config-file", "c.toml", "--on", "c", "--gpus-per-node", gpus, *words).out
        (project.root / "logs").mkdir(exist_ok=True)
        found = check_text(out, str(project.root / "job.sh"))
        # A requeue without a word about checkpoints is the program's affair, and hints are hints.
        assert [one.code for one in found if one.severity != "hint" and one.code != "R07"] == [], (found, out)


PACKED = """
[clusters.c]
match = {{ host = "nowhere" }}
gpus_per_node = 8
[steps.ddp]
command = ["torchrun", "--nproc-per-node={processes}", "program.py", "{{seed}}"]
output = "ddp"
request = {{ gpus = 2 }}
"""


@pytest.mark.parametrize("words", [("--gpus", 8), ("--gpus", 8, "--nodes", 2), ("--pilots", 2)])
def test_a_packed_run_is_looked_at_with_what_it_gets_of_the_allocation(tmp_path: Path, words: tuple[object]) -> None:
    """Its node has eight GPUs, or there are two: the run has two GPUs on one of them."""
    project = Project(tmp_path, toml=PACKED.format(processes=2))
    sweep_file = project.write("experiments/001_a/000_ddp.toml", 'step = "ddp"\nseeds = "0-7"\n')
    pack = (
        "submit",
        sweep_file,
        "--layout",
        "pilots" if "--pilots" in words else "pack",
        *words,
        "--on",
        "c",
        "--dry-run",
    )
    assert "note: G" not in project.shoal(*pack).err
    project.write("shoal.toml", PACKED.format(processes=4))
    assert "(G09)" in project.shoal(*pack, code=3).err


@pytest.mark.slow
def test_the_local_machine_is_not_asked_about_slurm(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.script("001_a/000_train_0.sh", "train --time=24 --mem=50")
    done = project.shoal("submit", "experiments/001_a", "--on", "local", "-q")
    assert not re.search(r"D1[04]", done.err)
