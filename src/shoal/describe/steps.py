"""Steps: the kinds of work of a project, each declared once in shoal.toml and callable by its name in a script."""

from __future__ import annotations

import re
import shlex
from typing import Any

import msgspec

from shoal.describe.containers import parse_container
from shoal.describe.data_sets import parse_data
from shoal.describe.document import Table
from shoal.describe.launches import parse_launch
from shoal.describe.smoke import Smoke, parse_smoke
from shoal.describe.survival import parse_survival
from shoal.errors import InputError
from shoal.job import placeholder_names
from shoal.model import ContainerSettings, LaunchSettings, Request
from shoal.names import MAX_COMPONENT, make_slug
from shoal.units import parse_duration_s, parse_memory_mb

_KEYS = ("command", "output", "checkpoint", "metrics", "request", "launch", "requeue", "env", "params", "survive",
         "data", "smoke", "container", "resume_args")  # fmt: skip
#: How a swept parameter that the command does not mention is passed on.
DEFAULT_PARAMS = "--{name}={value}"
_REQUEST_KEYS = ("nodes", "gpus", "gpu_type", "cpus", "memory", "time")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)

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


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of work: what to run, where its outputs go, how its checkpoints are called, what it asks for."""

    name: str
    command: tuple[str, ...]
    output: str
    checkpoint: str | None = None
    #: Appended to the command when the run continues from a checkpoint; None: the program has to find out by itself.
    resume_args: tuple[str, ...] | None = None
    metrics: tuple[str, ...] = ()
    request: Request = Request()
    launch: str = "process"
    launch_settings: LaunchSettings = LaunchSettings()
    requeue: bool = True
    env: dict[str, str] = {}
    params: str = DEFAULT_PARAMS
    survive: dict[str, Any] = {}
    data: dict[str, dict[str, str]] = {}
    smoke: Smoke = Smoke()
    container: ContainerSettings = ContainerSettings()
    origin: str = "default"


def parse_step(name: str, values: Table) -> Step:
    """One [steps.NAME] table; every mistake is an InputError with its line."""
    check_step_name(name, place=values.place())
    table = Table(values.document, values.key, values.values, _KEYS)
    output = table.text("output") or name
    if make_slug(output) != output or len(output) > MAX_COMPONENT:
        raise table.error(
            ("output",), f"{output!r} cannot be the name of a folder under outputs/", hint=make_slug(output)
        )
    launch, settings = parse_launch(table)
    return Step(
        name=name,
        command=_command(table),
        output=output,
        checkpoint=_checkpoint(table),
        resume_args=_resume_args(table),
        metrics=_metrics(table),
        request=parse_request(table.table("request", _REQUEST_KEYS)),
        launch=launch,
        launch_settings=settings,
        requeue=table.flag("requeue") is not False,
        env=table.environment("env"),
        params=_params(table),
        survive=parse_survival(table),
        data=parse_data(table),
        smoke=parse_smoke(table),
        container=parse_container(table),
        origin=values.place(),
    )


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


def parse_request(table: Table) -> Request:
    """The portable request in a table; words for time and memory carry their unit."""
    time, memory = table.text("time"), table.text("memory")
    if time is not None:
        parse_duration_s(time, place=table.place("time"))
    if memory is not None:
        parse_memory_mb(memory, place=table.place("memory"))
    try:
        return Request(
            nodes=table.integer("nodes", 1),
            gpus=_gpus(table),
            gpu_type=table.text("gpu_type"),
            cpus=table.integer("cpus", 1),
            memory=memory,
            time=time,
        )
    except InputError as error:
        hint = error.hint or "request = { nodes = 1, gpus = 4, cpus = 32, memory = '64G', time = '3d' }"
        message = error.message.removeprefix(f"{error.place}: ")
        raise InputError(message, hint=hint, place=error.place or table.place()) from None


def _gpus(table: Table) -> Any:
    """Whole ones, or a share of one such as 0.25, which `Request` understands."""
    share = table.values.get("gpus")
    return share if isinstance(share, float) and 0 < share < 1 else table.integer("gpus", 0)


def _command(table: Table) -> tuple[str, ...]:
    if "command" not in table:
        raise table.error((), f"step {table.key[-1]!r} has no command", hint='command = "python train.py"')
    words = table.words("command") or ()
    if not words or not words[0]:
        raise table.error(("command",), "the command is empty", hint='command = "python train.py"')
    return words


def _params(table: Table) -> str:
    """How parameters are passed that the command does not mention: words with {name} and {value}, or "none"."""
    template = table.text("params")
    if template is None:
        return DEFAULT_PARAMS
    if template == "none":
        return ""
    try:
        words = shlex.split(template)
    except ValueError:
        words = []
    if not any("{value}" in word for word in words):
        raise table.error(
            ("params",), f"{template!r} does not say how a parameter is passed", hint='params = "{name}={value}"'
        )
    unknown = [name for name in placeholder_names(words) if name not in ("name", "value")]
    if unknown:
        raise table.error(("params",), f"unknown {{{unknown[0]}}}: only {{name}} and {{value}} are filled in here")
    return template


def _metrics(table: Table) -> tuple[str, ...]:
    """Names that the program prints with a value; a blank one would match every number."""
    names = table.strings("metrics") or ()
    if not all(name.strip() for name in names):
        raise table.error(("metrics",), "a name in metrics is empty", hint='metrics = ["val loss", "accuracy"]')
    return tuple(name.strip() for name in names)


def _checkpoint(table: Table) -> str | None:
    pattern = table.text("checkpoint")
    if pattern is not None and (unfilled := placeholder_names([pattern]) or re.findall(r"\$\{?SHOAL_\w+", pattern)):
        raise table.error(
            ("checkpoint",),
            f"checkpoint has {unfilled[0]!r}, but it is a pattern in the run's output folder, and nothing fills it in",
            hint='checkpoint = "model_*.pth"',
        )
    if pattern is not None and (pattern.startswith(("/", "~")) or ".." in pattern.split("/")):
        raise table.error(
            ("checkpoint",), f"{pattern!r} leaves the run's output folder", hint='checkpoint = "model_*.pth"'
        )
    return pattern


def _resume_args(table: Table) -> tuple[str, ...] | None:
    """Words that a resume alone adds; an empty list says that the program finds its checkpoint without any."""
    if "resume_args" in table and "checkpoint" not in table:
        raise table.error(
            ("resume_args",),
            f"step {table.key[-1]!r} has resume_args, but no checkpoint pattern to resume from",
            hint='checkpoint = "model_*.pth"',
        )
    return table.strings("resume_args")
