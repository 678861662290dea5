"""Data-parallel training of a line, on CPUs or GPUs: the same file under `torchrun`, under `srun` mode and on a laptop.

It saves a checkpoint every few steps and when it is told to stop, and continues from $SHOAL_RESUME_FROM.
"""

import argparse
import gc
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps, to have time to watch")
    parser.add_argument("--fail-at", type=int, default=-1, help="the last rank ends with code 7 at this step")
    args = parser.parse_args()

    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda got, frame: stop.append(got))

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(int(os.environ.get("SHOAL_SEED") or 0))
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    if os.environ.get("SHOAL_RESUME_FROM"):
        saved = torch.load(os.environ["SHOAL_RESUME_FROM"], map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        step = saved["step"]
    say(rank, world, what="start", step=step)
    truth = torch.arange(4.0, device=device)
    while step < args.steps:
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1000 * step + rank)).to(device)
        loss = ((model(x).squeeze(1) - x @ truth) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        say(rank, world, what="step", step=step, loss=round(loss.item(), 5))
        if step == args.fail_at and rank == world - 1:
            sys.exit(7)
        # All ranks must agree to stop: a signal may reach them between different steps.
        told = torch.tensor([len(stop)], device=device)
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        if rank == 0 and (step % args.save_every == 0 or step == args.steps or told.item()):
            save(model, step)
        if told.item():
            say(rank, world, what="stopped", step=step, signals=stop)
            break
        time.sleep(args.pause)
    dist.destroy_process_group()


def save(model: torch.nn.Module, step: int) -> None:
    path = os.path.join(os.environ.get("SHOAL_OUTPUT_DIR", "."), f"model_{step:06d}.pth")
    torch.save({"model": model.state_dict(), "step": step}, path + ".tmp")
    os.rename(path + ".tmp", path)


def say(rank: int, world: int, **what: object) -> None:
    where = {"rank": rank, "world": world, "host": os.uname().nodename, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
    print(json.dumps({**where, **what}), flush=True)


if __name__ == "__main__":
    main()
    gc.collect()  # The model is in a circle; while it lives so do threads of gloo, which may crash Python when it ends.
