"""S, G, R: launchers that do not match the nodes and processes of the header, or do not start there; calls of srun."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shoal.doctor.edits import (
    WAIT_FOR_ALL,
    background_edits,
    launcher_edits,
    option_edit,
    srun_edits,
    task_shell_edits,
    tasks_edits,
    value_edits,
)
from shoal.doctor.finding import (
    CheckFacts,
    RuleHit,
    ScriptEdit,
    calls_srun,
    distributes_itself,
    has_unread_options,
    header_line,
    is_native,
    rule,
    step_nodes,
    step_tasks_per_node,
    text_rule,
    trainer_number,
    uses_lightning,
)
from shoal.doctor.launchers import base_name, read_launcher, unwrap
from shoal.doctor.launches import ScriptLaunch, as_number
from shoal.doctor.script import BatchScript
from shoal.job import TORCH_LAUNCHERS
from shoal.units import plural


@rule("G07", "error", "a launcher for each GPU")
def launcher_per_task(facts: CheckFacts) -> Iterator[RuleHit]:
    for launch in facts.job.work:
        inner = _inner_launcher(launch)
        times = _processes_per_node(facts, launch)[0] or launch.processes or 1
        if inner is not None and times > 1:
            yield RuleHit(
                launch.line,
                f"{launch.launcher} starts {inner} {times} times on each node, and each starts all processes there",
                "copies of the training, NCCL's Duplicate GPU, or agents that wait as spares and then fail",
                f"the program itself as the command, without {inner}; {launch.launcher} starts the processes",
            )
        tasks = step_tasks_per_node(launch, facts.job)
        if launch.srun is None or not launch.is_distributed or tasks is None or tasks < 2:
            continue
        if as_number(launch.option("nproc-per-node"), facts.job.values) == 1:
            continue  # one agent for each GPU is unusual, and right
        yield RuleHit(
            launch.line,
            f"srun starts {launch.launcher} {tasks} times on each node, and each starts all processes of the node",
            "copies of the training, NCCL's Duplicate GPU, or agents that wait as spares and then fail",
            f"--ntasks-per-node=1 for {launch.launcher}; it starts the processes itself",
            None,
            tasks_edits(facts, 1) if not {"ntasks", "ntasks-per-node"} & set(launch.srun) else (),
        )


def _inner_launcher(launch: ScriptLaunch) -> str | None:
    """A launcher that is started as the program of another one; srun inside a step is S06's."""
    words = unwrap((launch.program, *launch.args))[1] if launch.is_distributed else []
    if words and base_name(words[0]) in ("srun", "bash", "sh") and calls_srun(words):
        return "srun" if launch.srun is None else None
    call = read_launcher(words)
    starts_all = call is not None and call.program in TORCH_LAUNCHERS and call.options.get("nproc-per-node") != "1"
    return call.program if call is not None and starts_all else None


@rule("G08", "error", "one visible GPU for code that counts from LOCAL_RANK")
def one_visible_gpu(facts: CheckFacts) -> Iterator[RuleHit]:
    job, options = facts.job, facts.job.options
    for launch in job.work:
        srun = launch.srun or {}
        each = job.geometry.gpus_per_task or as_number(srun.get("gpus-per-task"), job.values)
        tasks = step_tasks_per_node(launch, job)
        bound = (srun.get("gpu-bind") or (options["gpu-bind"].value if "gpu-bind" in options else "")) or ""
        if not is_native(launch) or each != 1 or (tasks or 1) < 2 or bound.startswith("none"):
            continue
        hints = job.hints(launch)
        if hints is None or not (hints.set_device_line or hints.is_jax):
            continue
        where = f"line {hints.set_device_line}" if hints.set_device_line else "JAX"
        yield RuleHit(
            header_line(facts.job, "gpus-per-task"),
            f"--gpus-per-task=1 shows each task one GPU, cuda:0, and {launch.program} ({where}) takes cuda:LOCAL_RANK",
            "invalid device ordinal on all ranks but the first of each node",
            f"--gpus-per-node={tasks}, which shows all GPUs of the node to each task",
            None,
            (option_edit("gpus-per-task", ""), option_edit("gpus-per-node", tasks or 1))
            if "gpus-per-task" in options
            else (),
        )


@rule("G09", "error", "processes per node that are not the GPUs per node", lower=("warning",))
def processes_differ_from_gpus(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    gpus = job.geometry.gpus_per_node
    together = sum(1 for launch in job.launches if launch.command.background)
    for launch in job.work:
        yield from _fewer_by_argument(facts, launch)
        asked, name = _processes_per_node(facts, launch)
        if asked is None or not gpus or asked in (gpus, launch.processes):
            continue  # what shoal laid over the GPUs itself shares all of them
        if (launch.srun or {}).keys() & {"gres", "gpus", "gpus-per-node"}:
            continue
        fewer = asked < gpus
        if fewer and (together or launch.command.within):
            continue
        if not launch.has("nproc-per-node") and launch.launcher == "torchrun":
            if "CUDA_VISIBLE_DEVICES=" in launch.command.raw:
                continue
            yield RuleHit(
                launch.line,
                f"torchrun has no --nproc-per-node, so it starts one process on a node with {plural(gpus, 'GPU')}",
                "the training uses one GPU of each node, and the others stay idle",
                "torchrun --nproc-per-node=$SLURM_GPUS_ON_NODE ..., or ask for one GPU",
                "warning",
                launcher_edits(facts, launch, "--nproc-per-node=$SLURM_GPUS_ON_NODE"),
            )
            continue
        yield RuleHit(
            launch.line,
            f"{name} is {asked}, on a node with {plural(gpus, 'GPU')}",
            f"{gpus - asked} GPUs stand idle" if fewer else "invalid device ordinal on the ranks beyond the GPUs",
            f"{name}={'$SLURM_GPUS_ON_NODE' if launch.launcher == 'torchrun' else gpus}, or ask for {asked} GPUs",
            "warning" if fewer else None,
            value_edits(facts, launch, ("nproc-per-node",), "$SLURM_GPUS_ON_NODE")
            if launch.launcher == "torchrun"
            else value_edits(facts, launch, ("num-gpus", "num-processes"), str(gpus * job.geometry.n))
            if launch.launcher == "accelerate" or job.geometry.n == 1
            else (),
        )


#: Arguments of programs that hold a number of GPUs. Those that some programs take for the index of a GPU name one GPU
#: in either case.
_GPU_COUNT = re.compile(r"(?:trainer\.)?(?:n|num|number_of)?_?(?:gpus?|devices)(?:_per_node)?|nproc_per_node")
_NOT_A_COUNT = frozenset({"gpu", "trainer.gpu"})


def _fewer_by_argument(facts: CheckFacts, launch: ScriptLaunch) -> Iterator[RuleHit]:
    """python train.py --num_gpus 1 on a node with four."""
    job, gpus = facts.job, facts.job.geometry.gpus_per_node or 0
    if launch.launcher != "python" or gpus < 2 or step_tasks_per_node(launch, job) != 1 or launch.processes is not None:
        return
    if len(job.work) > 1 or launch.command.background or launch.command.within or launch.by_mpi:
        return  # others may use the rest
    for index, word in enumerate(launch.args):
        written, equals, value = word.partition("=")
        name = written.lstrip("+-").lower().replace("-", "_")
        if name in _NOT_A_COUNT or not _GPU_COUNT.fullmatch(name):
            continue
        following = launch.args[index + 2 : index + 3]
        if not equals:
            value = launch.args[index + 1] if index + 1 < len(launch.args) else ""
        asked = as_number(value, job.values)
        # A list, such as --gpus 0 1 2 3, names indexes.
        if asked is None or not 0 < asked < gpus or (not equals and following and following[0].isdigit()):
            continue
        yield RuleHit(
            launch.line,
            f"{launch.program} is told {written.lstrip('+-')} {asked}, on a node with {plural(gpus, 'GPU')}",
            f"{plural(gpus - asked, 'GPU')} stand idle",
            f"{gpus} as its value, or ask for {plural(asked, 'GPU')}",
            "warning",
        )
        return


def _processes_per_node(facts: CheckFacts, launch: ScriptLaunch) -> tuple[int | None, str]:
    """(processes on one node, the option that says so)."""
    values, nodes = facts.job.values, step_nodes(launch, facts.job)
    if launch.launcher == "torchrun" and not launch.has("nproc-per-node"):
        is_set = launch.processes is not None or has_unread_options(facts, launch)
        return (None if is_set or (step_tasks_per_node(launch, facts.job) or 1) > 1 else 1), "--nproc-per-node"
    if launch.launcher == "torchrun":
        each, tasks = as_number(launch.option("nproc-per-node"), values), step_tasks_per_node(launch, facts.job)
        if each is None or tasks is None or (each > 1 and tasks > 1):
            return None, ""  # several agents with several processes each are G07's
        return each * tasks, "--nproc-per-node"
    if launch.launcher == "deepspeed" and launch.has("num-gpus"):
        return as_number(launch.option("num-gpus"), values), "--num_gpus"
    if launch.launcher == "accelerate" and launch.has("num-processes"):
        total = as_number(launch.option("num-processes"), values)
        return (None if total is None or not nodes else -(-total // nodes)), "--num_processes"
    return None, ""


@rule("G11", "error", "Lightning's devices or nodes are not Slurm's", lower=("warning",))
def lightning_numbers(facts: CheckFacts) -> Iterator[RuleHit]:
    for launch in facts.job.work:
        is_lightning, certain = uses_lightning(facts.job, launch)
        if not is_lightning or launch.launcher != "python":
            continue
        hints = facts.job.hints(launch)
        devices = trainer_number(launch, "devices", facts.job.values) or (hints.devices if hints else None)
        nodes = trainer_number(launch, "num_nodes", facts.job.values) or (hints.num_nodes if hints else None)
        tasks, have = step_tasks_per_node(launch, facts.job), step_nodes(launch, facts.job)
        if launch.srun is not None and devices and tasks and tasks > 1 and devices != tasks:
            yield RuleHit(
                launch.line,
                f"Lightning has devices={devices}, and srun starts {tasks} tasks per node",
                "ValueError at the start",
                f"--ntasks-per-node={devices} and --gpus-per-node={devices}",
                None if certain else "warning",
                tasks_edits(facts, devices) if devices == facts.job.geometry.gpus_per_node else (),
            )
        if nodes and have and nodes != have and launch.srun is not None:
            yield RuleHit(
                launch.line,
                f"Lightning has num_nodes={nodes}, and the job has {have}",
                "ValueError, or it waits for nodes that never come",
                f"#SBATCH --nodes={nodes}, or num_nodes=int(os.environ['SLURM_NNODES'])",
                None if certain else "warning",
            )


@rule("G13", "error", "several tasks, and no srun that starts them", lower=("warning", "hint"))
def missing_srun(facts: CheckFacts) -> Iterator[RuleHit]:
    job, geometry = facts.job, facts.job.geometry
    if geometry.tasks_on_node < 2 or job.steps or any(one.by_mpi for one in job.launches):
        return
    for launch in job.work:
        if launch.launcher != "python" or launch.command.background:
            continue
        is_lightning, certain = uses_lightning(facts.job, launch)
        if is_lightning:
            yield RuleHit(
                launch.line,
                f"the job has {geometry.tasks} tasks, and python starts one: Lightning waits for the others",
                "it hangs at the start until the time limit",
                "srun python ...",
                None if certain else "warning",
                srun_edits(facts, launch) if certain else (),
            )
        elif not distributes_itself(job, launch) and not any(command.background for command in job.commands):
            yield RuleHit(
                launch.line,
                f"the job has {geometry.tasks} tasks, and python runs once, without srun",
                "one process does all the work; a framework that reads SLURM_NTASKS waits for the others",
                f"srun python ... for {geometry.tasks} processes; --cpus-per-task={geometry.tasks} if CPUs were meant",
                # With one GPU the tasks are another way to ask for CPUs, and all of them are there for the process.
                "hint" if geometry.n == 1 and geometry.gpus_total == 1 else "warning",
            )
            return  # it holds for every other command as well


_TASK_VARIABLE = re.compile(r"(?<!\\)\$\{?(SLURM_(?:NODEID|PROCID|LOCALID))\b")
#: Commands that do not keep a script alive.
_SHORT_COMMANDS = frozenset(
    {"echo", "exit", "date", "printf", "pids+=", "disown", "done", "set", "export", "true", ":", "cd"}
)
_RENDEZVOUS = re.compile(r"--rdzv[_-]backend[ =][\"']?(?:c10d|etcd)")
_NODE_RANK_OPTION = re.compile(r"--(?:node|machine)[_-]rank[ =][\"']?\$")
_NODE_RANK = re.compile(r"--(?:node[_-]rank|machine[_-]rank)[ =](\d+)")


@text_rule("S04", "error", "background work, and no wait", lower=("warning",))
def background_without_wait(script: BatchScript) -> Iterator[RuleHit]:
    started = [launch for launch in script.launches if launch.command.background]
    if not started:
        return
    last = max(launch.line for launch in started)
    if any(command.name == "wait" and command.line >= last for command in script.commands):
        return
    branches = any("if" in one.command.within or "case" in one.command.within for one in started)
    later = [one for one in script.launches if not one.command.background and one.line > last]
    later = [one for one in later if not (branches and one.command.within)]  # the other branch runs in its place
    if later:
        if not any(command.name == "kill" for command in script.commands) and any(
            one.program == launch.program and one.launcher == launch.launcher for one in later for launch in started
        ):
            yield RuleHit(
                later[-1].line,
                "the job ends when this command ends, whether or not those in the background have",
                "the others are killed, and their exit codes are lost",
                "start all of them with &, then wait for each: for pid in $pids; do wait $pid || rc=$?; done",
                "warning",
            )
        return
    behind = [one for one in script.top if one.line > last and one.words and one.name not in _SHORT_COMMANDS]
    if any(one.name in ("tail", "sleep") for one in behind):
        return
    yield RuleHit(
        last,
        "this work is started in the background, and the script ends without waiting for it",
        "Slurm kills it at once, and the job ends as COMPLETED",
        f"{WAIT_FOR_ALL}   # as the last line",
        # Something else runs in the foreground meanwhile, such as a client of a server: then it may be meant so.
        "warning" if behind else None,
        () if behind else (ScriptEdit("end", new=WAIT_FOR_ALL),),
    )


@text_rule("S05", "warning", "parallel steps that run one after another")
def serial_steps(script: BatchScript) -> Iterator[RuleHit]:
    parallel = [step for step in script.steps if step.command.background and not step.is_utility]
    many = len(parallel) > 1 or any("loop" in step.command.within for step in parallel)
    if not many:
        return
    for step in parallel[:1]:
        names = set(step.options)
        if {"nodelist", "relative"} & names:
            continue  # each step has nodes of its own
        apart = {"exact", "exclusive", "overlap"} & names
        gpus = {"gres", "gpus", "gpus-per-node", "gpus-per-task", "tres-per-task"} & names
        if not apart:
            yield RuleHit(
                step.line,
                "these steps share the job, and none says which part of it it takes",
                "each takes everything, so they run one after another",
                "srun --exact -n1 -c4 --gres=gpu:1 --mem=16G ... &",
            )
        elif script.geometry.wants_gpus and not gpus and "overlap" not in names:
            yield RuleHit(
                step.line,
                "these steps do not say how many GPUs each takes",
                "each takes all GPUs, so they run one after another",
                "srun --exact -n1 --gres=gpu:1 --mem=16G ... &",
            )


@text_rule("S14", "error", "a variable of the tasks, expanded before there are tasks", lower=("warning",))
def task_variable_in_batch_shell(script: BatchScript) -> Iterator[RuleHit]:
    nodes, tasks = script.geometry.n, script.geometry.tasks
    for step in script.steps:
        if step.is_utility:
            continue
        for word in step.command.words:
            match = (
                None
                if word.raw.startswith("'")
                else _TASK_VARIABLE.search(re.sub(r"'[^']*'", "", word.raw) if '"' not in word.raw else word.raw)
            )
            if match is not None:
                if (nodes if match[1] == "SLURM_NODEID" else tasks) < 2 and not script.geometry.uncertain:
                    break  # there is one, and its number is 0
                is_rank = re.search(r"rank", word.raw, re.IGNORECASE) or _NODE_RANK_OPTION.search(step.command.raw)
                if _RENDEZVOUS.search(step.command.raw):
                    break  # the rendezvous gives out ranks, and torchrun does not read --node-rank
                yield RuleHit(
                    step.line,
                    f"the batch shell replaces ${match[1]} before srun starts anything",
                    "it is 0 (or empty) in every task: all nodes think that they are the first, and hang",
                    f"srun bash -c '... ${match[1]} ...', in single quotes",
                    None if is_rank and not script.geometry.uncertain else "warning",
                    task_shell_edits(script, step),
                )
                break
    if not script.steps:
        return
    for export in script.exports:
        match = _TASK_VARIABLE.search(export.raw)
        ranks = export.name in ("RANK", "LOCAL_RANK", "NODE_RANK", "MACHINE_RANK", "GROUP_RANK", "GLOBAL_RANK")
        if nodes * tasks < 2 and not script.geometry.uncertain:
            return
        if match is not None and ranks and not export.command.nested and export.command.name == "export":
            yield RuleHit(
                export.line,
                f"{export.name} gets the batch shell's ${match[1]}, and every task of srun inherits that value",
                "all tasks have the same rank, and hang",
                f"srun bash -c 'export {export.name}=${match[1]}; exec python ...', in single quotes",
            )


@text_rule("S15", "error", "node ranks that are started one after another")
def ranks_in_sequence(script: BatchScript) -> Iterator[RuleHit]:
    yield from _ranks_in_loop(script)
    ranked = [(launch, _NODE_RANK.search(launch.raw)) for launch in script.launches if not launch.command.background]
    ranks = [(launch, match[1]) for launch, match in ranked if match is not None]
    first = next((index for index, (_, rank) in enumerate(ranks) if rank == "0"), None)
    if first is None or all(rank == "0" for _, rank in ranks[first:]):
        return
    edits = [background_edits(script, launch.command) for launch, _ in ranks]
    yield RuleHit(
        ranks[first][0].line,
        "node rank 0 is started in the foreground, and the next one only when it has ended",
        "rank 0 waits for the others for ever",
        "& behind each of these commands, and wait as the last line; or one srun that starts all nodes",
        None,
        (*(edit for one in edits for edit in one), ScriptEdit("end", new=WAIT_FOR_ALL)) if all(edits) else (),
    )


def _ranks_in_loop(script: BatchScript) -> Iterator[RuleHit]:
    """A loop over nodes that waits for each: for rank in 0 1; do srun -w ... --node_rank=$rank ...; done."""
    for launch in script.launches:
        rank = launch.option("node-rank", "machine-rank") or ""
        if "loop" not in launch.command.within or launch.command.background or launch.command.nested:
            continue
        if rank.startswith("$") and "SLURM_" not in rank and launch.option("nnodes", "num-machines") != "1":
            edits = background_edits(script, launch.command)
            yield RuleHit(
                launch.line,
                f"the loop starts the next node rank ({rank}) only when this one has ended",
                "rank 0 waits for the others for ever",
                "& behind this command, and wait behind the loop; or one srun that starts all nodes",
                None,
                (*edits, ScriptEdit("end", new=WAIT_FOR_ALL)) if edits else (),
            )


@rule("G16", "warning", "srun without the job's CPUs per task", lower=("hint",))
def cpus_not_passed(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    cpus = job.geometry.cpus_per_task or 1
    if cpus < 2 or any(export.name == "SRUN_CPUS_PER_TASK" for export in job.exports):
        return
    if facts.cluster is not None and facts.cluster.version and not ((22, 5) <= facts.cluster.version < (24, 5)):
        return
    for launch in job.work:
        if launch.srun is None or {"cpus-per-task", "cpus-per-gpu", "overlap", "exclusive"} & set(launch.srun):
            continue
        line = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
        yield RuleHit(
            launch.line,
            f"srun does not take over --cpus-per-task={cpus} from the header since Slurm 22.05",
            "each task is bound to one CPU, and data loading is slow",
            f"{line}   # before srun, or srun -c $SLURM_CPUS_PER_TASK",
            None if facts.cluster is not None else "hint",
            (ScriptEdit("body", new=line),),
        )
        return


@rule("R09", "hint", "one dead rank, and the others wait")
def missing_kill_on_bad_exit(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    if any(export.name == "SLURM_KILL_BAD_EXIT" for export in job.exports):
        return
    for launch in job.work:
        tasks = step_tasks_per_node(launch, job)
        many = (tasks or 1) > 1 or job.geometry.n > 1
        one_step = as_number((launch.srun or {}).get("ntasks"), job.values) == 1
        if not many or one_step or launch.srun is None or not (is_native(launch) or launch.is_distributed):
            continue
        if {"kill-on-bad-exit", "wait"} & set(launch.srun):
            continue
        at = _line_with_srun(facts, launch)
        yield RuleHit(
            launch.line,
            "srun keeps running when one of its tasks fails",
            "the other ranks wait in a collective, and their GPUs stand idle until the time limit",
            "srun --kill-on-bad-exit=1 ...",
            None,
            (ScriptEdit("replace", at, "srun ", "srun --kill-on-bad-exit=1 "),) if at else (),
        )


def _line_with_srun(facts: CheckFacts, launch: ScriptLaunch) -> int:
    numbers = range(launch.command.line, launch.command.last_line + 1)
    return next((number for number in numbers if "srun " in facts.line(number)), 0)
