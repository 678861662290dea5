"""G: do nodes, tasks, GPUs and CPUs of the header match, and what does srun make of them?"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.doctor.finding import (
    CheckFacts,
    RuleHit,
    ScriptEdit,
    distributes_itself,
    header_line,
    is_native,
    rule,
    step_tasks_per_node,
    uses_lightning,
)
from shoal.units import plural


@rule("G01", "error", "more tasks than GPUs")
def more_tasks_than_gpus(facts: CheckFacts) -> Iterator[RuleHit]:
    gpus = facts.job.geometry.gpus_per_node
    for launch in facts.job.work:
        tasks = step_tasks_per_node(launch, facts.job)
        if not is_native(launch) or not gpus or tasks is None or tasks <= gpus:
            continue
        if any("mps-control" in command.raw for command in facts.job.commands):
            continue  # NVIDIA's MPS is for just this
        hints = facts.job.hints(launch)
        shares = hints is not None and bool(hints.imports & {"mpi4py", "cupy"})
        yield RuleHit(
            header_line(facts.job, "ntasks-per-node", "ntasks"),
            f"srun starts {plural(tasks, 'task')} on a node, and the job has {plural(gpus, 'GPU')} there",
            f"{tasks} processes share {plural(gpus, 'GPU')}: out of memory, or NCCL's Duplicate GPU, or a hang",
            f"--ntasks-per-node={gpus}, or --gres=gpu:{tasks} if {tasks} processes are meant",
            "warning" if shares else None,
        )


@rule("G02", "error", "one task for many GPUs under Lightning")
def one_task_many_gpus(facts: CheckFacts) -> Iterator[RuleHit]:
    job, geometry = facts.job, facts.job.geometry
    gpus = geometry.gpus_per_node or 0
    said_one = (geometry.ntasks == 1 or geometry.tasks_per_node == 1) and geometry.tasks == geometry.n
    name = (job.options["job-name"].value if "job-name" in job.options else "") or ""
    for launch in job.work:
        if launch.launcher != "python" or gpus < 2 or name in ("bash", "interactive") or launch.command.background:
            continue
        tasks = step_tasks_per_node(launch, job)
        if tasks != 1 or not (said_one or launch.srun is not None):
            continue
        is_lightning, certain = uses_lightning(facts.job, launch)
        fix = f"--ntasks-per-node={gpus} and srun python, or torchrun --nproc-per-node={gpus}"
        if is_lightning:
            yield RuleHit(
                launch.line,
                f"Lightning under Slurm takes the number of tasks for the number of processes: 1, not {gpus}",
                f"1 of {gpus} GPUs trains, on 1/{gpus} of the data, and the job ends as COMPLETED",
                fix,
                None if certain else "warning",
            )
        elif job.hints(launch) is None and not distributes_itself(facts.job, launch):
            yield RuleHit(
                launch.line,
                f"one process is started for {gpus} GPUs, and its program could not be read here",
                f"if it is Lightning, 1 of {gpus} GPUs trains on 1/{gpus} of the data",
                fix,
                "warning",
            )


@rule("G03", "error", "--ntasks below nodes x tasks per node")
def ntasks_below_total(facts: CheckFacts) -> Iterator[RuleHit]:
    geometry = facts.job.geometry
    if geometry.ntasks is None or geometry.tasks_per_node is None or {"nodes", "nodes range"} & geometry.uncertain:
        return
    if not geometry.nodes_given:
        return  # then --ntasks-per-node is only an upper limit
    wanted = geometry.n * geometry.tasks_per_node
    if geometry.ntasks < wanted:
        line = header_line(facts.job, "ntasks")
        alone = facts.line(line)[1:].partition("#")[0].count("-n") <= 1
        yield RuleHit(
            line,
            f"--ntasks={geometry.ntasks} is less than {geometry.n} x {geometry.tasks_per_node} tasks per node",
            f"{geometry.ntasks} of {wanted} ranks start; under Lightning the data of the others is left out silently",
            "leave --ntasks out",
            None,
            (ScriptEdit("drop", line),) if alone and facts.job.kind == "batch" else (),
        )


@rule("G04", "error", "tasks over nodes without --ntasks-per-node")
def ntasks_without_per_node(facts: CheckFacts) -> Iterator[RuleHit]:
    geometry, options = facts.job.geometry, facts.job.options
    if geometry.n < 2 or geometry.ntasks is None or geometry.tasks_per_node is not None or not geometry.wants_gpus:
        return
    if geometry.ntasks <= geometry.n or "gpus-per-task" in options or "ntasks-per-gpu" in options:
        return
    native = any(is_native(launch) for launch in facts.job.work)
    each, rest = divmod(geometry.ntasks, geometry.n)
    option = options["ntasks"]
    better = f"--ntasks-per-node={each}"
    yield RuleHit(
        option.line,
        f"{geometry.ntasks} tasks may be laid unevenly over {geometry.n} nodes, such as "
        f"{geometry.ntasks - geometry.n + 1}+1",
        "some nodes get more tasks than GPUs: invalid device ordinal",
        better if not rest else f"--ntasks-per-node, and a number of tasks that {geometry.n} divides",
        None if native else "warning",
        (
            ScriptEdit(
                "replace",
                option.line,
                _option_text(facts, option.line, ("--ntasks", "-n"), str(geometry.ntasks)),
                better,
            ),
        )
        if not rest
        else (),
    )


def _option_text(facts: CheckFacts, line: int, names: tuple[str, ...], value: str) -> str:
    """How an option and its value are written in a line."""
    text = facts.line(line)
    for name in names:
        for between in ("=", " ", ""):
            if f"{name}{between}{value}" in text:
                return f"{name}{between}{value}"
    return "\0"


@rule("G05", "error", "--gpus over several nodes")
def gpus_over_nodes(facts: CheckFacts) -> Iterator[RuleHit]:
    geometry, options = facts.job.geometry, facts.job.options
    if geometry.n < 2 or "gpus" not in options or geometry.gpus_per_node is not None or not geometry.gpus_total:
        return
    if "gpus-per-node" in options or "gpus-per-task" in options or geometry.gpus_total <= geometry.n:
        return
    each, rest = divmod(geometry.gpus_total, geometry.n)
    option = options["gpus"]
    kind = f"{geometry.gpu_type}:" if geometry.gpu_type else ""
    better = f"--gpus-per-node={kind}{each}"
    edits: tuple[ScriptEdit, ...] = ()
    if not rest:
        edits = (
            ScriptEdit(
                "replace", option.line, _option_text(facts, option.line, ("--gpus", "-G"), option.value or ""), better
            ),
        )
    yield RuleHit(
        option.line,
        f"--gpus={option.value} counts over the whole job: {geometry.n} nodes may get "
        f"{geometry.gpus_total - geometry.n + 1}+1",
        "ranks on the node with fewer GPUs fail: invalid device ordinal",
        better if not rest else "--gpus-per-node, the same on every node",
        None,
        edits,
    )


@rule("G06", "warning", "tasks without a number of nodes")
def tasks_without_nodes(facts: CheckFacts) -> Iterator[RuleHit]:
    geometry = facts.job.geometry
    if geometry.nodes_given or geometry.tasks_per_node is not None or (geometry.ntasks or 1) < 2:
        return
    if not geometry.wants_gpus and not any(launch.srun is not None for launch in facts.job.launches):
        return
    yield RuleHit(
        header_line(facts.job, "ntasks"),
        f"--ntasks={geometry.ntasks} without --nodes may be spread over several nodes",
        "then GPUs and files of one node are not there for the tasks on another",
        f"#SBATCH --nodes=1, and --ntasks-per-node={geometry.ntasks}",
    )


@rule("G15", "warning", "no CPUs asked for")
def missing_cpus(facts: CheckFacts) -> Iterator[RuleHit]:
    script, geometry, options = facts.script, facts.job.geometry, facts.job.options
    if script is None or script.kind != "batch" or not geometry.wants_gpus:
        return
    if {"cpus-per-task", "cpus-per-gpu", "exclusive", "tres-per-task", "mincpus"} & set(options):
        return
    gpus = geometry.gpus_per_node or geometry.gpus_total or 1
    if geometry.tasks_on_node > gpus:
        return
    yield RuleHit(
        script.directives.lines[-1] if script.directives.lines else 1,
        f"there is no --cpus-per-task: {plural(geometry.tasks_on_node, 'CPU')} per node for {plural(gpus, 'GPU')}",
        "data loading runs on one CPU for each task and the GPUs wait for it",
        "#SBATCH --cpus-per-task=8   # the node's CPUs shared by its GPUs",
    )
