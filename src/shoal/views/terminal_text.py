"""Bytes of a log made harmless for a terminal: colours stay, everything that moves, renames, asks or beeps goes."""

from __future__ import annotations

import codecs
import re

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
