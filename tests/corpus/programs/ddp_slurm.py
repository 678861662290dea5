"""Plain DDP that reads its ranks from Slurm and reports to a tracker from everywhere."""

import os
import signal

import torch
import torch.distributed as dist
import wandb

signal.signal(signal.SIGUSR1, lambda *_: print("save"))
local = int(os.environ["SLURM_LOCALID"])
torch.cuda.set_device(local_rank := local)
dist.init_process_group("nccl")
