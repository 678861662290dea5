"""Nodes, tasks, GPUs, CPUs and memory that a header asks for, as numbers; None where the header leaves it open.

Slurm's own reading holds: --gres counts per node, --gpus over the whole job, --mem per node, --ntasks over the job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from shoal.batch import SbatchOption
from shoal.errors import InputError
from shoal.units import parse_memory_mb, parse_slurm_time_s

_NODES = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
#: A type may begin with a digit (2080ti), or be a number (3090) where a count follows.
_GPU_ITEM = re.compile(
    r"(?:gres[:/])?gpus?(?:[:=](?P<kind>[\w.-]*[A-Za-z][\w.-]*|\d+(?=[:=])))?(?:[:=](?P<count>\d+))?", re.ASCII
)
_COUNT = re.compile(r"(?:(?P<kind>[\w.-]+):)?(?P<count>\d+)", re.ASCII)
_ARRAY = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)


class RequestGeometry(NamedTuple):
    nodes: int | None = None
    nodes_given: bool = False
    ntasks: int | None = None
    tasks_per_node: int | None = None
    gpus_per_node: int | None = None
    gpus_total: int | None = None
    gpu_type: str | None = None
    gpus_per_task: int | None = None
    cpus_per_task: int | None = None
    memory_per_node_mb: int | None = None
    time_s: int | None = None
    array_size: int | None = None
    array_last: int | None = None
    uncertain: frozenset[str] = frozenset()

    @property
    def n(self) -> int:
        """Nodes, one when nothing is said."""
        return self.nodes or 1

    @property
    def tasks(self) -> int:
        """Tasks of the whole job, as far as the header says."""
        if self.ntasks is not None:
            return self.ntasks
        return (self.tasks_per_node or 1) * self.n

    @property
    def tasks_on_node(self) -> int:
        if self.tasks_per_node is not None and (self.ntasks is None or not self.nodes_given):
            return self.tasks_per_node
        if self.tasks_per_node is not None:  # beside --ntasks it is an upper limit
            return min(self.tasks_per_node, -(-self.tasks // self.n))
        return -(-self.tasks // self.n)

    @property
    def wants_gpus(self) -> bool:
        return bool(self.gpus_per_node or self.gpus_total or self.gpus_per_task or "gpus" in self.uncertain)

    @property
    def cpus_per_node(self) -> int | None:
        return None if self.cpus_per_task is None else self.cpus_per_task * self.tasks_on_node


def read_geometry(options: Mapping[str, SbatchOption]) -> RequestGeometry:
    """What the options ask for; a value that is not a plain number is named in `uncertain`, never guessed."""
    uncertain: set[str] = set()

    def count(name: str) -> int | None:
        option = options.get(name)
        if option is None or option.value is None:
            return None
        if re.fullmatch(r"\d{1,7}", option.value.strip(), re.ASCII):
            return int(option.value)
        uncertain.add(name)
        return None

    nodes = _nodes(options, uncertain)
    ntasks = count("ntasks")
    per_node = count("ntasks-per-node")
    if nodes is None and not uncertain and "nodelist" not in options and ntasks and per_node and ntasks > per_node:
        nodes = -(-ntasks // per_node)  # Slurm takes as many as the tasks need
    gpus_per_task, kind_task = _gpu_count(options.get("gpus-per-task"))
    per_gpus, total, kind = _gpu_request(options, nodes, uncertain)
    if gpus_per_task is not None and per_gpus is None and total is None and ntasks is None and per_node is None:
        uncertain.add("gpus")  # the number of tasks comes from the command line
    elif gpus_per_task is not None and per_gpus is None and total is None:
        total = gpus_per_task * (ntasks if ntasks is not None else (per_node or 1) * (nodes or 1))
        per_gpus = total // (nodes or 1) if total % (nodes or 1) == 0 else None
    tasks_per_gpu = count("ntasks-per-gpu")
    if tasks_per_gpu is not None and per_node is None and ntasks is None and per_gpus is not None:
        per_node = tasks_per_gpu * per_gpus
    cpus = count("cpus-per-task")
    per_gpu_cpus = count("cpus-per-gpu")
    if cpus is None and per_gpu_cpus is not None and per_gpus is not None:
        tasks_here = per_node or (-(-ntasks // (nodes or 1)) if ntasks else 1)
        cpus = per_gpu_cpus * per_gpus // max(1, tasks_here)
    array_size, array_last = _array_size(options.get("array"))
    return RequestGeometry(
        nodes=nodes,
        nodes_given="nodes" in options or "nodelist" in options,
        ntasks=ntasks,
        tasks_per_node=per_node,
        gpus_per_node=per_gpus,
        gpus_total=total if total is not None else (None if per_gpus is None else per_gpus * (nodes or 1)),
        gpu_type=kind or kind_task,
        gpus_per_task=gpus_per_task,
        cpus_per_task=cpus,
        memory_per_node_mb=_memory(options, cpus, per_node, ntasks, nodes, per_gpus),
        time_s=_time_limit_s(options.get("time")),
        array_size=array_size,
        array_last=array_last,
        uncertain=frozenset(uncertain),
    )


def _nodes(options: Mapping[str, SbatchOption], uncertain: set[str]) -> int | None:
    option = options.get("nodes")
    if option is None:
        listed = (options["nodelist"].value if "nodelist" in options else "") or ""
        if "[" in listed or "$" in listed:
            uncertain.add("nodes")
        return len(listed.split(",")) if listed and "nodes" not in uncertain else None
    match = _NODES.fullmatch((option.value or "").strip())
    if match is None:
        uncertain.add("nodes")
        return None
    if match[2] and match[2] != match[1]:
        uncertain.add("nodes range")
    return int(match[1]) or None


def _gpu_request(
    options: Mapping[str, SbatchOption], nodes: int | None, uncertain: set[str]
) -> tuple[int | None, int | None, str | None]:
    """(per node, total if only that is known, type)."""
    if (option := options.get("gres")) is not None and option.value:
        items = [match for item in option.value.split(",") if (match := _GPU_ITEM.fullmatch(item.strip()))]
        if items:
            kinds = {item["kind"] for item in items if item["kind"]}
            return sum(int(item["count"] or 1) for item in items), None, kinds.pop() if len(kinds) == 1 else None
        if "gpu" in option.value and not option.is_literal:
            uncertain.add("gpus")
    number, kind = _gpu_count(options.get("gpus-per-node"))
    if number is not None:
        return number, None, kind
    number, kind = _gpu_count(options.get("gpus"))
    if number is not None:
        return (number if (nodes or 1) == 1 else None), number, kind
    if any(name in options for name in ("gpus", "gpus-per-node", "gpus-per-socket", "tres-per-task")):
        uncertain.add("gpus")
    return None, None, None


def _gpu_count(option: SbatchOption | None) -> tuple[int | None, str | None]:
    if option is None or not option.value:
        return None, None
    match = _COUNT.fullmatch(option.value.strip())
    return (int(match["count"]), match["kind"]) if match is not None else (None, None)


def _memory(
    options: Mapping[str, SbatchOption],
    cpus: int | None,
    per_node: int | None,
    ntasks: int | None,
    nodes: int | None,
    gpus: int | None,
) -> int | None:
    if (whole := memory_mb(options.get("mem"))) is not None:
        return whole
    tasks = per_node or (-(-ntasks // (nodes or 1)) if ntasks else 1)
    if (each := memory_mb(options.get("mem-per-cpu"))) is not None:
        return each * (cpus or 1) * tasks
    if (each := memory_mb(options.get("mem-per-gpu"))) is not None and gpus:
        return each * gpus
    return None


def memory_mb(option: SbatchOption | None) -> int | None:
    if option is None or not option.value or option.value.strip() == "0":
        return None
    try:
        return parse_memory_mb(option.value, bare_is_mb=True)
    except InputError:
        return None


def _time_limit_s(option: SbatchOption | None) -> int | None:
    if option is None or not option.value:
        return None
    try:
        return parse_slurm_time_s(option.value)
    except InputError:
        return None


def _array_size(option: SbatchOption | None) -> tuple[int | None, int | None]:
    """(number of tasks, largest index)."""
    if option is None or not option.value:
        return None, None
    size, last = 0, 0
    for part in option.value.partition("%")[0].strip("[]").split(","):
        match = _ARRAY.fullmatch(part.strip())
        if match is None:
            return None, None
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        size += max(0, (high - low) // max(1, step) + 1)
        last = max(last, high)
    return size, last
