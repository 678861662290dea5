"""Processes that end together: who dies with whom, who takes in orphans, who is deaf to which signals."""

import ctypes
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional

from ...kernel import tree

if TYPE_CHECKING:
    import subprocess

#: Handed on to the user's processes; the first three ask them to end.
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it is gone; it stays so over exec."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def signal_on_parent_death(number: int) -> None:
    """Ask the kernel for a signal when the process that started this one is gone."""
    _prctl(_PR_SET_PDEATHSIG, number)


def make_preexec(deaf: bool, with_parent: bool = True) -> Callable[[], None]:
    """What a child does between fork and exec. A deaf one never sees the signals that it would mishandle.

    torchrun dies of SIGUSR1, and after SIGTERM it counts a rank that saved and left with 0 as failed (measured with
    torch 2.13). It is left out: signals go to the ranks themselves, which lift the block before they become the
    program.
    """

    def setup() -> None:
        if with_parent:
            die_with_parent()
        signal.pthread_sigmask(signal.SIG_BLOCK if deaf else signal.SIG_UNBLOCK, FORWARDED_SIGNALS)

    return setup


class SignalQueue:
    """Signals as they came, each once for repeats within a few seconds; handled by the main loop, one after the other.

    Slurm signals a step's tasks, and the agent, told as well, signals the same step: one wish, heard twice. And what is
    done about a signal (a call of scancel) must not be interrupted by doing something about the next.
    """

    def __init__(self, window_s: float = 5.0) -> None:
        self._came: List[int] = []
        self._heard: Dict[int, float] = {}
        self._window_s = window_s
        for number in FORWARDED_SIGNALS:
            signal.signal(number, self._hear)

    def take(self) -> List[int]:
        came, self._came = self._came, []
        return came

    def _hear(self, number: int, frame: Optional[object]) -> None:
        now = time.monotonic()
        if now - self._heard.get(number, -self._window_s) >= self._window_s:
            self._heard[number] = now
            self._came.append(number)


def wait_for_child(
    child: "subprocess.Popen[bytes]",
    inbox: SignalQueue,
    handle: Callable[[int], None],
    look: Callable[[], None],
    poll_s: float = 0.1,
) -> int:
    """Wait for a child, handle signals and `look` meanwhile; a blocking call may miss the signal before it."""
    while True:
        code = child.poll()
        if code is not None:
            return code
        for number in inbox.take():
            handle(number)
        look()
        time.sleep(poll_s)


def kill_tree_with_parent() -> None:
    """For the launcher: when the agent is killed, kill every descendant, whoever its parent is by then, and end.

    A rank's own children (loaders of data) have no parent-death signal; only somebody who survives can find them.
    """
    if sys.platform != "linux":
        return

    def handler(number: int, frame: Optional[object]) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
        tree.kill_descendants()
        os._exit(128 + signal.SIGKILL)

    signal.signal(signal.SIGRTMIN, handler)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGRTMIN)


def shell_exit_code(returncode: int) -> int:
    """A shell's exit code for what subprocess reports: death by a signal is 128 and its number."""
    return returncode if returncode >= 0 else 128 - returncode


def log_message(text: str) -> None:
    sys.stderr.write("shoal: %s\n" % text)
    sys.stderr.flush()


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
