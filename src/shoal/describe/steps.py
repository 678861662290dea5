"""Steps: the kinds of work of a project, each declared once in shoal.toml and callable by its name in a script."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from shoal.describe import tables
from shoal.describe.launches import Container, Launch, LaunchMode
from shoal.describe.tables import BadValue, Count, CountOrZero, SettingsTable, Strings, Text, convert, read_by, rule
from shoal.errors import InputError
from shoal.job import placeholder_names
from shoal.model import ContainerSettings, LaunchSettings, Request
from shoal.names import MAX_COMPONENT, make_slug

#: How a swept parameter that the command does not mention is passed on.
DEFAULT_PARAMS = "--{name}={value}"
#: Of max_follow_ups, once a step sets warn_before or continue_exit_code.
DEFAULT_MAX_FOLLOW_UPS = 20
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_FACTOR = re.compile(r"x(\d+(?:\.\d+)?)", re.ASCII)
_CHECKPOINT = 'checkpoint = "model_*.pth"'

#: `compgen -k` and `compgen -b` of bash 5: a function of such a name would break every script that is sourced after it.
_BASH = """
if then else elif fi case esac for select while until do done in function time coproc
alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo enable eval
exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf pushd pwd read
readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit umask unalias unset
wait
"""
#: Functions that shoal itself defines, and programs that the functions and the scripts around them call.
_OURS = """
resume shoal sbatch srun salloc scancel squeue scontrol sinfo sacct python python3 torchrun bash sh env mkdir rm cp mv
ln ls cat date git module conda
"""
_BASH_WORDS, _OUR_WORDS = frozenset(_BASH.split()), frozenset(_OURS.split())


def check_step_name(name: str, *, place: str | None = None) -> None:
    """Refuse a name that bash cannot use for a function, or already uses for something else."""
    if not _NAME.fullmatch(name) or len(name) > MAX_COMPONENT:
        plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_0123456789") or "train"
        raise InputError(
            f"{name!r} cannot be a step, because steps are called as bash functions",
            hint=f"letters, digits and _, such as [steps.{plain}]",
            place=place,
        )
    if name in _BASH_WORDS or name in _OUR_WORDS or name.startswith("shoal_"):
        owner = "bash" if name in _BASH_WORDS else "shoal or a program it calls"
        raise InputError(
            f"a step cannot be called {name!r}: the word belongs to {owner}",
            hint=f"another name, such as [steps.run_{name}]",
            place=place,
        )


def _is_folder_name(name: str) -> bool:
    return make_slug(name) == name and len(name) <= MAX_COMPONENT


def _check_checkpoint(pattern: str) -> bool:
    if unfilled := placeholder_names([pattern]) or re.findall(r"\$\{?SHOAL_\w+", pattern):
        why = f"{unfilled[0]!r} is not filled in: it is a pattern in the run's output folder"
        raise BadValue(why, hint=_CHECKPOINT)
    if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
        raise BadValue(f"{pattern!r} leaves the run's output folder", hint=_CHECKPOINT)
    return True


def _check_params(template: str) -> bool:
    try:
        words = shlex.split(template)
    except ValueError:
        words = []
    for name in placeholder_names(words):
        if name not in ("name", "value"):
            raise BadValue(f"unknown {{{name}}}: only {{name}} and {{value}} are filled in here")
    return template == "none" or any("{value}" in word for word in words)


def _grows(word: str) -> bool:
    factor = _FACTOR.fullmatch(word)
    return factor is not None and 1 < float(factor[1]) <= 16


def _read_request(value: Any) -> Request:
    return Request(**msgspec.structs.asdict(convert(value, _RequestTable)))


def _read_gpus(value: Any) -> Any:
    """Whole ones, or a share of one such as 0.25, which `Request` understands."""
    return value if isinstance(value, float) and 0 < value < 1 else convert(value, CountOrZero)


def _read_data(value: Any) -> dict[str, dict[str, str]]:
    """{name: {"path", "wait"}}; a data set is a path, or a table with a path and `wait`."""
    found = convert(value, dict[str, Text | DataTable])
    for name in found:
        if not _NAME.fullmatch(name):
            hint = 'letters, digits and _: data = { images = "..." }'
            raise BadValue(f"{name!r} cannot be the name of a data set", key=(name,), hint=hint)
    sets = {name: DataTable(path=one) if isinstance(one, str) else one for name, one in found.items()}
    return {name: msgspec.structs.asdict(one) for name, one in sets.items()}


def _read_recovery(value: Any) -> dict[str, Any]:
    """The policy as the agent reads it."""
    table = convert(value, RecoveryTable)
    found = {name: value for name, value in msgspec.structs.asdict(table).items() if value not in (None, {})}
    if table.max_follow_ups is None and (table.warn_before_s is not None or table.continue_exit_code is not None):
        found["max_follow_ups"] = DEFAULT_MAX_FOLLOW_UPS
    if table.result_check is not None:
        found["result_check"] = list(table.result_check)
    if table.memory_factor is not None:
        found["memory_factor"] = float(table.memory_factor[1:])
    if table.partition_after is not None:
        found["partition_after"] = msgspec.structs.asdict(table.partition_after)
    return found


if TYPE_CHECKING:
    RequestSettings = Request
    Gpus = int
    DataSets = dict[str, dict[str, str]]
    Recovery = dict[str, Any]
else:
    RequestSettings, Gpus = read_by(_read_request), read_by(_read_gpus)
    DataSets, Recovery = read_by(_read_data), read_by(_read_recovery)
Command = Annotated[
    tables.Words, rule(lambda words: words and words[0], "at least one word", 'command = "python train.py"')
]
Output = Annotated[Text, rule(_is_folder_name, "a name for a folder under outputs/")]
Checkpoint = Annotated[Text, rule(_check_checkpoint, "a pattern")]
Params = Annotated[Text, rule(_check_params, "words with {value}, or none", 'params = "{name}={value}"')]
Metric = Annotated[tables.Plain, rule(str.strip, "a name", 'metrics = ["val loss", "accuracy"]')]
Factor = Annotated[Text, rule(_grows, "how memory grows, by a factor of up to x16", 'memory_factor = "x2"')]
Warn = Annotated[
    tables.Seconds, rule(lambda s: s >= 60, "at least a minute before the time limit", 'warn_before = "5m"')
]

#: Of `model.CAUSES` those that [steps.X.recovery] max_retries may answer; the time limit has max_follow_ups of its own.
StepRetryCause = Literal["oom", "cuda_oom", "failed", "bad_result"]


class RequestTable(SettingsTable, frozen=True):
    """`request = { ... }`: words for time and memory carry their unit."""

    nodes: Count | None = None
    gpus: Gpus | None = None
    gpu_type: Text | None = None
    cpus: Count | None = None
    memory: tables.Memory | None = None
    time: tables.SlurmTime | None = None


_RequestTable = Annotated[
    RequestTable, Meta(examples=["request = { nodes = 1, gpus = 4, cpus = 32, memory = '64G', time = '3d' }"])
]


class DataTable(SettingsTable, frozen=True):
    """`NAME = { ... }` in `data`. Whoever lists the folder waits for all; shoal.data may begin with the first shard."""

    path: Annotated[Text, Meta(examples=['path = "data/imagenet"'])]
    wait: Literal["all", "first"] = "all"


class PartitionAfter(SettingsTable, frozen=True):
    """`partition_after = { ... }`: another partition for the jobs after so many attempts."""

    attempts: Count
    partition: Annotated[Text, rule(lambda name: not name.startswith("-"), "a partition", 'partition = "preemptable"')]


class RecoveryTable(SettingsTable, frozen=True):
    """`[steps.NAME.recovery]`: what the cluster may do to a run, and how often it continues after that.

    Slurm delivers the warning up to a minute early, and we stop the program before Slurm kills everything. The time
    limit is not among the causes of `max_retries`, because it has `max_follow_ups`.
    """

    warn_with: Literal["signal", "file"] = "signal"
    warn_before_s: Warn | None = field(default=None, name="warn_before")
    backoff_s: tables.Seconds | None = field(default=None, name="backoff")
    max_follow_ups: CountOrZero | None = None
    continue_exit_code: Count | None = None
    result_check: tables.Words | None = None
    max_retries: dict[StepRetryCause, CountOrZero] = field(default_factory=dict)
    memory_factor: Factor | None = None
    partition_after: PartitionAfter | None = None

    def __post_init__(self) -> None:
        if self.max_retries.get("oom") and self.memory_factor is None:
            raise BadValue("a retry after oom needs memory_factor", key=("max_retries",), hint='memory_factor = "x2"')


class Smoke(SettingsTable, frozen=True):
    """`[steps.NAME.smoke]`: the few steps that must pass before the real runs start.

    `args` shorten the program; without them it is stopped after `steps` steps.
    """

    args: Strings = ()
    steps: Count = 3
    time_s: tables.Seconds = field(default=600, name="time")
    env: tables.Environment = field(default_factory=dict)
    nodes: Count | None = None
    gpus: CountOrZero | None = None
    cpus: Count | None = None
    memory: Text | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """sbatch's: what it asks for other than the real run does."""
        asks = {"nodes": self.nodes, "gpus-per-node": self.gpus, "cpus-per-task": self.cpus, "mem": self.memory}
        return tuple(f"--{name}={value}" for name, value in asks.items() if value is not None)


class BudgetTable(SettingsTable, frozen=True):
    """`[steps.NAME.budget]`: what all runs of the step may hold at once, the attempts of each run, and their priority.
    A path is that of a file with a number."""

    jobs: Count | Text | None = None
    nodes: Count | Text | None = None
    gpus: Count | Text | None = None
    attempts: Count | Text | None = None
    priority: int | Text | None = None


class StepTable(SettingsTable, frozen=True):
    """`[steps.NAME]`: what to run, where its outputs go, how its checkpoints are called, what it asks for.

    `resume_args` are appended to the command when the run continues from a checkpoint; None: the program has to find
    out by itself. `metrics` are names that it prints with a value; a blank one would match every number. `sweep` makes
    several runs of each call in a script, such as one for each file of a set.
    """

    command: Command
    output: Output | None = None
    checkpoint: Checkpoint | None = None
    resume_args: Strings | None = None
    metrics: tuple[Metric, ...] = ()
    request: RequestSettings = Request()
    launch_mode: Launch = field(default=LaunchMode(), name="launch")
    requeue: bool = True
    env: tables.Environment = field(default_factory=dict)
    params: Params = DEFAULT_PARAMS
    recovery: Recovery = field(default_factory=dict)
    data: DataSets = field(default_factory=dict)
    smoke: Annotated[Smoke, Meta(examples=['smoke = { args = ["--max-steps", "3"], time = "10m" }'])] = Smoke()
    container: Container = ContainerSettings()
    sweep: dict[str, Any] = field(default_factory=dict)
    budget: Annotated[BudgetTable, Meta(examples=["budget = { jobs = 32, attempts = 6 }"])] = BudgetTable()

    def __post_init__(self) -> None:
        if self.resume_args is not None and self.checkpoint is None:
            why = "the step has no checkpoint pattern to resume from"
            raise BadValue(why, key=("resume_args",), hint=_CHECKPOINT)


class Step(StepTable, frozen=True, kw_only=True):
    """A kind of work, by its name; `origin` is where it is declared. `params` is how parameters are passed that the
    command does not mention; empty: not at all."""

    name: str
    output: str
    origin: str = "default"

    @property
    def launch(self) -> str:
        return self.launch_mode.mode

    @property
    def launch_settings(self) -> LaunchSettings:
        return self.launch_mode.settings or LaunchSettings()


def named_step(name: str, table: StepTable, origin: str) -> Step:
    """A declared step; its outputs are called after it unless it says otherwise."""
    check_step_name(name, place=origin)
    changes = {
        "output": table.output or name,
        "params": "" if table.params == "none" else table.params,
        "metrics": tuple(metric.strip() for metric in table.metrics),
    }
    return Step(**{**msgspec.structs.asdict(table), **changes}, name=name, origin=origin)


def resolve_data(asked: dict[str, dict[str, str]], root: str | Path) -> dict[str, Any]:
    """Data sets with absolute paths: relative ones begin at the project's root, and ~ is the user's home."""
    return {
        name: {**one, "path": os.path.normpath(os.path.join(root, os.path.expanduser(one["path"])))}
        for name, one in asked.items()
    }
