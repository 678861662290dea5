"""Lightning: a real Trainer in two processes sees each sample of each epoch exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import shoal.data
from data_sets import make_folder
from shoal.data.shard_plan import ShardSettings

pytestmark = pytest.mark.slow

EPOCHS, SAMPLES = 2, 96

#: Writes one line per batch: epoch, rank, keys.
TRAINING = """
import gc, json, sys
import lightning, torch
import shoal.data
from shoal.data.for_torch import Loader, MapDataset

def decode(sample):
    name, image, label = sample
    return name, torch.frombuffer(bytearray(image[:64]), dtype=torch.uint8).float() / 255, label

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 3)
    def train_dataloader(self):
        data = shoal.data.open(sys.argv[1], fields=("__key__", "jpg", "cls"), transform=decode)
        if sys.argv[2] == "loader":
            return Loader(data, batch_size=8, seed=3)
        return torch.utils.data.DataLoader(MapDataset(data), batch_size=8, shuffle=True, num_workers=1)
    def training_step(self, batch, number):
        names, images, labels = batch
        with open(f"{sys.argv[3]}-{self.global_rank}", "a") as file:
            file.write(json.dumps([self.current_epoch, list(names)]) + "\\n")
        return torch.nn.functional.cross_entropy(self.layer(images), labels)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def main():
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, barebones=True)
    trainer.fit(Net())

if __name__ == "__main__":
    main()
    gc.collect()  # The model is in a circle, and keeps threads of gloo that may crash Python at its end.
    torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["sampler", "loader"])
def test_two_processes_of_lightning_see_each_sample_once_per_epoch(tmp_path: Path, kind: str) -> None:
    make_folder(tmp_path / "src", SAMPLES)
    shoal.data.shard_dataset(str(tmp_path / "src"), str(tmp_path / "data"), ShardSettings(shard_mb=0.05, first_mb=0.01))
    (tmp_path / "training.py").write_text(TRAINING)
    argv = [sys.executable, tmp_path / "training.py", tmp_path / "data", kind, tmp_path / "seen"]
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=900, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ranks = [[json.loads(line) for line in (tmp_path / f"seen-{rank}").read_text().splitlines()] for rank in range(2)]
    orders = []
    for epoch in range(EPOCHS):
        mine = [[name for at, names in lines if at == epoch for name in names] for lines in ranks]
        assert [len(names) for names in mine] == [SAMPLES // 2] * 2
        assert set(Counter(mine[0] + mine[1]).values()) == {1} and len(set(mine[0] + mine[1])) == SAMPLES
        orders.append(mine[0])
    assert orders[0] != orders[1]


#: Trains and validates with loaders that are made before Lightning starts its processes, and writes what each step saw.
VALIDATING = """
import gc, json, sys
import lightning, torch
import shoal.data
from shoal.data.for_torch import Loader

def decode(sample):
    name, image, label = sample
    return name, torch.frombuffer(bytearray(image[:64]), dtype=torch.uint8).float() / 255, label

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 3)
    def note(self, what, batch):
        with open(f"{sys.argv[2]}-{self.global_rank}", "a") as file:
            kind = "sanity" if self.trainer.sanity_checking else what
            file.write(json.dumps([kind, self.current_epoch, list(batch[0])]) + "\\n")
        return torch.nn.functional.cross_entropy(self.layer(batch[1]), batch[2])
    def training_step(self, batch, number):
        return self.note("train", batch)
    def validation_step(self, batch, number):
        self.note("val", batch)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def main():
    limit = int(sys.argv[3]) or None
    data = shoal.data.open(sys.argv[1], fields=("__key__", "jpg", "cls"), transform=decode)
    train, val = Loader(data, batch_size=8, seed=3), Loader(data, batch_size=8, seed=5)
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, num_sanity_val_steps=2,
                                limit_val_batches=limit, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Net(), train, val)

if __name__ == "__main__":
    main()
    gc.collect()
    torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("limit", [0, 3])
def test_a_sanity_check_costs_the_validation_no_sample_and_a_limit_takes_the_same_ones(
    tmp_path: Path, limit: int
) -> None:
    make_folder(tmp_path / "src", SAMPLES)
    shoal.data.shard_dataset(str(tmp_path / "src"), str(tmp_path / "data"), ShardSettings(shard_mb=0.05, first_mb=0.01))
    (tmp_path / "training.py").write_text(VALIDATING)
    argv = [sys.executable, tmp_path / "training.py", tmp_path / "data", tmp_path / "seen", limit]
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=900, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    seen: dict[tuple[str, int], Counter[str]] = {}
    for rank in range(2):
        for line in (tmp_path / f"seen-{rank}").read_text().splitlines():
            kind, epoch, names = json.loads(line)
            seen.setdefault((kind, epoch), Counter()).update(names)
    for epoch in range(EPOCHS):
        assert len(seen["train", epoch]) == SAMPLES and set(seen["train", epoch].values()) == {1}
        assert len(seen["val", epoch]) == (limit * 8 * 2 or SAMPLES) and set(seen["val", epoch].values()) == {1}
    assert len(seen["sanity", 0]) == 2 * 8 * 2
    if limit:
        assert seen["val", 0] == seen["val", 1]
