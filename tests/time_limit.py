"""A limit for each test, so that one that hangs fails and says where, and does not take the whole run with it.

It is far above what the slowest test needs on a busy machine: it decides when hope is lost, not how fast tests are.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

#: Set-up, test and teardown together; twice this after a failure, because each of them may hang.
LIMIT_S = 600.0
#: Changes the limit, for the test of this module.
LIMIT_VARIABLE = "SHOAL_TEST_LIMIT_S"
_STDERR = 2


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fail a test in its main thread when its time is over, also while that waits for a child."""
    if threading.current_thread() is not threading.main_thread():
        return (yield)
    limit_s = float(os.environ.get(LIMIT_VARIABLE) or LIMIT_S)

    def give_up(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback(_STDERR, all_threads=True)
        children = "\n".join(_descendants(os.getpid())) or "none"
        pytest.fail(f"{item.nodeid} was not over after {limit_s:g} s; its processes:\n{children}")

    before = signal.signal(signal.SIGALRM, give_up)
    # A main thread that is in no Python code hears no signal: then the whole process ends.
    faulthandler.dump_traceback_later(3 * limit_s, exit=True, file=_STDERR)
    signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def _descendants(pid: int) -> Iterator[str]:
    """A line for each process below this one: its id, its state and its command."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for child in children:
            try:
                words = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            yield f"{child} {state} {words[:200]}"
            yield from _descendants(int(child))
