"""One attempt: start the user's process, pass signals on, stop when told to, say how it ended."""

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..kernel import fence, guard, layout, lease, process
from ..kernel.keeper import Keeper
from . import memory, notices, preempted, survival, tree, trial, usage
from .launch import node_guards, plan

#: Signals that ask the run to end. Leaving with code 0 after one of them is a polite stop, not a finished training.
_STOPPING = ("SIGTERM", "SIGINT", "SIGHUP")
_PR_SET_PDEATHSIG = 1
#: What is left of a warning for writing down the end and sending a follow-up job.
_SPARE_S = 15.0
_QUIET_EVERY_S = 30.0


class Attempt:
    """The user's process and what surrounds it. `run()` returns the end record.

    `look` is called every few seconds while the process lives. A trial that takes its run over changes `claim` and
    `held` under way, holding `moving`: from then on this is an attempt of that run. `is_lost` is set when somebody else
    has closed the lease: then the end counts nothing.
    """

    def __init__(
        self,
        claim: fence.Claim,
        held: lease.Lease,
        cwd: str,
        link: guard.Link,
        argv: Sequence[str] = (),
        env: Optional[Dict[str, str]] = None,
    ) -> None:
        self.claim, self.held, self.cwd = claim, held, cwd
        self.times = lease.timing_of(held.start)
        self.look: Optional[Callable[[Attempt], None]] = None
        self.node_guards: Optional[node_guards.NodeGuards] = None
        self.prepare(argv, env or {})
        self.stopped_by: Optional[str] = None
        self.warned = False
        self.is_lost = False
        #: A trial that has claimed this run: its token, the renewals first seen, and since when.
        self.rival: Optional[Tuple[str, int, fence.Watch]] = None
        self.moving = threading.RLock()
        self._link = link
        self.keeper = Keeper(self.times, link, self._told)
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._over = threading.Event()
        self._wishes: List[str] = []
        self._woken, self._wake = os.pipe()
        self._kill_at: Optional[float] = None
        self._limit_at: Optional[float] = None
        self._logs: List[str] = []

    def prepare(self, argv: Sequence[str], env: Dict[str, str]) -> None:
        """What is executed, and in which environment; that says how it is watched, too."""
        self.argv, self.env = list(argv), env
        env[process.MARK] = str(self.held.start.get("mark"))
        self.grace_s = float(env.get("SHOAL_GRACE_S") or 30)
        self.warn_s = float(env.get("SHOAL_WARN_S") or 0)
        self.look_s = float(env.get("SHOAL_LOOK_S") or 2)

    def release(self) -> None:
        """Nobody works on this attempt any more: if something broke before its end was written, close it."""
        if not self.held.is_over:
            try:
                lease.close(self.held.run_dir, self.held.number, self.held.renewals)
            except OSError:
                pass  # Somebody will see that it is not renewed.
        self.keeper.release(self.held)

    @property
    def number(self) -> int:
        return self.held.number

    def run(self, out: str, err: str, follow: bool) -> Dict[str, Any]:
        """Run to the end with output appended to the two files; `follow` also copies it to our own output."""
        began = time.time()
        clock = time.monotonic()
        kills_before = memory.oom_kills()
        offsets = [(path, _size(path)) for path in (out, err)]
        self._logs = [out, err]
        launch_folder = plan.folder_of(out, self.number)
        works = (self._sample, self._watch, self._watch_log)
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        copies = [
            threading.Thread(target=_copy, args=(path, offset, stream, self._over), daemon=True)
            for (path, offset), stream in zip(offsets, (sys.stdout.buffer, sys.stderr.buffer))
            if follow
        ]
        with open(out, "ab", 0) as out_file, open(err, "ab", 0) as err_file:
            code, problem = self._start_and_wait(out_file, err_file, threads, copies)
        if self.stopped_by is None and preempted.steps_were_ended(launch_folder):
            self.stopped_by = "SIGTERM"
        self._over.set()
        for thread in threads + copies:
            if thread.ident is not None:
                thread.join(5)
        return {
            "attempt": self.number,
            "generation": self.claim.generation,
            "revision": self.claim.revision,
            "token": self.claim.token,
            "output_dir": self.claim.output_dir,
            "exit_code": code if code >= 0 else 128 - code,
            "signal": signal.Signals(-code).name if code < 0 else None,
            "stopped_by": self.stopped_by,
            "warned": self.warned,
            "oom": memory.oom_kills() > kills_before,
            "problem": problem,
            "began": began,
            "ended": time.time(),
            "duration_s": time.monotonic() - clock,
        }

    def _start_and_wait(
        self, out_file: Any, err_file: Any, threads: List[threading.Thread], copies: List[threading.Thread]
    ) -> Tuple[int, Optional[str]]:
        for fd in (self._woken, self._wake):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for thread in copies:
            thread.start()
        try:
            self._child = subprocess.Popen(
                self.argv,
                env=self.env,
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            missing = error.filename if error.filename not in (None, self.argv[0]) else self.argv[0]
            problem = "cannot start %s: %s" % (missing, error.strerror)
            err_file.write(("shoal: %s\n" % problem).encode("utf-8", "replace"))
            return 127 if isinstance(error, FileNotFoundError) else 126, problem
        for thread in threads:
            thread.start()
        return self._wait(self._child), None

    def _wait(self, child: "subprocess.Popen[bytes]") -> int:
        """One loop for ends, signals, wishes and times. What has ended before a signal is looked at ended by itself."""
        while True:
            code = child.poll()
            if code is not None:
                return code
            for number in self._link.signals():
                self._hear(number)
            if self._link.is_broken:
                os._exit(guard.end_without_guard(self.keeper.held))
            self._obey()
            now = time.monotonic()
            if self._limit_at is not None and now >= self._limit_at:
                self._limit_at = None
                self._stop("limit")
            if self._kill_at is not None and now >= self._kill_at:
                self._kill_at = None
                self._signal(signal.SIGKILL)
            due = [at - now for at in (self._limit_at, self._kill_at) if at is not None]
            select.select([self._link.fd, self._woken], [], [], max(0.0, min(due, default=60.0)))
            guard.drain(self._woken)

    def _hear(self, number: int) -> None:
        name = signal.Signals(number).name
        if name in _STOPPING:
            self._stop(name, number)
        elif name == "SIGUSR1" and self.warn_s:
            self._warn(number)
        else:
            self._signal(number)

    def _warn(self, number: int) -> None:
        """The time limit is near: tell the program in its way, and stop it ourselves while there is time to go on."""
        if self.warned:
            return
        self.warned = True
        survival.warn(self.env, lambda: self._signal(number))
        self._limit_at = time.monotonic() + max(5.0, self.warn_s - self.grace_s - _SPARE_S)

    def stop(self, why: str) -> None:
        """Ask the user's processes to end, unless they have been asked before; from any thread."""
        self._wishes.append(why)
        try:
            os.write(self._wake, b"w")
        except OSError:
            pass  # It wakes up anyway.

    def _obey(self) -> None:
        wishes, self._wishes = self._wishes, []
        for why in wishes:
            if why == "lost":
                self.is_lost = True
                self._signal(signal.SIGKILL)
            elif self.stopped_by is None:
                self._stop(why)

    def _stop(self, why: str, number: int = signal.SIGTERM) -> None:
        """Ask the user's processes to end; a second request, or the end of the grace time, does not ask."""
        if self.stopped_by is not None:
            self._signal(signal.SIGKILL)
            return
        self.stopped_by = why
        self._limit_at = None
        self._signal(number)
        self._kill_at = time.monotonic() + self.grace_s
        # Whoever closes this attempt later can tell a job that was stopped from a node that died.
        threading.Thread(target=self._note, args=(why,), daemon=True).start()

    def _note(self, why: str) -> None:
        try:
            self.held.note({"stopping": why})
        except OSError:
            pass

    def _signal(self, number: int) -> None:
        if self._child is not None and self._child.returncode is None:
            try:
                os.killpg(self._child.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def _told(self, held: lease.Lease, why: str) -> None:
        """From the keeper: this attempt is not wanted any more."""
        with self.moving:
            if held is not self.held:
                return
            if why == "superseded":
                beaten = trial.beaten(self)
                if beaten is None:
                    return
                why = beaten
        self.stop(why)

    def _watch_log(self) -> None:
        """Tell a person when nothing is printed for long."""
        home, began = layout.home_of(self.claim.run_dir), time.time()
        while not self._over.wait(_QUIET_EVERY_S):
            try:
                notices.when_quiet(home, self.env.get("SHOAL_RUN", ""), self._logs, began, self.env)
            except OSError:
                pass  # It is looked at again in a moment.

    def _watch(self) -> None:
        while self.look is not None and not self._over.wait(self.look_s):
            try:
                if self.stopped_by is None:
                    self.look(self)
            except (OSError, ValueError):
                pass  # It is looked at again in a moment.

    def _sample(self) -> None:
        if self._child is not None:
            pid = self._child.pid
            path = os.path.join(self.claim.run_dir, layout.attempt_file(self.number, "use"))
            usage.watch(path, self.env, lambda: tree.use_of(pid, self.env), self._over)


def _die_with_parent() -> None:
    """Ask the kernel to kill the program when the agent is killed, so that `kill -9` leaves no orphan."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _copy(path: str, offset: int, stream: Any, over: threading.Event) -> None:
    """Copy what is appended to a file to a stream until the attempt is over and all of it was copied."""
    with open(path, "rb") as file:
        file.seek(offset)
        while True:
            finished = over.is_set()
            data = file.read(1 << 16)
            if data:
                try:
                    stream.write(data)
                    stream.flush()
                except (OSError, ValueError):
                    return
            elif finished:
                return
            else:
                over.wait(0.1)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
