"""Where output goes, decided once: a terminal or not, how wide, with colour or without, for eyes or for a reader.

NO_COLOR, FORCE_COLOR, TERM=dumb, COLUMNS and ACCESSIBLE=1 are obeyed; --plain and --tty overrule what is detected.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple, TextIO


class Screen(NamedTuple):
    """`tty`: people read this, so columns line up and lines are cut. `accessible`: nothing is redrawn."""

    tty: bool
    width: int = 80
    colour: bool = False
    accessible: bool = False
    unicode: bool = True

    def paint(self, text: str, code: str) -> str:
        """Text in one of the terminal's own sixteen colours (an SGR code), or as it is."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code != "0" and text else text


def detect_screen(
    stream: TextIO | None = None, environ: Mapping[str, str] | None = None, force: bool | None = None
) -> Screen:
    """The screen behind a stream; `force` is what --tty (True) or --plain (False) says."""
    out = sys.stdout if stream is None else stream
    env = os.environ if environ is None else environ
    terminal = _is_terminal(out)
    tty = terminal if force is None else force
    dumb = env.get("TERM") == "dumb"
    colour = tty and not dumb
    if env.get("FORCE_COLOR", "") not in ("", "0"):
        colour = True
    if env.get("NO_COLOR"):
        colour = False
    encoding = (getattr(out, "encoding", None) or "ascii").lower()
    return Screen(tty, _width(out, env), colour, bool(env.get("ACCESSIBLE")), encoding.startswith("utf"))


def can_redraw(screen: Screen, environ: Mapping[str, str]) -> bool:
    """Whether lines may be overwritten: a real terminal that understands it, and a person who wants it."""
    return screen.tty and not screen.accessible and environ.get("TERM", "dumb") != "dumb" and _is_terminal(sys.stdout)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _width(stream: TextIO, env: Mapping[str, str]) -> int:
    asked = env.get("COLUMNS", "")
    if asked.isascii() and asked.isdigit() and int(asked) > 0:
        return max(20, int(asked))
    try:
        return max(20, os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError, AttributeError):
        return 80
