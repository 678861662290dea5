"""The launch part of a batch script: a plain process, or torchrun, on one node or on several.

One task per node whatever the launch: torchrun starts the processes of its node. On several nodes srun starts one
torchrun each, ends all of them when one fails, and hands its exit code on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.backends.slurm.quoting import shell_command, shell_quote
from shoal.errors import InputError
from shoal.model import Request

_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?", re.ASCII | re.DOTALL)

#: Rendezvous ports are taken below the usual ephemeral range (32768-60999), where no other connection can sit on them;
#: the job id keeps two jobs on one node apart.
PORT_BASE, PORT_COUNT = 20000, 10000


def launch_lines(launch: str, command: Sequence[str], request: Request) -> str:
    """Shell lines that run `command` over the nodes of `request`; their exit code is the command's."""
    if not command:
        raise InputError("there is no command to launch")
    if launch == "process":
        return _process(command, request)
    if launch == "torchrun":
        return _torchrun(command, request)
    raise InputError(f"there is no launch {launch!r}; allowed are process and torchrun")


def torchrun_words(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """(how to start torchrun, what it runs). torchrun starts Python itself, so a leading `python` is taken off.

    A Python given by its path keeps its own torchrun; another program runs under --no-python.
    """
    start, program = ["torchrun"], list(command)
    if _PYTHON.fullmatch(program[0]):
        if "/" in program[0]:
            start = [program[0], "-m", "torch.distributed.run"]
        rest = program[1:]
        while rest[:1] == ["-u"]:
            rest = rest[1:]
        if rest and (rest[0] == "-m" or not rest[0].startswith("-")):
            return start, rest
    elif program[0].endswith(".py"):
        return start, program
    return start, ["--no-python", *program]


def _process(command: Sequence[str], request: Request) -> str:
    if (request.nodes or 1) == 1:
        return shell_command(command) + "\n"
    return f"{_guard(request)}{_srun(request)} \\\n    {shell_command(command)}\n"


def _torchrun(command: Sequence[str], request: Request) -> str:
    start, program = torchrun_words(command)
    processes = max(1, request.gpus or 0)
    nodes = request.nodes or 1
    words = " ".join(shell_quote(word) for word in program)
    if nodes == 1:
        return f"{shell_command(start)} --standalone --nproc-per-node {processes} \\\n    {words}\n"
    return (
        f"{_guard(request)}"
        'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")\n'
        'head="${hosts[0]}"\n'
        f"port=$(({PORT_BASE} + SLURM_JOB_ID % {PORT_COUNT}))\n"
        f"{_srun(request)} \\\n"
        f"    {shell_command(start)} --nnodes {nodes} --nproc-per-node {processes} \\\n"
        '    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:$port" \\\n'
        f"    {words}\n"
    )


def _guard(request: Request) -> str:
    """Outside a job srun would ask for an allocation of its own."""
    return f': "${{SLURM_JOB_ID:?this script needs {request.nodes} nodes: submit it with sbatch}}"\n'


def _srun(request: Request) -> str:
    # Since 22.05 srun does not take --cpus-per-task from the job: without it a task would get one core.
    cpus = (
        f"--cpus-per-task={request.cpus}"
        if request.cpus
        else '${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"}'
    )
    return f"srun --kill-on-bad-exit=1 --ntasks-per-node=1 {cpus}"
