"""The argument lists of each launcher, as pure functions."""

import os
import re
from typing import Any, List, Mapping, Optional, Sequence

from .rank_group import RankGroup

_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?\Z")


def srun_argv(
    nodes: int,
    tasks: int,
    cpus_per_task: Optional[int],
    *,
    name: str,
    nodelist: Sequence[str] = (),
    share: Sequence[str] = (),
) -> List[str]:
    """One step: `tasks` on each of `nodes`. `share` is what it takes of the job when other steps run beside it."""
    words = [
        "srun",
        "--kill-on-bad-exit=1",  # else the others wait for ever when one task fails
        "--nodes=%d" % nodes,
        "--ntasks=%d" % (nodes * tasks),
        "--ntasks-per-node=%d" % tasks,
        "--job-name=%s" % name,
        "--input=none",
    ]
    if cpus_per_task:
        words.append("--cpus-per-task=%d" % cpus_per_task)  # since 22.05 srun does not take it from the job
    if nodelist:
        words.append("--nodelist=%s" % ",".join(nodelist))
    return words + list(share)


def step_share(gpus: int, memory_mb: Optional[int]) -> List[str]:
    """What one of several steps of a node takes. Without --exact and an own gres each waits for the others."""
    words = ["--exact", "--gres=%s" % ("gpu:%d" % gpus if gpus else "none")]
    return words + (["--mem=%dM" % memory_mb] if memory_mb else [])


def torchrun_command(command: Sequence[str]) -> List[str]:
    """How torch's launcher is started: by the Python that the command names, which has torch, or as `torchrun_argv`."""
    if command and _PYTHON.match(command[0]):
        return [command[0], "-m", "torch.distributed.run"]
    return ["torchrun"]


def container_python(command: Sequence[str]) -> str:
    """The Python that runs our wrapper of a rank inside a container: the command's own, else python3."""
    return command[0] if command and _PYTHON.match(command[0]) else "python3"


def launcher_argv(unit: RankGroup, node: int, local_address: Optional[str]) -> List[str]:
    """What runs on node number `node` of a unit and starts its ranks; each rank is our wrapper around the program."""
    rank = [*(unit.inner or unit.wrapper), "rank", unit.path]
    build = {"accelerate": accelerate_argv, "deepspeed": deepspeed_argv}.get(unit.mode, torchrun_argv)
    return [*unit.around, *build(unit, node, local_address), *rank]


def torchrun_argv(unit: RankGroup, node: int, local_address: Optional[str]) -> List[str]:
    words = list(unit.start)
    if len(unit.nodes) == 1 and unit.port == 0:
        words.append("--standalone")
        # Else a replica's ranks would tell others an address by host name, which may be localhost.
        words += ["--local-addr=%s" % local_address] if local_address else []
    else:
        words += [
            "--nnodes=%d" % len(unit.nodes),
            "--rdzv-id=%s" % unit.id,
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=%s:%d" % (unit.address, unit.port),
            # Said outright: torchrun would guess from host names who serves the rendezvous, and wait for ever if wrong.
            "--rdzv-conf=is_host=%d" % (1 if node == 0 else 0),
        ]
        words += ["--local-addr=%s" % local_address] if local_address else []
    words += ["--nproc-per-node=%d" % unit.processes, "--max-restarts=%d" % unit.max_restarts, *unit.options]
    return [*words, "--no-python"]


def accelerate_argv(unit: RankGroup, node: int, local_address: Optional[str]) -> List[str]:
    words = [
        *unit.start,
        "--num_machines=%d" % len(unit.nodes),
        "--num_processes=%d" % unit.world,
        "--machine_rank=%d" % node,
        "--max_restarts=%d" % unit.max_restarts,
        "--mixed_precision=no",
        "--dynamo_backend=no",
    ]
    if unit.port:
        words += ["--main_process_ip=%s" % unit.address, "--main_process_port=%d" % unit.port]
    # "--cpu" would start one process, or ask for MPI: on CPUs, too, it is this path that starts one rank for each.
    words += ["--multi_gpu"] if unit.world > 1 else []
    return [*_override_defaults(words, unit.options), *unit.options, "--no_python"]


def deepspeed_argv(unit: RankGroup, node: int, local_address: Optional[str]) -> List[str]:
    """One launcher per node, told its place: no ssh, no pdsh, no host file of the user."""
    words = [*unit.start, "--hostfile=%shosts" % unit.log, "--no_ssh", "--node_rank=%d" % node]
    words += ["--master_addr=%s" % unit.address, "--master_port=%d" % unit.port]
    # It would put --local_rank=N behind the first word of the command, as if that were the program itself.
    return [*words, *unit.options, "--no_python", "--no_local_rank"]


def deepspeed_hosts(unit: RankGroup) -> str:
    return "".join("%s slots=%d\n" % (node, unit.processes) for node in unit.nodes)


def launcher_program(mode: str, command: Sequence[str]) -> List[str]:
    """The program that starts the ranks of a node, taken from the same environment as the command's Python."""
    torchrun_words = torchrun_command(command)
    if mode == "accelerate":
        return (
            [torchrun_words[0], "-m", "accelerate.commands.launch"]
            if len(torchrun_words) > 1
            else ["accelerate", "launch"]
        )
    if mode == "deepspeed":
        folder = os.path.dirname(command[0]) if len(torchrun_words) > 1 else ""
        return [os.path.join(folder, "deepspeed")]
    return torchrun_words


def lighthouse_argv(program: Sequence[str], settings: Mapping[str, Any], min_replicas: int, host: str) -> List[str]:
    return [
        *program,
        "--min_replicas=%d" % min_replicas,
        "--bind=%s:0" % host,
        "--quorum_tick_ms=%d" % settings["quorum_tick_ms"],
        "--join_timeout_ms=%d" % settings["join_timeout_ms"],
        "--heartbeat_timeout_ms=%d" % settings["heartbeat_timeout_ms"],
    ]


def _override_defaults(words: List[str], options: Sequence[str]) -> List[str]:
    """Defaults that the user's options name again are theirs."""
    named = {option.partition("=")[0] for option in options}
    return [word for word in words if word.partition("=")[0] not in named]
