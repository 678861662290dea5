"""The loop of one engine: start what fits, reap what ended, stop when told to. One thread, no polling of processes.

Signals: the first Ctrl-C lets running runs finish and starts no more; a second one, SIGTERM or SIGHUP asks them to
stop, gives them the grace time, and then kills. SIGUSR1 and SIGUSR2 are passed on. However it ends, what ran is
recorded, what waited still waits, and no process is left.
"""

import os
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ...kernel import files, guard, lease
from ...kernel.keeper import Keeper
from .. import children, command, memory, survival
from ..data import SharedData
from ..ledger import Ledger
from . import claims
from .bell import Bell
from .beside import Beside
from .books import Books, Holding
from .node import Node
from .others import Others
from .probe import Probes
from .queue import Item, Queue, Settings
from .running import Running
from .search import Search, rule_of
from .tally import Tally
from .turns import Turns

_LOOK_S = 2.0


class Engine:
    """Works through a queue and returns the exit code of the whole: 0 all done, 4 some failed, 124 time ran out,
    128 + n ended by signal n, 74 the disk is full, 75 another life of this job goes on with the queue."""

    def __init__(
        self,
        queue: Queue,
        books: Books,
        settings: Settings,
        node: Node,
        starter: children.Starter,
        say: Callable[[str], None],
        link: guard.Link,
    ) -> None:
        self.queue, self.books, self.settings, self.node = queue, books, settings, node
        self.starter, self.say, self.link = starter, say, link
        self.running: Dict[int, Running] = {}
        self.tally = Tally(len(queue), say)
        self.draining = False
        self.stopping: Optional[str] = None
        self.problems: Dict[int, str] = {}
        self.bell = Bell()
        several = books.slots > books.per_node
        self.data = SharedData(self.bell.rope, say, os.path.join(node.folder, node.me["engine"]) if several else None)
        self.ledger = Ledger(self.bell.rope, say, self._account, node.environ)
        self.times = lease.timing(node.environ)
        self.keeper = Keeper(self.times, link, self._told)
        self.others = Others(node, queue, self.tally, self.times)
        self.turns = Turns(queue, settings, node, books.per_node, self.others, self.tally, say)
        self._unwanted: List[Tuple[lease.Lease, str]] = []
        self._others_at = time.monotonic() + self.times.beat_s
        self.probes = Probes(settings.probe_s)
        self.search = Search(rule_of(settings.search), node.home, node.me["engine"])
        self.beside = Beside(node)
        self._look_at = time.monotonic() + _LOOK_S
        self._oom = memory.oom_kills()

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> int:
        self.bell.listen()
        self.others.look_for_parents()
        try:
            while True:
                self._obey()
                self.starter.collect()
                self.data.collect()
                self._reap()
                self.ledger.collect()
                self._watch()
                self._start_ready()
                if self._is_over():
                    for item in self.others.orphans:
                        self.say("%s was not started: it builds on %s" % (item.name, ", ".join(item.needs)))
                    return self._exit_code()
                self.bell.wait(self._due(), [self.link.fd, *self.starter.wait_on])
                if self.link.is_broken:
                    os._exit(guard.end_without_guard(self.keeper.held))
        finally:
            for running in self.running.values():
                running.child.signal(signal.SIGKILL)
            self.starter.close()
            self.node.sharing.close()
            children.end_everything()
            self.beside.close()
            self.ledger.close()
            self.data.close()

    def _is_over(self) -> bool:
        if self.running or not self.ledger.is_settled:
            return False
        if self.stopping or self.draining or self.starter.broken or self.books.is_closed:
            return True
        if not len(self.queue):
            return not self.others.look()
        if self.starter.waiting:
            return False
        if self.ledger.is_full:
            return self.ledger.is_hopeless
        if self.queue.later or not self.queue.is_stuck(self.books, self._left_s()):
            return False
        return bool(self.queue.waiting) or not self.others.look()

    def _exit_code(self) -> int:
        failed = self.tally.counts["failed"]
        if self.stopping and self.stopping.startswith("SIG"):
            return 128 + int(signal.Signals[self.stopping])
        if self.ledger.is_full:
            return 74
        if self.stopping == "handover":
            return 75
        if self.draining:
            return 130 if len(self.queue) else (4 if failed else 0)
        if self.stopping or self.queue.waiting or self.queue.later:
            return 124
        return 4 if failed or self.others.orphans else 0

    def _left_s(self) -> Optional[float]:
        """Time for runs: until the warning before the allocation's end."""
        return None if self.node.ends_at is None else self.node.ends_at - self.settings.warn_s - time.time()

    def _due(self) -> List[float]:
        """When the loop has to look again though nothing happened."""
        now, left_s = time.monotonic(), self._left_s()
        due = [self._others_at, *self.ledger.due_at(now), *(until for until, _ in self.queue.later)]
        if self.running or self.queue.blocked:
            due += [self._look_at, self.search.due_at, *self.probes.due_at(list(self.running.values()))]
            due += [running.due_at for running in self.running.values()]
        if left_s is not None:
            due.append(now + max(left_s, 1.0))
        if self.turns.claims_at is not None:
            due.append(self.turns.claims_at)
        return due

    # -- starting ------------------------------------------------------------------------------------------------

    def _start_ready(self) -> None:
        if self.draining or self.stopping or self.starter.waiting or self.starter.broken:
            return
        for slot in self.starter.dead:
            self.books.close(slot)
        self.queue.wake(time.monotonic())
        self.turns.claims_at = None
        while self.ledger.takes_more and self.turns.claims_at is None:
            choice = self.queue.next(self.books, self._left_s())
            if choice is None:
                return
            item, holding = choice.item, choice.holding
            try:
                begun = self.turns.take(item, self._node(holding).held(holding))
                self.ledger.has_room()
            except OSError as error:
                if error.errno not in files.DISK_ERRNOS:
                    raise
                self.ledger.wait_for_disk(error)
                self.queue.put_back(item)
                begun = None
            if begun is None:
                self.books.give(holding)
            else:
                self.keeper.keep(begun.lease, begun.claim)
                self.ledger.begun(begun)
                self._launch(item, begun, holding)

    def _launch(self, item: Item, begun: claims.Begun, holding: Holding) -> None:
        argv, env, problem = command.prepare(
            begun.spec,
            begun.claim,
            begun.number,
            begun.resume_from,
            self._node(holding).environment(holding, self.books.per_node),
            (begun.out, begun.err),
            here_only=True,
        )
        running = Running(item, begun, holding, argv, env)
        problem = problem or self.problems.get(item.place)
        if problem is not None:
            self._fail(running, problem, 2)
        elif begun.spec.get("data"):
            running.child = self.data.ask(begun.spec, env)
            self.running[running.child.pid] = running
        else:
            self._start_program(running)

    def _start_program(self, running: Running) -> None:
        begun = running.begun
        argv = command.inside(begun.spec, begun.claim, running.argv, running.env)
        child = self._start(running, argv, running.use_file)
        if child is not None:
            running.begin_program(child, self._left_s())
            self.running[child.pid] = running
            self.beside.began(running, running.env)

    def _start(self, running: Running, argv: List[str], use: Optional[str] = None) -> Optional[children.Child]:
        """A process of a run, or None after its end was written, because it cannot be started."""
        cpus = running.holding.cpus if self.settings.bind else ()
        try:
            return self.starter.start(
                children.Program(argv, running.env, running.begun.spec["cwd"], running.streams, cpus, use)
            )
        except OSError as error:
            problem = "cannot start %s: %s" % (error.filename or argv[0], error.strerror)
            self._fail(running, problem, 127 if isinstance(error, FileNotFoundError) else 126)
            return None

    def _fail(self, running: Running, problem: str, code: int) -> None:
        """End a run that cannot go on."""
        with open(running.begun.err, "ab") as file:
            file.write(("shoal: %s\n" % problem).encode("utf-8", "replace"))
        running.child = children.Child(0)
        running.child.code, running.child.problem = code, problem
        running.end = running.end or self._end_of(running)
        self._finish(running, code if running.phase == "check" else None)

    def _node(self, holding: Holding) -> Node:
        """The node whose slot this is."""
        place = self.starter.place(holding.slot)
        return self.node if place is None else self.node.at(place)

    # -- ending --------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        ended = [running for running in self.running.values() if running.child.poll() is not None]
        for running in ended:
            del self.running[running.child.pid]
        if ended:
            alive = {running.identity for running in self.running.values()}
            children.end_strangers([*self.running, *self.starter.pids], alive)
        # A killed one goes first: if the kernel killed for memory, that is the one.
        for running in sorted(ended, key=lambda running: running.child.code != -signal.SIGKILL):
            self._proceed(running)

    def _proceed(self, running: Running) -> None:
        """From the data to the program, from there to the check of the result, from there to the end."""
        if running.phase == "check":
            code = running.child.code or 0
            if running.child.slot_lost:
                running.stopped_by = running.stopped_by or "lost"
            running.end["stopped_by"] = running.stopped_by
            self._finish(running, code if code >= 0 else 128 - code)
            return
        if running.phase == "data" and running.child.code == 0:
            running.env.update(self.data.variables(running.begun.spec))
            self._start_program(running)
            return
        if running.phase == "data" and running.child.problem:
            self._fail(running, running.child.problem, 2)
            return
        running.end = self._end_of(running)
        words = survival.check_of(running.end, running.begun.spec, running.begun.claim, running.env)
        if words is None or running.child.problem or running.child.slot_lost:
            self._finish(running, None)
            return
        child = self._start(running, words)
        if child is not None:
            running.begin_check(child)
            self.running[child.pid] = running

    def _end_of(self, running: Running) -> Dict[str, Any]:
        """How the program ended; what that means is decided later."""
        if running.child.slot_lost:
            running.stopped_by = running.stopped_by or "lost"
        if running.phase == "program":
            self.beside.ended(running)
        code = running.child.code or 0
        oom = False
        if code != 0:
            kills = memory.oom_kills()
            oom, self._oom = kills > self._oom, kills
        return claims.end_record(
            running.begun,
            self.node.me,
            self._node(running.holding).held(running.holding),
            exit_code=code if code >= 0 else 128 - code,
            signal=signal.Signals(-code).name if code < 0 else None,
            stopped_by=running.stopped_by,
            warned=running.warned,
            oom=oom,
            problem=running.child.problem or running.stopped_words,
            began=running.began,
            ended=time.time(),
            duration_s=time.monotonic() - running.clock,
        )

    def _finish(self, running: Running, check_exit: Optional[int]) -> None:
        """Give back what the run held, and write down how it ended."""
        if running.child.slot_lost:
            self.books.close(running.holding.slot)
        self.books.give(running.holding)
        survival.conclude(running.end, running.begun.err, check_exit)
        if running.stopped_by == "probe":
            running.end["expect_s"] = self.probes.expected_s(running.item)
        running.end["data"] = self.data.records(running.begun.spec)
        self.ledger.ended(running, running.end)

    def _account(self, running: Running, end: Dict[str, Any], ours: bool) -> None:
        """An end is on disk, or somebody else has closed the attempt."""
        self.keeper.release(running.begun.lease)
        if self.turns.after(running.item, end, ours) == "failed":
            self.beside.failed(running)

    # -- watching and stopping -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Everything that depends on the clock: limits, grace, the allocation's end, beats, wishes on disk."""
        now, left_s = time.monotonic(), self._left_s()
        if left_s is not None and left_s <= 0 and not self.stopping and self.running:
            self.say("the allocation ends in %.0f s: running runs are asked to stop" % self.settings.warn_s)
            self._stop("walltime")
        for running in self.running.values():
            running.tend(now, self.settings.grace_s)
        if now >= self._look_at:
            self._look_at = now + _LOOK_S * (1 + len(self.running) // 16)
            for running in list(self.running.values()):
                why = running.unwanted()
                if why is not None:
                    self._leave(running, why)
            self.others.look_for_parents()
        everybody = list(self.running.values())
        self.search.stop_losers(now, everybody, self.settings.grace_s)
        self.probes.tend(now, everybody, self.settings.grace_s)
        if now >= self._others_at:
            self._others_at = now + self.times.beat_s
            self.others.look()
        self._end_unwanted()

    def _stop(self, why: str) -> None:
        """No more starts; everything that runs is asked to end, then killed. Asked twice, it is killed at once."""
        if self.stopping:
            for running in self.running.values():
                running.child.signal(signal.SIGKILL)
            return
        self.stopping = why
        for running in self.running.values():
            running.ask_to_stop(why, self.settings.grace_s)
        self.ledger.note_stopping(list(self.running.values()), why)

    def _told(self, held: lease.Lease, why: str) -> None:
        """From the keeper's thread: a run is not wanted any more."""
        self._unwanted.append((held, why))
        self.bell.ring()

    def _end_unwanted(self) -> None:
        told, self._unwanted = self._unwanted, []
        for held, why in told:
            for running in [one for one in self.running.values() if one.begun.lease is held]:
                self._leave(running, why)

    def _leave(self, running: Running, why: str) -> None:
        """A run is not wanted here any more."""
        if why == "lost":
            running.was_closed()
        elif why != "handover":
            running.ask_to_stop(why, self.settings.grace_s)
        elif not self.stopping:
            self._stop(why)  # Slurm has started this job again elsewhere: all of the queue is the other one's now.

    def _obey(self) -> None:
        for number in self.link.signals():
            if number in (signal.SIGUSR1, signal.SIGUSR2):
                for running in self.running.values():
                    running.pass_on(number)
            elif number == signal.SIGINT and not self.draining and not self.stopping:
                self.draining = True
                self.say("Ctrl-C: %d running runs finish, no more are started; again to stop now" % len(self.running))
            else:
                self._stop(signal.Signals(number).name)


def say(text: str) -> None:
    sys.stderr.write("shoal: %s\n" % text)
    sys.stderr.flush()
