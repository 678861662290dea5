"""S, G, R: launchers that do not match the nodes and processes of the header, or do not start there; calls of srun."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shoal.doctor.finding import (
    CheckFacts,
    RuleHit,
    ScriptEdit,
    calls_srun,
    distributes_itself,
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
        )


@rule("G09", "error", "processes per node that are not the GPUs per node")
def processes_differ_from_gpus(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    gpus = job.geometry.gpus_per_node
    together = sum(1 for launch in job.launches if launch.command.background)
    for launch in job.work:
        asked, name = _processes_per_node(facts, launch)
        if asked is None or not gpus or asked in (gpus, launch.processes):
            continue  # what shoal laid over the GPUs itself shares all of them
        if (launch.srun or {}).keys() & {"gres", "gpus", "gpus-per-node"}:
            continue
        fewer = asked < gpus
        if fewer and (together or launch.command.within):
            continue
        yield RuleHit(
            launch.line,
            f"{name} is {asked}, on a node with {plural(gpus, 'GPU')}",
            f"{gpus - asked} GPUs stand idle" if fewer else "invalid device ordinal on the ranks beyond the GPUs",
            f"{name}={'$SLURM_GPUS_ON_NODE' if launch.launcher == 'torchrun' else gpus}, or ask for {asked} GPUs",
            "warning" if fewer else None,
        )


def _processes_per_node(facts: CheckFacts, launch: ScriptLaunch) -> tuple[int | None, str]:
    """(processes on one node, the option that says so)."""
    values, nodes = facts.job.values, step_nodes(launch, facts.job)
    if launch.launcher == "torchrun" and launch.has("nproc-per-node"):
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


@rule("G10", "error", "a launcher for another number of nodes")
def launcher_node_count(facts: CheckFacts) -> Iterator[RuleHit]:
    for launch in facts.job.work:
        option = {"torchrun": "nnodes", "accelerate": "num-machines", "deepspeed": "num-nodes"}.get(launch.launcher, "")
        asked = as_number(launch.option(option), facts.job.values) if option else None
        # A launch that names its own rank is one of several, each on its node.
        one_of_many = launch.has("node-rank", "machine-rank")
        nodes = facts.job.geometry.n if one_of_many else step_nodes(launch, facts.job)
        if asked is None or nodes is None or asked == nodes or "nodes range" in facts.job.geometry.uncertain:
            continue
        if launch.command.background or launch.command.within:
            continue
        given = facts.job.geometry.nodes_given or (launch.srun is not None and "nodes" in launch.srun)
        if not given and not facts.job.header:
            continue
        value = launch.option(option) or ""
        literal = value.isdigit()
        written = next(
            (
                f"{flag}{between}{value}"
                for flag in (f"--{option}", f"--{option.replace('-', '_')}")
                for between in ("=", " ")
                if f"{flag}{between}{value}" in "\n".join(_launch_lines_of(facts, launch))
            ),
            "",
        )
        edits: tuple[ScriptEdit, ...] = ()
        if literal and written and launch.launcher == "torchrun" and asked > nodes:
            at = next(number for number, line in _node_count_option(facts, launch) if written in line)
            edits = (ScriptEdit("replace", at, written, written.replace(value, "$SLURM_NNODES")),)
        yield RuleHit(
            launch.line,
            f"{launch.launcher} expects {plural(asked, 'node')}, and the job has {nodes}",
            "it waits for nodes that never come" if asked > nodes else "some nodes train alone, or not at all",
            f"--{option}=$SLURM_NNODES",
            # Without --nodes in the header it may come from the command line.
            None if given else "warning",
            edits,
        )


def _node_count_option(facts: CheckFacts, launch: ScriptLaunch) -> list[tuple[int, str]]:
    first, last = launch.command.line, launch.command.last_line
    return [(number, facts.line(number)) for number in range(first, last + 1)]


def _launch_lines_of(facts: CheckFacts, launch: ScriptLaunch) -> list[str]:
    return [line for _, line in _node_count_option(facts, launch)]


@rule("G11", "error", "Lightning's devices or nodes are not Slurm's")
def lightning_numbers(facts: CheckFacts) -> Iterator[RuleHit]:
    for launch in facts.job.work:
        is_lightning, certain = uses_lightning(facts.job, launch)
        if not is_lightning or launch.launcher != "python":
            continue
        hints = facts.job.hints(launch)
        devices = trainer_number(launch, "devices") or (hints.devices if hints else None)
        nodes = trainer_number(launch, "num_nodes") or (hints.num_nodes if hints else None)
        tasks, have = step_tasks_per_node(launch, facts.job), step_nodes(launch, facts.job)
        if launch.srun is not None and devices and tasks and tasks > 1 and devices != tasks:
            yield RuleHit(
                launch.line,
                f"Lightning is told devices={devices}, and srun starts {tasks} tasks per node",
                "ValueError at the start",
                f"--ntasks-per-node={devices} and --gpus-per-node={devices}",
                None if certain else "warning",
            )
        if nodes and have and nodes != have and launch.srun is not None:
            yield RuleHit(
                launch.line,
                f"Lightning is told num_nodes={nodes}, and the job has {have}",
                "ValueError, or it waits for nodes that never come",
                f"#SBATCH --nodes={nodes}, or num_nodes=int(os.environ['SLURM_NNODES'])",
                None if certain else "warning",
            )


@rule("G12", "error", "several nodes, and a launch on the first only")
def first_node_only(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    if job.geometry.n < 2 or any(one.srun is not None or "mpirun" in one.wrappers for one in job.launches):
        return
    if any(not step.is_utility for step in job.steps) or any(
        one.name in ("ssh", "pdsh", "mpirun") for one in job.commands
    ):
        return
    for launch in job.work:
        if launch.launcher == "deepspeed" and launch.has("hostfile", "launcher"):
            continue
        known = launch.is_distributed or uses_lightning(facts.job, launch) == (True, True)
        if launch.launcher == "python" and distributes_itself(facts.job, launch) and not known:
            continue
        yield RuleHit(
            launch.line,
            f"{launch.launcher} runs on the first of {job.geometry.n} nodes only: nothing starts it on the others",
            "it waits for the other nodes until its rendezvous times out, or trains on one node"
            if known
            else "the other nodes stand idle",
            f"srun --ntasks-per-node=1 {launch.launcher} ..." if known else "srun python ..., or #SBATCH --nodes=1",
            None if known else "warning",
        )


@rule("G13", "error", "several tasks, and no srun that starts them")
def missing_srun(facts: CheckFacts) -> Iterator[RuleHit]:
    job, geometry = facts.job, facts.job.geometry
    if geometry.tasks_on_node < 2 or job.steps or any("mpirun" in one.wrappers for one in job.launches):
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
            )
        else:
            yield RuleHit(
                launch.line,
                f"the job has {geometry.tasks} tasks, and python runs once, without srun",
                "one process does all the work; a framework that reads SLURM_NTASKS waits for the others",
                f"srun python ... for {geometry.tasks} processes; --cpus-per-task={geometry.tasks} if CPUs were meant",
                "warning",
            )


_TASK_VARIABLE = re.compile(r"(?<!\\)\$\{?(SLURM_(?:NODEID|PROCID|LOCALID))\b")
#: Commands that do not keep a script alive.
_SHORT_COMMANDS = frozenset(
    {"echo", "exit", "date", "printf", "pids+=", "disown", "done", "set", "export", "true", ":", "cd"}
)
_NODE_RANK = re.compile(r"--(?:node[_-]rank|machine[_-]rank)[ =](\d+)")


@text_rule("S04", "error", "background work, and no wait")
def background_without_wait(script: BatchScript) -> Iterator[RuleHit]:
    started = [launch for launch in script.launches if launch.command.background]
    if not started:
        return
    last = max(launch.line for launch in started)
    if any(command.name == "wait" and command.line >= last for command in script.commands):
        return
    later = [one for one in script.launches if not one.command.background and one.line > last]
    if later:
        if any(
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
        "wait   # as the last line",
        # Something else runs in the foreground meanwhile, such as a client of a server: then it may be meant so.
        "warning" if behind else None,
        () if behind else (ScriptEdit("end", new="wait"),),
    )


@text_rule("S05", "warning", "parallel steps that run one after another")
def serial_steps(script: BatchScript) -> Iterator[RuleHit]:
    parallel = [step for step in script.steps if step.command.background and not step.is_utility]
    many = len(parallel) > 1 or any("loop" in step.command.within for step in parallel)
    if not many:
        return
    for step in parallel[:1]:
        names = set(step.options)
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


@text_rule("S14", "warning", "a variable of the tasks, expanded before there are tasks")
def task_variable_in_batch_shell(script: BatchScript) -> Iterator[RuleHit]:
    for step in script.steps:
        for word in step.command.words:
            match = (
                None
                if word.raw.startswith("'")
                else _TASK_VARIABLE.search(re.sub(r"'[^']*'", "", word.raw) if '"' not in word.raw else word.raw)
            )
            if match is not None:
                yield RuleHit(
                    step.line,
                    f"the batch shell replaces ${match[1]} before srun starts anything",
                    "it is 0 (or empty) in every task: all nodes think that they are the first, and hang",
                    f"srun bash -c '... ${match[1]} ...', in single quotes",
                )
                break
    if not script.steps:
        return
    for export in script.exports:
        match = _TASK_VARIABLE.search(export.raw)
        ranks = export.name in ("RANK", "LOCAL_RANK", "NODE_RANK", "MACHINE_RANK", "GROUP_RANK", "GLOBAL_RANK")
        if match is not None and ranks and not export.command.nested and export.command.name == "export":
            yield RuleHit(
                export.line,
                f"{export.name} gets the batch shell's ${match[1]}, and every task of srun inherits that value",
                "all tasks have the same rank, and hang",
                f"srun bash -c 'export {export.name}=${match[1]}; exec python ...', in single quotes",
            )


@text_rule("S15", "warning", "node ranks that are started one after another")
def ranks_in_sequence(script: BatchScript) -> Iterator[RuleHit]:
    seen: ScriptLaunch | None = None
    for launch in script.launches:
        match = _NODE_RANK.search(launch.raw)
        if match is None or launch.command.background:
            continue
        if seen is not None and match[1] != "0":
            yield RuleHit(
                seen.line,
                "node rank 0 is started in the foreground, and the next one only when it has ended",
                "rank 0 waits for the others for ever",
                "one srun that starts all nodes, or & behind each and wait",
            )
            return
        seen = launch if match[1] == "0" else seen


@rule("G16", "warning", "srun without the job's CPUs per task")
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
            None,
            (ScriptEdit("body", new=line),),
        )
        return


@rule("R09", "warning", "one dead rank, and the others wait")
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
            "srun goes on when one of its tasks dies",
            "the other ranks wait in a collective, and their GPUs stand idle until the time limit",
            "srun --kill-on-bad-exit=1 ...",
            None,
            (ScriptEdit("replace", at, "srun ", "srun --kill-on-bad-exit=1 "),) if at else (),
        )


def _line_with_srun(facts: CheckFacts, launch: ScriptLaunch) -> int:
    numbers = range(launch.command.line, launch.command.last_line + 1)
    return next((number for number in numbers if "srun " in facts.line(number)), 0)
