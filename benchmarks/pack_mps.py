"""Runs that share one GPU, with NVIDIA's MPS and without: how fast, what each was told, and what it could take.

python -m benchmarks pack_mps        (needs CUDA and torch in this Python; says so where there is none)

Twenty models as in pack_gpu, warm starts, 8 at a time. Then four runs at a time that try to take half and twice of the
memory that is theirs: torch keeps to it in a warm start, the driver enforces it under MPS, and a cold start without MPS
is only told. At the end nothing of MPS may be left.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.pack_gpu import TRAIN, gpu_here, run, timed

SHARE = """
import json, os, torch
told = int(os.environ["SHOAL_GPU_MEMORY_BYTES"])
def fits(part):
    try:
        torch.empty(int(part * told), dtype=torch.uint8, device="cuda")
        return True
    except torch.OutOfMemoryError:
        return False
names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
         "CUDA_MPS_PIPE_DIRECTORY", "SHOAL_GPU_MEMORY_FRACTION", "SHOAL_GPU_MEMORY_BYTES")
print(json.dumps({"half": fits(0.5), "double": fits(2.0),
                  "processors": torch.cuda.get_device_properties(0).multi_processor_count,
                  **{name: os.environ.get(name) for name in names}}))
"""
WARM, NO_MPS = ("--preload", "torch"), ("--no-mps",)


def main() -> None:
    if not (gpu := gpu_here()):
        return
    print(f"{gpu}, MPS: {shutil.which('nvidia-cuda-mps-control')}")
    folder = Path(tempfile.mkdtemp(prefix="shoal-mps-"))
    try:
        (folder / "shoal.toml").write_text("")
        (folder / "train.py").write_text(TRAIN)
        (folder / "share.py").write_text(SHARE)
        print("\n| 20 models, 8 at a time | wall |\n|---|---|")
        ways: list[tuple[str, ...]] = [(*WARM, *NO_MPS), WARM]
        for more in ways:
            print(f"| {' '.join(more)} | {timed(partial(train, folder, more)):.1f} s |", flush=True)
        print("\n| 4 at a time | half fits | twice fits | told |\n|---|---|---|---|")
        for more in [(), WARM, NO_MPS, (*WARM, *NO_MPS)]:
            told = share(folder, more)
            half, double = told.pop("half"), told.pop("double")
            print(f"| {' '.join(more) or 'cold'} | {half} | {double} | {json.dumps(told)} |", flush=True)
        left = subprocess.run(["pgrep", "-fa", "nvidia-cuda-mps"], capture_output=True, text=True, check=False).stdout
        print(f"\nprocesses of MPS left: {left.strip() or 'none'}")
    finally:
        shutil.rmtree(folder)


def train(folder: Path, more: tuple[str, ...]) -> None:
    how = ["--slots", "8", "--gpus-per-run", "0.125", "--set", "blocks=4:80:4", "--cost", "blocks"]
    pack(folder, "train", [*how, *more], ["train.py", "--blocks", "{blocks}"], more)


def share(folder: Path, more: tuple[str, ...]) -> dict[str, object]:
    """What the first of four runs printed."""
    how = ["--slots", "4", "--gpus-per-run", "0.25", "--set", "k=1:4:1"]
    name = pack(folder, "share", [*how, *more], ["share.py", "{k}"], more)
    log = sorted(folder.glob(f"outputs/*/{name}/*/*/attempt-1.out"))[0]
    return dict(json.loads(log.read_text().splitlines()[-1]))


def pack(folder: Path, name: str, how: list[str], command: list[str], more: tuple[str, ...]) -> str:
    name = "_".join([name, *(word.strip("-").replace("-", "_") for word in more)])
    run([sys.executable, "-m", "shoal", "pack", *how, "--name", name, "--", sys.executable, *command], folder)
    return name


if __name__ == "__main__":
    main()
