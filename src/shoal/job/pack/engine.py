"""One engine: works through a queue, with as many runs at a time as the node has slots for.

Signals: the first Ctrl-C lets running runs finish and starts no more; a second one, SIGTERM or SIGHUP stops them with
the grace time, then kills. SIGUSR1 and SIGUSR2 are forwarded. However it ends, waiting runs stay waiting.

Runs of unknown length are probed: started once for a few seconds, their duration estimated from their progress, and
queued again. Their work is kept like that of any interrupted run: with a checkpoint they continue from it. A run that
ends during its probe has ended; one without progress comes after those that are known to be long.
"""

import os
import signal
import sys
import threading
import time
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ...kernel import End, fence, files, guard, progress
from .. import child_processes, notifications
from ..environment import fill_all, format_value, read_secrets
from ..executor import AttemptExecutor
from ..sampler import SamplerProcess
from .allocator import Allocator, Assignment
from .attempts import AttemptOwnership, PackAttempt
from .early_stopping import EarlyStopping, read_rule
from .node import EngineNode
from .queue import PackSettings, QueuedRun, RunQueue
from .run_status import OtherEngines, PackSummary

_PROBE_CHECK_S = 0.5


#: After so many seconds, this part of the way.
ProgressSample = Tuple[float, float]


class DurationProbes:
    """The short starts of one engine. `seconds` is None where none was asked for."""

    def __init__(self, seconds: Optional[float]) -> None:
        self._seconds = seconds
        #: Run -> its first and its last sign of progress.
        self._signs: Dict[str, Tuple[ProgressSample, ProgressSample]] = {}
        self._close_oldest: Dict[str, Optional[float]] = {}

    def wants(self, item: QueuedRun) -> bool:
        return (
            self._seconds is not None
            and not item.cost
            and item.expect_s is None
            and item.name not in self._close_oldest
        )

    def due_at(self, running: Sequence[PackAttempt]) -> List[float]:
        return [time.monotonic() + _PROBE_CHECK_S] if any(self.wants(one.item) for one in running) else []

    def tend(self, now: float, running: Sequence[PackAttempt]) -> None:
        """Look how far those are that are being probed, and stop them when their time is over."""
        for one in running:
            if self._seconds is None or one.phase != "program" or one.stopped_by or not self.wants(one.item):
                continue
            elapsed = now - one.clock
            seen = progress.read_progress(_run_output(one))
            if seen is not None and seen.fraction:
                sign = (elapsed, seen.fraction)
                self._signs[one.item.name] = (self._signs.get(one.item.name, (sign, sign))[0], sign)
            if elapsed >= self._seconds:
                expected = estimate_duration_s(*self._signs.get(one.item.name, (None, None)))
                self._close_oldest[one.item.name] = expected
                words = "no progress to tell by" if expected is None else "about %.0f s in all" % expected
                one.ask_to_stop("probe", "probed for %.0f s: %s" % (elapsed, words))

    def expected_s(self, item: QueuedRun) -> Optional[float]:
        """What its probe told; one that told nothing is not asked again."""
        return self._close_oldest.get(item.name)


def _run_output(one: PackAttempt) -> progress.RunOutput:
    spec = one.spec
    values = {name: format_value(value) for name, value in spec.get("params", {}).items()}
    words = fill_all([*spec["command"], *spec.get("args", [])], values)
    steps, epochs = progress.totals_of_command(words)
    return progress.RunOutput(one.claim.output_dir, (one.log,), steps=steps, epochs=epochs)


def estimate_duration_s(first: Optional[ProgressSample], last: Optional[ProgressSample]) -> Optional[float]:
    """Seconds for all of it: those until the last sign, and the rest at the pace between the first sign and that.

    What comes before the first sign (imports, data) is paid once and not in proportion. With a single sign there is
    no pace but that from the start, which is too slow rather than too fast.
    """
    if first is None or last is None:
        return None
    (then, before), (now, part) = first, last
    if part > before and now > then:
        return now + (1 - part) * (now - then) / (part - before)
    return now / part


_CHECK_EVERY_S = 2.0


class Engine(AttemptExecutor[PackAttempt]):
    """Works through a queue and returns the exit code of the whole: 0 all completed, 4 some failed, 124 time ran out,
    128 + n ended by signal n, 74 the disk is full, 75 another life of this job goes on with the queue."""

    def __init__(
        self,
        queue: RunQueue,
        allocator: Allocator,
        settings: PackSettings,
        node: EngineNode,
        starter: child_processes.Starter,
        say: Callable[[str], None],
        link: guard.GuardLink,
    ) -> None:
        several = allocator.slots > allocator.per_node
        folder = os.path.join(node.folder, node.me.engine) if several else None
        super().__init__(node.home, node.me, node.environ, starter, link, say, alone=False, data_folder=folder)
        self.queue, self.allocator, self.settings, self.node = queue, allocator, settings, node
        self.summary = PackSummary(len(queue), say)
        self.draining = False
        self.problems: Dict[int, str] = {}
        self.others = OtherEngines(node, queue, self.summary, self.times)
        self.sampler = SamplerProcess(node.environ)
        if settings.sampler_command:
            self.sampler.start(settings.sampler_command)
        self.ownership = AttemptOwnership(
            queue, settings, node, allocator.per_node, self.others, self.summary, say, self.sampler
        )
        self.probes = DurationProbes(settings.probe_s)
        self.early_stopping = EarlyStopping(read_rule(settings.early_stopping), node.home, node.me.engine)
        self.telling = NotificationThreads(node)
        self._others_at = time.monotonic() + self.times.beat_s
        self._look_at = time.monotonic() + _CHECK_EVERY_S

    def run(self) -> int:
        self.others.look_for_parents()
        self.loop()
        for item in self.others.blocked_runs:
            self.say("%s was not started: it builds on %s" % (item.name, ", ".join(item.needs)))
        return self._exit_code()

    def end_services(self) -> None:
        self.sampler.close()
        self.node.sharing.close()

    def close(self) -> None:
        super().close()
        self.telling.close()

    def is_over(self) -> bool:
        if self.stopping or self.draining or self.starter.broken or self.allocator.is_closed:
            return True
        if not len(self.queue):
            return not self.others.look()
        if self.starter.waiting:
            return False
        if self.record_writer.is_full:
            return self.record_writer.has_waited_too_long
        if self.queue.later or not self.queue.is_stuck(self.allocator, self.left_s()):
            return False
        return bool(self.queue.waiting) or not self.others.look()

    def _exit_code(self) -> int:
        failed = self.summary.counts["failed"]
        if self.stopping and self.stopping.startswith("SIG"):
            return 128 + int(signal.Signals[self.stopping])
        if self.record_writer.is_full:
            return 74
        if self.stopping == "handover":
            return 75
        if self.draining:
            return 130 if len(self.queue) else (4 if failed else 0)
        if self.stopping or self.queue.waiting or self.queue.later:
            return 124
        return 4 if failed or self.others.blocked_runs else 0

    def left_s(self) -> Optional[float]:
        """Time for runs: until the warning before the allocation's end."""
        return None if self.node.ends_at is None else self.node.ends_at - self.settings.warn_s - time.time()

    def due(self, now: float) -> List[float]:
        left_s = self.left_s()
        due = [self._others_at, *(until for until, _ in self.queue.later)]
        if self.running or self.queue.blocked:
            due += [self._look_at, self.early_stopping.due_at, *self.probes.due_at(list(self.running.values()))]
        if left_s is not None:
            due.append(now + max(left_s, 1.0))
        if self.ownership.claims_at is not None:
            due.append(self.ownership.claims_at)
        return due

    def fill(self) -> None:
        if self.draining or self.stopping or self.starter.waiting or self.starter.broken:
            return
        if self.settings.waits_for_ends and not self.record_writer.is_idle:
            return  # the next trial is to know the result of the one that has just ended
        for slot in self.starter.dead:
            self.allocator.close(slot)
        self.queue.wake(time.monotonic())
        self.ownership.claims_at = None
        while self.record_writer.accepts_more and self.ownership.claims_at is None:
            choice = self.queue.next(self.allocator, self.left_s())
            if choice is None:
                return
            item, assignment = choice.item, choice.assignment
            try:
                running = self.ownership.take(item, assignment, self._node(assignment).held(assignment))
                self.record_writer.clear_disk_full()
            except OSError as error:
                if error.errno not in files.DISK_ERRNOS:
                    raise
                self.record_writer.wait_for_disk(error)
                self.queue.put_back(item)
                running = None
            if running is None:
                self.allocator.give(assignment)
            else:
                running.cpus = assignment.cpus if self.settings.bind else ()
                environ = self._node(assignment).environment(assignment, self.allocator.per_node)
                self.launch(running, environ, here_only=True, problem=self.problems.get(item.place))

    def _node(self, assignment: Assignment) -> EngineNode:
        """The node whose slot this is."""
        place = self.starter.place(assignment.slot)
        return self.node if place is None else self.node.at(place)

    def complete(self, running: PackAttempt, end: End) -> End:
        if running.child.slot_lost:
            self.allocator.close(running.assignment.slot)
        self.allocator.give(running.assignment)
        if running.stopped_by == "probe":
            end = end._replace(expect_s=self.probes.expected_s(running.item))
        return end

    def after(self, running: PackAttempt, end: End, ours: bool) -> None:
        if self.ownership.after(running.item, end, ours) == "failed":
            self.telling.failed(running.item.name)

    def look(self, now: float) -> None:
        """Everything that depends on the clock: the allocation's end, requests on disk, other engines."""
        left_s = self.left_s()
        if left_s is not None and left_s <= 0 and not self.stopping and self.running:
            self.say("the allocation ends in %.0f s: running runs are asked to stop" % self.settings.warn_s)
            self.stop_all("walltime")
        if now >= self._look_at:
            self._look_at = now + _CHECK_EVERY_S * (1 + len(self.running) // 16)
            for running in list(self.running.values()):
                why = _why_unwanted(running)
                if why is not None:
                    self.leave(running, why)
            self.others.look_for_parents()
        everybody = list(self.running.values())
        self.early_stopping.stop_losers(now, everybody)
        self.probes.tend(now, everybody)
        if now >= self._others_at:
            self._others_at = now + self.times.beat_s
            self.others.look()

    def leave(self, running: PackAttempt, why: str) -> None:
        if why != "handover":
            super().leave(running, why)
        elif not self.stopping:
            self.stop_all(why)  # Slurm has started this job again elsewhere: all of the queue is the other one's now.

    def hear(self, number: int) -> None:
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            for running in self.running.values():
                running.pass_on(number)
        elif number == signal.SIGINT and not self.draining and not self.stopping:
            self.draining = True
            self.say("Ctrl-C: %d running runs finish, no more are started; again to stop now" % len(self.running))
        else:
            self.stop_all(signal.Signals(number).name)


def _why_unwanted(running: PackAttempt) -> Optional[str]:
    """Was it cancelled, or are we taken for dead? A file server that is away ends nothing."""
    try:
        return fence.why_unwanted(running.claim, running.number)
    except OSError:
        return None


def log_message(text: str) -> None:
    sys.stderr.write("shoal: %s\n" % text)
    sys.stderr.flush()


class NotificationThreads:
    """Telling may wait for a network; it holds nothing up."""

    def __init__(self, node: EngineNode) -> None:
        self._node = node
        # On this machine the command that started the pack tells, when all of it is through.
        self._tells = bool(node.me.job_id)
        self._threads: List[threading.Thread] = []

    def failed(self, name: str) -> None:
        """The first failure is told while the others run on."""
        if self._tells and not self._threads:
            self._threads.append(threading.Thread(target=self._tell, args=(name, False), daemon=True))
            self._threads[-1].start()

    def all_ended(self, name: str) -> None:
        """This engine has no more to do; if no other has, the experiment of that run is over."""
        if self._tells:
            self._tell(name, True)

    def close(self) -> None:
        for thread in self._threads:
            thread.join(30)

    def _tell(self, name: str, last: bool) -> None:
        env = dict(self._node.environ, **read_secrets(self._node.environ))
        try:
            notifications.notify_end(self._node.home, name, env, last=last)
        except Exception as error:  # the ends of runs matter more
            sys.stderr.write("shoal: telling failed: %s\n" % error)
