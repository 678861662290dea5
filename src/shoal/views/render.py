"""How results are printed: aligned on a terminal, tab-separated and complete off it, one JSON document with --json."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from shoal.model import RUN_STATES
from shoal.views.screen import Screen, detect_screen

#: state -> (symbol, colour of the terminal's own sixteen). The word always comes first; neither of these is needed.
_STATE_STYLES = {
    "done": ("+", "32"),
    "running": (">", "36"),
    "pending": (".", "33"),
    "queued": (".", "33"),
    "new": (" ", "0"),
    "unknown": ("?", "35"),
    "stuck": ("!", "35"),
    "cancelled": ("-", "0"),
    "stopped": ("-", "0"),
}
_FAILED = ("x", "31")
_COLOUR_SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")


def print_json(document: dict[str, Any]) -> None:
    """One document with its schema number; keys stay, more may come."""
    import json

    sys.stdout.write(json.dumps({"schema": 1, **document}, indent=2 if sys.stdout.isatty() else None) + "\n")


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    widest: int | None = None,
    screen: Screen | None = None,
) -> None:
    """Rows under a header. On a terminal columns line up and the `widest` one is cut to fit; off it nothing is cut."""
    sys.stdout.write(
        "".join(f"{line}\n" for line in table_lines(header, rows, screen or detect_screen(), widest=widest))
    )


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], screen: Screen, *, widest: int | None = None
) -> list[str]:
    cells = [[safe_line(cell) for cell in row] for row in [header, *rows]]
    if not screen.tty:
        return ["\t".join(row) for row in cells]
    widths = [max(cell_width(row[column]) for row in cells) for column in range(len(header))]
    room = screen.width - sum(widths) - 2 * (len(widths) - 1)
    if widest is not None and room < 0:
        widths[widest] = max(12, widths[widest] + room)
    lines = []
    for number, row in enumerate(cells):
        line = "  ".join(fit_cell(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        lines.append(screen.paint(line, "1") if number == 0 else _paint_state_in(line, row, screen))
    return lines


def state_word(state: str) -> str:
    """The state with its symbol, readable without colour."""
    return f"{state} {_STATE_STYLES.get(state, _FAILED)[0]}".rstrip()


def state_code(state: str) -> str:
    return _STATE_STYLES.get(state, _FAILED)[1]


def paint_state(text: str, state: str, screen: Screen | None = None) -> str:
    return (screen or detect_screen()).paint(text, state_code(state))


def short_path(path: str) -> str:
    """A path as a person would type it from here, where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) else path


def safe_line(text: str) -> str:
    """One line that cannot act on a terminal: no control, escape or direction-changing character is left."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)


def fit_cell(cell: str, width: int) -> str:
    """A cell padded or cut to a width of terminal columns."""
    needed = cell_width(cell)
    if needed <= width:
        return cell + " " * (width - needed)
    from rich.cells import set_cell_size

    return set_cell_size(cell, width - 1) + "…"


def fit_cell_end(cell: str, width: int) -> str:
    """The same, but what is too long loses its beginning: the end of a name tells runs apart."""
    if cell_width(cell) <= width:
        return fit_cell(cell, width)
    at = max(1, len(cell) - width + 1)
    while cell_width(cell[at:]) > width - 1:
        at += 1
    return fit_cell("…" + cell[at:], width)


def cell_width(text: str) -> int:
    """Columns that a text takes: Chinese, Japanese and most emoji take two each, combining marks none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def visible_width(line: str) -> int:
    """Columns of a line that may be painted."""
    return cell_width(_COLOUR_SEQUENCE.sub("", line))


def wrap_line(line: str, screen: Screen, indent: str = "    ") -> list[str]:
    """A long line for a terminal: broken where two spaces part its pieces, else at a word. Off it, as it is.

    Not for commands and paths: who copies them wants one line, and the terminal's own breaking keeps it one.
    """
    if not screen.tty or visible_width(line) <= screen.width:
        return [line]
    room = screen.width - len(indent)
    pieces = re.split(r"(?<=  )(?=\S)", line)
    words = [
        word
        for piece in pieces
        for word in ([piece] if visible_width(piece.rstrip()) <= room else re.findall(r"\S+\s*", piece))
    ]
    lines: list[str] = []
    now = ""
    for word in words:
        if now and visible_width((now + word).rstrip()) > (room if lines else screen.width):
            lines.append(now.rstrip())
            now = ""
        now += word
    lines.append(now.rstrip())
    return [lines[0], *(indent + rest for rest in lines[1:])]


def text_bar(fraction: float, width: int = 10) -> str:
    """[######----], always next to the number it draws."""
    full = round(max(0.0, min(1.0, fraction)) * width)
    return f"[{'#' * full}{'-' * (width - full)}]"


def _paint_state_in(line: str, row: Sequence[str], screen: Screen) -> str:
    if screen.colour:
        for cell in row:
            word = cell.split(" ")[0]
            if word in RUN_STATES:
                return line.replace(cell, screen.paint(cell, state_code(word)), 1)
    return line
