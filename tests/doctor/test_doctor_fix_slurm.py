"""`shoal doctor --fix` on a real Slurm: the copy is accepted, and its smoke run uses every GPU that it asks for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.cli import main
from shoal.sandbox import Sandbox

pytestmark = pytest.mark.slurm

LIGHTNING = """
import lightning, torch
class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return (self.layer(batch[0]) ** 2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(640, 4)), batch_size=8)
lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1000, logger=False,
                  enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False).fit(Line(), data)
"""
DDP = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2000):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.1)
"""
ALONE = DDP.replace('dist.init_process_group("gloo")\n', "").replace(
    "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))", "torch.nn.Linear(4, 1)"
)


@pytest.fixture
def slurm(host_cluster: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Sandbox]:
    monkeypatch.setenv("SLURM_CONF", str(host_cluster.conf_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    yield host_cluster


def fix(
    folder: Path, header: str, body: str, program: str, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, dict[str, Any]]:
    (folder / "train.py").write_text(program)
    lines = "".join(f"#SBATCH {line}\n" for line in header.splitlines())
    (folder / "job.sh").write_text(f"#!/bin/bash\n{lines}\n{body}")
    code = main(["doctor", "--json", "--fix", *words, "job.sh"])
    document = json.loads(capsys.readouterr().out)
    return code, document["fixed"][0]


#: (what was wrong, header, body, program, codes that must be corrected, GPUs of the copy)
SMOKED = [
    (
        "one task for two GPUs under Lightning, the log directory missing, nothing strict",
        "--ntasks=1\n--gres=gpu:2\n--cpus-per-task=4\n--mem=2G\n--time=1:00:00\n--output=logs/%j.out",
        "python train.py\necho finished\n",
        LIGHTNING,
        {"G02", "D07", "S01"},
        2,
    ),
    (
        "a launcher for each GPU",
        "--nodes=1\n--ntasks-per-node=2\n--gres=gpu:2\n--cpus-per-task=2\n--mem=2G\n--time=1:00:00\n--output=/dev/null",
        "srun torchrun --standalone --nproc-per-node=2 train.py\n",
        DDP,
        {"G07"},
        2,
    ),
    (
        "more GPUs than a node has, fewer processes than GPUs, and a variable that is not set",
        "--nodes=1\n--gres=gpu:9\n--cpus-per-task=99\n--mem=900G\n--time=9-00:00:00\n--output=/dev/null",
        "torchrun --standalone --nproc-per-node=$SLURM_GPUS_PER_NODE train.py\n",
        DDP,
        {"D11", "D13", "D29", "S17"},
        2,
    ),
]


@pytest.mark.parametrize(("what", "header", "body", "program", "codes", "gpus"), SMOKED, ids=[one[0] for one in SMOKED])
def test_the_copy_is_accepted_and_trains_on_all_its_gpus(
    what: str,
    header: str,
    body: str,
    program: str,
    codes: set[str],
    gpus: int,
    slurm: Sandbox,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, fixed = fix(tmp_path, header, body, program, capsys, "--smoke")
    text = (tmp_path / "job.fixed.sh").read_text()
    assert code == 3  # the script that was asked about is still wrong
    assert codes <= set(fixed["codes"]), text
    assert [one for one in fixed["left"] if one["severity"] == "error"] == []
    assert fixed["accepted"] is True
    smoke = fixed["smoke"]
    assert (smoke["passed"], smoke["world"], smoke["expected"]) == (True, gpus, gpus), f"{smoke}\n{text}"
    assert not list(tmp_path.glob(".shoal-smoke-*"))
    assert slurm.run("squeue", "-h", "-j", smoke["job_id"], "-t", "R,PD", check=False).stdout == ""


def test_processes_that_train_alone_fail_the_smoke_run(
    slurm: Sandbox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = "--nodes=1\n--gres=gpu:2\n--cpus-per-task=4\n--mem=64\n--time=1:00:00\n--output=/dev/null"
    body = "torchrun --standalone --nproc-per-node=2 train.py\n"
    code, fixed = fix(tmp_path, header.replace("--mem=64", "--mem=2"), body, ALONE, capsys, "--smoke")
    assert code == 3
    assert fixed["codes"] == ["D14"]
    assert fixed["smoke"]["passed"] is False
    assert fixed["smoke"]["sentence"] == "2 processes train, each alone: world size 1, and 2 GPUs"
