"""Starts its own processes, one for each GPU."""

import torch
import torch.multiprocessing as mp


def work(rank, world):
    torch.cuda.set_device(rank)


if __name__ == "__main__":
    mp.spawn(work, args=(4,), nprocs=4)
