"""The guard, the outer process of a job: it lets no process run whose lease another job may have taken over.

    guard                 started by the batch script; receives signals; touches no shared file while the agent lives
    └── agent             holds the leases and renews them; is told of signals by the guard
        └── programs

- A lease that was not renewed in time: everything below is stopped (SIGSTOP), not killed, and continues when the agent
  renews it. So an hour without the file server, a suspended job or a closed laptop costs a pause and not a run.
- The agent has ended: everything below is killed, then its leases are closed. If the guard has ended, the agent does
  the same.
- On each further node of a run there is a guard as well; its agent is a small process that renews the lease of that
  node (job/launch/node_guards.py), and its programs are those that carry the mark of the attempt.
- The agent alone decides what a signal means, in the loop in which it also sees ends: a program that ended before the
  signal was looked at has ended by itself.

Leases are renewed in a thread of its own, which also notices that a run was cancelled: a file server that does not
answer may block it for any time, while the guard stops the programs and the rest of the agent continues.
"""

import json
import os
import select
import signal
import sys
import threading
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Set, Union

from . import fence, lease, processes

#: Signals for the agent; the first three ask it to end.
FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STOP_SIGNALS = FORWARDED_SIGNALS[:3]
_MAX_WAIT_S = 3600.0
#: Stopping everything takes at most this long; part of the margin between HOLD and TAKE.
_MAX_STOP_S = 9.0
_EXIT_KILLED = 137
_SIGNAL_WINDOW_S = 0.02


#: What an agent may hold: an attempt, or one further node of it.
AnyLease = Union[lease.Lease, lease.NodeLease]


class GuardLink:
    """The agent's side: it tells of its leases, and hears signals. `fd` can be read when there is one."""

    def __init__(self, fd: int, out: int, guard_pid: int) -> None:
        self.fd, self._out, self.guard_pid = fd, out, guard_pid
        self.is_broken = False
        self._heard: List[int] = []
        self._lock = threading.Lock()
        os.set_blocking(fd, False)

    def hold(self, held: AnyLease) -> None:
        """Until `held_until` what is below the agent may run."""
        self._tell(**_HeldLease.of(held)._asdict())

    def drop(self, held: AnyLease) -> None:
        """The attempt is over: nothing of it is to be watched."""
        self._tell(run_dir=held.run_dir, number=held.number, until=None)

    def signals(self) -> List[int]:
        """Those that came since the last call. `is_broken` is set if the guard is gone."""
        self._read()
        heard, self._heard = self._heard, []
        return heard

    def asked_to_stop(self) -> Optional[str]:
        """The name of a signal that asks to end, if one has come; it stays for `signals`."""
        self._read()
        return next((signal.Signals(number).name for number in self._heard if number in STOP_SIGNALS), None)

    def _read(self) -> None:
        while not self.is_broken:
            try:
                data = os.read(self.fd, 256)
            except BlockingIOError:
                return
            if not data:
                self.is_broken = True
            self._heard += list(data)

    def _tell(self, **words: Any) -> None:
        try:
            with self._lock:
                os.write(self._out, json.dumps(words).encode("ascii") + b"\n")
        except OSError:
            self.is_broken = True


def run_guarded(work: Callable[[GuardLink], int], at_end: Callable[[], None] = lambda: None) -> NoReturn:
    """Do `work` in a child of ours, guarded; this process ends with its exit code when nothing of it is left.

    `at_end` is called last, in this process, also if the child was killed.
    """
    for number in FORWARDED_SIGNALS:
        signal.signal(number, _ignore)
    to_agent, to_guard = os.pipe(), os.pipe()
    guard_pid = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(
        signal.SIG_BLOCK, FORWARDED_SIGNALS
    )  # What comes now is heard by the guard, which is ready in a moment.
    pid = os.fork()
    if pid == 0:
        os.close(to_agent[1])
        os.close(to_guard[0])
        os._exit(_run_agent(work, GuardLink(to_agent[0], to_guard[1], guard_pid)))
    os.close(to_agent[0])
    os.close(to_guard[1])
    # Nothing is open that would need Python's own way out, which takes longer than all the rest of an end.
    code = _Guard(pid, to_guard[0], to_agent[1]).watch()
    at_end()
    os._exit(code)


def _run_agent(work: Callable[[GuardLink], int], link: GuardLink) -> int:
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
        code = work(link)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
    return code


def end_without_guard(held: Sequence[AnyLease]) -> int:
    """For the agent, when the guard is gone: kill everything below, and close what was held. Returns the exit code."""
    processes.kill_descendants()
    for one in held:
        _kill_marked(one.mark)
        _close(_HeldLease.of(one))
    return _EXIT_KILLED


class _HeldLease(NamedTuple):
    run_dir: str
    number: int
    renewals: int
    mark: str
    until: float
    node: int = 0

    @staticmethod
    def of(held: AnyLease) -> "_HeldLease":
        return _HeldLease(held.run_dir, held.number, held.renewals, held.mark, held.held_until, held.node)


class _Guard:
    def __init__(self, agent: int, fd: int, out: int) -> None:
        self._agent, self._fd, self._out = agent, fd, out
        self._held: Dict[str, _HeldLease] = {}
        self._stopped: Set[int] = set()
        self._rest = b""
        self._came: List[int] = []

    def watch(self) -> int:
        processes.become_subreaper()
        woken, wake = os.pipe()
        for fd in (self._fd, self._out, woken, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in FORWARDED_SIGNALS:
            signal.signal(number, lambda number, frame: self._came.append(number))
        signal.signal(signal.SIGCHLD, _ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
        self._let_go()
        while True:
            status = self._collect()
            if status is not None:
                return self._finish(status)
            self._pass_signals_on()
            self._listen()
            self._enforce()
            readable, _, _ = select.select([self._fd, woken], [], [], self._wait_s())
            if readable == [self._fd]:
                # The runs of a pack come and go: what is told at about the same time is heard at once.
                readable, _, _ = select.select([woken], [], [], _SIGNAL_WINDOW_S)
            if woken in readable:
                drain_pipe(woken)

    def _let_go(self) -> None:
        """Nothing here may depend on a file server: not the folder, not the log."""
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)

    def _wait_s(self) -> float:
        if self._is_late():
            return 1.0  # Somebody may have let a stopped process go on; Slurm does before it ends a job.
        waits = [held.until - lease.boot_time_s() for held in self._held.values()]
        return max(0.0, min(waits, default=_MAX_WAIT_S))

    def _collect(self) -> Optional[int]:
        """The agent's exit code when it has ended; orphans that came to us are collected on the way."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return _EXIT_KILLED
            if pid == 0:
                return None
            if pid == self._agent:
                return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _pass_signals_on(self) -> None:
        came, self._came = self._came, []
        if came:
            try:
                os.write(self._out, bytes(came))
            except OSError:
                pass  # It has plenty to read, or is gone.

    def _listen(self) -> None:
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            words = json.loads(line)
            key = "%s %d" % (words["run_dir"], words["number"])
            if words["until"] is None:
                self._held.pop(key, None)
            else:
                self._held[key] = _HeldLease(**words)

    def _is_late(self) -> bool:
        return any(lease.boot_time_s() >= held.until for held in self._held.values())

    def _enforce(self) -> None:
        """One lease that was not renewed stops everything: the file server is away for all of them."""
        if self._is_late():
            self._stopped |= processes.stop_processes(self._everything, _MAX_STOP_S)
        elif self._stopped:
            for pid in self._stopped:
                processes.send_signal(pid, signal.SIGCONT)
            self._stopped = set()

    def _everything(self) -> Dict[int, str]:
        """What is below us but the agent, and what Slurm has started for it as a step on this node: pid -> state."""
        marked = [pid for held in self._held.values() for pid in processes.marked_pids(held.mark)]
        found = processes.with_descendants([os.getpid(), *marked])
        return {pid: state for pid, state in found.items() if pid not in (self._agent, os.getpid())}

    def _finish(self, code: int) -> int:
        """The agent is gone: nothing of its programs stays, and leases that it still held are closed."""
        self._listen()
        processes.kill_descendants()
        for held in self._held.values():
            _kill_marked(held.mark)
            _close(held)
        return code


def _kill_marked(mark: str) -> None:
    """Processes of an attempt that are not below us: they have left our tree, or are of a step of Slurm's."""
    ours = (os.getpid(), os.getppid())

    def look() -> Dict[int, str]:
        found = processes.with_descendants(processes.marked_pids(mark))
        return {pid: state for pid, state in found.items() if pid not in ours}

    processes.kill_processes(look, processes.MAX_KILL_S)


def _close(held: _HeldLease) -> None:
    """The agent may have renewed once more than it could tell."""
    for count in (held.renewals, held.renewals + 1):
        try:
            if held.node and lease.close_node_lease(held.run_dir, held.number, held.node, count):
                return
            if not held.node and lease.close_lease(held.run_dir, held.number, count):
                return
        except OSError:
            return


def drain_pipe(fd: int) -> None:
    """Empty a pipe that does not block."""
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def _ignore(number: int, frame: Any) -> None:
    """A handler and not SIG_IGN: programs that are started would inherit that."""


#: Told of a lease and why its attempt must end: lost, cancelled, superseded or handover.
OnUnwanted = Callable[[lease.Lease, str], None]


class LeaseRenewer:
    """Renews each lease once in a beat. `tell` is called from the keeper's own thread."""

    def __init__(self, times: lease.LeaseTiming, link: Optional[GuardLink], tell: OnUnwanted) -> None:
        self._times, self._link, self._tell = times, link, tell
        self._claims: Dict[lease.Lease, fence.Claim] = {}
        self._due: Dict[lease.Lease, float] = {}
        #: When the thread looks again by itself.
        self._looks_at = float("inf")
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def keep(self, held: lease.Lease, claim: fence.Claim) -> None:
        """From now on; call before the first program of the attempt starts."""
        if self._link is not None:
            self._link.hold(held)
        with self._changed:
            self._claims[held] = claim
            self._due[held] = held.held_until - self._times.hold_s + self._beat_s()
            if self._due[held] < self._looks_at:  # runs of a pack come and go between two beats
                self._changed.notify()
            if self._thread.ident is None:
                self._thread.start()

    def release(self, held: lease.Lease) -> None:
        """The attempt has ended, or was lost; nothing of it runs any more."""
        with self._changed:
            self._claims.pop(held, None)
            self._due.pop(held, None)
        if self._link is not None:
            self._link.drop(held)

    @property
    def held(self) -> List[lease.Lease]:
        with self._changed:
            return list(self._claims)

    def _beat_s(self) -> float:
        return self._times.beat_s * (0.9 + os.urandom(1)[0] / 1280.0)  # spreads the load of many jobs

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due:
                    self._looks_at = float("inf")
                    self._changed.wait()
                held = min(self._due, key=lambda one: self._due[one])
                wait_s = self._due[held] - lease.boot_time_s()
                if wait_s > 0:
                    self._looks_at = self._due[held]
                    self._changed.wait(wait_s)
                    continue
                claim = self._claims[held]
            self._renew(held, claim)

    def _renew(self, held: lease.Lease, claim: fence.Claim) -> None:
        found = held.renew()
        why: Optional[str] = "lost" if found == "lost" else None
        if found == "held":
            if self._link is not None:
                self._link.hold(held)
            try:
                why = fence.why_unwanted(claim, held.number)
            except (OSError, ValueError):
                pass  # The file server is away for a moment; that ends nothing.
        with self._changed:
            if held in self._due:
                # Three tries before its program is stopped, and soon again after that.
                self._due[held] = lease.boot_time_s() + (self._beat_s() if found == "held" else self._times.beat_s / 4)
                if found in ("lost", "over"):
                    del self._due[held]
        if why is not None:
            try:
                self._tell(held, why)
            except Exception as error:  # the leases matter more; the next beat tells again
                sys.stderr.write("shoal: %s: %s\n" % (type(error).__name__, error))
