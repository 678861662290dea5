"""`[steps.NAME.smoke]`: the few steps that must pass before the real runs start."""

from __future__ import annotations

import msgspec

from shoal.describe.document import Table
from shoal.errors import InputError
from shoal.units import parse_duration_s

_KEYS = ("args", "steps", "time", "env", "nodes", "gpus", "cpus", "memory")


class Smoke(msgspec.Struct, frozen=True, kw_only=True):
    """`args` shorten the program; without them it is stopped after `steps` steps. `flags` are sbatch's: what it asks
    for other than the real run does."""

    args: tuple[str, ...] = ()
    steps: int = 3
    time_s: int = 600
    env: dict[str, str] = {}
    flags: tuple[str, ...] = ()


def parse_smoke(step: Table) -> Smoke:
    """Every mistake is an InputError with its line."""
    try:
        return _parse(step.table("smoke", _KEYS))
    except InputError as error:
        hint = error.hint or 'smoke = { args = ["--max-steps", "3"], time = "10m" }'
        message = error.message.removeprefix(f"{error.place}: ")
        raise InputError(message, hint=hint, place=error.place) from None


def _parse(table: Table) -> Smoke:
    time, steps = table.text("time"), table.integer("steps", 1)
    asks = {
        "nodes": table.integer("nodes", 1),
        "gpus-per-node": table.integer("gpus", 0),
        "cpus-per-task": table.integer("cpus", 1),
        "mem": table.text("memory"),
    }
    return Smoke(
        args=table.strings("args") or (),
        steps=3 if steps is None else steps,
        time_s=600 if time is None else parse_duration_s(time, place=table.place("time")),
        env=table.environment("env"),
        flags=tuple(f"--{name}={value}" for name, value in asks.items() if value is not None),
    )
