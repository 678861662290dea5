"""One attempt: start the user's process, pass signals on, beat, stop when told to, write down how it ended."""

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from ..kernel import fence, files, layout
from . import memory, notices, preempted, survival, tree, trial, usage
from .launch import family, plan

#: Signals that ask the run to end. Leaving with code 0 after one of them is a polite stop, not a finished training.
_STOPPING = ("SIGTERM", "SIGINT", "SIGHUP")
_LATER = (signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1
#: What is left of a warning for writing down the end and sending a follow-up job.
_SPARE_S = 15.0


class Attempt:
    """The user's process and what surrounds it. `run()` returns the end record.

    `look` is called every few seconds while the process lives. A trial that takes its run over changes `claim` and
    `number` under way, holding `moving`: from then on this is an attempt of that run.
    """

    def __init__(
        self,
        claim: fence.Claim,
        number: int,
        argv: List[str],
        env: Dict[str, str],
        cwd: str,
        look: Optional[Callable[["Attempt"], None]] = None,
    ) -> None:
        self.claim = claim
        self.number = number
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.beat_s = float(env.get("SHOAL_BEAT_S") or 30)
        self.grace_s = float(env.get("SHOAL_GRACE_S") or 30)
        self.warn_s = float(env.get("SHOAL_WARN_S") or 0)
        self.look = look
        self.look_s = float(env.get("SHOAL_LOOK_S") or 2)
        self.stopped_by: Optional[str] = None
        self.warned = False
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._over = threading.Event()
        self.moving = threading.RLock()
        self._logs: List[str] = []

    def run(self, out: str, err: str, follow: bool) -> Dict[str, Any]:
        """Run to the end with output appended to the two files; `follow` also copies it to our own output."""
        began = time.time()
        clock = time.monotonic()
        kills_before = memory.oom_kills()
        offsets = [(path, _size(path)) for path in (out, err)]
        self._logs = [out, err]
        launch_folder = plan.folder_of(out, self.number)
        works = (self._heartbeat, self._sample, self._watch)
        threads = [threading.Thread(target=work, daemon=True) for work in works]
        if follow:
            streams = (sys.stdout.buffer, sys.stderr.buffer)
            threads += [
                threading.Thread(target=_copy, args=(path, offset, stream, self._over), daemon=True)
                for (path, offset), stream in zip(offsets, streams)
            ]
        with open(out, "ab", 0) as out_file, open(err, "ab", 0) as err_file:
            code, problem = self._start_and_wait(out_file, err_file, threads)
        if self.stopped_by is None and preempted.steps_were_ended(launch_folder):
            self.stopped_by = "SIGTERM"
        self._over.set()
        for thread in threads:
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

    def _start_and_wait(self, out_file: Any, err_file: Any, threads: List[threading.Thread]) -> Any:
        # What comes now is heard when there is somebody to tell.
        signal.pthread_sigmask(signal.SIG_BLOCK, family.FORWARDED)
        for number in family.FORWARDED:
            signal.signal(number, self._forward(number.name))
        try:
            self._child = subprocess.Popen(
                self.argv,
                env=self.env,
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                start_new_session=True,
                preexec_fn=_in_child,
            )
        except OSError as error:
            missing = error.filename if error.filename not in (None, self.argv[0]) else self.argv[0]
            problem = "cannot start %s: %s" % (missing, error.strerror)
            err_file.write(("shoal: %s\n" % problem).encode("utf-8", "replace"))
            for thread in threads[3:]:  # only those that copy the log: there is nothing to look at
                thread.start()
            return 127 if isinstance(error, FileNotFoundError) else 126, problem
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, family.FORWARDED)
        if self.stopped_by is not None:  # Another thread has heard it, when there was nobody to tell yet.
            self._signal(signal.SIGTERM)
        for thread in threads:
            thread.start()
        return _wait(self._child), None

    def _forward(self, name: str) -> Callable[..., None]:
        def handler(number: int, frame: Any) -> None:
            if name in _STOPPING:
                self._stop(name, number)
            elif name == "SIGUSR1" and self.warn_s:
                self._warn(number)
            else:
                self._signal(number)

        return handler

    def _warn(self, number: int) -> None:
        """The time limit is near: tell the program in its way, and stop it ourselves while there is time to go on."""
        if self.warned:
            return
        self.warned = True
        survival.warn(self.env, lambda: self._signal(number))
        timer = threading.Timer(max(5.0, self.warn_s - self.grace_s - _SPARE_S), self._stop, ("limit",))
        timer.daemon = True
        timer.start()

    def stop(self, why: str) -> None:
        """Ask the user's processes to end, unless they have been asked before."""
        if self.stopped_by is None:
            self._stop(why)

    def _stop(self, why: str, number: int = signal.SIGTERM) -> None:
        """Ask the user's processes to end; a second request, or the end of the grace time, does not ask."""
        if self.stopped_by is not None:
            self._signal(signal.SIGKILL)
            return
        self.stopped_by = why
        self._signal(number)
        # Whoever finds no end record later can tell a job that was stopped from a node that died.
        threading.Thread(target=self.beat, daemon=True).start()
        timer = threading.Timer(self.grace_s, self._signal, (signal.SIGKILL,))
        timer.daemon = True
        timer.start()

    def _signal(self, number: int) -> None:
        if self._child is not None and self._child.returncode is None:
            try:
                os.killpg(self._child.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def _heartbeat(self) -> None:
        """Say "alive" now and then, and look whether this attempt is still wanted."""
        home, began = layout.home_of(self.claim.run_dir), time.time()
        while True:
            self.beat()
            try:
                with self.moving:
                    why = fence.superseded(self.claim, self.number)
                    if why == "superseded":
                        why = trial.beaten(self)
                notices.when_quiet(home, self.env.get("SHOAL_RUN", ""), self._logs, began, self.env)
            except OSError:
                why = None  # A full disk or a file server away for a minute must not end a training.
            if why is not None:
                self.stop(why)
            if self._over.wait(self.beat_s * random.uniform(0.9, 1.1)):  # noqa: S311 (spreads load, not a secret)
                return

    def beat(self) -> None:
        with self.moving:
            path = os.path.join(self.claim.run_dir, layout.attempt_file(self.number, "beat"))
        beat = {"t": time.time(), "every_s": self.beat_s, "stopping": self.stopped_by}
        try:
            files.replace(path, files.to_json(beat), sync=False)
        except OSError:
            pass  # The next one may find room.

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


def _wait(child: "subprocess.Popen[bytes]") -> int:
    """Wait in pieces: a signal that comes in the moment before the system call would be seen only when that returns."""
    while True:
        try:
            return child.wait(1)
        except subprocess.TimeoutExpired:
            continue


def hear_warnings_later() -> None:
    """A warning that comes while the run is prepared (its data may take an hour) must not end it, nor be lost."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _LATER)


def _in_child() -> None:
    """Ask the kernel to kill the program when the agent is killed, so that `kill -9` leaves no orphan."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, family.FORWARDED)
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
