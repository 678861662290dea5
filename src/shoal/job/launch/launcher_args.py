"""The argument lists of each launcher, as pure functions: one table, LAUNCHERS, for jobs, scripts and explanations."""

import os
import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from .geometry import GeometryError
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


def container_python(command: Sequence[str]) -> str:
    """The Python that runs our wrapper of a rank inside a container: the command's own, else python3."""
    return command[0] if command and _PYTHON.match(command[0]) else "python3"


class LaunchValues(NamedTuple):
    """What a launcher is told. Texts are values inside a job and shell variables in a script.

    `processes` are those of one node; `node` is the number of this one. Without a `port` the ranks of one node find
    each other. `is_host` and `local_address` are known in a job only.
    """

    nodes: int
    processes: int
    id: str
    node: str
    address: str
    port: str
    hostfile: str = ""
    max_restarts: int = 0
    is_host: Optional[bool] = None
    local_address: Optional[str] = None


def _torchrun_options(values: LaunchValues) -> List[str]:
    if values.nodes == 1 and not values.port:
        words = ["--standalone"]
    else:
        words = [
            "--nnodes=%d" % values.nodes,
            "--rdzv-id=%s" % values.id,
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=%s:%s" % (values.address, values.port),
        ]
        if values.is_host is not None:
            # Said outright: torchrun would guess from host names who serves the rendezvous, and wait for ever if wrong.
            words.append("--rdzv-conf=is_host=%d" % values.is_host)
    # Else a replica's ranks would tell others an address by host name, which may be localhost.
    words += ["--local-addr=%s" % values.local_address] if values.local_address else []
    words.append("--nproc-per-node=%d" % values.processes)
    return words + (["--max-restarts=%d" % values.max_restarts] if values.max_restarts else [])


def _accelerate_options(values: LaunchValues) -> List[str]:
    world = values.nodes * values.processes
    words = ["--num_machines=%d" % values.nodes, "--num_processes=%d" % world, "--machine_rank=%s" % values.node]
    words.append("--max_restarts=%d" % values.max_restarts)
    if values.port:
        words += ["--main_process_ip=%s" % values.address, "--main_process_port=%s" % values.port]
    # "--cpu" would start one process, or ask for MPI: on CPUs, too, it is this path that starts one rank for each.
    return words + (["--multi_gpu"] if world > 1 else [])


def _deepspeed_options(values: LaunchValues) -> List[str]:
    """One launcher per node, told its place: no ssh, no pdsh, no host file of the user."""
    words = ["--hostfile=%s" % values.hostfile, "--no_ssh", "--node_rank=%s" % values.node]
    return [*words, "--master_addr=%s" % values.address, "--master_port=%s" % values.port]


class Launcher(NamedTuple):
    """A program that starts the ranks of one node.

    `module` is how a Python starts it, else the program beside that Python is taken. `job_defaults` stand in jobs only,
    where the user's options do not name them. `no_python`: the command is no Python file; in jobs it never is.
    """

    program: Sequence[str]
    module: str
    options: Callable[[LaunchValues], List[str]]
    no_python: str
    job_defaults: Sequence[str] = ()
    job_flags: Sequence[str] = ()


#: The launch modes of geometry.TORCH_LAUNCHERS. Jobs, `generate` and `doctor --explain` build their lines from this.
LAUNCHERS: Dict[str, Launcher] = {
    "torchrun": Launcher(["torchrun"], "torch.distributed.run", _torchrun_options, "--no-python"),
    "accelerate": Launcher(
        ["accelerate", "launch"],
        "accelerate.commands.launch",
        _accelerate_options,
        "--no_python",
        job_defaults=("--mixed_precision=no", "--dynamo_backend=no"),
    ),
    # It would put --local_rank=N behind the first word of the command, as if that were the program itself.
    "deepspeed": Launcher(["deepspeed"], "", _deepspeed_options, "--no_python", job_flags=("--no_local_rank",)),
}


def find_launcher(mode: str) -> Launcher:
    """GeometryError for a launch mode that has no launcher on each node."""
    if mode not in LAUNCHERS:
        raise GeometryError("launch mode %r has no launcher" % mode, "one of %s" % ", ".join(LAUNCHERS))
    return LAUNCHERS[mode]


def launcher_program(mode: str, command: Sequence[str]) -> List[str]:
    """The program that starts the ranks of a node, taken from the same environment as the command's Python."""
    launcher = find_launcher(mode)
    if not command or not _PYTHON.match(command[0]):
        return list(launcher.program)
    if launcher.module:
        return [command[0], "-m", launcher.module]
    return [os.path.join(os.path.dirname(command[0]), launcher.program[0])]


def launcher_argv(group: RankGroup, node: int, local_address: Optional[str]) -> List[str]:
    """What runs on node number `node` of a group and starts its ranks; each rank is our wrapper around the program."""
    launcher = find_launcher(group.mode)
    values = LaunchValues(
        nodes=len(group.nodes),
        processes=group.processes,
        id=group.id,
        node=str(node),
        address=group.address,
        port=str(group.port or ""),
        hostfile=hostfile_of(group),
        max_restarts=group.max_restarts,
        is_host=node == 0,
        local_address=local_address,
    )
    options = _override_defaults([*launcher.options(values), *launcher.job_defaults], group.options)
    flags = [*group.options, launcher.no_python, *launcher.job_flags]
    return [*group.around, *group.start, *options, *flags, *(group.inner or group.wrapper), "rank", group.path]


def hostfile_of(group: RankGroup) -> str:
    return group.log + "hosts"


def deepspeed_hosts(group: RankGroup) -> str:
    return "".join("%s slots=%d\n" % (node, group.processes) for node in group.nodes)


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
