"""How results are printed: aligned on a terminal, tab-separated and complete off it, one JSON document with --json.

Progress of long work is one line on standard error that rich redraws and removes at the end, on a terminal only.
SHOAL_NO_PROGRESS=1 and -q switch it off; with ACCESSIBLE=1 (screen readers) it is a plain line every half minute.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from shoal.model import RUN_STATES
from shoal.views.terminal import Screen, detect_screen

if TYPE_CHECKING:
    from rich.progress import Progress

#: state -> (symbol, colour of the terminal's own sixteen). The word always comes first; neither of these is needed.
_STATE_STYLES = {
    "completed": ("+", "32"),
    "running": (">", "36"),
    "pending": (".", "33"),
    "waiting": (".", "33"),
    "new": (" ", "0"),
    "unknown": ("?", "35"),
    "blocked": ("!", "35"),
    "cancelled": ("-", "0"),
    "stopped": ("-", "0"),
}
_FAILED = ("x", "31")
_COLOUR_SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")


def print_json(document: dict[str, Any]) -> None:
    """One document with its schema number; keys stay, more may come."""
    import json

    sys.stdout.write(json.dumps({"schema": 1, **document}, indent=2 if sys.stdout.isatty() else None) + "\n")


def finite_or_none(value: float | None) -> float | None:
    """JSON has no NaN."""
    return value if value is not None and math.isfinite(value) else None


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


_DRAW_INTERVAL_S = 0.2
_PRINT_INTERVAL_S = 30.0


class ProgressLine:
    """Call it as `bar(done, total)`; `total` is None or 0 where it is not known. `words` spells a number."""

    def __init__(
        self,
        what: str,
        words: Callable[[float], str] = lambda number: f"{number:,.0f}",
        *,
        off: bool = False,
        stream: TextIO | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._words, self._clock = what, words, clock
        self._stream = sys.stderr if stream is None else stream
        self._screen = detect_screen(self._stream, environ)
        dumb = environ.get("TERM", "dumb") == "dumb"
        self._off = off or not self._screen.tty or bool(environ.get("SHOAL_NO_PROGRESS"))
        self._plain = self._screen.accessible or dumb
        self._began = self._drawn_at = clock()
        self._drawn: Progress | None = None

    def __call__(self, done: float, total: float | None = None) -> None:
        now = self._clock()
        if self._off or now - self._drawn_at < (_PRINT_INTERVAL_S if self._plain else _DRAW_INTERVAL_S):
            return
        self._drawn_at = now
        spent_s = now - self._began
        speed = f"  {self._words(done / spent_s)}/s" if spent_s > 0 else ""
        of_total = f" of {self._words(total)}" if total else ""
        amounts = f"{self._words(done)}{of_total}{speed}"
        percent = f"{min(1.0, done / total):4.0%}" if total else ""
        if self._plain:
            self._stream.write(f"still working: {' '.join(filter(None, (self._what, percent)))}  {amounts}\n")
            self._stream.flush()
            return
        if self._drawn is None:
            self._drawn = _rich_line(self._stream, self._screen)
            self._drawn.add_task(self._what, total=None)
        task = self._drawn.tasks[0]
        self._drawn.update(task.id, total=total or None, completed=done, percent=percent, amounts=amounts)
        self._drawn.start()  # draws the first one; later it does nothing
        self._drawn.refresh()

    def clear(self) -> None:
        """Before something else is printed, and at the end."""
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


def _rich_line(stream: TextIO, screen: Screen) -> Progress:
    """No thread and no redirection: it is drawn when work tells of itself, and other output passes it by."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    class VisibleCursor(Console):
        """After Ctrl-Z or a kill nothing would bring a hidden cursor back."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    console = VisibleCursor(
        file=stream,
        width=screen.width,
        force_terminal=True,
        force_jupyter=False,
        color_system="standard" if screen.colour else None,
    )
    columns = (
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[percent]}", markup=False),
        BarColumn(10, complete_style="cyan", finished_style="green", pulse_style="cyan"),  # red would look like failed
        TextColumn("{task.fields[amounts]}", markup=False),
    )
    return Progress(
        *columns, console=console, transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    )
