"""Waiting for a condition with a deadline: the only way in which tests wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: The first pauses between two looks; later ones grow with what was waited, up to `poll_s`.
FIRST_PAUSE_S = 0.005
#: A deadline is what a quiet machine needs, with room. It only decides how soon a test fails, so a busy one gets more.
PATIENCE = 5


def wait_until(condition: Callable[[], T | None], deadline_s: float, what: str, *, poll_s: float = 0.1) -> T:
    """Call `condition` until it returns something true, and return that; fail with `what` well after the deadline.

    Short waits end soon, long ones leave the processor to those that are waited for: a pause is a tenth of the time
    waited so far, no longer than `poll_s`, but never shorter than the condition took.
    It is called once more after the deadline, so that a slow machine does not fail a test whose condition holds.
    """
    begin = time.monotonic()
    while True:
        asked = time.monotonic()
        late = asked >= begin + PATIENCE * deadline_s
        if value := condition():
            return value
        if late:
            raise AssertionError(f"waited {PATIENCE * deadline_s:g} s in vain: {what} (last value: {value!r})")
        now = time.monotonic()
        time.sleep(max(now - asked, min(poll_s, max(FIRST_PAUSE_S, (now - begin) / 10))))
