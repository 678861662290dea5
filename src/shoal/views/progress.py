"""How far long work is: one line on standard error that rich draws over itself, and that is gone at the end.

On a terminal only. SHOAL_NO_PROGRESS=1 and -q switch it off; for people whose screen is read to them (ACCESSIBLE=1)
there is a plain line every half minute instead.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from shoal.views.screen import Screen, detect_screen

if TYPE_CHECKING:
    from rich.progress import Progress

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
