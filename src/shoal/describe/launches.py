"""`launch = "torchrun"`, or a table with settings: `launch = { mode = "replicas", nodes_per_replica = 2 }`."""

from __future__ import annotations

from shoal.describe.document import Table
from shoal.errors import InputError
from shoal.job import LAUNCH_MODES
from shoal.model import LaunchSettings
from shoal.units import parse_duration_s

_REPLICAS = (
    "replicas_per_node", "nodes_per_replica", "min_replicas", "finish", "restarts", "run_restarts", "backoff",
    "hang_after", "quorum_tick_ms", "join_timeout_ms", "heartbeat_timeout_ms", "args", "env",
)  # fmt: skip
_FROM_ZERO = ("restarts", "run_restarts", "max_restarts")
_NUMBERS = (
    *_FROM_ZERO, "processes", "replicas_per_node", "nodes_per_replica", "min_replicas", "finish", "quorum_tick_ms",
    "join_timeout_ms", "heartbeat_timeout_ms",
)  # fmt: skip
#: Which settings say something in which mode, beside `mode` itself.
_SETTINGS = {
    "process": (),
    "torchrun": ("processes", "max_restarts", "interface", "independent"),
    "srun": ("processes", "interface", "independent"),
    "accelerate": ("processes", "max_restarts", "interface", "independent", "options"),
    "deepspeed": ("processes", "interface", "independent", "options"),
    "replicas": ("processes", "max_restarts", "interface", *_REPLICAS),
}


def parse_launch(step: Table) -> tuple[str, LaunchSettings]:
    """Mode and settings of a step; a setting that says nothing in its mode is an InputError with its line."""
    if not isinstance(step.values.get("launch"), dict):
        return step.text("launch", LAUNCH_MODES) or "process", LaunchSettings()
    mode = step.table("launch").text("mode", LAUNCH_MODES)
    if mode is None:
        raise step.error(("launch",), "the launch table has no mode", hint=f"mode = one of {', '.join(LAUNCH_MODES)}")
    table = step.table("launch", ("mode", *_SETTINGS[mode]))
    seconds = {name: _seconds(table, name) for name in ("backoff", "hang_after")}
    numbers = {name: table.integer(name, 0 if name in _FROM_ZERO else 1) for name in _NUMBERS}
    return mode, LaunchSettings(
        **numbers,
        backoff_s=seconds["backoff"],
        hang_s=seconds["hang_after"],
        interface=table.text("interface"),
        independent=table.flag("independent"),
        options=list(table.strings("options") or ()),
        args=_args(table),
        env=table.environment("env"),
    )


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


def _seconds(table: Table, name: str) -> float | None:
    text = table.text(name)
    return None if text is None else float(parse_duration_s(text, place=table.place(name)))


def _args(table: Table) -> list[str]:
    """Words for the program, with {replica} and the like in them, or the name of a known set of them."""
    if isinstance(table.values.get("args"), str):
        return list(ARGUMENT_SETS[table.text("args", ARGUMENT_SETS) or ""])
    return list(table.strings("args") or ())


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
