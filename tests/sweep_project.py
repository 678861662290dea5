"""A sweep with curves, written as runs leave it: settings, seeds, metrics with times, failures, a run that goes on."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from made_up import MadeUp, usage

ERROR = (
    b'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\nRuntimeError: CUDA out of memory.\n'
)


def metric_lines(lr: float, width: int, seed: int, steps: int, began: float, last: int | None = None) -> str:
    """A loss that falls faster near lr 0.03 and with more width, with the noise of its seed."""
    noise, rate = random.Random(f"{lr} {width} {seed}"), 1 / (1 + abs(math.log10(lr / 0.03)) * 2) * (1 + width / 512)
    lines = []
    for step in range(1, steps + 1)[:last]:
        loss = 2.3 * math.exp(-rate * step / 90) + 0.2 / rate + noise.random() * 0.05
        row = {"step": step * 10, "epoch": step / 20, "t": began + step * 6, "train_loss": loss}
        if step % 5 == 0:
            row |= {"val_loss": loss + 0.05 + noise.random() * 0.03, "accuracy": 1 / (1 + loss)}
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


def sweep(folder: Path, now: float, *, steps: int = 200) -> MadeUp:
    """24 runs of 8 settings x 3 seeds: two failed with lr 0.3, one runs, the rest completed."""
    made = MadeUp(folder, now)
    for lr in (0.01, 0.03, 0.1, 0.3):
        for width in (64, 256):
            for seed in range(3):
                name, is_running = (
                    f"001_sweep/000_train_lr{lr}_width{width}_{seed}",
                    (lr, width, seed) == (0.03, 256, 2),
                )
                fails = lr == 0.3 and width == 256 and seed < 2
                output = made.run(
                    name, "failed" if fails else "running" if is_running else "completed", err=ERROR if fails else b"",
                    params={"optimizer.lr": lr, "model.width": width}, began=-3600, lasted=1200 + 60 * seed,
                    progress="120/200" if is_running else None, use=usage(gpu=80.0 if width == 256 else 35.0),
                )  # fmt: skip
                last = 20 if fails else 120 if is_running else None
                (output / "metrics.jsonl").write_text(metric_lines(lr, width, seed, steps, now - 3600, last))
    return made
