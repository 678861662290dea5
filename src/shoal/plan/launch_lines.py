"""The launch part of a batch script, for every launch mode, on one node or on several.

torchrun, accelerate and deepspeed are one task per node and start the processes of their node; under `srun` each GPU
has a task. srun ends all of them when one fails, and hands its exit code on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.batch import shell_command, shell_quote
from shoal.errors import InputError
from shoal.job import LAUNCH_MODES, LaunchGeometry, compute_geometry
from shoal.model import LaunchSettings, Request
from shoal.plan.container_lines import ContainerText
from shoal.plan.replica_lines import replica_lines

_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?", re.ASCII | re.DOTALL)

#: Rendezvous ports are taken below the usual ephemeral range (32768-60999), where no other connection can sit on them;
#: the job id keeps two jobs on one node apart.
PORT_BASE, PORT_COUNT = 20000, 10000


def launch_lines(
    launch: str,
    command: Sequence[str],
    request: Request,
    settings: LaunchSettings | None = None,
    box: ContainerText | None = None,
) -> str:
    """Shell that runs `command` over the nodes of `request`, contained or not; their exit code is the command's."""
    if not command:
        raise InputError("there is no command to launch")
    box = box or ContainerText()
    return box.lines + _launch_lines(launch, command, request, settings, box)


def _launch_lines(
    launch: str, command: Sequence[str], request: Request, settings: LaunchSettings | None, box: ContainerText
) -> str:
    if launch == "process":
        return _single_process(command, request, box)
    if launch not in LAUNCH_MODES:
        raise InputError(f"there is no launch {launch!r}; allowed are {', '.join(LAUNCH_MODES)}")
    said = settings or LaunchSettings()
    geometry = compute_geometry(launch, said.record(), request.nodes or 1, request.gpus or 0, request.cpus)
    if launch == "torchrun":
        return _torchrun(command, request, geometry, said, box)
    if launch == "srun":
        return _srun_tasks(command, request, geometry, box)
    start, program = split_torchrun(command)
    if launch == "replicas":
        return _require_allocation(request) + replica_lines(start, program, request, geometry, said, box)
    return _accelerate_or_deepspeed(launch, program, request, geometry, said, box)


def split_torchrun(command: Sequence[str]) -> tuple[list[str], list[str]]:
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


def _single_process(command: Sequence[str], request: Request, box: ContainerText) -> str:
    line = f"{box.around}{shell_command(command)}\n"
    if (request.nodes or 1) == 1 and not box.step:
        return line
    return f"{_require_allocation(request)}{_srun_words(request, box)} \\\n    {line}"


def _torchrun(
    command: Sequence[str], request: Request, geometry: LaunchGeometry, settings: LaunchSettings, box: ContainerText
) -> str:
    start, program = split_torchrun(command)
    restarts = f" --max-restarts {settings.max_restarts}" if settings.max_restarts else ""
    processes, nodes = f"{geometry.processes}{restarts}", geometry.nodes
    words = " ".join(shell_quote(word) for word in program)
    if nodes == 1:
        line = f"{box.around}{shell_command(start)} --standalone --nproc-per-node {processes} \\\n    {words}\n"
        return f"{_require_allocation(request)}{_srun_words(request, box)} \\\n    {line}" if box.step else line
    return (
        f"{_require_allocation(request)}{_FIRST_HOST_LINES}{_srun_words(request, box)} \\\n"
        f"    {box.around}{shell_command(start)} --nnodes {nodes} --nproc-per-node {processes} \\\n"
        '    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:$port" \\\n'
        f"    {words}\n"
    )


_FIRST_HOST_LINES = f"""\
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${{hosts[0]}}"
port=$(({PORT_BASE} + SLURM_JOB_ID % {PORT_COUNT}))
"""


def _srun_tasks(command: Sequence[str], request: Request, geometry: LaunchGeometry, box: ContainerText) -> str:
    """One task per GPU; each learns its rank from Slurm at its own start, not from the batch shell."""
    cpus = "" if geometry.cpus_per_task is None else f" --cpus-per-task={geometry.cpus_per_task}"
    place = "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
    return (
        f"{_require_allocation(request)}{_FIRST_HOST_LINES}"
        'export MASTER_ADDR="$head" MASTER_PORT="$port"\n'
        f"srun --kill-on-bad-exit=1 --ntasks-per-node={geometry.tasks}{cpus}{box.step} \\\n"
        f"    bash -c '{place}; exec \"$@\"' rank \\\n"
        f"    {box.around}{shell_command(command)}\n"
    )


def _accelerate_or_deepspeed(
    launch: str,
    program: Sequence[str],
    request: Request,
    geometry: LaunchGeometry,
    said: LaunchSettings,
    box: ContainerText,
) -> str:
    """accelerate or deepspeed on each node, told its place by Slurm; neither needs ssh."""
    words = " ".join(shell_quote(word) for word in (*said.options, *_no_python_flag(program, launch)))
    hosts = ""
    if launch == "accelerate":
        kind = " --multi_gpu" if geometry.world > 1 else ""
        line = (
            f"accelerate launch --num_machines {geometry.nodes} --num_processes {geometry.world}{kind} "
            '--machine_rank "$SLURM_NODEID" --main_process_ip "$0" --main_process_port "$1" "${@:2}"'
        )
        given = '"$head" "$port"'
    else:
        hosts = (
            f'hostfile="hosts-$SLURM_JOB_ID"\nprintf "%s slots={geometry.processes}\\n" "${{hosts[@]}}" > "$hostfile"\n'
        )
        line = (
            'deepspeed --hostfile "$2" --no_ssh --node_rank "$SLURM_NODEID" '
            '--master_addr "$0" --master_port "$1" "${@:3}"'
        )
        given = '"$head" "$port" "$hostfile"'
    step = f"{_require_allocation(request)}{_FIRST_HOST_LINES}{hosts}{_srun_words(request, box)}"
    return f"{step} \\\n    {box.around}bash -c 'exec {line}' {given} \\\n    {words}\n"


def _no_python_flag(program: Sequence[str], launch: str) -> list[str]:
    """torchrun's --no-python in the words of the other launchers."""
    return [{"accelerate": "--no_python", "deepspeed": "--no_python"}[launch] if word == "--no-python" else word
            for word in program]  # fmt: skip


def _require_allocation(request: Request) -> str:
    """Outside a job srun would ask for an allocation of its own."""
    return f': "${{SLURM_JOB_ID:?this script needs {request.nodes} nodes: submit it with sbatch}}"\n'


def _srun_words(request: Request, box: ContainerText) -> str:
    # Since 22.05 srun does not take --cpus-per-task from the job: without it a task would get one core.
    cpus = (
        f"--cpus-per-task={request.cpus}"
        if request.cpus
        else '${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"}'
    )
    return f"srun --kill-on-bad-exit=1 --ntasks-per-node=1 {cpus}{box.step}"
