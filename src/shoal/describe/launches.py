"""`launch` and `container` of a step, an experiment or a cluster: one word, or a table with settings.

launch = "torchrun"               launch = { mode = "replicas", nodes_per_replica = 2 }
container = "images/torch.sif"    container = { runtime = "apptainer", binds = ["/data:/data"] }
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, field

from shoal.describe import tables
from shoal.describe.tables import (
    BadValue,
    Count,
    CountOrZero,
    Plain,
    SettingsTable,
    Text,
    convert,
    one_of,
    read_by,
    rule,
)
from shoal.errors import InputError
from shoal.job import GPU_VENDORS, LAUNCH_MODES, NO_CONTAINER, RUNTIMES, ContainerError, merge_settings, parse_bind
from shoal.model import ContainerSettings, LaunchSettings

_RANKS = ("processes", "max_restarts", "interface")
#: Which settings say something in which mode, beside `mode` itself.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "process": (),
    "torchrun": (*_RANKS, "independent"),
    "srun": ("processes", "interface", "independent"),
    "accelerate": (*_RANKS, "independent", "options"),
    "deepspeed": ("processes", "interface", "independent", "options"),
    "replicas": (
        *_RANKS, "replicas_per_node", "nodes_per_replica", "min_replicas", "min_finished", "restarts", "run_restarts",
        "backoff", "hang_after", "quorum_tick_ms", "join_timeout_ms", "heartbeat_timeout_ms", "args", "env",
    ),
}  # fmt: skip
#: How trainers want to be told which replica they are.
ARGUMENT_SETS = {
    "torchtitan": (
        "--fault_tolerance.enable",
        "--fault_tolerance.replica_id={replica}",
        "--fault_tolerance.group_size={replicas}",
    ),
    # MuLoCo's fork takes them among its key=value overrides, which must come last.
    "muloco": (
        "fault_tolerance.enable=True",
        "fault_tolerance.replica_id={replica}",
        "fault_tolerance.group_size={replicas}",
    ),
}
#: Nothing that shoal sets (ranks, folders, the master's address) would reach the program.
_HIDES_ENVIRONMENT = ("--cleanenv", "-e", "--containall", "-C")


def _check_bind(bind: str) -> bool:
    try:
        return bool(parse_bind(bind))
    except ContainerError as error:
        raise BadValue(error.message, hint=error.hint) from None


def _check_option(option: str) -> bool:
    if option in _HIDES_ENVIRONMENT:
        raise BadValue(
            f"{option} hides from the program what shoal tells it in its environment",
            hint='hide single variables instead: command = "env -u PYTHONPATH python train.py"',
        )
    return True


def _is_image(text: str) -> bool:
    return text != "" and text == text.strip() and text.isprintable()


Mode = Annotated[str, one_of(LAUNCH_MODES)]
Image = Annotated[str, rule(_is_image, "an image", 'container = "images/torch.sif"')]
_SetName = Annotated[str, one_of(ARGUMENT_SETS)]
Bind = Annotated[Plain, rule(_check_bind, "a bind")]
Option = Annotated[Plain, rule(_check_option, "an option")]


class LaunchMode(NamedTuple):
    """A launch mode and its settings; None leaves those to the step, if it has the same mode."""

    mode: str = "process"
    settings: LaunchSettings | None = LaunchSettings()


def change_mode(written: str, mode: str, settings: LaunchSettings) -> tuple[str, LaunchSettings]:
    """The launch after `--launch MODE`: the step's settings hold only for the mode they were written for."""
    if written not in LAUNCH_MODES:
        from difflib import get_close_matches

        near = get_close_matches(written, LAUNCH_MODES, n=1)
        raise InputError(
            f"there is no launch {written!r}{f'; did you mean {near[0]}?' if near else ''}",
            hint=f"--launch one of {', '.join(LAUNCH_MODES)}",
            place="--launch",
        )
    return written, settings if written == mode else LaunchSettings()


def parse_word(word: str, place: str) -> ContainerSettings:
    """`--container WORD`: an image, RUNTIME:IMAGE, or "none"."""
    try:
        return _read_container(word)
    except BadValue as bad:
        raise InputError(bad.message("image", word), hint=bad.hint, place=place) from None


def over(upper: ContainerSettings, lower: ContainerSettings) -> ContainerSettings:
    """What an experiment or a flag says over its step; `none` is said at once for all of it."""
    return ContainerSettings(**merge_settings(upper.record(), lower.record())) if upper else lower


def _read_launch(value: Any) -> LaunchMode:
    if not isinstance(value, dict):
        return LaunchMode(convert(value, Mode), None)
    mode = convert({"mode": value["mode"]} if "mode" in value else {}, LaunchTable).mode
    allowed = ("mode", *_SETTINGS[mode])
    for name in value:
        if name not in allowed:
            raise tables.unknown_key(name, allowed)
    fields = msgspec.structs.asdict(convert(value, LaunchTable))
    return LaunchMode(fields.pop("mode"), LaunchSettings(**fields))


def _read_container(value: Any) -> ContainerSettings:
    if isinstance(value, dict):
        return ContainerSettings(**msgspec.structs.asdict(convert(value, ContainerTable)))
    word = convert(value, Text)
    if word == NO_CONTAINER:
        return ContainerSettings(runtime=NO_CONTAINER)
    runtime, colon, image = word.partition(":")
    if not colon or runtime not in RUNTIMES:
        runtime, image = "", word
    return ContainerSettings(runtime=runtime or None, image=convert(image, Image))


def _read_arguments(value: Any) -> list[str]:
    """Words for the program, with {replica} and the like in them, or the name of a known set of them."""
    if isinstance(value, str):
        return list(ARGUMENT_SETS[convert(value, _SetName)])
    return convert(value, list[Plain])


if TYPE_CHECKING:
    Launch = LaunchMode
    Container = ContainerSettings
    Arguments = list[str]
    FloatSeconds = float
else:
    Launch, Container, Arguments = read_by(_read_launch), read_by(_read_container), read_by(_read_arguments)
    FloatSeconds = read_by(lambda value: float(convert(value, tables.Seconds)))


class LaunchTable(SettingsTable, frozen=True):
    """`launch = { ... }`; the fields of LaunchSettings."""

    mode: Annotated[Mode, Meta(examples=[f"mode = one of {', '.join(LAUNCH_MODES)}"])]
    processes: Count | None = None
    max_restarts: CountOrZero | None = None
    interface: Text | None = None
    independent: bool | None = None
    options: list[Plain] = field(default_factory=list)
    replicas_per_node: Count | None = None
    nodes_per_replica: Count | None = None
    min_replicas: Count | None = None
    min_finished: Count | None = None
    restarts: CountOrZero | None = None
    run_restarts: CountOrZero | None = None
    backoff_s: FloatSeconds | None = field(default=None, name="backoff")
    hang_s: FloatSeconds | None = field(default=None, name="hang_after")
    quorum_tick_ms: Count | None = None
    join_timeout_ms: Count | None = None
    heartbeat_timeout_ms: Count | None = None
    args: Arguments = field(default_factory=list)
    env: tables.Environment = field(default_factory=dict)


class ContainerTable(SettingsTable, frozen=True):
    """`container = { ... }`; the fields of ContainerSettings."""

    runtime: Annotated[str, one_of((*RUNTIMES, NO_CONTAINER))] | None = None
    image: Image | None = None
    binds: list[Bind] = field(default_factory=list)
    gpu: Annotated[str, one_of(GPU_VENDORS)] | None = None
    options: list[Option] = field(default_factory=list)
    workdir: Text | None = None
