"""For tests/fuzz: foreign text as it is, with a few places changed, and a limit on the CPU time of a reader.

`SHOAL_FUZZ_EXAMPLES` is how many inputs each test tries (default 6: a few seconds in all; `make fuzz` tries 2000).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("SHOAL_FUZZ_EXAMPLES") or 6)
MAX_CPU_S = 2.0
fuzz_settings = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


#: What readers of text look for, and digits that int() does not take although str.isdigit() does.
_PIECES = ("|", "=", "\n", "\r", "\0", " ", ",", "[", "]", "{", "}", "(", ")", '"', "'", "%", "\\", "/", "..", "-", "+",
           "_", ":", "\u00b2", "\u0663", "\ud800", "\u2028", "1e999", "nan",
           "9" * 30, "9" * 5000, "[" * 3000)  # fmt: skip


@contextlib.contextmanager
def limited_cpu() -> Iterator[None]:
    """Fail what computes for more than two seconds; CPU time, so that a busy machine makes no difference."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"more than {MAX_CPU_S:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@st.composite
def changed_text(draw: st.DrawFn, *samples: str) -> str:
    """A sample with up to six changes: a part cut out, repeated or replaced; now and then any text at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.text(max_size=200))
    text = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        piece = draw(st.one_of(st.sampled_from(_PIECES), st.text(max_size=4), st.just(text[start:end] * 2)))
        text = text[:start] + piece + text[end:]
    return text


@st.composite
def changed_bytes(draw: st.DrawFn, *samples: bytes) -> bytes:
    """The same with bytes; numbers of 0, 255 and a flipped bit are what lengths in binary files break at."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 16)))
        some = (b"\0" * 8, b"\xff" * 8, b"\x80" * 12, b"", data[start:end] * 2)
        piece: Any = draw(st.one_of(st.sampled_from(some), st.binary(max_size=4)))
        data = data[:start] + piece + data[end:]
    return data
