"""What the names of a sweep rest on, kept in the state folder: sweeps/<experiment>/<base>.<n>.json, the newest holds.

Each is created once and never changed, like all of shoal's files; of two commands that grow a sweep in different ways
at the same moment, one is told so.
"""

from __future__ import annotations

import os
import re
from typing import Any

from shoal.describe.naming import SweepNaming
from shoal.errors import InputError
from shoal.kernel import files

_NAMING_FILE = re.compile(r"(?P<base>.+)\.(?P<number>\d+)\.json", re.ASCII)


def read_naming(home: str, experiment: str, base: str) -> tuple[int, SweepNaming | None]:
    """The newest record and its number; 0 and None for a sweep that was never submitted."""
    number = _newest_number(home, experiment, base)
    if number == 0:
        return 0, None
    record: dict[str, Any] = files.read_json(_naming_path(home, experiment, base, number)) or {}
    return number, SweepNaming(
        dict(record.get("bases", {})), tuple(record.get("shown", ())), dict(record.get("defaults", {}))
    )


def save_naming(home: str, experiment: str, base: str, number: int, naming: SweepNaming) -> None:
    """Keep a naming as the successor of record `number`, unless nothing in it is new."""
    _, kept = read_naming(home, experiment, base)
    if kept == naming:
        return
    files.make_dir(os.path.join(home, "sweeps", experiment))
    record = {"schema": 1, "bases": dict(naming.bases), "shown": list(naming.shown), "defaults": dict(naming.defaults)}
    if not files.create_exclusive(_naming_path(home, experiment, base, number + 1), files.to_json(record)):
        raise InputError(
            f"another command has just described {experiment}/{base} differently", hint="submit it once more"
        )


def _newest_number(home: str, experiment: str, base: str) -> int:
    names = files.list_names(os.path.join(home, "sweeps", experiment))
    matches = [match for name in names if (match := _NAMING_FILE.fullmatch(name)) and match["base"] == base]
    return max((int(match["number"]) for match in matches), default=0)


def _naming_path(home: str, experiment: str, base: str, number: int) -> str:
    return os.path.join(home, "sweeps", experiment, f"{base}.{number}.json")
