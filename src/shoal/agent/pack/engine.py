"""The loop of one engine: start what fits, reap what ended, stop when told to. One thread, no polling of processes.

Signals: the first Ctrl-C lets running runs finish and starts no more; a second one, SIGTERM or SIGHUP asks them to
stop, gives them the grace time, and then kills. SIGUSR1 and SIGUSR2 are passed on. However it ends, what ran is
recorded, what waited still waits, and no process is left.
"""

import signal
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from .. import command, files, handover, memory
from ..launch import container
from . import children, claims
from .bell import Bell
from .beside import Beside
from .books import Books, Holding
from .leases import Leases
from .ledger import Ledger
from .node import Node
from .queue import Item, Queue, Settings
from .running import INTERRUPTED, Running
from .search import Search, rule_of
from .tally import Tally

_LOOK_S = 2.0


class Engine:
    """Works through a queue and returns the exit code of the whole: 0 all done, 4 some failed, 124 time ran out,
    128 + n ended by signal n, 74 the disk is full."""

    def __init__(
        self,
        queue: Queue,
        books: Books,
        settings: Settings,
        node: Node,
        starter: children.Starter,
        say: Callable[[str], None],
    ) -> None:
        self.queue, self.books, self.settings, self.node = queue, books, settings, node
        self.starter, self.say = starter, say
        self.data = handover.Shared(say)
        self.running: Dict[int, Running] = {}
        self.tally = Tally(len(queue), say)
        self.draining = False
        self.stopping: Optional[str] = None
        self.retired = 0
        self.problems: Dict[int, str] = {}
        self.elsewhere: List[Item] = []
        self.bell = Bell()
        self.ledger = Ledger(self.bell.rope, say, self._account)
        self.leases = Leases(node.home, node.token, node.me)
        self.search = Search(rule_of(settings.search), node.home, node.me["engine"])
        self.beside = Beside(node)
        self._look_at = time.monotonic() + _LOOK_S
        self._oom = memory.oom_kills()

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> int:
        self.bell.listen()
        try:
            while True:
                self._obey()
                self.starter.collect()
                self._reap()
                self.ledger.collect()
                self._watch()
                self._start_ready()
                if self._is_over():
                    return self._exit_code()
                self.bell.wait(self._due(), self.starter.wait_on)
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
        if self.stopping or self.draining or not len(self.queue) or self.retired == self.books.slots:
            return True
        if self.starter.waiting:
            return False
        if self.ledger.is_full:
            return self.ledger.is_hopeless
        return len(self.queue.too_late(self._left_s())) == len(self.queue)

    def _exit_code(self) -> int:
        failed = self.tally.counts["failed"]
        if self.stopping and self.stopping.startswith("SIG"):
            return 128 + int(signal.Signals[self.stopping])
        if self.ledger.is_full:
            return 74
        if self.draining:
            return 130 if len(self.queue) else (4 if failed else 0)
        if self.stopping or len(self.queue):
            return 124
        return 4 if failed else 0

    def _left_s(self) -> Optional[float]:
        """Time for runs: until the warning before the allocation's end."""
        return None if self.node.ends_at is None else self.node.ends_at - self.settings.warn_s - time.time()

    def _due(self) -> List[float]:
        """When the loop has to look again though nothing happened."""
        now, left_s = time.monotonic(), self._left_s()
        due = [self.leases.due_at, *self.ledger.due_at(now)]
        if self.running:
            due += [self._look_at, self.search.due_at]
            due += [running.due_at for running in self.running.values()]
        if left_s is not None:
            due.append(now + max(left_s, 1.0))
        return due

    # -- starting ------------------------------------------------------------------------------------------------

    def _start_ready(self) -> None:
        while not (self.draining or self.stopping or self.starter.waiting) and self.ledger.takes_more:
            choice = self.queue.next(self.books, self._left_s())
            if choice is None:
                return
            item, holding = choice.item, choice.holding
            try:
                begun = self._begin(item, holding)
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
                self.ledger.begun(begun)
                self._launch(item, begun, holding)

    def _begin(self, item: Item, holding: Holding) -> Optional[claims.Begun]:
        """Take the run's next attempt if it may still run; None if there is nothing (more) to do for it here."""
        standing = claims.look(self.node.home, item.name, self.node.token)
        if standing.word == "taken":
            if not self.leases.is_gone(standing.start or {}):
                self.elsewhere.append(item)
                self.tally.count("elsewhere")
                return None
            claims.write_lost(standing)
            standing = claims.look(self.node.home, item.name, self.node.token)
        if standing.word == "done":
            self.tally.count("done")
            return None
        if standing.word in ("gone", "taken") or (standing.word == "ended" and not self._again(standing)):
            return None
        begun = claims.begin(standing, self.node.me, self._held(holding))
        if begun is None:
            self.elsewhere.append(item)
        return begun

    def _again(self, standing: claims.Standing) -> bool:
        """Whether a run that was tried in this generation is tried again: after an interruption, or by --retries."""
        why = (standing.end or {}).get("stopped_by")
        if why == "lost":
            return standing.lost <= self.settings.losses
        if why in INTERRUPTED:
            return True
        return why not in ("cancelled", "search") and standing.tried <= self.settings.retries

    def _launch(self, item: Item, begun: claims.Begun, holding: Holding) -> None:
        spec = container.settle(begun.spec, self.node.environ)
        argv, env, problem = command.prepare(
            spec,
            begun.claim,
            begun.number,
            begun.resume_from,
            self.node.environment(holding, self.books.slots),
            (begun.out, begun.err),
            here_only=True,
        )
        problem, code = problem or self.problems.get(item.place) or self.data.join(spec, env), 2
        if problem is None:
            cpus = holding.cpus if self.settings.bind else ()
            try:
                argv = command.inside(spec, begun.claim, argv, env)
                child = self.starter.start(argv, env, spec["cwd"], (begun.out, begun.err), cpus)
                self.running[child.pid] = running = Running(item, begun, holding, child)
                self.beside.began(running, env)
                return
            except OSError as error:
                problem = "cannot start %s: %s" % (error.filename or argv[0], error.strerror)
                code = 127 if isinstance(error, FileNotFoundError) else 126
        with open(begun.err, "ab") as file:
            file.write(("shoal: %s\n" % problem).encode("utf-8", "replace"))
        child = children.Child(0)
        child.code, child.problem = code, problem
        self._finish(Running(item, begun, holding, child))

    def _held(self, holding: Holding) -> Dict[str, Any]:
        return dict(self.node.held(holding), **self.starter.place(holding.slot))

    # -- ending --------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        ended = [running for running in self.running.values() if running.child.poll() is not None]
        for running in ended:
            del self.running[running.child.pid]
        if ended:
            alive = {running.identity for running in self.running.values()}
            children.end_strangers([*self.running, *self.starter.pids], alive)
        for running in ended:
            self._finish(running)

    def _finish(self, running: Running) -> None:
        if running.child.slot_lost:
            # The slot stays lent for ever: there is nothing left that could run in it.
            running.stopped_by = running.stopped_by or "lost"
            self.retired += 1
        else:
            self.books.give(running.holding)
        self.beside.ended(running)
        code = running.child.code or 0
        oom = False
        if code != 0:
            kills = memory.oom_kills()
            oom, self._oom = kills > self._oom, kills
        end = claims.end_record(
            running.begun,
            self.node.me,
            self._held(running.holding),
            exit_code=code if code >= 0 else 128 - code,
            signal=signal.Signals(-code).name if code < 0 else None,
            stopped_by=running.stopped_by,
            oom=oom,
            problem=running.child.problem or running.stopped_words,
            began=running.began,
            ended=time.time(),
            duration_s=time.monotonic() - running.clock,
        )
        end["data"] = self.data.records(running.begun.spec)
        self.ledger.ended(running, end)

    def _account(self, running: Running, end: Dict[str, Any], ours: bool) -> None:
        """An end is on disk: does the run go on?"""
        item, why = running.item, end["stopped_by"]
        if end["success"] and ours:
            self.tally.count("done")
            self.queue.learn(item, end["duration_s"])
            word = "done"
        elif why in INTERRUPTED and why != "lost":
            self.tally.count("stopped")
            self.queue.put_back(item, last=True)
            word = "stopped"
        elif why == "search":
            self.tally.count("by_search")
            word = "stopped"
        elif ours and not self.stopping and self._may_try_again(item):
            self.queue.put_back(item, last=True)
            word = "failed, will be tried again:"
        else:
            word = "cancelled" if why == "cancelled" else "failed"
            self.tally.count("stopped" if why == "cancelled" else "failed")
            if word == "failed":
                self.beside.failed(running)
        self.tally.tell(item.name, word, end)

    def _may_try_again(self, item: Item) -> bool:
        standing = claims.look(self.node.home, item.name, self.node.token)
        return standing.word == "ended" and self._again(standing)

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
            for running in self.running.values():
                why = running.unwanted()
                if why is not None:
                    running.ask_to_stop(why, self.settings.grace_s)
        self.search.stop_losers(now, list(self.running.values()), self.settings.grace_s)
        self.leases.renew(now)

    def _stop(self, why: str) -> None:
        """No more starts; everything that runs is asked to end, then killed. Asked twice, it is killed at once."""
        if self.stopping:
            for running in self.running.values():
                running.child.signal(signal.SIGKILL)
            return
        self.stopping = why
        for running in self.running.values():
            running.ask_to_stop(why, self.settings.grace_s)

    def _obey(self) -> None:
        for number in self.bell.heard():
            if number in (signal.SIGUSR1, signal.SIGUSR2):
                for running in self.running.values():
                    running.child.signal(number)
            elif number == signal.SIGINT and not self.draining and not self.stopping:
                self.draining = True
                self.say("Ctrl-C: %d running runs finish, no more are started; again to stop now" % len(self.running))
            else:
                self._stop(signal.Signals(number).name)


def say(text: str) -> None:
    sys.stderr.write("shoal: %s\n" % text)
    sys.stderr.flush()
