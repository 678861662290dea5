"""One node, eight devices; the number of workers comes from the machine."""

import os

import pytorch_lightning as pl
from torch.utils.data import DataLoader

loader = DataLoader([], num_workers=os.cpu_count())
pl.Trainer(accelerator="gpu", devices=8, strategy="ddp").fit(None, loader)
