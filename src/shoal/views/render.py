"""How results are printed: aligned on a terminal, tab-separated and complete off it, one JSON document with --json."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

#: state -> (symbol, colour of the terminal's own sixteen). The word always comes first; neither of these is needed.
_LOOK = {
    "done": ("+", "32"),
    "running": (">", "36"),
    "pending": (".", "33"),
    "queued": (".", "33"),
    "new": (" ", "0"),
    "unknown": ("?", "35"),
    "stuck": ("!", "35"),
    "cancelled": ("-", "0"),
    "preempted": ("-", "33"),
}
_BAD = ("x", "31")


def print_json(document: dict[str, Any]) -> None:
    """One document with its schema number; keys stay, more may come."""
    sys.stdout.write(json.dumps({"schema": 1, **document}, indent=2 if sys.stdout.isatty() else None) + "\n")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, widest: int | None = None) -> None:
    """Rows under a header. On a terminal columns line up and the `widest` one is cut to fit; off it nothing is cut."""
    if not sys.stdout.isatty():
        for row in [header, *rows]:
            print("\t".join(_plain(cell) for cell in row))
        return
    cells = [[_plain(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    room = shutil.get_terminal_size().columns - sum(widths) - 2 * (len(widths) - 1)
    if widest is not None and room < 0:
        widths[widest] = max(12, widths[widest] + room)
    for number, row in enumerate(cells):
        parts = [_fit(cell, width) for cell, width in zip(row, widths, strict=True)]
        line = "  ".join(parts).rstrip()
        print(_paint(line, "1") if number == 0 else _paint_states(line, row))


def state_word(state: str) -> str:
    """The state with its symbol, readable without colour."""
    return f"{state} {_LOOK.get(state, _BAD)[0]}".rstrip()


def shorter(path: str) -> str:
    """A path as a person would type it from here, where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) else path


def paint_state(text: str, state: str) -> str:
    return _paint(text, _LOOK.get(state, _BAD)[1])


def _paint_states(line: str, row: Sequence[str]) -> str:
    for cell in row:
        word = cell.split(" ")[0]
        if word in _LOOK or word in ("failed", "oom", "timeout", "node_fail", "lost"):
            return line.replace(cell, paint_state(cell, word), 1)
    return line


def _paint(text: str, code: str) -> str:
    plain = code == "0" or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"


def _fit(cell: str, width: int) -> str:
    return cell.ljust(width) if len(cell) <= width else f"{cell[: width - 1]}…"


def _plain(cell: str) -> str:
    """No control character of a name or a cause reaches the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in cell)
