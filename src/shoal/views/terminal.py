"""Where output goes, decided once: a terminal or not, its width, colour, screen reader; questions; and safe log text.

NO_COLOR, FORCE_COLOR, TERM=dumb, COLUMNS and ACCESSIBLE=1 are obeyed; --plain and --tty override what is detected. A
question (yes or no, or one of several words) comes before anything that cannot be undone. Bytes of a log are made safe
for a terminal: colours stay, sequences that move, rename, query or beep are removed.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Mapping, Sequence
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
    if stream is None and (screen := _screen_elsewhere(env.get(SCREEN_VARIABLE, ""))) is not None:
        return screen if force is None else screen._replace(tty=force, colour=screen.colour and force)
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


#: The screen of the person, for a command that was ordered over ssh: shown there, computed here.
SCREEN_VARIABLE = "SHOAL_SCREEN"


def describe_screen(screen: Screen) -> str:
    """A screen as the value of SHOAL_SCREEN."""
    return " ".join(str(int(value)) for value in screen)


def _screen_elsewhere(text: str) -> Screen | None:
    words = text.split()
    if len(words) != len(Screen._fields) or not all(word.isascii() and word.isdigit() for word in words):
        return None
    tty, width, colour, accessible, unicode = map(int, words)
    return Screen(bool(tty), max(20, width), bool(colour), bool(accessible), bool(unicode))


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


def confirm(question: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Only a clear yes is one; Ctrl-D is no."""
    return _answer(question, ("yes", "no"), "y/N", environ) == "yes"


def choose_word(question: str, words: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """One of the words, by its first letter or whole; the last one for anything else, and for Ctrl-D."""
    return _answer(question, words, "/".join(words), environ)


def _answer(question: str, words: Sequence[str], choices: str, environ: Mapping[str, str]) -> str:
    """Numbers to choose from where the screen is read aloud (ACCESSIBLE=1) or the terminal can do nothing but print
    (TERM=dumb)."""
    numbered = bool(environ.get("ACCESSIBLE")) or environ.get("TERM") == "dumb"
    keys = {str(at): word for at, word in enumerate(words, 1)}
    if numbered:
        lines = "\n".join(f"{key}: {word}" for key, word in keys.items())
        prompt = f"{question}\n{lines}\nAnswer with a number, {len(words)} if empty: "
    else:
        keys = {key: word for word in reversed(words) for key in (word, word[0])}
        prompt = f"{question} [{choices}] "
    try:
        answer = input(prompt).strip().lower()
    except EOFError:
        print()
        return words[-1]
    return keys.get(answer, words[-1])


#: A complete colour sequence is kept; any other escape sequence, and every control character but \t, \n, \r, goes.
_CONTROL_SEQUENCE = re.compile(
    "(\x1b\\[[0-9;:]*m)"
    "|\x1b\\[[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|\x1b[PX^_][^\x1b]*\x1b\\\\"
    "|\x1b[ -/]*[0-OQ-WYZ\\\\`-~]|\x1b"
    "|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
_MAX_SEQUENCE_LENGTH = 4096


def strip_control_sequences(text: str, colour: bool = True) -> str:
    return _CONTROL_SEQUENCE.sub((lambda match: match[1] or "") if colour else "", text)


class ControlSequenceFilter:
    """The same for a stream in pieces: a sequence or a letter cut in two by a block waits for its other half."""

    def __init__(self, colour: bool = True) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._colour = colour
        self._rest = ""

    def feed(self, data: bytes) -> bytes:
        text = self._rest + self._decoder.decode(data)
        at = text.rfind("\x1b")
        cut = at >= 0 and len(text) - at < _MAX_SEQUENCE_LENGTH and not _is_complete(text[at:])
        self._rest = text[at:] if cut else ""
        return strip_control_sequences(text[:at] if cut else text, self._colour).encode("utf-8", "replace")

    def flush(self) -> bytes:
        text, self._rest = self._rest + self._decoder.decode(b"", True), ""
        return strip_control_sequences(text, self._colour).encode("utf-8", "replace")


def _is_complete(text: str) -> bool:
    match = _CONTROL_SEQUENCE.match(text)
    return match is not None and len(match[0]) > 1
