"""Waiting for a condition with a deadline: the only way in which tests wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: A deadline is what a quiet machine needs, with room. It only decides how soon a test fails, so a busy one gets more.
PATIENCE = 5


def wait_until(condition: Callable[[], T | None], deadline_s: float, what: str, *, poll_s: float = 0.1) -> T:
    """Call `condition` until it returns something true, and return that; fail with `what` well after the deadline.

    It is called once more after the deadline, so that a slow machine does not fail a test whose condition holds.
    """
    end = time.monotonic() + PATIENCE * deadline_s
    while True:
        late = time.monotonic() >= end
        if value := condition():
            return value
        if late:
            raise AssertionError(f"waited {PATIENCE * deadline_s:g} s in vain: {what} (last value: {value!r})")
        time.sleep(poll_s)
