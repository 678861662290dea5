"""How often each command asks Slurm: every program that is started costs a login node up to a second."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from conftest import cancel_all
from project import Project
from shoal.clusters import ClusterAnswers
from shoal.sandbox import Sandbox

SWEEP_FILE = 'step = "train"\nseeds = "0-5"\n[request]\ntime = "5m"\nmemory = "50M"\n'
TOML = '[clusters.small]\nmatch = { host = "*" }\naccount = "small"\npartition = "main"\n'
SLURM = ("scontrol", "sinfo", "sacctmgr")


def asked(project: Project, *words: object, code: int | None = 0) -> list[str]:
    """What a command of shoal asks about the cluster, in order; questions about jobs are left out."""
    folder = project.root.parent / "counted"
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    log.write_text("")
    for name in SLURM:
        real = shutil.which(name, path=project.env["PATH"])
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\nexec {real} "$@"\n')
        (folder / name).chmod(0o755)
    project.shoal(*words, code=code, PATH=f"{folder}{os.pathsep}{project.env['PATH']}")
    lines = [line.split(" ") for line in log.read_text().splitlines()]
    told = [" ".join([program, *[word for word in rest if word[0] != "-"][:2]]) for program, *rest in lines]
    return [question for question in told if "assoc_mgr" not in question and question != "scontrol show job"]


@pytest.mark.slurm
def test_each_command_asks_slurm_only_what_it_needs(tmp_path: Path, accounting_cluster: Sandbox) -> None:
    project = Project(tmp_path, accounting_cluster, toml=TOML)
    many = project.write("experiments/002_depth/000_train.toml", SWEEP_FILE)
    one = project.script("001_a/000_train_0.sh", "train --time=5 --mem=50")
    assert sorted(asked(project, "clusters", "detect")) == ["sacctmgr show user", "sinfo"]
    job = project.write("job.sh", "#!/bin/bash\nhostname\n")
    assert sorted(asked(project, "doctor", job)) == [
        "sacctmgr show qos",
        "sacctmgr show user",
        "scontrol show config",
        "scontrol show partition",
        "scontrol show reservation",
        "sinfo",
    ]
    assert asked(project, "plan", one) == ["sinfo"]
    assert asked(project, "plan", many) == ["scontrol show config", "sinfo"]
    try:
        first = asked(project, "submit", many)
        assert first[:2] == ["scontrol show config", "sinfo"]
        assert sorted(first[2:]) == [
            "sacctmgr show assoc",
            "sacctmgr show qos",
            "sacctmgr show user",
            "scontrol show partition",
        ]
        # Answers are kept for a few minutes, from when there is a state directory.
        for name, questions in (("003_depth", ["scontrol show config", "sinfo"]), ("004_depth", [])):
            assert (
                asked(project, "submit", project.write(f"experiments/{name}/000_train.toml", SWEEP_FILE)) == questions
            )
        # A request that a kept answer calls impossible is refused only on a fresh one, and sbatch's refusal ends them.
        large = project.script("005_a/000_train_0.sh", "train --time=5 --mem=50 --cpus-per-task=9999")
        assert asked(project, "submit", large, code=3) == ["sinfo"]
        assert asked(project, "submit", large, code=3) == ["sinfo"]
        unknown = project.script("006_a/000_train_0.sh", "train --time=5 --mem=50 --qos=nothing")
        asked(project, "submit", unknown, code=None)
        assert asked(project, "submit", one) == ["sinfo"]
    finally:
        cancel_all(accounting_cluster)


def test_kept_answers_of_slurm_end_with_time_and_with_slurm_conf(tmp_path: Path) -> None:
    conf, count, program = tmp_path / "slurm.conf", tmp_path / "count", tmp_path / "bin" / "sinfo"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho >> {count}\n[ -e {tmp_path}/down ] && exit 1\nwc -l < {count}\n")
    program.chmod(0o755)
    conf.write_text("ClusterName=a\n")
    environ = {"PATH": f"{program.parent}:{os.environ['PATH']}", "SLURM_CONF": str(conf)}
    now = [1000.0]

    def ask() -> str | None:
        answer = ClusterAnswers(str(tmp_path / "home"), environ, clock=lambda: now[0]).ask(["sinfo"], [])
        return answer and answer.strip()

    assert [ask(), ask()] == ["1", "2"], "there is no state directory to keep it in"
    (tmp_path / "home").mkdir()
    assert [ask(), ask()] == ["3", "3"]
    now[0] += 299
    assert ask() == "3"
    now[0] += 2
    assert [ask(), ask()] == ["4", "4"]
    now[0] -= 100
    assert ask() == "5", "an answer of a clock that was set back is not used"
    conf.write_text("ClusterName=b\n")
    assert [ask(), ask()] == ["6", "6"]
    (tmp_path / "down").touch()
    assert ask() == "6"
    assert not ClusterAnswers(str(tmp_path / "home"), environ).forget(), "it had used none"
    assert [ask(), ask()] == [None, None]
    (tmp_path / "down").unlink()
    assert [ask(), ask()] == ["9", "9"], "that it failed was not kept"
    (kept,) = (tmp_path / "home" / "cache").iterdir()
    kept.write_text("{")
    assert ask() == "10"
