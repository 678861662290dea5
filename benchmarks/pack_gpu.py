"""The seed's twenty models on one GPU: one process each in sequence, then packed, from a warm parent, and through MPS.

python -m benchmarks pack_gpu        (needs CUDA and torch in this Python; says so where there is none)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

TRAIN = '''
"""A residual network of constant width on 8x8 pictures, as in the seed: time grows with its depth."""
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--blocks", type=int)
parser.add_argument("--epochs", type=int, default=20)
args = parser.parse_args()
torch.manual_seed(0)
device = "cuda"
x = torch.randn(1437, 1, 8, 8, device=device)
y = (x.flatten(1) @ torch.randn(64, 10, device=device)).argmax(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.b(torch.relu(self.a(x))))


blocks = [Block(32) for _ in range(args.blocks)]
net = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), *blocks, nn.Flatten(), nn.Linear(2048, 10)).to(device)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for epoch in range(args.epochs):
    for batch in torch.randperm(len(x), device=device).split(256):
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(args.blocks, float(loss))
'''
BLOCKS = range(4, 81, 4)
#: An optimizer imports torch._dynamo when it is made, which takes as long as torch itself.
WARM = ("--preload", "torch,torch._dynamo")
WAYS = ((4, ()), (4, ("--preload", "torch")), (4, WARM), (8, WARM), (16, (*WARM, "--no-mps")), (16, WARM))


def main() -> None:
    if not (gpu := gpu_here()):
        return
    print(f"{gpu}, 20 models of 4 to 80 blocks, 20 epochs\n")
    print("| how | wall | speed-up |\n|---|---|---|")
    folder = Path(tempfile.mkdtemp(prefix="shoal-gpu-"))
    try:
        (folder / "train.py").write_text(TRAIN)
        (folder / "shoal.toml").write_text("")
        one_by_one = timed(partial(train_each, folder))
        row("one process each, in sequence", one_by_one, one_by_one)
        for slots, more in WAYS:
            took = timed(partial(pack, folder, slots, more))
            row(f"`shoal pack --slots {slots} {' '.join(more)}`".replace(" `", "`"), took, one_by_one)
    finally:
        shutil.rmtree(folder)


def gpu_here() -> str | None:
    """The GPU and its torch, in words; where one is missing, that is printed instead."""
    try:
        import torch
    except ImportError:
        print("no torch in this Python: not measured")
        return None
    if not torch.cuda.is_available():
        print("no CUDA here: not measured")
        return None
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def pack(folder: Path, slots: int, more: tuple[str, ...]) -> None:
    words = [
        "--slots",
        str(slots),
        "--gpus-per-run",
        str(1 / slots),
        "--set",
        "blocks=4:80:4",
        "--cost",
        "blocks",
        *more,
    ]
    name = "_".join(str(word).strip("-").replace(",", "_").replace(".", "_") for word in (f"s{slots}", *more))
    train = ["--name", name, "-q", "--", sys.executable, "train.py", "--blocks", "{blocks}"]
    run([sys.executable, "-m", "shoal", "pack", *words, *train], folder)


def train_each(folder: Path) -> None:
    for blocks in BLOCKS:
        run([sys.executable, "train.py", "--blocks", str(blocks)], folder)


def run(words: list[str], folder: Path) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ})
    if done.returncode != 0:
        raise SystemExit(f"{words} ended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-2000:]}")


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def row(how: str, took: float, base: float) -> None:
    print(f"| {how} | {took:.1f} s | {base / took:.1f} |", flush=True)


if __name__ == "__main__":
    main()
