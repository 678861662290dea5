"""What jobs sampled about themselves (job/usage.py): memory, processors, GPUs, over the time of an attempt."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from shoal.kernel import layout, list_names

#: GPUs that have done nothing for this long are pointed out.
MAX_IDLE_S = 600.0
#: A GPU that was never busier than this, in percent, did nothing.
_IDLE_PERCENT = 5.0


class GpuUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU over an attempt: mean and peak of its use in percent, memory, and how long it did nothing."""

    name: str = ""
    mean_percent: float = 0.0
    peak_percent: float = 0.0
    peak_memory_mb: float = 0.0
    memory_mb: float = 0.0
    idle_s: float = 0.0


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt's samples on one node. `points`: [seconds since start, CPUs in use, memory in MB, mean GPU %, its
    memory in MB]. The last two are null where no GPU could be read, which `gpu_problem` explains."""

    every_s: float
    duration_s: float
    host: str = ""
    cpu_s: float = 0.0
    peak_memory_mb: float = 0.0
    gpus: list[GpuUsage] = []
    gpu_problem: str | None = None
    gpu_idle_for_s: float = 0.0
    points: list[tuple[float, float, float, float | None, float | None]] = []
    schema: int = 1

    @property
    def mean_cpus(self) -> float | None:
        return self.cpu_s / self.duration_s if self.duration_s > 1 else None

    @property
    def mean_gpu_percent(self) -> float | None:
        return _mean([gpu.mean_percent for gpu in self.gpus])

    @property
    def gpu_percent(self) -> float | None:
        """Of the last sample."""
        return self.points[-1][3] if self.points else None


#: Learnt here and not by the first of several threads, which would crash Python.
_NODE_USAGE = msgspec.json.Decoder(NodeUsage)


class AttemptUsage(NamedTuple):
    """An attempt on all nodes that told, the first one first. Memory and CPUs are per node, as they are asked for."""

    nodes: list[NodeUsage]

    @property
    def first(self) -> NodeUsage:
        return self.nodes[0]

    @property
    def gpus(self) -> list[GpuUsage]:
        return [gpu for node in self.nodes for gpu in node.gpus]

    @property
    def gpu_problem(self) -> str | None:
        return next((node.gpu_problem for node in self.nodes if node.gpu_problem), None)

    @property
    def peak_memory_mb(self) -> float:
        return max(node.peak_memory_mb for node in self.nodes)

    @property
    def memory_mb(self) -> float | None:
        """Of the last sample, on the node that used most."""
        return max((node.points[-1][2] for node in self.nodes if node.points), default=None)

    @property
    def cpu_s(self) -> float:
        """Of all nodes together."""
        return sum(node.cpu_s for node in self.nodes)

    @property
    def mean_cpus(self) -> float | None:
        return self._over_nodes(lambda node: node.mean_cpus)

    @property
    def mean_gpu_percent(self) -> float | None:
        return _mean([gpu.mean_percent for gpu in self.gpus])

    @property
    def gpu_percent(self) -> float | None:
        return self._over_nodes(lambda node: node.gpu_percent)

    @property
    def idle_node(self) -> NodeUsage | None:
        """The node whose GPUs have done nothing for longest, if that is long enough to be pointed out."""
        worst = max(self.nodes, key=lambda node: node.gpu_idle_for_s)
        return worst if worst.gpu_idle_for_s >= MAX_IDLE_S else None

    @property
    def never_used(self) -> int:
        """How many GPUs have done nothing at all, while others worked, for long enough to be pointed out."""
        unused = sum(gpu.peak_percent < _IDLE_PERCENT for gpu in self.gpus)
        lasted = max(node.duration_s for node in self.nodes) >= MAX_IDLE_S
        return unused if lasted and unused < len(self.gpus) else 0

    def _over_nodes(self, value: Callable[[NodeUsage], float | None]) -> float | None:
        return _mean([found for node in self.nodes if (found := value(node)) is not None])


def read_usage(home: str, run: str, attempt: int) -> AttemptUsage | None:
    """The samples of an attempt; None where none were taken or they cannot be read."""
    folder, name = layout.run_dir(home, run), layout.attempt_file(attempt, "use")
    # attempt.3.use of the first node, attempt.3.use1 of the next.
    further = (one[len(name) :] for one in list_names(folder) if one.startswith(name))
    numbers = sorted((end for end in further if not end.strip("0123456789")), key=lambda end: int(end or 0))
    found = [node for end in numbers if (node := _read_node_usage(os.path.join(folder, name + end))) is not None]
    return AttemptUsage(found) if found else None


def _read_node_usage(path: str) -> NodeUsage | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            found = _NODE_USAGE.decode(file.read(1 << 20))
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.schema == 1 else None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
