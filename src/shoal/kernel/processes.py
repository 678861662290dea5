"""Processes as groups: which end together, which receive which signals, and the tree below a process.

A tree is found by parents, and stopped and killed as a whole. A process is identified by more than its number: a pid is
reused; a (host, boot, pid namespace, pid, start time) is not.
"""

import os
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set

_PR_SET_CHILD_SUBREAPER = 36
_WALK_PAUSE_S = 0.005
#: How long killing is tried: a process in uninterruptible sleep ends when its I/O returns.
MAX_KILL_S = 30.0


def become_subreaper() -> None:
    """Become the parent of whatever our descendants leave behind, so that it can be found and ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class _ProcEntry(NamedTuple):
    parent: int
    state: str


def descendants(top: int, but: int = 0) -> Dict[int, str]:
    """pid -> state letter of /proc for every process below `top`; `but` itself is left out, what is below it is not."""
    return {pid: state for pid, state in with_descendants([top]).items() if pid not in (top, but)}


def with_descendants(tops: Iterable[int]) -> Dict[int, str]:
    """pid -> state letter of /proc for these processes and all below them; those that are gone are left out."""
    known = _processes()
    children: Dict[int, List[int]] = {}
    for pid, one in known.items():
        children.setdefault(one.parent, []).append(pid)
    found: Dict[int, str] = {}
    todo = list(tops)
    while todo:
        pid = todo.pop()
        if pid in known and pid not in found:
            found[pid] = known[pid].state
            todo += children.get(pid, [])
    return found


def top_processes(pids: Sequence[int]) -> List[int]:
    """Those of these processes whose parent is not among them."""
    known = _processes()
    return [pid for pid in pids if pid in known and known[pid].parent not in pids]


def stop_processes(look: Callable[[], Dict[int, str]], within_s: float) -> Set[int]:
    """SIGSTOP to everything that `look` finds until it finds nothing that runs; returns what was stopped."""
    stopped: Set[int] = set()
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        running = [pid for pid, state in look().items() if state not in "TtZX"]
        if not running:
            break
        for pid in running:
            send_signal(pid, signal.SIGSTOP)
            stopped.add(pid)
        time.sleep(_WALK_PAUSE_S)
    return stopped


def kill_processes(look: Callable[[], Dict[int, str]], within_s: float) -> None:
    """SIGKILL to everything that `look` finds until it finds nothing but what cannot be killed; our children are
    collected."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        left = [pid for pid, state in look().items() if state not in "ZX"]
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        collect_children()
        if not left:
            return
        time.sleep(_WALK_PAUSE_S)


def kill_descendants(within_s: float = MAX_KILL_S) -> None:
    """Kill everything below us. Whoever has no child has nothing below: that is known without reading /proc."""
    if collect_children():
        kill_processes(lambda: descendants(os.getpid()), within_s)


def send_signal(pid: int, number: int) -> None:
    """A signal to a process that may be gone by now."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def collect_children() -> bool:
    """Whether children are left after collecting those that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _processes() -> Dict[int, _ProcEntry]:
    found: Dict[int, _ProcEntry] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            found[int(name)] = _ProcEntry(int(fields[1]), fields[0].decode())
        except (OSError, IndexError, ValueError):
            continue
    return found


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


def make_preexec(block_signals: bool, with_parent: bool = True) -> Callable[[], None]:
    """What a child does between fork and exec. With `block_signals` it never sees the signals that it would mishandle.

    torchrun dies of SIGUSR1, and after SIGTERM it counts a rank that saved and left with 0 as failed (measured with
    torch 2.13). It is left out: signals go to the ranks themselves, which lift the block before they become the
    program.
    """

    def setup() -> None:
        if with_parent:
            die_with_parent()
        signal.pthread_sigmask(signal.SIG_BLOCK if block_signals else signal.SIG_UNBLOCK, FORWARDED_SIGNALS)

    return setup


class SignalQueue:
    """Signals as they came, each once for repeats within a few seconds; handled by the main loop, one after the other.

    Slurm signals a step's tasks, and the agent, signalled as well, signals the same step: one request, received twice.
    And what is done about a signal (a call of scancel) must not be interrupted by doing something about the next.
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
        kill_descendants()
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
        import ctypes  # a command that only looks at processes does not need it

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


#: In the environment of everything that an attempt starts: which attempt that is.
LEASE_MARK_VARIABLE = "SHOAL_LEASE"


def host_name() -> str:
    """This machine's name, without the 2 ms that loading `socket` costs a job."""
    return os.uname().nodename


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """The name that people know this machine by: Slurm's for a node of a job, else its own."""
    return environ.get("SLURMD_NODENAME") or host_name()


def own_identity() -> Dict[str, Any]:
    """An identity of this process that another command on this host can check later."""
    return process_identity(os.getpid())


def process_identity(pid: int) -> Dict[str, Any]:
    return {"host": host_name(), "pid": pid, "started": process_start_time(pid), "uid": os.getuid()}


def is_own_record(record: Mapping[str, Any]) -> bool:
    """Whether a submission is this user's to send, to continue and to cancel; older records name no user."""
    return record.get("uid") in (None, os.getuid())


def agent_path() -> str:
    """The zip that we run from, for a process that starts itself again in another role."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def is_process_alive(identity: Mapping[str, Any]) -> Optional[bool]:
    """Whether that very process still runs; None where nobody can tell from here: it lives on another host, in another
    boot or pid namespace, or belongs to somebody whose processes may be hidden from us (hidepid)."""
    pid, began = identity.get("pid"), identity.get("started")
    if identity.get("host") != host_name() or not isinstance(pid, int) or not began:
        return None
    now = process_start_time(pid)
    if now == began:
        return True
    mine = process_start_time(os.getpid()) or ""
    if os.path.isdir("/proc/self") and mine.partition(":")[0] != str(began).partition(":")[0]:
        return None
    visible = is_own_record(identity) or os.access("/proc/1/stat", os.R_OK) or not os.path.isdir("/proc/self")
    return False if visible else None


def marked_pids(mark: str) -> List[int]:
    """Our processes whose environment carries the mark of an attempt; what ended but was not collected is left out."""
    wanted = ("%s=%s" % (LEASE_MARK_VARIABLE, mark)).encode()
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found


def process_start_time(pid: int) -> Optional[str]:
    """When a process began, in a form that only serves to compare; None if there is no such process."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        if fields[0] == b"Z":
            return None
        with open("/proc/sys/kernel/random/boot_id") as file:
            return "%s-%s:%s" % (file.read(8), os.stat("/proc/self/ns/pid").st_ino, fields[19].decode())
    except (FileNotFoundError, ProcessLookupError):
        if os.path.isdir("/proc/self"):
            return None
    except (IndexError, PermissionError):
        return None
    # A laptop without /proc (macOS).
    try:
        done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], stdout=subprocess.PIPE, check=False)
    except OSError:
        return None
    return done.stdout.decode().strip() or None
