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
from shoal.data.planning import Settings

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
    shoal.data.pack(str(tmp_path / "src"), str(tmp_path / "data"), Settings(shard_mb=0.05, first_mb=0.01))
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
