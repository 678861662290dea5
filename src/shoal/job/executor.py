"""The executor: starts attempts, forwards signals, stops what must stop, and records how each attempt ended.

Jobs, arrays, packs, pilots and local runs all use this loop: one thread, no polling of processes. They differ in what
is started, what a signal means and what follows an end, which the subclasses define (single_run.py, pack/engine.py).
However the executor ends, what ran is recorded and no process is left.
"""

import os
import select
import signal
import threading
import time
from typing import Any, Callable, Dict, Generic, Iterable, List, Mapping, Optional, Tuple, TypeVar

from ..kernel import Allocation, End, LeaseRenewer, files, guard, lease, processes
from . import child_processes, recovery, usage, usage_readers
from .attempt import Attempt, wrap_in_container
from .launch import container
from .record_writer import DISK_RETRY_S, RecordWriter, max_disk_wait_s
from .run_data import SharedData

A = TypeVar("A", bound=Attempt)
#: How long a thread may take to see that the program has ended.
MAX_JOIN_S = 5.0
#: Exit code when the disk stays full.
_EXIT_DISK_FULL = 74


class Wakeup:
    """What wakes the loop: ended children, threads, other files to read, or the time at which something is due.

    Whoever writes to `wake_fd` wakes it. Signals come through the guard's link, which is one of the others.
    """

    def __init__(self) -> None:
        self._read, self.wake_fd = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self.wake_fd, False)

    def listen(self) -> None:
        signal.set_wakeup_fd(self.wake_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def wake(self) -> None:
        try:
            os.write(self.wake_fd, b"r")
        except OSError:
            pass  # The loop has plenty to wake up for, or is over.

    def wait(self, due: Iterable[float], others: Iterable[Any]) -> None:
        """Sleep until `wake` is called, one of `others` can be read, or the first of the `due` times has come."""
        wait_s = max(0.0, min(due) - time.monotonic())
        select.select([self._read, *others], [], [], min(wait_s, 3600.0))
        guard.drain_pipe(self._read)


class AttemptExecutor(Generic[A]):
    """Runs attempts to their ends. `me` is who we are, for records; `alone`: one attempt at a time.

    `data_folder` is where helpers on other nodes say how far they are with the data, if there are other nodes.
    """

    def __init__(
        self,
        home: str,
        me: Allocation,
        environ: Mapping[str, str],
        starter: child_processes.Starter,
        link: guard.GuardLink,
        say: Callable[[str], None],
        alone: bool,
        data_folder: Optional[str] = None,
    ) -> None:
        self.home, self.me, self.starter, self.link, self.say, self.alone = home, me, starter, link, say, alone
        self.running: Dict[int, A] = {}
        #: Why everything that runs was asked to stop, if it was.
        self.stopping: Optional[str] = None
        self.wakeup = Wakeup()
        self.data = SharedData(self.wakeup.wake_fd, say, data_folder)
        self.record_writer: RecordWriter[A] = RecordWriter(self.wakeup.wake_fd, say, self._kept, environ)
        self.times = lease.timing(environ)
        self.keeper = LeaseRenewer(self.times, link, self.request_end)
        self._unwanted: List[Tuple[lease.Lease, str]] = []
        self._environ, self._close_oldest = environ, threading.Event()
        self._sampler: Optional[usage.UsageSampler] = None
        self._sampling: Optional[threading.Thread] = None
        self._oom_kills = usage_readers.oom_kills()

    # -- what subclasses say -------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Start what may start now."""

    def is_over(self) -> bool:
        """Asked when nothing runs and all ends are written: is there no more to come?"""
        return True

    def look(self, now: float) -> None:
        """Do what the clock asks for."""

    def due(self, now: float) -> List[float]:
        """When to look again though nothing happened."""
        return []

    def left_s(self) -> Optional[float]:
        """Time for attempts until the allocation ends, if anything ends it."""
        return None

    def hear(self, number: int) -> None:
        """A signal has come."""
        raise NotImplementedError

    def asked_to_stop(self) -> Optional[str]:
        """The signal that asks for an end and was not looked at yet, if that would end a single attempt."""
        return None

    def leave(self, attempt: A, why: str) -> None:
        """An attempt is not wanted here any more."""
        if why == "lost":
            attempt.on_lease_lost()
        else:
            attempt.ask_to_stop(why)

    def before_start(self, attempt: A) -> Optional[str]:
        """What an attempt needs before its first process; else why it cannot be started."""
        return None

    def collect_output(self, attempt: A) -> None:
        """The program has ended: complete its log, which the end is judged by."""

    def complete(self, attempt: A, end: End) -> End:
        """Add to an end what is missing before it is written, and take back what the attempt held."""
        return end

    def after(self, attempt: A, end: End, ours: bool) -> None:
        """An end is on disk; or, not `ours`, somebody else has closed the attempt."""

    def end_services(self) -> None:
        """End what serves the attempts, when none of them runs any more; what is left then is killed."""

    # -- the loop ------------------------------------------------------------------------------------------------

    def loop(self) -> None:
        """Until nothing is left to do."""
        self.wakeup.listen()
        processes.become_subreaper()
        try:
            while True:
                self.starter.collect()
                self.data.collect()
                # What has ended before a signal is looked at has ended by itself.
                self._reap()
                for number in self.link.signals():
                    self.hear(number)
                self.record_writer.collect()
                self._look()
                self.fill()
                if not self.running and self.record_writer.is_idle and self.is_over():
                    return
                self.wakeup.wait(self._due(), [self.link.fd, *self.starter.wait_on])
                if self.link.is_broken:
                    os._exit(guard.end_without_guard(self.keeper.held))
        finally:
            self.close()

    def close(self) -> None:
        for attempt in self.running.values():
            attempt.child.signal(signal.SIGKILL)
        self.starter.close()
        self.end_services()
        self.data.close()
        processes.kill_descendants()
        self._close_oldest.set()
        if self._sampling is not None:
            self._sampling.join(30)
        self.record_writer.close()
        for held in self.keeper.held:  # Something broke before an end was written.
            try:
                lease.close_lease(held.run_dir, held.number, held.renewals)
            except OSError:
                pass  # Somebody will see that it is not renewed.
            self.keeper.release(held)

    def _due(self) -> List[float]:
        now = time.monotonic()
        own = [attempt.due_at for attempt in self.running.values()]
        return [now + 3600.0, *own, *self.record_writer.due_at(now), *self.due(now)]

    def _look(self) -> None:
        now = time.monotonic()
        for attempt in self.running.values():
            attempt.tend(now)
        self.look(now)
        unwanted, self._unwanted = self._unwanted, []
        for held, why in unwanted:
            for attempt in [one for one in self.running.values() if one.held is held]:
                self.leave(attempt, why)
        for attempt in self.running.values():
            if attempt.stopped_by is not None and not attempt.is_noted:
                # Whoever closes it later can tell a job that was stopped from a node that died.
                attempt.is_noted = True
                self.record_writer.note_stopping(attempt, attempt.stopped_by)

    def request_end(self, held: lease.Lease, why: str) -> None:
        """From any thread: an attempt is not wanted any more."""
        self._unwanted.append((held, why))
        self.wakeup.wake()

    def stop_all(self, why: str, number: int = signal.SIGTERM) -> None:
        """Everything that runs is asked to end, then killed. Asked twice, it is killed at once."""
        if self.stopping:
            for attempt in self.running.values():
                attempt.child.signal(signal.SIGKILL)
            return
        self.stopping = why
        for attempt in self.running.values():
            attempt.ask_to_stop(why, number=number)

    # -- starting ------------------------------------------------------------------------------------------------

    def launch(
        self, attempt: A, base: Mapping[str, str], here_only: bool, problem: Optional[str] = None, code: int = 2
    ) -> None:
        """Start an attempt that has begun, its data first, with `base` as the environment around it.

        `here_only`: on this machine alone. A problem ends it at once, with `code`.
        """
        self.keeper.keep(attempt.held, attempt.claim)
        attempt.keeper = self.keeper
        self.record_writer.write_start(attempt)
        attempt.stop = lambda why: self.request_end(attempt.held, why)
        try:
            misplaced = self._fill_workdir(attempt)
        except OSError as error:
            misplaced = "the code cannot be put into %s: %s" % (attempt.spec["cwd"], error)
            code = _EXIT_DISK_FULL if error.errno in files.DISK_ERRNOS else code
        found = attempt.prepare(base, here_only)
        problem = problem or misplaced or found or self.before_start(attempt)
        if problem is not None:
            self._fail(attempt, problem, 0 if attempt.spec.get("not_needed") else code)
        elif attempt.spec.get("data"):
            attempt.child = self.data.ask(attempt.spec, attempt.env)
            self.running[attempt.child.pid] = attempt
        else:
            self._start_program(attempt)

    def _fill_workdir(self, attempt: A) -> Optional[str]:
        """Fill the attempt's working directory, if it has one; waits for room on the disk for a while."""
        until = time.monotonic() + max_disk_wait_s(self._environ)
        while attempt.workdir is not None:
            try:
                return attempt.workdir.fill()
            except OSError as error:
                if error.errno not in files.DISK_ERRNOS or time.monotonic() > until or self.link.asked_to_stop():
                    raise
            time.sleep(DISK_RETRY_S)
        return None

    def _start_program(self, attempt: A) -> None:
        argv = wrap_in_container(attempt.spec, attempt.claim, attempt.argv, attempt.env)
        if self.alone:
            attempt.oom_kills = usage_readers.oom_kills()
        child = self._start(attempt, argv, attempt.use_file)
        if child is not None:
            attempt.begin_program(child, self.left_s())
            self.running[child.pid] = attempt
            if child.is_here:
                self._sample(attempt)

    def _start(self, attempt: A, argv: List[str], use: Optional[str] = None) -> Optional[child_processes.Child]:
        """A process of an attempt, or None after its end was written, because it cannot be started."""
        program = child_processes.Program(
            argv, attempt.env, attempt.spec["cwd"], attempt.log, attempt.cpus, use, attempt.streams
        )
        try:
            return self.starter.start(program)
        except OSError as error:
            problem = "cannot start %s: %s" % (error.filename or argv[0], error.strerror)
            self._fail(attempt, problem, 127 if isinstance(error, FileNotFoundError) else 126)
            return None

    def _sample(self, attempt: A) -> None:
        if self._sampler is None:
            self._sampler = usage.UsageSampler(attempt.env if self.alone else self._environ)
            self._sampling = threading.Thread(target=self._sampler.run, args=(self._close_oldest,), daemon=True)
            self._sampling.start()
        pid, env = attempt.child.pid, attempt.env
        # Steps that srun started belong to the job: with several runs in it nobody can tell whose they are.
        around = env if self.alone else {}
        self._sampler.add(
            attempt.use_file, env, lambda: usage_readers.process_use(pid, around), self.alone, attempt.log
        )
        attempt.move_samples = self._sampler.move

    def _end_sampling(self, attempt: A) -> None:
        """The use of a single run is on disk before its end; with many runs it follows soon."""
        if self._sampler is None or self._sampling is None:
            return
        if self.alone:
            self._close_oldest.set()
            self._sampling.join(MAX_JOIN_S)
        else:
            self._sampler.end(attempt.use_file)

    def _fail(self, attempt: A, problem: str, code: int) -> None:
        """End an attempt that cannot go on."""
        with open(attempt.log, "ab") as file:
            file.write(("shoal: %s\n" % problem).encode("utf-8", "replace"))
        if attempt.ended is not None:
            self._finish(attempt, attempt.ended._replace(problem=problem), code)
            return
        if attempt.phase == "data" and attempt.stopped_by is None:
            attempt.stopped_by = self.asked_to_stop()
        attempt.child = child_processes.Child(0)
        attempt.child.code, attempt.child.problem = code, problem
        self._finish(attempt, self._end_of(attempt), None)

    # -- ending --------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        ended = [attempt for attempt in self.running.values() if attempt.child.poll() is not None]
        for attempt in ended:
            del self.running[attempt.child.pid]
        if ended:
            alive = {attempt.identity for attempt in self.running.values()}
            child_processes.kill_leftovers([*self.running, *self.starter.pids], alive)
        # A killed one goes first: if the kernel killed for memory, that is the one.
        for attempt in sorted(ended, key=lambda attempt: attempt.child.code != -signal.SIGKILL):
            self._proceed(attempt)

    def _proceed(self, attempt: A) -> None:
        """From the data to the program, from there to the check of the result, from there to the end."""
        if attempt.ended is not None:
            code = attempt.child.code or 0
            if attempt.child.slot_lost:
                attempt.stopped_by = attempt.stopped_by or "lost"
            end = attempt.ended._replace(stopped_by=attempt.stopped_by)
            self._finish(attempt, end, code if code >= 0 else 128 - code)
            return
        if attempt.phase == "data" and attempt.child.code == 0:
            attempt.env.update(self.data.variables(attempt.spec))
            self._start_program(attempt)
            return
        if attempt.phase == "data" and attempt.child.problem:
            self._fail(attempt, attempt.child.problem, 2)
            return
        end = recovery.note_requested_stop(self._end_of(attempt), attempt.spec)
        words = recovery.result_check(end, attempt.spec, attempt.env)
        if words is None or attempt.child.problem or attempt.child.slot_lost:
            self._finish(attempt, end, None)
            return
        attempt.ended = end
        child = self._start(attempt, words)
        if child is not None:
            attempt.begin_check(child)
            self.running[child.pid] = attempt

    def _end_of(self, attempt: A) -> End:
        """How the program ended; what that means is decided later."""
        if attempt.child.slot_lost:
            attempt.stopped_by = attempt.stopped_by or "lost"
        if attempt.phase == "program":
            self.collect_output(attempt)
            self._end_sampling(attempt)
            if attempt.stopped_by is None and _steps_were_ended(attempt):
                attempt.stopped_by = "SIGTERM"
        return attempt.end_record(self.me, self._lacked_memory(attempt))

    def _lacked_memory(self, attempt: A) -> bool:
        """Whether the kernel killed something for memory. Among several runs it is the one that failed first."""
        if attempt.phase != "program":
            return False
        if self.alone:
            return usage_readers.oom_kills() > attempt.oom_kills
        if not attempt.child.code:
            return False
        kills = usage_readers.oom_kills()
        lacked, self._oom_kills = kills > self._oom_kills, kills
        return lacked

    def _finish(self, attempt: A, end: End, check_exit: Optional[int]) -> None:
        """Write down how it ended, with what follows from it."""
        end = recovery.judge_end(end, attempt.log, check_exit)
        if not end.success:
            end = end._replace(checkpoint_t=attempt.checkpoint_time())
        end = end._replace(data=self.data.records(attempt.spec), notes=attempt.clear_workdir())
        self.record_writer.ended(attempt, self.complete(attempt, end))

    def _kept(self, attempt: A, held: lease.Lease, end: End, ours: bool) -> None:
        self.keeper.release(held)
        self.after(attempt, end, ours)


def _steps_were_ended(attempt: Attempt) -> bool:
    if attempt.spec.get("launch", "process") == "process" and not container.has_container(attempt.spec):
        return False
    from .launch import launch_spec, srun_steps

    return srun_steps.were_steps_ended(launch_spec.launch_dir(attempt.log, int(attempt.env["SHOAL_ATTEMPT"])))
