"""A small process beside the ranks of a further node that samples what they use.

srun's tasks become the user's program by exec, so nobody of ours stays on that node; torchrun's have a parent that does
this in a thread (node.py).
"""

import os
import signal
import time
from typing import Dict

from .. import processes, usage
from . import family

_RANK_POLL_S = 0.5


def sample_node(path: str, env: Dict[str, str]) -> None:
    """Leave a process behind that samples this job on this node until the caller's process has ended.

    It is no child of the caller: a program that waits for all its children must not wait for ours.
    """
    rank = os.getpid()
    try:
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            return
        if os.fork():
            os._exit(0)
    except OSError:
        return  # No room for one more process: the run matters more.
    try:
        _detach()
        sampler = usage.UsageSampler(env)
        sampler.add(path, env, lambda: processes.job_use(env))
        sampler.run(_RankProcess(rank))
    finally:
        os._exit(0)


def _detach() -> None:
    """Hold nothing open that somebody waits for, and outlive the signals that are for the ranks."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.closerange(3, 1024)
    os.chdir("/")
    for number in family.FORWARDED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class _RankProcess:
    """The rank's life, asked as a threading.Event is: has it ended?"""

    def __init__(self, pid: int) -> None:
        self._pid, self._started = pid, processes.process_start(pid)

    def wait(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        while processes.process_start(self._pid) == self._started:
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(_RANK_POLL_S, left_s))
        return True
