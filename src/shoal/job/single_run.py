"""A job of one run: the executor with a queue of one, and what only a single run has.

Smoke tests and replacement jobs are observed while they run, output is copied to where a person reads it, and the end
decides what follows: another job, or that a replacement continues as the run.

A smoke test is the real program for a few training steps. It passes when it has done them, or has succeeded before; a
program that only stays alive fails, since a hang looks the same.
"""

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional

from ..kernel import Allocation, End, fence, files, guard, lease, progress
from . import recovery, replacement
from .attempt import Attempt
from .child_processes import ColdStarter
from .executor import MAX_JOIN_S, AttemptExecutor

if TYPE_CHECKING:
    from .batch_step import OutputCopies

_RETRY_S = 1.0


class SingleRunExecutor(AttemptExecutor[Attempt]):
    """Runs one attempt. When `loop` returns, its end is on disk; or, not `ours`, another job has closed it."""

    def __init__(
        self, home: str, attempt: Attempt, me: Allocation, link: guard.GuardLink, say: Callable[[str], None]
    ) -> None:
        data_folder = os.path.join(attempt.claim.log_dir, "data-%d" % attempt.number)
        starter = ColdStarter(os.environ, many=False)
        super().__init__(home, me, os.environ, starter, link, say, alone=True, data_folder=data_folder)
        self.attempt, self._claim = attempt, attempt.claim
        self.end: Optional[End] = None
        self.ours = False
        #: Why it cannot be started, and with which exit code that ends it.
        self.problem: Optional[str] = None
        self.problem_code = 2
        #: Whether its output is copied to ours.
        self.follows = False
        self._began = False
        self._early: List[int] = []
        self._ended = threading.Event()
        self._threads: List[threading.Thread] = []
        self._copies: "Optional[OutputCopies]" = None

    def fill(self) -> None:
        if self._began:
            return
        self._began = True
        attempt = self.attempt
        if self.follows:
            copy = (attempt.log, sys.stdout.buffer, self._ended)
            self._threads.append(threading.Thread(target=_follow_log, args=copy, daemon=True))
        for thread in self._threads:
            thread.start()
        here_only = "SHOAL_TOKEN" in os.environ
        if attempt.spec.get("script"):
            from .batch_step import OutputCopies

            self._copies = OutputCopies(attempt, os.environ)
        self.launch(attempt, os.environ, here_only, self.problem, self.problem_code)
        if attempt.look is not None:
            self._threads.append(threading.Thread(target=self._look_on, daemon=True))
            self._threads[-1].start()
        for number in self._early:
            self.hear(number)

    def collect_output(self, attempt: Attempt) -> None:
        if self._copies is not None:
            self._copies.close()

    def before_start(self, attempt: Attempt) -> Optional[str]:
        """Start the guards on its further nodes, if it has any; its settings are in its environment."""
        attempt.grace_s = float(attempt.env.get("SHOAL_GRACE_S") or 30)
        attempt.warn_s = float(attempt.env.get("SHOAL_WARN_S") or 0)
        attempt.stops_after_warning = True
        if not os.environ.get("SLURM_JOB_NODELIST"):
            return None
        from .launch.node_guards import NodeGuards

        attempt.node_guards = NodeGuards(attempt.held, os.environ, self.asked_to_stop)
        return attempt.node_guards.begin()

    def hear(self, number: int) -> None:
        if not self._began:
            self._early.append(number)
        elif number in guard.STOP_SIGNALS and self.attempt.stopped_by is not None:
            self.attempt.child.signal(signal.SIGKILL)  # asked twice
        elif number in guard.STOP_SIGNALS:
            self.stop_all(signal.Signals(number).name, number)
        else:
            self.attempt.pass_on(number)

    def asked_to_stop(self) -> Optional[str]:
        early = next((signal.Signals(number).name for number in self._early if number in guard.STOP_SIGNALS), None)
        return early or self.link.asked_to_stop()

    def request_end(self, held: lease.Lease, why: str) -> None:
        attempt = self.attempt
        with attempt.moving:
            if held is not attempt.held:
                return
            if why == "superseded":
                try:
                    reason = replacement.why_superseded(attempt)
                except (OSError, ValueError, KeyError):
                    return  # The file server is away for a moment; the next beat asks again.
                if reason is None:
                    return
                why = reason
            super().request_end(attempt.held, why)

    def complete(self, attempt: Attempt, end: End) -> End:
        self.collect_output(attempt)
        self._ended.set()
        for thread in self._threads:
            thread.join(MAX_JOIN_S)
        if attempt.node_guards is not None:
            attempt.node_guards.close()
        if attempt.spec.get("data"):
            end = end._replace(data=self.data.close())
        logged = False
        while attempt.stopped_by != "lost" and not (logged and self.asked_to_stop()):
            try:
                end = self._decide(attempt, end)
                break
            except OSError as error:
                if not logged:
                    print("shoal: cannot write down the end yet: %s" % error, file=sys.stderr, flush=True)
                logged = True
                time.sleep(_RETRY_S)
        with attempt.moving:
            attempt.is_closed = True
        return end

    def after(self, attempt: Attempt, end: End, ours: bool) -> None:
        self.end, self.ours = end, ours

    def _decide(self, attempt: Attempt, end: End) -> End:
        """What the end means for the run, and what follows from it."""
        spec, logs = attempt.spec, [attempt.log]
        if spec.get("smoke"):
            end = judge_smoke_test(
                end, spec, progress.read_progress(progress.RunOutput(attempt.claim.output_dir, logs))
            )
        unseen = spec.get("replacement") and end.success and attempt.claim == self._claim
        if unseen and replacement.why_obsolete(self.home, spec) is None:
            try:
                # It was done before anybody looked.
                replacement.take_over(self.home, attempt, spec["replacement"]["of"])
            except OSError as error:
                if error.errno not in files.DISK_ERRNOS:
                    raise
                print("shoal: the run is not taken over: %s" % error, file=sys.stderr, flush=True)
        if attempt.claim != self._claim:
            end = replacement.end_of_run(end, attempt)
        replaced = is_superseded(attempt)
        if end.stopped_by and replaced:
            end = end._replace(stopped_by="superseded")
        elif not replaced:
            end = recovery.note_time_limit(end, spec, os.environ)
        return end if replaced else end._replace(next=recovery.plan_next(self.home, attempt.claim, spec, end))

    def _look_on(self) -> None:
        every_s = float(self.attempt.env.get("SHOAL_LOOK_S") or 2)
        while self.attempt.look is not None and not self._ended.wait(every_s):
            try:
                if self.attempt.stopped_by is None and self.attempt.phase == "program":
                    self.attempt.look(self.attempt)
            except (OSError, ValueError):
                pass  # It is looked at again in a moment.


def is_superseded(attempt: Attempt) -> bool:
    try:
        return fence.why_unwanted(attempt.claim, attempt.number) == "superseded"
    except OSError:
        return False  # The file server is away; the end is written when it is back.


def _follow_log(path: str, stream: Any, over: threading.Event) -> None:
    """Copy what is appended to a file to a stream until the attempt is over and all of it was copied."""
    with open(path, "ab"), open(path, "rb") as file:
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


#: Why the agent stopped the program, in its end record.
SMOKE_PASSED, SMOKE_TIMED_OUT = "smoke", "smoke limit"


def smoke_watcher(spec: Mapping[str, Any], output_dir: str, logs: List[str]) -> Optional[Callable[["Attempt"], None]]:
    """What looks at a smoke run now and then; None for any other run."""
    policy = spec.get("smoke")
    if not policy:
        return None
    deadline: List[float] = []  # counts from the first look at the program
    first: List[float] = [] if spec.get("start_from") else [0.0]
    output = progress.RunOutput(output_dir, logs)
    before = progress.read_progress(output)  # of an earlier attempt in the same folder

    def look(attempt: "Attempt") -> None:
        deadline.append(time.monotonic() + float(policy["time_s"]))
        seen = progress.read_progress(output)
        if seen is not None and seen.step is not None and seen != before:
            first.append(seen.step)
            if seen.step - first[0] >= float(policy["steps"]):
                attempt.stop(SMOKE_PASSED)
                return
        if time.monotonic() > deadline[0]:
            attempt.stop(SMOKE_TIMED_OUT)

    return look


def judge_smoke_test(end: End, spec: Mapping[str, Any], last: Optional[progress.Progress]) -> End:
    """Complete the end record of a smoke run: what it passed with, or why it did not."""
    policy = spec["smoke"]
    if end.stopped_by == SMOKE_PASSED:
        seen = last.text if last is not None else "%d steps" % policy["steps"]
        return end._replace(success=True, cause=None, exit_code=0, problem="passed at %s" % seen)
    if end.stopped_by == SMOKE_TIMED_OUT:
        minutes = float(policy["time_s"]) / 60
        seen = "only %s" % last.text if last is not None else "no step to be seen"
        problem = "%s in %g minutes, where %d steps would have passed" % (seen, minutes, policy["steps"])
        return end._replace(stopped_by=None, success=False, cause="failed", problem=problem, exit_code=1)
    return end
