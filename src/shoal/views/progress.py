"""How far long work is: one line on standard error that is drawn over itself, and gone at the end.

On a terminal only. SHOAL_NO_PROGRESS=1 and -q switch it off; for people whose screen is read to them (ACCESSIBLE=1)
there is a plain line every half minute instead.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TextIO

from shoal.views.render import text_bar
from shoal.views.screen import detect_screen

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
        self._is_drawn = False

    def __call__(self, done: float, total: float | None = None) -> None:
        now = self._clock()
        if self._off or now - self._drawn_at < (_PRINT_INTERVAL_S if self._plain else _DRAW_INTERVAL_S):
            return
        self._drawn_at = now
        line = self._line(done, total, now - self._began)
        if self._plain:
            self._stream.write(f"still working: {line}\n")
        else:
            self._stream.write(f"\r\x1b[K{line[: self._screen.width - 1]}")
            self._is_drawn = True
        self._stream.flush()

    def _line(self, done: float, total: float | None, spent_s: float) -> str:
        speed = f"  {self._words(done / spent_s)}/s" if spent_s > 0 else ""
        if not total:
            return f"{self._what}  {self._words(done)}{speed}"
        part = min(1.0, done / total)
        return f"{self._what} {part:4.0%} {text_bar(part)}  {self._words(done)} of {self._words(total)}{speed}"

    def clear(self) -> None:
        """Before something else is printed, and at the end."""
        if self._is_drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_drawn = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
