"""D: values in the header that Slurm reads differently than people mean."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shoal.doctor.edits import option_edit
from shoal.doctor.finding import CheckFacts, RuleHit, ScriptEdit, rule
from shoal.units import format_duration, plural

_BARE_NUMBER = re.compile(r"\d+", re.ASCII)
_MINUTES_SECONDS = re.compile(r"\d{1,3}:\d{1,2}", re.ASCII)
_MIN_MEMORY_MB = 2048
_GPU_PROCESS_MB = 1024
_PYTHON_MEMORY_MB = 128
#: Numbers that people write for hours; 5, 10, 15, 30, 45, 60 and 90 are minutes to them as well.
_HOURS_MEANT = frozenset({1, 2, 3, 4, 6, 7, 8, 9, 12, 14, 16, 18, 23, 24, 36, 47, 48, 71, 72, 96, 120, 168})
_SHORT_PARTITION = re.compile(r"test|debug|dev|short|quick|interactive", re.IGNORECASE)
#: Slurm takes brackets around the indexes (tried on 22.05).
_ARRAY_SPEC = re.compile(r"\[?\d+(?:-\d+(?::\d+)?)?(?:,\d+(?:-\d+(?::\d+)?)?)*\]?(?:%\d+)?")


@rule("D10", "warning", "a time that Slurm reads in minutes")
def time_in_minutes(facts: CheckFacts) -> Iterator[RuleHit]:
    option = facts.job.options.get("time")
    value = (option.value or "").strip() if option else ""
    seconds = facts.job.geometry.time_s
    if option is None or seconds is None:
        return
    partition = (facts.job.options["partition"].value or "") if "partition" in facts.job.options else ""
    if _SHORT_PARTITION.search(partition):
        return
    is_plain = _BARE_NUMBER.fullmatch(value) is not None
    if (is_plain or _MINUTES_SECONDS.fullmatch(value)) and int(value.split(":")[0]) in _HOURS_MEANT:
        hours = int(value.split(":")[0])
        meant = (
            f"{hours // 24}-{hours % 24:02}:00:00"
            if hours >= 24
            else f"{hours:02}:{value.partition(':')[2] or '00':0>2}:00"
        )
        yield RuleHit(
            option.line,
            f"--time={value} is {format_duration(seconds)} for Slurm, which reads minutes (and minutes:seconds)",
            f"the job is killed after {format_duration(seconds)}",
            f"--time={meant} if hours were meant, --time={_clock(seconds)} if not",
        )


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds % 3600 // 60:02}:{seconds % 60:02}"


@rule("D14", "error", "memory in megabytes by accident", lower=("warning",))
def memory_in_megabytes(facts: CheckFacts) -> Iterator[RuleHit]:
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        option = facts.job.options.get(name)
        value = (option.value or "").strip() if option else ""
        if option is not None and _BARE_NUMBER.fullmatch(value) and 0 < int(value) < _MIN_MEMORY_MB:
            if name == "mem-per-cpu" and int(value) >= 500:
                continue
            yield RuleHit(
                option.line,
                f"--{name}={value} is {value} MB: without a unit Slurm counts megabytes",
                "the job is killed for memory as soon as Python starts"
                if int(value) < 512
                else "the job may run out of memory",
                f"--{name}={value}G",
                None
                if name == "mem" and int(value) <= _PYTHON_MEMORY_MB and facts.job.geometry.wants_gpus
                else "warning",
                (option_edit(name, f"{value}G"),) if int(value) <= 1024 else (),
            )
            return
    yield from _little_memory(facts)


def _little_memory(facts: CheckFacts) -> Iterator[RuleHit]:
    """Also with a unit: --mem-per-cpu=100M for 8 CPUs is less than CUDA needs to begin."""
    geometry = facts.job.geometry
    memory, option = geometry.memory_per_node_mb, facts.job.options.get("mem") or facts.job.options.get("mem-per-cpu")
    if memory is None or option is None or not geometry.wants_gpus or not facts.job.work:
        return
    tasks = max(1, geometry.tasks_on_node if any(one.srun is not None for one in facts.job.work) else 1)
    if memory // tasks < _GPU_PROCESS_MB:
        yield RuleHit(
            option.line,
            f"--{option.name}={option.value} makes {memory // tasks} MB for each process",
            "a program that uses a GPU needs more than 1 GB before its first step: the job is killed for memory",
            "--mem=32G",
            "warning",
        )


@rule("D15", "error", "two ways of asking for memory")
def conflicting_memory_options(facts: CheckFacts) -> Iterator[RuleHit]:
    found = [facts.job.options[name] for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in facts.job.options]
    if len(found) > 1:
        names = " and ".join(f"--{option.name}" for option in found)
        yield RuleHit(
            max(option.line for option in found),
            f"{names} are both given",
            "sbatch refuses the script: they are mutually exclusive",
            f"keep one of them, such as --mem={facts.job.options['mem'].value}"
            if "mem" in facts.job.options
            else "keep one",
            None,
            tuple(option_edit(option.name, "") for option in found if option.name != "mem")
            if "mem" in facts.job.options
            else (),
        )


@rule("D17", "warning", "whole nodes by --mem=0 or --exclusive", lower=("hint",))
def whole_node_request(facts: CheckFacts) -> Iterator[RuleHit]:
    options, geometry = facts.job.options, facts.job.geometry
    all_memory = "mem" in options and (options["mem"].value or "").strip() in ("0", "0G", "0M")
    few = geometry.gpus_per_node is not None and geometry.gpus_per_node < 4
    max_gpus = max((kind.gpus for kind in facts.node_kinds), default=None)
    if max_gpus and geometry.gpus_per_node is not None:
        few = geometry.gpus_per_node < max_gpus
    if all_memory and few and "exclusive" not in options:
        yield RuleHit(
            options["mem"].line,
            f"--mem=0 takes all memory of a node for {plural(geometry.gpus_per_node or 0, 'GPU')}",
            "no other job fits on the node, so the job waits for an empty one",
            "--mem=64G, or what the program needs",
        )
    if "exclusive" in options and few and (options["exclusive"].value or "") in ("", "exclusive"):
        yield RuleHit(
            options["exclusive"].line,
            f"--exclusive takes whole nodes, and {geometry.gpus_per_node} of their GPUs are asked for",
            "the job waits for an empty node; the other GPUs stand idle, and memory is still the default",
            "leave --exclusive out, or ask for all GPUs and --mem=0",
            None if max_gpus else "hint",  # its nodes may have no more GPUs than that
        )


@rule("D18", "warning", "no time limit", lower=("hint",))
def missing_time_limit(facts: CheckFacts) -> Iterator[RuleHit]:
    script = facts.script
    if script is None or script.kind != "batch" or not script.header or "time" in script.options:
        return
    default = next((one.default_time_s for one in facts.partitions if one.default_time_s), None)
    yield RuleHit(
        script.directives.lines[-1],
        "no --time",
        f"the partition's default holds: {format_duration(default)} here"
        if default
        else "the partition's default holds, which may be minutes, or days that keep the job from fitting into gaps",
        "#SBATCH --time=1-00:00:00",
        None if default else "hint",
    )


@rule("D33", "error", "an array that sbatch cannot read")
def invalid_array(facts: CheckFacts) -> Iterator[RuleHit]:
    option = {one.name: one for one in facts.job.header}.get("array")
    value = (option.value or "").strip() if option else ""
    if option is None or not option.is_literal or _ARRAY_SPEC.fullmatch(value):
        return
    letter = re.search(r"[A-Za-z]+", value)
    meant = re.sub(r"[\u2010-\u2015\u2212]|\.\.+", "-", value).strip("[](),")
    is_clear = bool(_ARRAY_SPEC.fullmatch(meant))
    yield RuleHit(
        option.line,
        f"--array={value} has {letter[0]!r} where a number must stand" if letter else f"invalid --array={value}",
        "sbatch refuses the script: invalid job array specification",
        f"#SBATCH --array={meant}" if is_clear else f"sbatch --array=0-9 {facts.job.path}   # 9: the last task",
        None,
        (option_edit("array", meant),) if is_clear else (),
    )


@rule("D16", "warning", "no memory asked for", lower=("hint",))
def missing_memory(facts: CheckFacts) -> Iterator[RuleHit]:
    script, options = facts.script, facts.job.options
    if script is None or script.kind != "batch" or not script.geometry.wants_gpus:
        return
    if {"mem", "mem-per-cpu", "mem-per-gpu", "exclusive"} & set(options):
        return
    line = script.directives.lines[-1] if script.directives.lines else 1
    if facts.cluster is None:
        yield RuleHit(
            line,
            "no --mem",
            "the cluster's default holds, often a few GB for each CPU",
            "#SBATCH --mem=64G",
            "hint",
        )
        return
    each = next((one.def_mem_per_cpu_mb for one in facts.partitions if one.def_mem_per_cpu_mb), None)
    if each:
        cpus = script.geometry.cpus_per_node or 1
        yield RuleHit(
            line,
            f"no --mem, and this cluster gives {each} MB for each CPU: {each * cpus} MB per node",
            "the job is killed when it needs more" if each * cpus < 16000 else "that may or may not be enough",
            "#SBATCH --mem=64G",
            None if each * cpus < 16000 else "hint",
        )


@rule("D19", "warning", "array tasks that share a log")
def shared_log(facts: CheckFacts) -> Iterator[RuleHit]:
    options = facts.job.options
    if "array" not in options:
        return
    for name in ("output", "error"):
        option = options.get(name)
        value = option.value or "" if option else ""
        if option is None or not value or value == "/dev/null" or not option.is_literal:
            continue
        if not re.search(r"%\d*[ajJbu]|%\d*A.*%\d*a", value):
            root, dot, end = value.rpartition(".")
            better = (
                f"{root or value}_%A_%a{dot + end if root else ''}"
                if "%A" not in value
                else value.replace("%A", "%A_%a")
            )
            yield RuleHit(
                option.line,
                f"every task of the array writes to {value}",
                "the tasks overwrite each other's log",
                f"--{name}={better}",
                None,
                (ScriptEdit("replace", option.line, value, better),),
            )


@rule("D20", "hint", "an array without a throttle")
def array_without_throttle(facts: CheckFacts) -> Iterator[RuleHit]:
    option, size = facts.job.options.get("array"), facts.job.geometry.array_size
    if option is not None and size is not None and size > 20 and "%" not in (option.value or ""):
        yield RuleHit(
            option.line,
            f"{size} array tasks may start at once",
            "they use up the fair share and the limits of the whole account",
            f"--array={option.value}%8",
        )


@rule("D22", "warning", "a dependency that may never come true", lower=("hint",))
def fragile_dependency(facts: CheckFacts) -> Iterator[RuleHit]:
    options = facts.job.options
    if facts.cluster is not None and facts.cluster.kills_invalid_dependencies:
        return
    option = options.get("dependency")
    if option is not None and "afterok" in (option.value or "") and "kill-on-invalid-dep" not in options:
        yield RuleHit(
            option.line,
            "the job waits with afterok for a job that may fail",
            "if it does, this one stays in the queue for ever (DependencyNeverSatisfied)",
            "#SBATCH --kill-on-invalid-dep=yes",
            None,
            (ScriptEdit("header", new="#SBATCH --kill-on-invalid-dep=yes"),),
        )
    for command in facts.job.commands:
        text = " ".join(command.texts)
        if command.name == "sbatch" and "afterok" in text and "kill-on-invalid-dep" not in text:
            yield RuleHit(
                command.line,
                "this sbatch waits with afterok for a job that may fail",
                "if it does, the new job stays in the queue for ever (DependencyNeverSatisfied)",
                "sbatch --kill-on-invalid-dep=yes ...",
                "hint",
            )


@rule("G20", "warning", "replicas that do not divide the GPUs")
def uneven_replicas(facts: CheckFacts) -> Iterator[RuleHit]:
    total = facts.job.geometry.gpus_total
    if not total:
        return
    for export in facts.job.exports:
        if export.name in ("NUM_REPLICA_GROUPS", "NUM_REPLICAS", "GROUP_SIZE") and export.value.isdigit():
            number = int(export.value)
            if number > 0 and total % number:
                yield RuleHit(
                    export.line,
                    f"{number} replicas cannot share {total} GPUs evenly",
                    "some replicas get fewer GPUs, or GPUs stand idle",
                    f"a number that divides {total}",
                )
