"""Looking changes nothing: a plan submits, writes and removes nothing, whatever is in the file that it is made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from project import Project, assert_clear_error
from shoal.sandbox import Sandbox

LOOKING = [
    ("plan",),
    ("plan", "--script"),
    ("plan", "--json"),
    ("plan", "--shapes"),
    ("submit", "--dry-run"),
]
#: What was seen to be executed: a training, two jobs, a file removed.
BATCH = """#!/bin/bash
#SBATCH --gres=gpu:4
rm -f precious
touch trained
sbatch --wrap=true
python train.py
"""
PYTHON = """
import shoal
exp = shoal.Experiment("003_python")
exp.add("train", seeds="0-1", request={"time": "5m"})
exp.submit()
"""


def tree(root: Path) -> dict[str, tuple[int, float]]:
    found = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime) for path in found}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """With programs on the PATH that tell if somebody calls them."""
    made = Project(tmp_path)
    for name in ("sbatch", "srun", "salloc", "scancel", "scontrol", "qsub"):
        program = made.write(f"../bin/{name}", f'#!/bin/sh\necho {name} >> "{tmp_path}/called"\n')
        program.chmod(0o755)
    made.env["PATH"] = f"{tmp_path}/bin:{made.env['PATH']}"
    made.write("precious", "")
    return made


@pytest.mark.parametrize("words", [*LOOKING, ("submit",)], ids=" ".join)
def test_a_batch_script_is_never_executed(project: Project, tmp_path: Path, words: tuple[str, ...]) -> None:
    script = project.write("experiments/001_a/000_train_0.sh", BATCH)
    before = tree(project.root)
    done = project.shoal(*words, script, code=None)
    assert_clear_error(done, 2, "does not source shoal's functions", "was not executed")
    assert f"sbatch {script}" in done.err
    called = tmp_path / "called"
    assert tree(project.root) == before and "sbatch" not in (called.read_text() if called.exists() else "")


@pytest.mark.parametrize("line", ['# source "$(shoal shell)"', "source env.sh", 'echo "shoal shell"'])
def test_a_script_that_only_mentions_the_functions_is_not_executed(project: Project, line: str) -> None:
    project.write("env.sh", "touch trained\n")
    script = project.write("experiments/001_a/000_train_0.sh", f"{line}\ntouch trained\n")
    assert_clear_error(project.shoal("plan", script, code=None), 2, "does not source shoal's functions")
    assert not (project.root / "trained").exists()


@pytest.mark.parametrize(
    "line",
    [
        "source slurm/init.sh",
        '. "$(dirname "$0")/../../slurm/init.sh"',
        'cd . && source "$REPOSITORY/slurm/init.sh"',
        'source "$(dirname "${BASH_SOURCE[0]}")/../../slurm/init.sh"',
    ],
)
def test_functions_may_be_sourced_by_a_file_that_the_script_sources(project: Project, line: str) -> None:
    project.write("slurm/init.sh", 'export LR=0.1\nsource "$(shoal shell)"\n')
    script = project.write("experiments/001_a/000_train_0.sh", f"{line}\ntrain\n")
    planned = project.shoal("plan", "--json", script, REPOSITORY=str(project.root)).json
    assert [run["name"] for run in planned["runs"]] == ["001_a/000_train_0"]


@pytest.mark.parametrize("name", ["sbatch", "srun", "salloc", "scancel", "scontrol", "qsub"])
def test_a_script_that_acts_on_a_cluster_while_it_is_read_is_refused(
    project: Project, tmp_path: Path, name: str
) -> None:
    script = project.script("001_a/000_train_0.sh", f"{name} --some --flags || true", "train")
    for words in LOOKING:
        assert_clear_error(project.shoal(*words, script, code=None), 2, f"calls {name}", "not executed")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_plan_changes_nothing_on_disk(project: Project, tmp_path: Path, words: tuple[str, ...]) -> None:
    project.script("001_a/000_train_0.sh", "train --time=5")
    project.write(
        "experiments/002_b/000_train.toml", 'step = "train"\n[sweep]\nlr = [0.1, 0.2]\n[request]\ntime = "5m"\n'
    )
    project.write("experiments/003_c/000_train.py", PYTHON)
    project.shoal("submit", "experiments/001_a", "--on", "local")
    before = tree(project.root)
    for folder in ("001_a", "002_b", "003_c"):
        project.shoal(*words, f"experiments/{folder}", "--on", "local")
    assert tree(project.root) == before and not (tmp_path / "called").exists()


@pytest.mark.slurm
def test_a_plan_changes_nothing_in_the_queue(tmp_path: Path, cluster: Sandbox) -> None:
    project = Project(tmp_path, cluster)
    project.script("001_a/000_train_0.sh", "train --time=5 --mem=50")
    project.script("001_a/001_train_0.sh", "sbatch --wrap='sleep 60'", "train")
    script = project.write("experiments/002_b/000_train_0.sh", BATCH)
    before = cluster.run("squeue", "-h", "-t", "all", "-o", "%i").stdout
    for words in LOOKING:
        project.shoal(*words, "experiments/001_a/000_train_0.sh")
        project.shoal(*words, "experiments/001_a/001_train_0.sh", code=2)
        project.shoal(*words, script, code=2)
    assert cluster.run("squeue", "-h", "-t", "all", "-o", "%i").stdout == before
