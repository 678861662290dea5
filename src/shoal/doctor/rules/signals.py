"""R: signals before the end, requeueing, and what is lost without them."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

from shoal.batch import ShellCommand
from shoal.doctor.edits import background_edits, launcher_edits, srun_edits
from shoal.doctor.finding import CheckFacts, RuleHit, ScriptEdit, rule, step_tasks_per_node, text_rule, uses_lightning
from shoal.doctor.job import JobFacts
from shoal.doctor.script import BatchScript

_SIGNAL = re.compile(r"(?:(?P<flags>[BR]{1,2}):)?(?P<name>[A-Za-z0-9]+)?(?:@(?P<lead>\d+))?")
_USER_SIGNALS = frozenset({"USR1", "USR2", "SIGUSR1", "SIGUSR2", "10", "12"})
_RESUME = re.compile(
    r"resume|ckpt|checkpoint|RESTART_COUNT|last\.pt|latest|restore|auto[_-]?load|--load\b", re.IGNORECASE
)
_TIMESTAMPED_PATH = re.compile(r"\$\(\s*date\b|`date\b|SLURM_RESTART_COUNT")
_FOLDER_NAME = re.compile(
    r"(?:OUT|OUTPUT|SAVE|LOG|RUN|EXP|WORK|CKPT|CHECKPOINT)\w*(?:DIR|FOLDER|PATH|NAME)?\Z", re.IGNORECASE
)
_MIN_WARNING_S = 60
_TRAINING = re.compile(
    r"train|tune|\bfit\b|torchrun|accelerate|deepspeed|-epochs?\b|--max[-_]steps\b|--lr\b", re.IGNORECASE
)


class SignalOption:
    """--signal=[B:]NAME[@SECONDS] of a script."""

    def __init__(self, job: JobFacts) -> None:
        option = job.options.get("signal")
        match = _SIGNAL.fullmatch((option.value or "").strip()) if option else None
        self.given = match is not None
        self.line = option.line if option else 1
        self.value = (option.value or "") if option else ""
        self.to_shell = bool(match and "B" in (match["flags"] or ""))
        self.name = _signal_name((match["name"] or "") if match else "")
        self.lead_s = int(match["lead"]) if match and match["lead"] else None


def _signal_name(word: str) -> str:
    known = {str(one.value): one.name for one in signal.Signals}
    return known.get(word, word).upper().removeprefix("SIG")


def _traps(job: JobFacts) -> list[tuple[ShellCommand, set[str]]]:
    return [
        (command, {_signal_name(word) for word in command.texts[2:]})
        for command in job.commands
        if command.name == "trap" and len(command.words) > 2
    ]


@rule("R01", "error", "a signal that never reaches the program")
def signal_not_delivered(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    for launch in job.work:
        hints = job.hints(launch)
        wanted = {name.removeprefix("SIG") for name in hints.signals} & {"TERM", "USR1", "USR2"} if hints else set()
        if not wanted or launch.srun is not None or "exec" in launch.wrappers or _traps(job):
            continue
        yield RuleHit(
            launch.line,
            f"{launch.program} waits for SIG{' and SIG'.join(sorted(wanted))}, and is started without srun or exec",
            "only the batch shell is signalled: the program is killed without writing a checkpoint",
            f"srun {launch.launcher} ..., or exec {launch.launcher} ... as the last line",
            None,
            srun_edits(facts, launch),
        )


@rule("R02", "error", "a signal that kills torchrun")
def kills_torchrun(facts: CheckFacts) -> Iterator[RuleHit]:
    option = SignalOption(facts.job)
    if not option.given or option.to_shell or option.name not in _USER_SIGNALS:
        return
    for launch in facts.job.work:
        if launch.processes is not None:
            continue  # shoal keeps signals from the launcher, and hands them to its ranks
        if launch.launcher == "torchrun" and launch.srun is not None and not launch.has("signals-to-handle"):
            yield RuleHit(
                launch.line,
                f"SIG{option.name} goes to torchrun, which does not know it and dies",
                "the workers never see the signal, and no checkpoint is written",
                f"torchrun --signals-to-handle=SIGTERM,SIG{option.name} --shutdown-timeout=120 ...   # torch 2.9",
                None,
                launcher_edits(facts, launch, f"--signals-to-handle=SIGTERM,SIG{option.name}"),
            )


@text_rule("R03", "error", "a trap that runs too late", lower=("warning",))
def late_trap(script: BatchScript) -> Iterator[RuleHit]:
    option = SignalOption(script)
    if not option.given or not option.to_shell or any("exec" in launch.wrappers for launch in script.work):
        return  # exec puts the program in the shell's place, and the signal reaches it
    traps = [command for command, names in _traps(script) if option.name in names or not option.name]
    if not traps:
        if not any(one.name == "trap" for one in script.commands) and script.is_shell and script.work:
            yield RuleHit(
                option.line,
                f"--signal={option.value} signals the batch shell, which has no trap for it",
                f"the shell dies of SIG{option.name or 'TERM'} and the job ends before its time",
                "trap 'kill -USR1 $pid' USR1; srun ... & pid=$!; wait $pid",
                "warning",
            )
        return
    work = [launch for launch in script.work if launch.line > traps[0].line] or script.work
    if work and not any(launch.command.background for launch in work):
        yield RuleHit(
            work[-1].line,
            f"the trap of line {traps[0].line} runs only when this command in the foreground has ended",
            "the signal is handled after the job's time is over, and no checkpoint is written",
            "srun ... & pid=$!; wait $pid || wait $pid",
            None,
            background_edits(script, work[-1].command, "pid=$!\nwait $pid || wait $pid") if len(work) == 1 else (),
        )


@text_rule("R04", "warning", "a trap in a shell that gets no signal", lower=("hint",))
def trap_without_signal(script: BatchScript) -> Iterator[RuleHit]:
    option = SignalOption(script)
    if option.to_shell:
        return
    for command, names in _traps(script):
        caught = names & {"USR1", "USR2", "10", "12"}
        if not caught:
            continue
        if option.given:
            edit = ScriptEdit("replace", option.line, f"--signal={option.value}", f"--signal=B:{option.value}")
            yield RuleHit(
                option.line,
                f"--signal={option.value} signals the steps, not the batch shell with the trap of line {command.line}",
                "the trap never runs",
                f"--signal=B:{option.value}",
                None,
                (edit,),
            )
        else:
            yield RuleHit(
                command.line,
                f"there is a trap for {sorted(caught)[0]}, and no --signal that asks Slurm to send it",
                "the trap never runs, unless scancel or the site sends it",
                "#SBATCH --signal=B:USR1@300",
                "hint",
            )
        return


@rule("R05", "warning", "little time between signal and end")
def short_warning_time(facts: CheckFacts) -> Iterator[RuleHit]:
    option = SignalOption(facts.job)
    if option.given and option.lead_s is not None and option.lead_s < _MIN_WARNING_S:
        kill_wait = facts.cluster.kill_wait_s if facts.cluster else None
        then = f"; after the limit {kill_wait} s are left here" if kill_wait else ""
        yield RuleHit(
            option.line,
            f"the signal comes {option.lead_s} s before the end{then}",
            "a step and a checkpoint that take longer are lost",
            f"--signal={option.value.partition('@')[0]}@300",
        )


@text_rule("R06", "warning", "a requeued job overwrites its log")
def log_overwritten(script: BatchScript) -> Iterator[RuleHit]:
    options = script.options
    if script.kind != "batch" or "requeue" not in options:
        return
    mode = (options["open-mode"].value or "") if "open-mode" in options else ""
    if not mode.startswith("a"):
        new = "#SBATCH --open-mode=append"
        yield RuleHit(
            options["requeue"].line,
            "the job may be requeued, and starts its log from the beginning each time",
            "the log of the first time, with the reason of its end, is lost",
            new,
            None,
            (ScriptEdit("header", new=new),),
        )


@rule("R07", "warning", "a requeued job that starts over", lower=("hint",))
def requeue_starts_over(facts: CheckFacts) -> Iterator[RuleHit]:
    script, options = facts.script, facts.job.options
    if script is None or script.kind != "batch" or not script.work or "no-requeue" in options:
        return
    preempted = any(one.preempts for one in facts.partitions)
    if "requeue" not in options and not preempted:
        return
    line = options["requeue"].line if "requeue" in options else script.work[-1].line
    why = (
        "the job asks to be requeued"
        if "requeue" in options
        else "jobs of this partition may be preempted and requeued"
    )
    for export in script.exports:
        if _TIMESTAMPED_PATH.search(export.value) and _FOLDER_NAME.search(export.name):
            yield RuleHit(
                export.line,
                f"{why}, and {export.name} has another value each time",
                "it starts over in a new folder, and does not find its checkpoint",
                f"{export.name}=runs/$SLURM_JOB_ID   # stays the same over requeues",
            )
            return
    reads = any(hints.resumes for hints in script.python.values())
    trains = any(_TRAINING.search(launch.raw) for launch in script.work)
    if trains and not reads and not any(_RESUME.search(line) for line in script.text.lines):
        yield RuleHit(
            line,
            f"{why}, and nothing in the script speaks of a checkpoint",
            "it starts at step 0 each time",
            'train.py --resume "$OUTPUT/last.ckpt"   # or what the program calls it',
            None if "requeue" in options else "hint",
        )


@text_rule("R08", "warning", "two owners of requeueing")
def two_requeue_mechanisms(script: BatchScript) -> Iterator[RuleHit]:
    option = SignalOption(script)
    requeues = next((one for one in script.commands if one.texts[:2] == ["scontrol", "requeue"]), None)
    inside = requeues or next(
        (one for one in script.commands if one.name == "trap" and "scontrol requeue" in one.raw), None
    )
    if inside is None or not option.given:
        return
    for launch in script.work:
        if uses_lightning(script, launch)[0] and launch.srun is not None and not option.to_shell:
            yield RuleHit(
                inside.line,
                "the script requeues the job, and so does Lightning when it gets the signal",
                "the job is requeued twice, or leaves before its checkpoint is written",
                "SLURMEnvironment(auto_requeue=False), or leave scontrol requeue to Lightning",
            )
            return


@rule("R10", "warning", "a rank that leaves alone")
def rank_exits_alone(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    for launch in job.work:
        hints = job.hints(launch)
        if hints is None or hints.leaves_line is None or not hints.inits_group:
            continue
        several = launch.launcher != "python" or (step_tasks_per_node(launch, job) or 1) > 1 or job.geometry.n > 1
        if several:
            yield RuleHit(
                launch.line,
                f"line {hints.leaves_line} of {launch.program} ends its own rank on a signal, at whatever step that is",
                "the others wait for it in a collective operation until the job is killed, and no checkpoint is whole",
                "set a flag in the handler, all-reduce it after each step, and leave together",
            )
            return


@rule("R11", "warning", "replicas that a lost node takes along")
def missing_no_kill(facts: CheckFacts) -> Iterator[RuleHit]:
    job = facts.job
    if job.geometry.n < 2 or "no-kill" in job.options:
        return
    for lighthouse in job.lighthouses[:1]:
        yield RuleHit(
            lighthouse.line,
            "the replicas tolerate the loss of a node, and the job does not",
            "Slurm ends the whole job when one of its nodes fails",
            "#SBATCH --no-kill",
            None,
            (ScriptEdit("header", new="#SBATCH --no-kill"),),
        )


@rule("R12", "warning", "a lighthouse that tolerates nothing, or everything")
def min_replicas(facts: CheckFacts) -> Iterator[RuleHit]:
    for lighthouse in facts.job.lighthouses:
        everybody = lighthouse.needs_all
        if everybody and lighthouse.replicas == 2:
            continue  # the majority of two is both
        if lighthouse.min_replicas == 1 or everybody:
            yield RuleHit(
                lighthouse.line,
                "the lighthouse needs all replicas" if everybody else "the lighthouse is content with one replica",
                "one failure stops all" if everybody else "a replica that was cut off trains alone, from step 0",
                "--min_replicas with a majority: 3 of 4, 2 of 3"
                if lighthouse.replicas != 1
                else "at least two replicas: more nodes, or more GPUs and replicas on each",
            )
