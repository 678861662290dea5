"""How often each command asks Slurm: every program that is started costs a login node up to a second."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from conftest import cancel_all
from project import Project
from shoal.sandbox import Sandbox

PAGE = 'step = "train"\nseeds = "0-5"\n[request]\ntime = "5m"\nmemory = "50M"\n'
TOML = '[clusters.small]\nmatch = { host = "*" }\naccount = "small"\npartition = "main"\n'
SLURM = ("scontrol", "sinfo", "sacctmgr")


def asked(project: Project, *words: object) -> list[str]:
    """What a command of shoal asks about the cluster, in order; questions about jobs are left out."""
    folder = project.root.parent / "counted"
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    log.write_text("")
    for name in SLURM:
        real = shutil.which(name, path=project.env["PATH"])
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\nexec {real} "$@"\n')
        (folder / name).chmod(0o755)
    project.shoal(*words, PATH=f"{folder}{os.pathsep}{project.env['PATH']}")
    lines = [line.split(" ") for line in log.read_text().splitlines()]
    told = [" ".join([program, *[word for word in rest if word[0] != "-"][:2]]) for program, *rest in lines]
    return [question for question in told if "assoc_mgr" not in question]


@pytest.mark.slurm
def test_each_command_asks_slurm_only_what_it_needs(tmp_path: Path, accounting_cluster: Sandbox) -> None:
    project = Project(tmp_path, accounting_cluster, toml=TOML)
    many = project.write("experiments/002_depth/000_train.toml", PAGE)
    one = project.script("001_a/000_train_0.sh", "train --time=5 --mem=50")
    assert asked(project, "clusters", "detect") == ["sinfo", "sacctmgr show user"]
    assert asked(project, "doctor", project.write("job.sh", "#!/bin/bash\nhostname\n")) == [
        "sinfo",
        "scontrol show config",
        "scontrol show partition",
        "scontrol show reservation",
        "sacctmgr show user",
        "sacctmgr show qos",
    ]
    assert asked(project, "plan", one) == ["sinfo"]
    assert asked(project, "plan", many) == ["scontrol show config", "sinfo"]
    try:
        assert asked(project, "submit", many) == [
            "scontrol show config",
            "sinfo",
            "sacctmgr show user",
            "scontrol show partition",
            "sacctmgr show assoc",
            "sacctmgr show qos",
        ]
    finally:
        cancel_all(accounting_cluster)
