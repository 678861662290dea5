"""Findings, the registry of rules, and `CheckFacts`, which a rule is given. A rule is a pure function over these facts.

Also the questions that several rules ask: how many tasks a launch starts on a node, and whether its program is
Lightning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from shoal.batch import partitions_asked
from shoal.doctor.job import JobFacts
from shoal.doctor.launches import ScriptLaunch, as_number
from shoal.doctor.script import BatchScript

if TYPE_CHECKING:
    from shoal.clusters import ClusterFacts, NodeKind, Partition

Severity = Literal["error", "warning", "hint"]
SEVERITY_ORDER: dict[str, int] = {"error": 0, "warning": 1, "hint": 2}


class ScriptEdit(NamedTuple):
    """A mechanical change. `how`: replace `old` by `new` in a line, drop the line, or put `new` in a place.

    Places: before a line, header (as a directive, behind the last one), body (before the first command), end, or top
    (as first line). option gives the option `old` of the header the value `new`, or removes it where that is empty.
    mkdir makes the directory `new` when the corrected script is written.
    """

    how: Literal["replace", "drop", "before", "header", "body", "end", "top", "option", "mkdir"]
    line: int = 0
    old: str = ""
    new: str = ""


class RuleHit(NamedTuple):
    """What a rule saw: where, one sentence, what will happen, and what to do.

    `severity` is one that the rule names as `lower`, or None for the rule's own.
    """

    line: int
    message: str
    effect: str
    fix: str
    severity: Severity | None = None
    edits: tuple[ScriptEdit, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    severity: Severity
    message: str
    effect: str
    fix: str
    file: str
    line: int
    title: str = ""
    edits: tuple[ScriptEdit, ...] = ()


class FileAccess(Protocol):
    """What a rule may ask about the file system; a path is as written in the script."""

    def folder_exists(self, path: str) -> bool | None:
        """Whether it exists, or None when this machine cannot know."""

    def text(self, path: str) -> str | None:
        """The beginning of a small text file, or None."""


class CheckFacts(NamedTuple):
    """One job, and the cluster where it would run if that is known. `refusal` is the answer of sbatch --test-only.

    `nearest` is a request that this cluster accepts, as sbatch flags, when the script's own is refused. The last three
    are what a person told us about the training.
    """

    job: JobFacts
    files: FileAccess
    cluster: ClusterFacts | None = None
    refusal: str | None = None
    nearest: str | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    workers: int | None = None

    @property
    def partitions(self) -> list[Partition]:
        """The partitions that the job may run in; none without a cluster."""
        return self.cluster.chosen(partitions_asked(self.job.options)) if self.cluster else []

    @property
    def node_kinds(self) -> list[NodeKind]:
        return self.cluster.kinds(partitions_asked(self.job.options)) if self.cluster else []

    @property
    def script(self) -> BatchScript | None:
        """The script that the job was read from; None for a run that shoal has planned."""
        return self.job if isinstance(self.job, BatchScript) else None

    def line(self, number: int) -> str:
        """A line of the script as written; empty where there is none."""
        lines = self.script.text.lines if self.script is not None else ()
        return lines[number - 1] if 0 < number <= len(lines) else ""


class CheckRule(NamedTuple):
    """`lower`: the severities that its findings have where it is less sure, or the harm is smaller."""

    code: str
    severity: Severity
    title: str
    check: Callable[[CheckFacts], Iterable[RuleHit]]
    of_text: bool = False
    lower: tuple[Severity, ...] = ()

    @property
    def severities(self) -> str:
        """All severities that its findings can have, as the documentation writes them."""
        return " or ".join((self.severity, *self.lower))


RULES: dict[str, CheckRule] = {}


def rule(
    code: str, severity: Severity, title: str, *, lower: tuple[Severity, ...] = (), of_text: bool = False
) -> Callable[[Callable[[CheckFacts], Iterator[RuleHit]]], Callable[[CheckFacts], Iterator[RuleHit]]]:
    """Register a rule under its code; two rules cannot share one."""

    def register(check: Callable[[CheckFacts], Iterator[RuleHit]]) -> Callable[[CheckFacts], Iterator[RuleHit]]:
        if code in RULES:
            raise ValueError(f"two rules are called {code}")
        RULES[code] = CheckRule(code, severity, title, check, of_text, lower)
        return check

    return register


def text_rule(
    code: str, severity: Severity, title: str, *, lower: tuple[Severity, ...] = ()
) -> Callable[[Callable[[BatchScript], Iterator[RuleHit]]], Callable[[BatchScript], Iterator[RuleHit]]]:
    """Register a rule on the text of a script, which is not asked where there is none."""

    def register(check: Callable[[BatchScript], Iterator[RuleHit]]) -> Callable[[BatchScript], Iterator[RuleHit]]:
        @rule(code, severity, title, lower=lower, of_text=True)
        def on_text(facts: CheckFacts) -> Iterator[RuleHit]:
            return iter(()) if facts.script is None else check(facts.script)

        return check

    return register


def apply_rules(facts: CheckFacts) -> list[Finding]:
    """All findings on one job, worst first, then by line."""
    found: dict[tuple[str, int, str], Finding] = {}
    for one in (one for one in RULES.values() if facts.script is not None or not one.of_text):
        for hit in one.check(facts):
            finding = Finding(
                code=one.code,
                severity=hit.severity or one.severity,
                message=hit.message,
                effect=hit.effect,
                fix=hit.fix,
                file=facts.job.path,
                line=hit.line,
                title=one.title,
                edits=hit.edits if facts.script is not None else (),
            )
            found.setdefault((finding.code, finding.line, finding.message), finding)
    return sorted(found.values(), key=lambda finding: (SEVERITY_ORDER[finding.severity], finding.line, finding.code))


_SRUN_CALL = re.compile(r"(?:^|[\s;&'\"])srun\s")
_LIGHTNING_NAME = re.compile(r"lightning|\bLightningCLI\b")
#: Arguments that only Lightning's Trainer has: trainer.devices=4, or --strategy ddp beside --devices or --accelerator.
_TRAINER_ARGUMENT = re.compile(r"(?:^|[\s-])\+*trainer\.(?:devices|gpus|num_nodes|strategy|accelerator)\b")
_STRATEGY_ARGUMENT = re.compile(r"(?:^|\s)-*strategy[= ]['\"]?(?:ddp|fsdp|deepspeed|auto)")
_DEVICES_ARGUMENT = re.compile(r"(?:^|\s)-*(?:devices|accelerator|num_nodes|gpus)[= ]")
#: Words in a command that say that the program itself spreads over GPUs.
_SELF_DISTRIBUTING = re.compile(
    r"\b(?:vllm|ray|tensor[_-]parallel|device_map|data[_-]?parallel|spawn|submitit|mp_spawn|multiprocessing[_-]distributed|fsdp|ddp)\b",
    re.I,
)


def calls_srun(words: Sequence[str]) -> bool:
    """A command, or its text behind bash -c, that starts srun."""
    return bool(_SRUN_CALL.search(" ".join(words)))


def header_line(job: JobFacts, *names: str) -> int:
    """The line of the first of these options that the header has."""
    options = job.options
    return next((options[name].line for name in names if name in options), 1)


def has_unread_options(facts: CheckFacts, launch: ScriptLaunch) -> bool:
    """Whether a launcher may have options that the script does not show: in variables before its program, or as PET_...
    of torchrun."""
    names = [export.name for export in facts.job.exports]
    return (
        launch.program.startswith("$") or "PET_" in launch.command.raw or any(one.startswith("PET_") for one in names)
    )


def is_native(launch: ScriptLaunch) -> bool:
    """One process for each task: srun starts Python itself."""
    return launch.srun is not None and launch.launcher == "python"


def step_nodes(launch: ScriptLaunch, job: JobFacts) -> int | None:
    """Nodes of a launch: its srun's own, else the job's; None when only Slurm knows."""
    if launch.srun is not None and "nodes" in launch.srun:
        return as_number(launch.srun["nodes"], job.values)
    return None if "nodes" in job.geometry.uncertain else job.geometry.n


def step_tasks_per_node(launch: ScriptLaunch, job: JobFacts) -> int | None:
    """Tasks on one node of the launch's step; None when it cannot be told."""
    geometry, srun = job.geometry, launch.srun
    if srun is None:
        return 1
    nodes = step_nodes(launch, job)
    if "ntasks-per-node" in srun:
        return as_number(srun["ntasks-per-node"], job.values)
    if "ntasks" in srun:
        tasks = as_number(srun["ntasks"], job.values)
        if tasks is None or nodes is None:
            # srun -n $SLURM_NNODES is one for each node.
            return 1 if "NNODES" in (srun["ntasks"] or "") or "NUM_NODES" in (srun["ntasks"] or "") else None
        return -(-tasks // nodes)
    if {"ntasks", "ntasks-per-node"} & geometry.uncertain:
        return None
    return geometry.tasks_on_node


def uses_lightning(job: JobFacts, launch: ScriptLaunch) -> tuple[bool, bool]:
    """(it is Lightning, and that is certain): from the program's imports, or from the words of its command."""
    hints = job.hints(launch)
    trainer = has_trainer_arguments(launch)
    if hints is not None:
        other = hints.starts_processes or hints.inits_group or hints.trains_alone
        return hints.is_lightning or (trainer and not other), True
    return trainer or bool(_LIGHTNING_NAME.search(" ".join((launch.program, *launch.args)))), trainer


def has_trainer_arguments(launch: ScriptLaunch) -> bool:
    """The command's words set Lightning's Trainer."""
    words = " ".join(launch.args)
    if _TRAINER_ARGUMENT.search(words):
        return True
    return bool(_DEVICES_ARGUMENT.search(words)) and bool(
        _STRATEGY_ARGUMENT.search(words) or re.search(r"(?:^|\s)--accelerator[= ]", words)
    )


def distributes_itself(job: JobFacts, launch: ScriptLaunch) -> bool:
    """The program is known, or looks, to start its own processes on all GPUs it sees."""
    hints = job.hints(launch)
    if hints is not None:
        return hints.starts_processes
    return bool(_SELF_DISTRIBUTING.search(launch.raw)) and not has_trainer_arguments(launch)


def trainer_number(launch: ScriptLaunch, name: str, values: Mapping[str, str]) -> int | None:
    """A Lightning number in the command's words: trainer.devices=4, --trainer.devices $GPUS, --devices=4."""
    words = list(launch.args)
    for index, word in enumerate(words):
        key, equals, value = word.lstrip("+-").partition("=")
        if key in (f"trainer.{name}", f"trainer.params.{name}", name):
            text = value if equals else (words[index + 1] if index + 1 < len(words) and word.startswith("-") else "")
            if (number := as_number(text, values)) is not None:
                return number
    return None
