"""Orders that were given and not yet answered, as files on this machine.

After a lost connection the same order is given again under the same id: by the same command, or before the next order
to that cluster.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.kernel import create_exclusive, list_names, make_dir, to_json


class OrderNote(NamedTuple):
    """An order as it was given. `tree` is the code that it needs."""

    request: str
    profile: str
    host: str
    directory: str
    argv: Sequence[str]
    tree: str
    inside: str
    cwd: str
    t: float

    @property
    def meaning(self) -> tuple[Any, ...]:
        """Equal for the same order given twice."""
        return (self.host, self.directory, tuple(self.argv), self.tree, self.inside, self.cwd)

    def describe(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.t))
        words = [word for word in self.argv if not word.startswith("--command-id")]
        return f"`shoal {' '.join(words)}` of {when}"


def write_note(note: OrderNote, environ: Mapping[str, str]) -> None:
    """Before the order is sent."""
    folder = _notes_directory(environ)
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    make_dir(folder)
    os.chmod(folder, 0o700)
    create_exclusive(os.path.join(folder, f"{note.request}.json"), to_json({"schema": 1, **note._asdict()}))


def drop_note(request: str, environ: Mapping[str, str]) -> None:
    try:
        os.unlink(os.path.join(_notes_directory(environ), f"{request}.json"))
    except FileNotFoundError:
        pass


def open_notes(host: str, directory: str, environ: Mapping[str, str]) -> list[OrderNote]:
    """Orders to a project on a cluster that no answer is known of, oldest first."""
    folder, found = _notes_directory(environ), []
    for name in list_names(folder):
        if not name.endswith(".json"):
            continue
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:  # noqa: PTH123
                record = json.load(file)
            record.pop("schema")
            note = OrderNote(**record)
        except (OSError, ValueError, TypeError, KeyError):
            continue  # written by another version, or removed meanwhile
        if (note.host, note.directory) == (host, directory):
            found.append(note)
    return sorted(found, key=lambda note: note.t)


def _notes_directory(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_STATE_HOME", "")
    home = environ.get("HOME") or os.path.expanduser("~")
    return os.path.join(base if os.path.isabs(base) else os.path.join(home, ".local", "state"), "shoal", "requests")
