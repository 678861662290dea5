"""Ranks that train apart are stopped, whatever the framework; programs that are right never notice the watch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launching import Launching, assert_nothing_left
from shoal.job.launch import rank_group
from shoal.job.launch.rank_group import RankGroup
from shoal.sandbox import Sandbox

pytestmark = pytest.mark.slow

TORCHRUN = 'launch = { mode = "torchrun", processes = 2 }'
SRUN = 'launch = { mode = "srun", processes = 2 }'

TRAIN = """
import time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    time.sleep(PAUSE)
print("trained", flush=True)
"""
FOR_EVER = TRAIN.replace("STEPS", "100000").replace("PAUSE", "0.05")
BRIEFLY = TRAIN.replace("STEPS", "30").replace("PAUSE", "0.1")
GROUP_OF_ONE = """
import os, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
"""
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
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8)
lightning.Trainer(accelerator="cpu", devices=1, max_epochs=100000, logger=False, enable_checkpointing=False,
                  enable_progress_bar=False).fit(Line(), data)
"""


def project_of(tmp_path: Path, program: str, launch: str, cluster: Sandbox | None = None) -> Launching:
    project = Launching(tmp_path, cluster, apart=launch)
    project.write("apart.py", program)
    project.script("001_a/000_apart_0.sh", "apart")
    return project


@pytest.mark.parametrize(
    ("program", "launch"),
    [(FOR_EVER, SRUN), (GROUP_OF_ONE + FOR_EVER, TORCHRUN), (LIGHTNING, TORCHRUN)],
    ids=["a program that never reads its rank", "a process group of one", "Lightning with devices=1"],
)
def test_ranks_that_train_apart_are_stopped(tmp_path: Path, program: str, launch: str) -> None:
    project = project_of(tmp_path, program, launch)
    assert project.shoal("submit", "experiments", code=None).code == 78
    err = project.log("001_a/000_apart_0")
    assert "each of the 2 ranks trains alone: the size of its process group is 1 and not 2" in err
    assert_nothing_left(project.root)


@pytest.mark.slurm
def test_ranks_that_train_apart_on_two_nodes_are_stopped(tmp_path: Path, host_cluster: Sandbox) -> None:
    launch = 'launch = "torchrun"\nrequest = { nodes = 2, gpus = 1, cpus = 2, time = "10m" }'
    project = project_of(tmp_path, FOR_EVER, launch, host_cluster)
    project.shoal("submit", "experiments")
    assert project.wait("001_a/000_apart_0", "failed", deadline_s=150)["exit_code"] == 78
    assert "each of the 2 ranks trains alone" in project.log("001_a/000_apart_0")
    assert_nothing_left(project.root)


@pytest.mark.parametrize(
    ("program", "launch"),
    [
        (BRIEFLY, SRUN.replace(" }", ", independent = true }")),
        ("import os, sys, torch\nif os.environ['RANK'] != '0':\n    sys.exit()" + BRIEFLY, SRUN),
    ],
    ids=["separate on purpose", "one that learns beside one that plays"],
)
def test_ranks_that_need_no_process_group_are_left_alone(tmp_path: Path, program: str, launch: str) -> None:
    project = project_of(tmp_path, program, launch)
    project.shoal("submit", "experiments")
    assert "trained" in (project.output("001_a/000_apart_0") / "attempt-1.out").read_text()


def test_a_program_that_trains_with_all_ranks_leaves_no_mark(tmp_path: Path) -> None:
    together = 'import torch.distributed as dist\ndist.init_process_group("gloo")\n' + BRIEFLY.replace("0.1)", "0.01)")
    seen = """
import os
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
print(os.environ["SHOAL_WATCH"], len(hooks))
"""
    project = project_of(tmp_path, together + seen, TORCHRUN)
    project.shoal("submit", "experiments")
    folder = project.launch_folder("001_a/000_apart_0")
    assert (project.output("001_a/000_apart_0") / "attempt-1.out").read_text().endswith("rank-0.alone 1\n"), "watched"
    assert not list(folder.glob("*.alone"))


def watched(folder: Path, program: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The program as a rank would start it, with its own paths before ours."""
    group = RankGroup("srun", ["here"], 2, 0, [], str(folder), f"{folder}/", "1", [], [], watched=True)
    rank_group.write_watch_module(group)
    env = {**os.environ, **more}
    env.update(rank_group.watch_variables(group, 0, env))
    return subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_compiled_optimizer_works_as_before(tmp_path: Path) -> None:
    program = """
import torch
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.5)
step = torch.compile(optimizer.step, backend="eager")
for _ in range(30):
    weight.grad = torch.ones(4)
    step()
print(weight.detach().tolist())
"""
    done = watched(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "[-14.0, -14.0, -14.0, -14.0]\n"), done.stderr


def test_a_watch_that_cannot_write_or_see_does_not_disturb(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "mine.py").write_text("hello = 'from my own path'\n")
    program = "import os, mine\nos.environ['SHOAL_WATCH'] = '2 /nowhere/at/all'\n" + BRIEFLY.replace("0.1)", "0)")
    done = watched(tmp_path, program + "print(mine.hello)", PYTHONPATH=str(theirs))
    assert (done.returncode, done.stdout) == (0, "trained\nfrom my own path\n"), done.stderr
    closed = watched(tmp_path, BRIEFLY.replace("0.1)", "0)"), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert (closed.returncode, closed.stdout) == (0, "trained\n"), closed.stderr
    assert not list(tmp_path.glob("*.alone"))
