"""Geometry in numbers: which processes a script starts, on which devices, with which batch. Pure.

explain(facts)                      from a script, with what is unknown
construct("lightning", 2, 8, ...)   by construction: header and launch line that match
"""

from __future__ import annotations

import msgspec

from shoal.doctor.finding import CheckFacts, distributes_itself, step_nodes, step_tasks_per_node, uses_lightning
from shoal.doctor.launches import ScriptLaunch, as_number
from shoal.errors import InputError
from shoal.units import format_memory

FRAMEWORKS = ("lightning", "native", "torchrun", "accelerate", "deepspeed", "single")


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
    header: tuple[str, ...] = ()
    command: str = ""
    notes: tuple[str, ...] = ()


def explain_facts(facts: CheckFacts) -> list[LaunchNumbers]:
    """The numbers of every launch that is the script's work."""
    return [_explain_launch(facts, launch) for launch in facts.job.work]


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
    return _launch_numbers(
        f"{name} {launch.program}".strip(),
        launch.line,
        started,
        tasks,
        gpus,
        processes,
        (geometry.cpus_per_task or 1) * (tasks or 1),
        geometry.memory_per_node_mb,
        facts,
        notes,
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


def _launch_numbers(
    launch: str,
    line: int,
    nodes: int,
    tasks: int | None,
    gpus: int | None,
    processes: int | None,
    cpus_per_node: int,
    memory_mb: int | None,
    facts: CheckFacts,
    notes: list[str],
) -> LaunchNumbers:
    world = None if processes is None else processes * nodes
    batch = None if facts.batch_size is None or world is None else facts.batch_size * world
    cpus = None if not processes else cpus_per_node // processes
    workers = facts.workers
    if workers is not None and processes and workers * processes > cpus_per_node:
        notes.append(
            f"{processes} x {workers} = {processes * workers} loader workers on {cpus_per_node} CPUs are too many"
        )
    if world and world > 1:
        if batch is not None:
            notes.append(f"{world} x {facts.batch_size} = {batch}: the batch of one optimizer step grows {world}-fold")
        if facts.learning_rate is not None:
            notes.append(
                f"the learning rate {facts.learning_rate:g} was chosen for another batch size; the linear rule gives "
                f"{facts.learning_rate * world:g}, with warm-up"
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
        batch_per_process=facts.batch_size,
        effective_batch=batch,
        workers_per_process=workers,
        workers_per_node=None if workers is None or processes is None else workers * processes,
        memory_per_node_mb=memory_mb,
        memory_per_process_mb=None if not memory_mb or not processes else memory_mb // processes,
        learning_rate=facts.learning_rate,
        notes=tuple(notes),
    )


def construct_launch(
    framework: str, nodes: int, gpus: int, facts: CheckFacts, cpus_per_node: int | None = None
) -> LaunchNumbers:
    """Header and launch line that fit together, for GPUs per node and a framework."""
    if framework not in FRAMEWORKS:
        raise InputError(f"{framework!r} is not a framework that is known here", hint=f"one of {', '.join(FRAMEWORKS)}")
    if nodes < 1 or gpus < 1:
        raise InputError("there is nothing to explain without nodes and GPUs", hint="--nodes 1 --gpus 8")
    per_task = framework in ("lightning", "native")
    tasks = gpus if per_task else 1
    workers = facts.workers
    cpus = (
        (cpus_per_node // tasks)
        if cpus_per_node
        else (workers + 1 if workers is not None else 8) * (1 if per_task else gpus)
    )
    header = [f"#SBATCH --nodes={nodes}", f"#SBATCH --ntasks-per-node={tasks}", f"#SBATCH --gpus-per-node={gpus}",
              f"#SBATCH --cpus-per-task={cpus}"]  # fmt: skip
    srun = "srun --kill-on-bad-exit=1 --cpus-per-task=$SLURM_CPUS_PER_TASK"
    port = "$((20000 + SLURM_JOB_ID % 10000))"
    endpoint = f'"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):{port}"'
    where = "--standalone" if nodes == 1 else f"--rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint={endpoint}"
    lines = {
        "torchrun": f"{srun} torchrun --nnodes=$SLURM_NNODES --nproc-per-node={gpus} {where} train.py",
        "deepspeed": f"{srun} torchrun --nnodes=$SLURM_NNODES --nproc-per-node={gpus} {where} train.py --deepspeed",
        "accelerate": f"{srun} bash -c 'accelerate launch --num_machines=$SLURM_NNODES --num_processes={nodes * gpus} "
        "--machine_rank=$SLURM_NODEID --main_process_ip=$MASTER_ADDR --main_process_port=$MASTER_PORT train.py'",
    }
    notes = ["Lightning: devices and num_nodes as in the header"] if framework == "lightning" else []
    if framework == "native":
        notes.append("RANK, LOCAL_RANK and WORLD_SIZE come from SLURM_PROCID, SLURM_LOCALID and SLURM_NTASKS")
    if framework == "accelerate":
        notes.append(f"export MASTER_ADDR=$(scontrol show hostnames ... | head -n 1) and MASTER_PORT={port} before it")
    processes = 1 if framework == "single" else gpus
    found = _launch_numbers(framework, 0, nodes, tasks, gpus, processes, cpus * tasks, None, facts, notes)
    return msgspec.structs.replace(found, header=tuple(header), command=lines.get(framework, f"{srun} python train.py"))


def explain_rows(one: LaunchNumbers) -> list[tuple[str, str]]:
    """What people read: name and value, with "not said" where the script is silent."""

    def say(value: object) -> str:
        return "not said" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    memory = None if one.memory_per_node_mb is None else format_memory(one.memory_per_node_mb)
    each = None if one.memory_per_process_mb is None else format_memory(one.memory_per_process_mb)
    return [
        ("launch", one.launch),
        ("nodes", say(one.nodes)),
        ("tasks per node", say(one.tasks_per_node)),
        ("GPUs per node", say(one.gpus_per_node)),
        ("processes", "not said" if one.processes is None else
         f"{one.nodes} x {one.processes_per_node} = {one.processes}, ranks 0 to {one.processes - 1}"),
        ("devices per process", say(one.devices_per_process)),
        ("CPUs per process", say(one.cpus_per_process)),
        ("loader workers", "not said" if one.workers_per_process is None else
         f"{one.workers_per_process} per process, {say(one.workers_per_node)} per node"),
        ("batch size", "not said" if one.batch_per_process is None else
         f"{say(one.processes)} x {one.batch_per_process} = {say(one.effective_batch)}"),
        ("memory per node", "not said" if memory is None else f"{memory}, {each or '?'} per process"),
    ]  # fmt: skip
