"""G: do nodes, tasks, GPUs and CPUs of the header match, and what does srun make of them?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shoal.doctor.edits import option_edit, srun_edits, tasks_edits
from shoal.doctor.finding import (
    CheckFacts,
    RuleHit,
    ScriptEdit,
    distributes_itself,
    header_line,
    is_native,
    rule,
    step_nodes,
    step_tasks_per_node,
    trainer_number,
    uses_lightning,
)
from shoal.doctor.launchers import base_name
from shoal.doctor.launches import ScriptLaunch, as_number
from shoal.doctor.python_file import PythonHints
from shoal.units import plural

_ONE_PROCESS_FRAMEWORK = re.compile(r"tensorflow|\btf\d?\b|keras|\bjax\b|vllm|llama[._-]cpp|ollama", re.IGNORECASE)
_NODES_ARGUMENT = re.compile(r"--(?:num[_-]?)?nodes\b")
_TASK_NUMBER = re.compile(r"SLURM_(?:PROCID|LOCALID|NODEID)")


@rule("G01", "error", "more tasks than GPUs", lower=("warning",))
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
            () if shares else tasks_edits(facts, gpus),
        )


@rule("G02", "error", "one task for many GPUs under Lightning", lower=("warning", "hint"))
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
            module = (job.hints(launch) or PythonHints()).lightning_module
            yield RuleHit(
                launch.line,
                f"Lightning under Slurm takes the number of tasks for the number of processes: 1, not {gpus}"
                + (f" ({module} starts it)" if module else ""),
                f"1 of {gpus} GPUs trains, on 1/{gpus} of the data, and the job ends as COMPLETED",
                fix,
                None if certain else "warning",
                (*tasks_edits(facts, gpus), *srun_edits(facts, launch)) if certain else (),
            )
        elif job.hints(launch) is None and not _is_explained(facts, launch):
            # `--devices 4` is how Lightning's Trainer is told; --gpus is also the name of others.
            like_trainer = trainer_number(launch, "devices", job.values) == gpus or (
                trainer_number(launch, "gpus", job.values) == gpus
                and (launch.srun is not None or any(_NODES_ARGUMENT.match(word) for word in launch.args))
            )
            yield RuleHit(
                launch.line,
                f"one process is started for {gpus} GPUs, and its program could not be read here",
                f"if it is Lightning, 1 of {gpus} GPUs trains on 1/{gpus} of the data",
                fix,
                "warning" if like_trainer else "hint",
            )


def _is_explained(facts: CheckFacts, launch: ScriptLaunch) -> bool:
    """Why one process may be right: it starts others, a launcher uses the GPUs later, or its framework needs one."""
    job = facts.job
    if distributes_itself(job, launch) or any(one.is_distributed for one in job.launches):
        return True
    return any(_ONE_PROCESS_FRAMEWORK.search(command.raw) for command in job.commands)


@rule("G03", "error", "--ntasks below nodes x tasks per node")
def ntasks_below_total(facts: CheckFacts) -> Iterator[RuleHit]:
    geometry = facts.job.geometry
    if geometry.ntasks is None or geometry.tasks_per_node is None or {"nodes", "nodes range"} & geometry.uncertain:
        return
    if not geometry.nodes_given:
        return  # then --ntasks-per-node is only an upper limit
    wanted = geometry.n * geometry.tasks_per_node
    if geometry.ntasks == geometry.n and facts.job.work and all(one.is_distributed for one in facts.job.work):
        return  # one launcher for each node, which starts the processes itself
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


@rule("G04", "error", "tasks over nodes without --ntasks-per-node", lower=("warning",))
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


@rule("G05", "error", "--gpus over several nodes", lower=("hint",))
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
        f"--gpus={option.value} counts over the whole job, and its {geometry.n} nodes may get different numbers",
        "ranks on the node with fewer GPUs fail: invalid device ordinal",
        better if not rest else "--gpus-per-node, the same on every node",
        # Whole nodes share an even number evenly.
        None if rest or "exclusive" not in options else "hint",
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


def cpus_share(facts: CheckFacts, tasks: int) -> int:
    """CPUs for each of `tasks` tasks of a node: the GPUs' share of the node that this cluster has, else 8 per GPU."""
    gpus = facts.job.geometry.gpus_per_node or facts.job.geometry.gpus_total or 1
    shares = [kind.cpus * gpus // kind.gpus for kind in facts.node_kinds if kind.gpus >= gpus]
    return max(1, (min(shares) if shares else 8 * gpus) // tasks)


@rule("G15", "warning", "no CPUs asked for", lower=("hint",))
def missing_cpus(facts: CheckFacts) -> Iterator[RuleHit]:
    script, geometry, options = facts.script, facts.job.geometry, facts.job.options
    if script is None or script.kind != "batch" or not geometry.wants_gpus:
        return
    if {"cpus-per-task", "cpus-per-gpu", "exclusive", "tres-per-task", "mincpus"} & set(options):
        return
    gpus = geometry.gpus_per_node or geometry.gpus_total or 1
    if geometry.tasks_on_node > gpus:
        return
    cpus = cpus_share(facts, geometry.tasks_on_node)
    yield RuleHit(
        script.directives.lines[-1] if script.directives.lines else 1,
        f"no --cpus-per-task: {plural(geometry.tasks_on_node, 'CPU')} per node for {plural(gpus, 'GPU')}",
        "data loading runs on one CPU for each task and the GPUs wait for it",
        f"#SBATCH --cpus-per-task={cpus}   # the node's CPUs shared by its GPUs",
        None if gpus > 1 or any("train" in launch.raw for launch in script.work) else "hint",
        (ScriptEdit("header", new=f"#SBATCH --cpus-per-task={cpus}"),),
    )


@rule("G22", "error", "copies of a training that uses one GPU")
def copies_of_single_gpu_training(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    for launch in job.work:
        hints, tasks, nodes = job.hints(launch), step_tasks_per_node(launch, job), step_nodes(launch, job)
        if not is_native(launch) or hints is None or not hints.trains_alone or tasks is None or nodes is None:
            continue
        several = tasks * nodes
        # Tasks that look at their number are different runs on purpose: seeds, folds, parts of a data set.
        if several < 2 or "multi-prog" in (launch.srun or {}) or _TASK_NUMBER.search(launch.raw):
            continue
        yield RuleHit(
            launch.line,
            f"srun starts {several} copies of {launch.program}, and nothing in it speaks of more than one process",
            f"{several} equal trainings write the same files; none of them uses a second GPU",
            "DDP in the program, or 1 task and 1 GPU: #SBATCH --ntasks=1, --gres=gpu:1",
            None,
            _single_gpu_edits(facts),
        )


def _single_gpu_edits(facts: CheckFacts) -> tuple[ScriptEdit, ...]:
    """One task on one GPU, with the CPUs and the spelling of the GPU that the header has."""
    options, geometry = facts.job.options, facts.job.geometry
    kind = f"{geometry.gpu_type}:" if geometry.gpu_type else ""
    gone = [name for name in ("ntasks-per-node", "gpus-per-node", "gpus", "gpus-per-task") if name in options]
    return (
        *(option_edit(name, "") for name in gone),
        option_edit("nodes", 1),
        option_edit("ntasks", 1),
        option_edit("gres", f"gpu:{kind}1"),
    )


@rule("G23", "error", "mpirun with more processes than tasks", lower=("hint",))
def mpirun_above_tasks(facts: CheckFacts) -> Iterator[RuleHit]:
    job, geometry = facts.job, facts.job.geometry
    if {"nodes", "ntasks", "ntasks-per-node", "nodes range"} & geometry.uncertain or job.is_het or not job.header:
        return
    given = bool({"ntasks", "ntasks-per-node"} & set(job.options))
    for command in job.commands:
        words = words_from(command.texts, ("mpirun", "mpiexec", "orterun"))
        asked = as_number(_mpirun_processes(words), job.values)
        if asked is None or asked <= geometry.tasks or re.search(r"oversubscribe|hostfile|--host\b|-H\b", command.raw):
            continue
        yield RuleHit(
            command.line,
            f"{words[0]} is to start {asked} processes, and the job has {plural(geometry.tasks, 'task')}",
            "Open MPI refuses: not enough slots available; other MPIs put several ranks on one CPU",
            f"#SBATCH --ntasks={asked}, or srun in the place of {words[0]} -np {asked}",
            None if given else "hint",
            (option_edit("ntasks", asked),) if given and "ntasks-per-node" not in job.options else (),
        )


def words_from(words: Sequence[str], names: tuple[str, ...]) -> list[str]:
    """The words from the first of these programs on; none where it is not among the first few."""
    at = next((index for index, word in enumerate(words[:6]) if base_name(word) in names), None)
    return [] if at is None else list(words[at:])


def _mpirun_processes(words: Sequence[str]) -> str | None:
    at = next((index for index, word in enumerate(words) if word in ("-np", "-n", "-c", "--np", "-N")), None)
    return words[at + 1] if at is not None and words[at] != "-N" and at + 1 < len(words) else None
