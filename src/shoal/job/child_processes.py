"""The processes of a run: start, watch and signal them, and leave none behind.

Each run is a session of its own and is killed by the kernel when the executor's process ends (`setpriv --pdeathsig`, a
program of a hundred kilobytes, costs half of what a fork of this interpreter does). Processes that a run leaves when it
ends, in its group or outside, become children of the executor and are ended before the run's GPU is assigned again.
"""

import ctypes
import errno
import functools
import os
import shutil
import signal
import subprocess
import sys
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

if TYPE_CHECKING:
    from .pack.node import RemoteNode

_PR_SET_PDEATHSIG = 1


class Program(NamedTuple):
    """What to start: `log` is the file that its output and errors are appended to, in the order in which they come,
    unless `streams` names a file for each; `cpus` are those it may use (any if there are none), `use` the file for what
    it uses, written by whoever starts it where this process cannot look.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    log: str
    cpus: Sequence[int] = ()
    use: Optional[str] = None
    streams: Optional[Tuple[str, str]] = None


class Child:
    """One process of ours. `poll` gives its return code as subprocess does, once it and its group are gone.

    `problem` says why it could not be started; `slot_lost` that nothing can be started in its place any more.
    """

    #: Whether `pid` is a process of this machine, which can be looked at.
    is_here = True

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: Optional[int] = None
        self.problem: Optional[str] = None
        self.slot_lost = False

    def poll(self) -> Optional[int]:
        if self.code is None:
            try:
                # Looked at but not yet collected: until then nobody else can get this number for its group.
                if hasattr(os, "waitid"):
                    if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                        return None
                    self.signal(signal.SIGKILL)
                    status = os.waitpid(self.pid, 0)[1]
                else:  # macOS
                    ended, status = os.waitpid(self.pid, os.WNOHANG)
                    if not ended:
                        return None
                    self.signal(signal.SIGKILL)
            except ChildProcessError:
                self.code = -signal.SIGKILL  # Somebody else collected it; how it ended is lost.
                return self.code
            self.code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self.code

    def signal(self, number: int) -> None:
        if self.code is None:
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def signal_leader(self, number: int) -> None:
        """A signal for the first process alone, not for what it started."""
        if self.code is None:
            try:
                os.kill(self.pid, number)
            except (ProcessLookupError, PermissionError):
                pass


class StarterFailed(Exception):
    """What should start runs is missing or does not come up; the message is one sentence."""


class Starter:
    """What an engine asks of whoever starts its processes. Nothing is started while it is `waiting`, and never again
    once it is `broken`.
    """

    waiting = False
    broken = False
    #: Slots in which nothing can be started any more.
    dead: Collection[int] = ()
    #: Processes that are not runs and must be left alone, and what the loop should wake up for.
    pids: Sequence[int] = ()
    wait_on: Sequence[Any] = ()

    def start(self, program: Program) -> Child:
        """OSError says what is missing."""
        raise NotImplementedError

    def place(self, slot: int) -> "Optional[RemoteNode]":
        """Where a slot is, if that is not here."""
        return None

    def collect(self) -> None:
        """Take in what has happened meanwhile."""

    def close(self) -> None:
        """End everything that is not a run."""


class ColdStarter(Starter):
    """Starts each run from nothing; knows how this machine lets a child die with its parent.

    `many`: it is worth a look whether setpriv works here.
    """

    def __init__(self, environ: Mapping[str, str], many: bool = True) -> None:
        self.prefix: List[str] = []
        self.setup: Optional[Callable[[], Any]] = None
        self._known: Dict[Tuple[str, str], str] = {}
        if sys.platform != "linux":
            return
        setpriv = shutil.which("setpriv", path=environ.get("PATH", os.defpath))
        if many and setpriv and _runs_successfully([setpriv, "--pdeathsig", "KILL", "--", "/bin/true"]):
            self.prefix = [setpriv, "--pdeathsig", "KILL", "--"]
        else:
            self.setup = functools.partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

    def start(self, program: Program) -> Child:
        argv, env, cwd, log, cpus, _, streams = program
        found = self.find(argv[0], env.get("PATH", os.defpath), cwd)
        before = os.sched_getaffinity(0) if cpus else None
        output, errors = streams or (log, log)
        with open(output, "ab", 0) as out, open(errors, "ab", 0) as err:
            try:
                if cpus:
                    os.sched_setaffinity(0, cpus)
                child = subprocess.Popen(
                    [*self.prefix, found, *argv[1:]] if self.prefix else list(argv),
                    executable=None if self.prefix else found,
                    env=env,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err if streams else out,
                    start_new_session=True,
                    preexec_fn=self.setup,
                )
            finally:
                if before is not None:
                    os.sched_setaffinity(0, before)
        child.returncode = 0  # We collect it ourselves; this keeps subprocess from doing so or complaining.
        return Child(child.pid)

    def find(self, program: str, path: str, cwd: str) -> str:
        if os.path.dirname(program):
            found: Optional[str] = os.path.join(cwd, program)
        else:
            found = self._known.get((program, path)) or shutil.which(program, path=path)
        if found is None or not os.path.exists(found):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
        if not os.access(found, os.X_OK) or os.path.isdir(found):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), program)
        self._known[program, path] = found
        return found


def kill_leftovers(known: Iterable[int], running: Set[Tuple[str, str]]) -> None:
    """End processes that came to us because the run that started them is over; (run, attempt) names those that are not.

    Collects those that ended by themselves. A process whose environment does not say where it comes from is left for
    the end of the engine.
    """
    ours = set(known)
    for _ in range(5):  # A killed one may leave children of its own.
        if not _kill_leftovers_once(ours, running):
            return


def _kill_leftovers_once(ours: Set[int], running: Set[Tuple[str, str]]) -> bool:
    killed = False
    for pid in _child_pids():
        if pid in ours:
            continue
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                continue
            with open("/proc/%d/environ" % pid, "rb") as file:
                words = file.read().decode("utf-8", "replace").split("\0")
        except (ChildProcessError, OSError):
            continue
        found = dict(word.split("=", 1) for word in words if word.startswith(("SHOAL_RUN=", "SHOAL_ATTEMPT=")))
        if len(found) == 2 and (found["SHOAL_RUN"], found["SHOAL_ATTEMPT"]) not in running:
            try:
                os.kill(pid, signal.SIGKILL)
                killed = True
                os.waitpid(pid, 0)
            except (ProcessLookupError, PermissionError, ChildProcessError):
                pass
    return killed


def _child_pids() -> List[int]:
    """Our children by one small file; where the kernel has none, strangers wait for the end of the engine."""
    try:
        with open("/proc/self/task/%d/children" % os.getpid()) as file:
            return [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return []


def _runs_successfully(argv: Sequence[str]) -> bool:
    try:
        done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
