"""Questions that several rules ask: how many tasks does a launch start on a node, and is its program Lightning?"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.doctor.job import JobFacts
from shoal.doctor.launches import ScriptLaunch, as_number

_SRUN_CALL = re.compile(r"(?:^|[\s;&'\"])srun\s")
_LIGHTNING_ARGS = re.compile(
    r"(?:^|[\s-])\+*trainer\.(?:devices|gpus|num_nodes|strategy|accelerator)\b|lightning|\bLightningCLI\b"
)
#: Words in a command that say that the program itself spreads over GPUs.
_SELF_DISTRIBUTING = re.compile(
    r"\b(?:vllm|ray|tensor[_-]parallel|device_map|data[_-]?parallel|spawn|submitit|mp_spawn|fsdp|ddp)\b", re.I
)


def calls_srun(words: Sequence[str]) -> bool:
    """A command, or its text behind bash -c, that starts srun."""
    return bool(_SRUN_CALL.search(" ".join(words)))


def header_line(job: JobFacts, *names: str) -> int:
    """The line of the first of these options that the header has."""
    options = job.options
    return next((options[name].line for name in names if name in options), 1)


def is_native(launch: ScriptLaunch) -> bool:
    """One process for each task: srun starts Python itself."""
    return launch.srun is not None and launch.launcher == "python"


def step_nodes(launch: ScriptLaunch, job: JobFacts) -> int | None:
    """Nodes of a launch: its srun's own, else the job's; None when only Slurm knows."""
    if launch.srun is not None and "nodes" in launch.srun:
        return as_number(launch.srun["nodes"], job.values)
    return None if "nodes" in job.geometry.uncertain else job.geometry.n


def step_tasks_per_node(launch: ScriptLaunch, job: JobFacts) -> int | None:
    """Tasks on one node of the launch's step; None when it cannot be told."""
    geometry, srun = job.geometry, launch.srun
    if srun is None:
        return 1
    nodes = step_nodes(launch, job)
    if "ntasks-per-node" in srun:
        return as_number(srun["ntasks-per-node"], job.values)
    if "ntasks" in srun:
        tasks = as_number(srun["ntasks"], job.values)
        if tasks is None or nodes is None:
            # srun -n $SLURM_NNODES is one for each node.
            return 1 if "NNODES" in (srun["ntasks"] or "") or "NUM_NODES" in (srun["ntasks"] or "") else None
        return -(-tasks // nodes)
    if {"ntasks", "ntasks-per-node"} & geometry.uncertain:
        return None
    return geometry.tasks_on_node


def uses_lightning(job: JobFacts, launch: ScriptLaunch) -> tuple[bool, bool]:
    """(it is Lightning, and that is certain): from the program's imports, or from the words of its command."""
    hints = job.hints(launch)
    if hints is not None:
        return hints.is_lightning, True
    return bool(_LIGHTNING_ARGS.search(" ".join((launch.program, *launch.args)))), False


def distributes_itself(job: JobFacts, launch: ScriptLaunch) -> bool:
    """The program is known, or looks, to start its own processes on all GPUs it sees."""
    hints = job.hints(launch)
    if hints is not None:
        tools = {"ray", "vllm", "submitit", "transformers", "accelerate", "deepspeed", "jax", "tensorflow"}
        return hints.spawns or bool(hints.imports & tools)
    return bool(_SELF_DISTRIBUTING.search(launch.raw))


def trainer_number(launch: ScriptLaunch, name: str) -> int | None:
    """A Lightning number in the command's words: trainer.devices=4, --trainer.devices 4, --devices=4."""
    words = list(launch.args)
    for index, word in enumerate(words):
        key, equals, value = word.lstrip("+-").partition("=")
        if key in (f"trainer.{name}", f"trainer.params.{name}", name):
            text = value if equals else (words[index + 1] if index + 1 < len(words) and word.startswith("-") else "")
            if text.isdigit():
                return int(text)
    return None
