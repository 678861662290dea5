"""Geometry in numbers: which processes a script starts, on which devices, with which batch. Pure.

explain_facts(facts)                       from a script, with what is unknown
construct_launch("lightning", 2, 8, ...)   by construction: header and launch line that match
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from shoal.doctor.finding import CheckFacts, distributes_itself, step_nodes, step_tasks_per_node, uses_lightning
from shoal.doctor.launches import ScriptLaunch, as_number
from shoal.doctor.training_args import TrainingArgs, read_training_args
from shoal.errors import InputError
from shoal.model import Request
from shoal.plan import launch_lines
from shoal.units import format_memory

#: The launch mode of each framework.
FRAMEWORKS = {
    "lightning": "srun",
    "native": "srun",
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "single": "process",
}


class LaunchNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of one launch; None is "the script does not say". `notes` say what is assumed or doubtful."""

    launch: str
    line: int = 0
    nodes: int = 1
    tasks_per_node: int | None = None
    gpus_per_node: int | None = None
    processes_per_node: int | None = None
    processes: int | None = None
    devices_per_process: float | None = None
    cpus_per_process: int | None = None
    batch_per_process: int | None = None
    effective_batch: int | None = None
    workers_per_process: int | None = None
    workers_per_node: int | None = None
    memory_per_node_mb: int | None = None
    memory_per_process_mb: int | None = None
    learning_rate: float | None = None
    gradient_accumulation: int | None = None
    gpu_memory_mb: int | None = None
    gpu_memory: str | None = None
    #: Words of the command that numbers were read from, and what could not be read anywhere.
    sources: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    command: str = ""
    notes: tuple[str, ...] = ()


def explain_facts(facts: CheckFacts) -> list[LaunchNumbers]:
    """The numbers of every launch that is the script's work."""
    return [_explain_launch(facts, launch) for launch in facts.job.work]


class _NodeNumbers(NamedTuple):
    """What one node of a launch has, and how many nodes it uses."""

    nodes: int
    tasks: int | None
    gpus: int | None
    processes: int | None
    cpus: int
    memory_mb: int | None = None


def _explain_launch(facts: CheckFacts, launch: ScriptLaunch) -> LaunchNumbers:
    job, geometry = facts.job, facts.job.geometry
    nodes = step_nodes(launch, job) or geometry.n
    tasks = step_tasks_per_node(launch, job)
    gpus = geometry.gpus_per_node
    notes: list[str] = []
    processes = _processes(facts, launch, nodes, tasks, notes)
    started = 1 if launch.srun is None and geometry.n > 1 else nodes
    if started < nodes:
        notes.append(f"without srun it starts on 1 of {nodes} nodes")
    name = f"srun {launch.launcher}" if launch.srun is not None else launch.launcher
    args = read_training_args(launch.args)
    hints = job.hints(launch)
    if args.workers is None and hints is not None:
        args = args._replace(workers=hints.max_workers)
    cpus = (geometry.cpus_per_task or 1) * (tasks or 1)
    node = _NodeNumbers(started, tasks, gpus, processes, cpus, geometry.memory_per_node_mb)
    return _launch_numbers(f"{name} {launch.program}".strip(), launch.line, node, _with_inputs(args, facts), notes)


def _with_inputs(args: TrainingArgs, facts: CheckFacts) -> TrainingArgs:
    """What a person gives on the command line of the doctor counts before what the script says."""
    return args._replace(
        batch_size=facts.batch_size if facts.batch_size is not None else args.batch_size,
        is_global_batch=args.is_global_batch and facts.batch_size is None,
        learning_rate=facts.learning_rate if facts.learning_rate is not None else args.learning_rate,
        workers=facts.workers if facts.workers is not None else args.workers,
    )


def _processes(facts: CheckFacts, launch: ScriptLaunch, nodes: int, tasks: int | None, notes: list[str]) -> int | None:
    """Processes on one node."""
    job, gpus = facts.job, facts.job.geometry.gpus_per_node
    copies = tasks or 1
    if launch.launcher == "torchrun":
        asked = launch.option("nproc-per-node")
        each = as_number(asked, job.values)
        if each is None and (asked is None or asked in ("gpu", "auto") or "GPU" in asked.upper()):
            each = (gpus or 1) if asked is not None else 1
            notes.append("torchrun without --nproc-per-node starts one process" if asked is None else
                         f"--nproc-per-node is taken to be the GPUs of the node: {each}")  # fmt: skip
        if copies > 1:
            notes.append(f"srun starts torchrun {copies} times on each node")
        return None if each is None else each * copies
    if launch.launcher == "accelerate":
        total = as_number(launch.option("num-processes"), job.values)
        if total is None:
            notes.append("accelerate reads the number of processes from its config file; the GPUs are assumed")
        return gpus if total is None else -(-total // nodes)
    if launch.launcher == "deepspeed":
        return as_number(launch.option("num-gpus"), job.values) or gpus
    is_lightning, _ = uses_lightning(facts.job, launch)
    if launch.srun is None and is_lightning and not {"ntasks", "ntasks-per-node"} & set(job.options):
        notes.append("without a number of tasks in the header, Lightning starts one process for each device itself")
        return gpus
    if launch.srun is None and not is_lightning and distributes_itself(facts.job, launch):
        notes.append("the program starts its own processes; their number is not in the script")
        return None
    if launch.launcher == "python" and job.hints(launch) is None:
        notes.append(f"{launch.program or 'the program'} could not be read: one process for each task is assumed")
    return copies


def _launch_numbers(launch: str, line: int, node: _NodeNumbers, args: TrainingArgs, notes: list[str]) -> LaunchNumbers:
    nodes, tasks, gpus, processes, cpus_per_node, memory_mb = node
    world = None if processes is None else processes * nodes
    batch = _effective_batch(args, world)
    cpus = None if not processes else cpus_per_node // processes
    workers = args.workers
    if workers is not None and processes and workers * processes > cpus_per_node:
        notes.append(
            f"{processes} x {workers} = {processes * workers} loader workers on {cpus_per_node} CPUs are too many"
        )
    if world and world > 1:
        if batch is not None and not args.is_global_batch:
            notes.append(f"{_batch_text(args, world)}: the batch of one optimizer step grows {world}-fold")
        if args.learning_rate is not None and not args.is_global_batch:
            notes.append(
                f"if the learning rate {args.learning_rate:g} was chosen for one process, the linear rule gives "
                f"{args.learning_rate * world:g} with warm-up (SGD), the square root rule "
                f"{args.learning_rate * world**0.5:.3g} (Adam)"
            )
        notes.append(f"{world} processes are not {world} times as fast: measure before counting on it")
    if gpus and processes and processes > gpus:
        notes.append(f"{processes} processes share {gpus} GPUs of a node")
    elif gpus and processes and processes < gpus:
        notes.append(f"{gpus - processes} of {gpus} GPUs of a node have no process of their own")
    return LaunchNumbers(
        launch=launch,
        line=line,
        nodes=nodes,
        tasks_per_node=tasks,
        gpus_per_node=gpus,
        processes_per_node=processes,
        processes=world,
        devices_per_process=None if not gpus or not processes else round(gpus / processes, 2),
        cpus_per_process=cpus,
        batch_per_process=None if args.is_global_batch else args.batch_size,
        effective_batch=batch,
        workers_per_process=workers,
        workers_per_node=None if workers is None or processes is None else workers * processes,
        memory_per_node_mb=memory_mb,
        memory_per_process_mb=None if not memory_mb or not processes else memory_mb // processes,
        learning_rate=args.learning_rate,
        gradient_accumulation=args.accumulation,
        gpu_memory_mb=args.gpu_memory_mb(world or 1),
        gpu_memory=args.gpu_memory_text(world or 1),
        sources=args.sources,
        unread=_unread(args),
        notes=tuple(notes),
    )


def _effective_batch(args: TrainingArgs, world: int | None) -> int | None:
    if args.batch_size is None or args.is_global_batch:
        return args.batch_size
    return None if world is None else args.batch_size * world * (args.accumulation or 1)


def _batch_text(args: TrainingArgs, world: int) -> str:
    accumulated = f" x {args.accumulation} accumulated" if args.accumulation else ""
    return f"{world} x {args.batch_size}{accumulated} = {_effective_batch(args, world)}"


def _unread(args: TrainingArgs) -> tuple[str, ...]:
    """What neither the command line nor the flags of the doctor say, with the flag that says it."""
    found = (
        ("batch size (--batch-size)", args.batch_size),
        ("learning rate (--lr)", args.learning_rate),
        ("loader workers (--workers)", args.workers),
        ("model size, and so GPU memory", args.parameters),
    )
    return tuple(name for name, value in found if value is None)


def construct_launch(
    framework: str, nodes: int, gpus: int, facts: CheckFacts, cpus_per_node: int | None = None
) -> LaunchNumbers:
    """Header and launch line that fit together, for GPUs per node and a framework."""
    if framework not in FRAMEWORKS:
        raise InputError(f"{framework!r} is not a framework that is known here", hint=f"one of {', '.join(FRAMEWORKS)}")
    if nodes < 1 or gpus < 1:
        raise InputError("there is nothing to explain without nodes and GPUs", hint="--nodes 1 --gpus 8")
    mode, workers = FRAMEWORKS[framework], facts.workers
    tasks = gpus if mode == "srun" else 1
    per_task = (workers + 1 if workers is not None else 8) * (gpus // tasks)
    cpus = cpus_per_node // tasks if cpus_per_node else per_task
    header = [f"#SBATCH --nodes={nodes}", f"#SBATCH --ntasks-per-node={tasks}", f"#SBATCH --gpus-per-node={gpus}",
              f"#SBATCH --cpus-per-task={cpus}"]  # fmt: skip
    request = Request(nodes=nodes, gpus=gpus, cpus=cpus * tasks)
    notes = ["Lightning: devices and num_nodes as in the header"] if framework == "lightning" else []
    processes = 1 if mode == "process" else gpus
    args = _with_inputs(TrainingArgs(), facts)
    found = _launch_numbers(framework, 0, _NodeNumbers(nodes, tasks, gpus, processes, cpus * tasks), args, notes)
    lines = launch_lines(mode, ["python", "train.py"], request).rstrip("\n")
    return msgspec.structs.replace(found, header=tuple(header), command=lines)


def explain_rows(one: LaunchNumbers) -> list[tuple[str, str]]:
    """What people read: name and value, with "not set" where the script is silent."""

    def say(value: object) -> str:
        return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    memory = None if one.memory_per_node_mb is None else format_memory(one.memory_per_node_mb)
    each = None if one.memory_per_process_mb is None else format_memory(one.memory_per_process_mb)
    return [
        ("launch", one.launch),
        ("nodes", say(one.nodes)),
        ("tasks per node", say(one.tasks_per_node)),
        ("GPUs per node", say(one.gpus_per_node)),
        ("processes", "not set" if one.processes is None else
         f"{one.nodes} x {one.processes_per_node} = {one.processes}, ranks 0 to {one.processes - 1}"),
        ("devices per process", say(one.devices_per_process)),
        ("CPUs per process", say(one.cpus_per_process)),
        ("loader workers", "not set" if one.workers_per_process is None else
         f"{one.workers_per_process} per process, {say(one.workers_per_node)} per node"),
        ("batch size", say(one.effective_batch) if one.batch_per_process is None else
         f"{say(one.processes)} x {one.batch_per_process}"
         f"{f' x {one.gradient_accumulation}' if one.gradient_accumulation else ''} = {say(one.effective_batch)}"),
        ("learning rate", say(one.learning_rate)),
        ("memory per node", "not set" if memory is None else f"{memory}, {each or '?'} per process"),
        ("GPU memory", one.gpu_memory or "not known"),
        *([("read from", ", ".join(one.sources))] if one.sources else []),
        *([("not read", ", ".join(one.unread))] if one.unread else []),
    ]  # fmt: skip
