"""The list of runs as a widget that draws only the lines on the screen, so that 5,000 runs answer a key at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from shoal.model import ACTIVE_STATES, ATTENTION_STATES, FAILED_STATES
from shoal.observe import RunView
from shoal.views.family import RunGroup, count_states, group_runs
from shoal.views.render import fit_cell, fit_cell_end, safe_line, state_code, state_word

#: SGR code of the plain table -> rich's name for the same theme colour.
_COLOURS = {"32": "green", "36": "cyan", "33": "yellow", "35": "magenta", "31": "red", "0": "default"}
_SHORT_STATES = {
    "running": "run",
    "pending": "pend",
    "failed": "fail",
    "cancelled": "canc",
    "timeout": "time",
    "stopped": "stop",
    "preempted": "prem",
}


def _rank(state: str) -> tuple[bool, ...]:
    """Which of its states a family shows: the one that needs a person most."""
    return (
        state not in FAILED_STATES,
        state not in ATTENTION_STATES,
        state != "running",
        state not in ACTIVE_STATES,
        state != "done",
    )


class RunLine(NamedTuple):
    """One line: a run, or a family with its tally. `depth` is 1 inside an unfolded family."""

    key: str
    text: str
    state: str
    word: str
    views: list[RunView]
    depth: int = 0


def list_lines(views: Sequence[RunView], unfolded: frozenset[str]) -> list[RunLine]:
    """The lines for these runs; families are folded unless their key is in `unfolded`. Pure."""
    lines = []
    for row in group_runs(views):
        if isinstance(row, RunGroup):
            counts = count_states(row.views)
            words = " ".join(f"{count} {_SHORT_STATES.get(state, state)}" for state, count in counts.items())
            worst = min(counts, key=_rank)
            is_open = row.key in unfolded
            lines.append(RunLine(row.key, f"{'-' if is_open else '+'} {row.key}", worst, words, row.views))
            if is_open:
                lines += [_run_line(view, 1) for view in row.views]
        else:
            lines.append(_run_line(row, 0))
    return lines


def _run_line(view: RunView, depth: int) -> RunLine:
    return RunLine(view.name, "  " * depth + view.name, view.state, state_word(view.state), [view], depth)


class RunList(ScrollView, can_focus=True):
    """Moves with j, k, arrows, page keys, home and end; tells which line is under the cursor."""

    BINDINGS = [  # noqa: RUF012 (textual's own form)
        Binding("down,j", "move(1)", "next", show=False),
        Binding("up,k", "move(-1)", "previous", show=False),
        Binding("pagedown", "move(15)", show=False),
        Binding("pageup", "move(-15)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
    ]
    cursor = reactive(0, init=False)

    class Moved(Message):
        """The cursor is on another line, or that line has changed."""

        def __init__(self, line: RunLine | None) -> None:
            super().__init__()
            self.line = line

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.lines: list[RunLine] = []

    @property
    def current(self) -> RunLine | None:
        return self.lines[self.cursor] if 0 <= self.cursor < len(self.lines) else None

    def put(self, lines: Sequence[RunLine]) -> None:
        """Show these lines; the cursor stays on the run it was on, wherever that is now."""
        key = self.current.key if self.current else None
        self.lines = list(lines)
        self.virtual_size = Size(self.size.width, len(self.lines))
        place = next(
            (at for at, line in enumerate(self.lines) if line.key == key), min(self.cursor, len(self.lines) - 1)
        )
        self.cursor = max(0, place)
        self.refresh()
        self.post_message(self.Moved(self.current))

    def action_move(self, step: int) -> None:
        if self.lines:
            self.cursor = max(0, min(len(self.lines) - 1, self.cursor + step))

    def watch_cursor(self) -> None:
        self.scroll_to_region(Region(0, self.cursor, 1, 1), animate=False, immediate=True)
        self.refresh()
        self.post_message(self.Moved(self.current))

    def render_line(self, y: int) -> Strip:
        at = y + self.scroll_offset.y
        width = self.size.width
        if at >= len(self.lines):
            return Strip.blank(width)
        line = self.lines[at]
        room = min(max(10, len(line.word)), max(10, width // 2))
        lead = line.text[: len(line.text) - len(line.key)]
        name = lead + fit_cell_end(safe_line(line.key), max(6, width - room - 2 - len(lead)))
        here = at == self.cursor
        base = Style(reverse=here and self.has_focus, bold=here)
        colour = base + Style(color=_COLOURS[state_code(line.state)])
        mark = ">" if here else " "
        return Strip(
            [Segment(f"{mark}{name} ", base), Segment(fit_cell(safe_line(line.word), room), colour)]
        ).adjust_cell_length(width)
