"""The loop of one engine: start what fits, reap what ended, stop when told to. One thread, no polling of processes.

Signals: the first Ctrl-C lets running runs finish and starts no more; a second one, SIGTERM or SIGHUP asks them to
stop, gives them the grace time, and then kills. SIGUSR1 and SIGUSR2 are passed on. However it ends, what ran is
recorded, what waited still waits, and no process is left.
"""

import functools
import os
import select
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from .. import command, fence, files, handover, layout, memory
from . import children, claims, machine
from .books import WHOLE, Books, Holding
from .queue import Item, Queue, Settings
from .writer import Writer

_BEAT_S, _LEASE_BEAT_S, _LEASE_S = 30.0, 15.0, 90.0
#: So many ends may wait for the disk before no more runs are started.
_MOST_PENDING = 64
_LOOK_S, _DISK_RETRY_S, _DISK_PATIENCE_S = 2.0, 2.0, 60.0
#: stopped_by values after which the same generation may go on: the run was interrupted, it did not fail.
INTERRUPTED = ("SIGTERM", "SIGINT", "SIGHUP", "walltime", "lost")


class Node(NamedTuple):
    """What an engine works with: where the records are, who it is, what the node has, what surrounds it."""

    home: str
    token: str
    me: Dict[str, Any]
    gpus: machine.Gpus
    cpus: List[int]
    environ: Mapping[str, str]
    ends_at: Optional[float]


class Running:
    """A run that has a process."""

    def __init__(self, item: Item, begun: claims.Begun, holding: Holding, child: children.Child) -> None:
        self.item, self.begun, self.holding, self.child = item, begun, holding, child
        self.began, self.clock = time.time(), time.monotonic()
        self.stopped_by: Optional[str] = None
        self.kill_at: Optional[float] = None
        self.beat_at = self.clock + _BEAT_S
        self.limit_at = None if item.limit_s is None else self.clock + item.limit_s

    @property
    def due_at(self) -> Optional[float]:
        """When it has to be asked to stop, or killed."""
        return self.kill_at if self.stopped_by else self.limit_at

    @property
    def identity(self) -> Tuple[str, str]:
        return (self.item.name, str(self.begun.number))


class Engine:
    """Works through a queue and returns the exit code of the whole: 0 all done, 4 some failed, 124 time ran out,
    128 + n ended by signal n, 74 the disk is full."""

    def __init__(
        self, queue: Queue, books: Books, settings: Settings, node: Node, starter: Any, say: Callable[[str], None]
    ) -> None:
        self.queue, self.books, self.settings, self.node = queue, books, settings, node
        self.starter, self.say = starter, say
        self.data = handover.Shared(say)
        self.running: Dict[int, Running] = {}
        self.counts = {"done": 0, "failed": 0, "stopped": 0, "elsewhere": 0}
        self.draining = False
        self.stopping: Optional[str] = None
        self.total = len(queue)
        self.retired = 0
        self.problems: Dict[int, str] = {}
        self.elsewhere: List[Item] = []
        self._heard: List[int] = []
        self._unwritten: List[Tuple[Running, Dict[str, Any]]] = []
        self._disk_since: Optional[float] = None
        self._disk_retry_at = 0.0
        self._look_at = time.monotonic() + _LOOK_S
        self._lease_at = 0.0
        self._leases: Dict[str, Tuple[Any, float]] = {}
        self._oom = memory.oom_kills()
        self._wake, wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake, False)
        self._wake_end = wake
        self.writer = Writer(wake)

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> int:
        self._listen()
        try:
            while True:
                self._obey()
                if hasattr(self.starter, "collect"):
                    self.starter.collect()
                self._reap()
                self.writer.collect()
                self._write_again()
                self._watch()
                self._start_ready()
                if self._is_over():
                    return self._exit_code()
                self._wait()
        finally:
            for running in self.running.values():
                running.child.signal(signal.SIGKILL)
            if hasattr(self.starter, "close"):
                self.starter.close()
            children.end_everything()
            self.writer.close()
            self.data.close()

    def _is_over(self) -> bool:
        if self.running or self._unwritten or self.writer.pending:
            return False
        if self.stopping or self.draining or not len(self.queue) or self.retired == self.books.slots:
            return True
        if getattr(self.starter, "waiting", False):
            return False
        left_s = self._left_s()
        if self._disk_since is not None:
            return time.monotonic() - self._disk_since > _DISK_PATIENCE_S
        return len(self.queue.too_late(left_s)) == len(self.queue)

    def _exit_code(self) -> int:
        if self.stopping and self.stopping.startswith("SIG"):
            return 128 + int(signal.Signals[self.stopping])
        if self._disk_since is not None:
            return 74
        if self.draining:
            return 130 if len(self.queue) else (4 if self.counts["failed"] else 0)
        if self.stopping or len(self.queue):
            return 124
        return 4 if self.counts["failed"] else 0

    def _left_s(self) -> Optional[float]:
        """Time for runs: until the warning before the allocation's end."""
        return None if self.node.ends_at is None else self.node.ends_at - self.settings.warn_s - time.time()

    # -- starting ------------------------------------------------------------------------------------------------

    def _start_ready(self) -> None:
        while not (self.draining or self.stopping) and time.monotonic() >= self._disk_retry_at:
            if self.writer.pending >= _MOST_PENDING or getattr(self.starter, "waiting", False):
                return
            choice = self.queue.next(self.books, self._left_s())
            if choice is None:
                return
            item, holding = choice.item, choice.holding
            try:
                begun = self._begin(item, holding)
                self._disk_since = None
            except OSError as error:
                if error.errno not in files.DISK_ERRNOS:
                    raise
                self._wait_for_disk(error)
                self.queue.put_back(item)
                begun = None
            if begun is None:
                self.books.give(holding)
            else:
                self.writer.submit(functools.partial(files.sync_record, begun.record))
                self._launch(item, begun, holding)

    def _begin(self, item: Item, holding: Holding) -> Optional[claims.Begun]:
        """Take the run's next attempt if it may still run; None if there is nothing (more) to do for it here."""
        standing = claims.look(self.node.home, item.name, self.node.token)
        if standing.word == "taken":
            if not self._is_gone(standing.start or {}):
                self.elsewhere.append(item)
                self.counts["elsewhere"] += 1
                return None
            claims.write_lost(standing)
            standing = claims.look(self.node.home, item.name, self.node.token)
        if standing.word == "done":
            self.counts["done"] += 1
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
        return why != "cancelled" and standing.tried <= self.settings.retries

    def _launch(self, item: Item, begun: claims.Begun, holding: Holding) -> None:
        argv, env, problem = command.prepare(
            begun.spec,
            begun.claim,
            begun.number,
            begun.resume_from,
            self._environment(item, holding),
            (begun.out, begun.err),
            here_only=True,
        )
        problem, code = problem or self.problems.get(item.place) or self.data.join(begun.spec, env), 2
        if problem is None:
            cpus = holding.cpus if self.settings.bind else ()
            try:
                child = self.starter.start(argv, env, begun.spec["cwd"], (begun.out, begun.err), cpus)
                self.running[child.pid] = Running(item, begun, holding, child)
                return
            except OSError as error:
                problem = "cannot start %s: %s" % (error.filename or argv[0], error.strerror)
                code = 127 if isinstance(error, FileNotFoundError) else 126
        with open(begun.err, "ab") as file:
            file.write(("shoal: %s\n" % problem).encode("utf-8", "replace"))
        child = children.Child(0)
        child.code = code
        self._finish(Running(item, begun, holding, child), problem)

    def _environment(self, item: Item, holding: Holding) -> Dict[str, str]:
        """What the run finds around it: its GPUs and no others, as many threads as CPUs, its place."""
        env = dict(self.node.environ)
        if self.node.gpus.ids:
            env.update(machine.gpu_environment(self.node.gpus, holding.gpus))
        threads = len(holding.cpus) or max(1, len(self.node.cpus) // self.books.slots)
        env.update(machine.thread_environment(threads, env))
        env.update(
            SHOAL_SLOT=str(holding.slot),
            SHOAL_NODES="1",
            SHOAL_GPUS_PER_NODE=str(len(holding.gpus)),
            SHOAL_CPUS_PER_NODE=str(threads),
        )
        if 0 < holding.share < WHOLE:
            env["SHOAL_GPU_SHARE"] = "%g" % (holding.share / WHOLE)
        return env

    def _held(self, holding: Holding) -> Dict[str, Any]:
        """What the timeline is drawn from."""
        held = {
            "slot": holding.slot,
            "gpus": [self.node.gpus.ids[index] for index in holding.gpus],
            "share": holding.share / WHOLE,
            "cpus": len(holding.cpus),
            "engine": self.node.me["engine"],
        }
        # Slots of several nodes: where this one is, whoever started it knows.
        return dict(held, **self.starter.place(holding.slot)) if hasattr(self.starter, "place") else held

    def _wait_for_disk(self, error: OSError) -> None:
        now = time.monotonic()
        if self._disk_since is None:
            self._disk_since = now
            self.say("cannot write %s: %s; no run is started until there is room" % (error.filename, error.strerror))
        self._disk_retry_at = now + _DISK_RETRY_S

    # -- ending --------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        ended = [running for running in self.running.values() if running.child.poll() is not None]
        for running in ended:
            del self.running[running.child.pid]
        if ended:
            identities: Set[Tuple[str, str]] = {running.identity for running in self.running.values()}
            children.end_strangers(self._known_pids(), identities)
        for running in ended:
            self._finish(running, None)

    def _known_pids(self) -> List[int]:
        return [*self.running, *getattr(self.starter, "pids", ())]

    def _finish(self, running: Running, problem: Optional[str]) -> None:
        if getattr(running.child, "slot_lost", False):
            # The slot stays lent for ever: there is nothing left that could run in it.
            running.stopped_by = running.stopped_by or "lost"
            self.retired += 1
        else:
            self.books.give(running.holding)
        problem = problem or getattr(running.child, "problem", None)
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
            problem=problem,
            began=running.began,
            ended=time.time(),
            duration_s=time.monotonic() - running.clock,
        )
        end["data"] = self.data.records(running.begun.spec)
        self._keep(running, end)

    def _keep(self, running: Running, end: Dict[str, Any]) -> None:
        """Write the end in the background; a full disk is waited for, because these records are the results."""
        run_dir = running.begun.claim.run_dir

        def written(ours: Any, error: Optional[OSError]) -> None:
            if error is None:
                self._account(running, end, bool(ours))
                return
            self._wait_for_disk(error)
            if time.monotonic() - (self._disk_since or 0) > _DISK_PATIENCE_S:
                self.say("the end of %s could not be written down: %s" % (running.item.name, error.strerror))
            else:
                self._unwritten.append((running, end))

        self.writer.submit(lambda: claims.write_end(run_dir, end), written)

    def _write_again(self) -> None:
        if self._unwritten and time.monotonic() >= self._disk_retry_at:
            again, self._unwritten = self._unwritten, []
            for running, end in again:
                self._keep(running, end)

    def _account(self, running: Running, end: Dict[str, Any], ours: bool) -> None:
        item = running.item
        if end["success"] and ours:
            self.counts["done"] += 1
            self.queue.learn(item, end["duration_s"])
            self._tell(item, "done", end)
            return
        if end["stopped_by"] in INTERRUPTED and end["stopped_by"] != "lost":
            self.counts["stopped"] += 1
            self.queue.put_back(item, last=True)
            self._tell(item, "stopped", end)
            return
        standing = claims.look(self.node.home, item.name, self.node.token)
        if ours and not self.stopping and standing.word == "ended" and self._again(standing):
            self.queue.put_back(item, last=True)
            self._tell(item, "failed, will be tried again:", end)
            return
        self.counts["failed" if end["stopped_by"] != "cancelled" else "stopped"] += 1
        self._tell(item, "failed" if end["stopped_by"] != "cancelled" else "cancelled", end)

    def _tell(self, item: Item, word: str, end: Mapping[str, Any]) -> None:
        finished = self.counts["done"] + self.counts["failed"] + self.counts["elsewhere"]
        if word == "done" and self.total > 60 and finished % max(1, self.total // 20) and finished != self.total:
            return
        why = "" if word == "done" else " (%s)" % (end["problem"] or end["stopped_by"] or "exit %d" % end["exit_code"])
        self.say("[%d/%d] %s %s%s after %.1f s" % (finished, self.total, word, item.name, why, end["duration_s"]))

    # -- watching ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Everything that depends on the clock: limits, grace, the allocation's end, beats, wishes on disk."""
        now = time.monotonic()
        left_s = self._left_s()
        if left_s is not None and left_s <= 0 and not self.stopping and self.running:
            self.say("the allocation ends in %.0f s: running runs are asked to stop" % self.settings.warn_s)
            self._stop("walltime")
        for running in list(self.running.values()):
            if running.limit_at is not None and now >= running.limit_at and running.stopped_by is None:
                self._ask_to_stop(running, "time limit")
            if running.kill_at is not None and now >= running.kill_at:
                running.kill_at = None
                running.child.signal(signal.SIGKILL)
            if now >= running.beat_at:
                running.beat_at = now + _BEAT_S
                self._beat(running)
        if now >= self._look_at:
            self._look_at = now + _LOOK_S * (1 + len(self.running) // 16)
            self._look_for_wishes()
        if now >= self._lease_at:
            self._lease_at = now + _LEASE_BEAT_S
            self._renew_lease()

    def _look_for_wishes(self) -> None:
        """Was a running run cancelled, or are we taken for dead? A file server that is away ends nothing."""
        for running in list(self.running.values()):
            try:
                why = fence.superseded(running.begun.claim, running.begun.number)
            except OSError:
                continue
            if why is not None and running.stopped_by is None:
                self._ask_to_stop(running, why)

    def _beat(self, running: Running) -> None:
        path = os.path.join(running.begun.claim.run_dir, layout.attempt_file(running.begun.number, "beat"))
        try:
            files.replace(path, files.to_json({"t": time.time(), "every_s": _BEAT_S}), sync=False)
        except OSError:
            pass

    def _renew_lease(self) -> None:
        path = lease_path(self.node.home, self.node.token, self.node.me["engine"])
        try:
            files.replace(path, files.to_json(dict(self.node.me, t=time.time())), sync=False)
        except OSError:
            pass

    def _is_gone(self, start: Dict[str, Any]) -> bool:
        """Whether the engine of an attempt is gone; for one on another host its lease is watched over time."""
        engine = str(start.get("engine"))
        lease = files.read_json(lease_path(self.node.home, self.node.token, engine))
        seen, since = self._leases.setdefault(engine, (lease, time.monotonic()))
        if seen != lease:
            since = time.monotonic()
            self._leases[engine] = (lease, since)
        return claims.is_gone(start, self.node.me, time.monotonic() - since, _LEASE_S)

    # -- stopping ------------------------------------------------------------------------------------------------

    def _stop(self, why: str) -> None:
        """No more starts; everything that runs is asked to end, then killed. Asked twice, it is killed at once."""
        if self.stopping:
            for running in self.running.values():
                running.child.signal(signal.SIGKILL)
            return
        self.stopping = why
        for running in self.running.values():
            if running.stopped_by is None:
                self._ask_to_stop(running, why)

    def _ask_to_stop(self, running: Running, why: str) -> None:
        running.stopped_by = why
        running.kill_at = time.monotonic() + self.settings.grace_s
        running.child.signal(signal.SIGTERM)

    def _listen(self) -> None:
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, frame: self._heard.append(number))
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def _obey(self) -> None:
        heard, self._heard = self._heard, []
        for number in heard:
            name = signal.Signals(number).name
            if number in (signal.SIGUSR1, signal.SIGUSR2):
                for running in self.running.values():
                    running.child.signal(number)
            elif number == signal.SIGINT and not self.draining and not self.stopping:
                self.draining = True
                self.say("Ctrl-C: %d running runs finish, no more are started; again to stop now" % len(self.running))
            else:
                self._stop(name)

    def _wait(self) -> None:
        """Sleep until a signal comes or something is due."""
        now = time.monotonic()
        due = [self._lease_at]
        if self.running:
            due.append(self._look_at)
            due += [running.beat_at for running in self.running.values()]
            due += [running.due_at for running in self.running.values() if running.due_at is not None]
        if self._disk_since is not None or self._unwritten:
            due.append(max(self._disk_retry_at, now + 0.1))
        left_s = self._left_s()
        if left_s is not None:
            due.append(now + max(left_s, 1.0))
        timeout = max(0.0, min(due) - now)
        select.select([self._wake, *getattr(self.starter, "wait_on", ())], [], [], timeout)
        try:
            while os.read(self._wake, 4096):
                pass
        except BlockingIOError:
            pass


def lease_path(home: str, token: str, engine: str) -> str:
    return os.path.join(layout.submission_dir(home, token), "engine.%s.lease" % engine)


def say(text: str) -> None:
    sys.stderr.write("shoal: %s\n" % text)
    sys.stderr.flush()
