"""S, G, R: how srun is called, once or several times."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shoal.doctor.finding import CheckFacts, RuleHit, ScriptEdit, rule, text_rule
from shoal.doctor.launches import ScriptLaunch, as_number
from shoal.doctor.rules.common import is_native, step_tasks_per_node
from shoal.doctor.script import BatchScript

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
