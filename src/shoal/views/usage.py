"""What jobs sampled about themselves (agent/usage.py): memory, processors, GPUs, over the time of an attempt."""

from __future__ import annotations

import os
from typing import NamedTuple

import msgspec

from shoal.agent import layout


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU over an attempt: mean and peak of its use in percent, memory, and how long it did nothing."""

    name: str = ""
    mean_percent: float = 0.0
    peak_percent: float = 0.0
    peak_memory_mb: float = 0.0
    memory_mb: float = 0.0
    idle_s: float = 0.0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt's samples. `points`: [seconds since start, CPUs in use, memory in MB, mean GPU %, its memory in MB].
    The last two are null where no GPU could be read, which `gpu_problem` explains."""

    every_s: float
    duration_s: float
    cpu_s: float = 0.0
    peak_memory_mb: float = 0.0
    gpus: list[Gpu] = []
    gpu_problem: str | None = None
    points: list[tuple[float, float, float, float | None, float | None]] = []
    schema: int = 1

    def latest(self) -> Latest | None:
        if not self.points:
            return None
        _, cpus, memory_mb, gpu, gpu_memory_mb = self.points[-1]
        return Latest(cpus, memory_mb, gpu, gpu_memory_mb)

    @property
    def mean_cpus(self) -> float | None:
        return self.cpu_s / self.duration_s if self.duration_s > 1 else None

    @property
    def mean_gpu_percent(self) -> float | None:
        return sum(gpu.mean_percent for gpu in self.gpus) / len(self.gpus) if self.gpus else None

    @property
    def gpu_idle_s(self) -> float:
        return sum(gpu.idle_s for gpu in self.gpus)


class Latest(NamedTuple):
    cpus: float
    memory_mb: float
    gpu_percent: float | None
    gpu_memory_mb: float | None


def read(home: str, run: str, attempt: int) -> Usage | None:
    """The samples of an attempt; None where none were taken or they cannot be read."""
    path = os.path.join(layout.run_dir(home, run), layout.attempt_file(attempt, "use"))
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            found = msgspec.json.decode(file.read(1 << 20), type=Usage)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.schema == 1 else None
