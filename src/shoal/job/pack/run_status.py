"""The state of a queue's runs by their files: runs that other engines have, runs that wait for others, the summary.

`PackSummary` counts how the runs ended and prints one line for each.
"""

import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set

from ...kernel import Allocation, End, Start, fence, files, layout, lease, processes, slurm
from .. import job_constraints
from .node import EngineNode
from .queue import QueuedRun, RunQueue


class QueuedRunStatus(NamedTuple):
    """What the files say about a run: `word` is free, completed, ended, taken or gone; `attempt` is its last one.

    ended: tried in this generation and not completed. taken: an engine works on it, `start` says who, and its lease was
    renewed `renewals` times; `names` shows the leases of its further nodes. gone: cancelled, or somebody else's by now.
    `causes` counts why earlier attempts of this revision ended; `stopping` is set if the last one was told to stop.
    """

    word: str
    claim: Optional[fence.Claim] = None
    attempt: int = 0
    start: Optional[Start] = None
    end: Optional[End] = None
    attempts: int = 0
    lost: int = 0
    causes: Mapping[str, int] = {}
    renewals: int = 0
    stopping: bool = False
    names: layout.RunNames = layout.parse_names(())


def read_status(home: str, name: str, token: str) -> QueuedRunStatus:
    """How a run of submission `token` stands; reads one listing, the claim, and the records of its last attempt."""
    run_dir = layout.run_dir(home, name)
    names = layout.parse_names(files.list_names(run_dir))
    claim = fence.read_claim(run_dir, names.generation)
    if claim is None or claim.token != token or names.has_submit(claim.generation, "cancel"):
        return QueuedRunStatus("gone")
    attempts = lost = 0
    causes: Dict[str, int] = {}
    last: Optional[lease.AttemptRecord] = None
    for number in names.attempts.get("start", []):
        last = lease.read_attempt(run_dir, names, number)
        if last is None:
            continue
        end = last.end
        if end is not None and end.success and end.revision == claim.revision:
            return QueuedRunStatus("completed", claim, number, last.start, last.end)
        if end is not None and end.cause and end.revision == claim.revision:
            causes[end.cause] = causes.get(end.cause, 0) + 1
        if last.start.generation == claim.generation:
            attempts += 1
            lost += end is not None and end.stopped_by == "lost"
    if names.may_run(names.attempt):
        # Of an attempt that is just being created the record may not be there yet.
        start = last.start if last is not None and last.number == names.attempt else None
        renewals = names.renewals.get((names.attempt, "live"), 0)
        return QueuedRunStatus(
            "taken", claim, names.attempt, start, None, attempts, lost, causes, renewals, names=names
        )
    if last is None or last.start.generation != claim.generation:
        return QueuedRunStatus("free", claim, names.attempt)
    stopping = last.state == "lost" and bool(last.last_words)
    return QueuedRunStatus("ended", claim, last.number, last.start, last.end, attempts, lost, causes, 0, stopping)


def recovery_policy(standing: QueuedRunStatus) -> Mapping[str, Any]:
    """What the run's step says about going on after an end."""
    claim = required_claim(standing)
    spec = files.read_json(os.path.join(claim.run_dir, layout.spec_file(claim.revision))) or {}
    return dict(spec.get("recovery") or {})


def close_lost_attempt(standing: QueuedRunStatus) -> bool:
    """Close the attempt of an engine that is gone; False if it ended by itself after all."""
    return fence.close_attempt(
        required_claim(standing).run_dir, standing.names, standing.attempt, standing.start, is_silent=True
    )


def engine_allocation(environ: Dict[str, str], own_job: bool) -> Allocation:
    """Who we are, for start and end records: process, host, and the Slurm job with its number of lives."""
    job = slurm.current_job(environ) if own_job else {}
    return Allocation(**processes.own_identity(), **job, engine="%s-%d" % (processes.host_name(), os.getpid()))


def required_claim(standing: QueuedRunStatus) -> fence.Claim:
    if standing.claim is None:
        raise ValueError("a run that is %s has no claim to work on" % standing.word)
    return standing.claim


class PackSummary:
    """Counts ends and tells of them: of good ones in long queues only now and then."""

    def __init__(self, total: int, say: Callable[[str], None]) -> None:
        self.total, self._say = total, say
        self.counts = {"completed": 0, "failed": 0, "stopped": 0, "stopped_early": 0, "retried": 0, "elsewhere": 0}

    def count(self, kind: str, by: int = 1) -> None:
        self.counts[kind] += by

    def tell(self, name: str, word: str, end: End) -> None:
        finished = sum(self.counts[kind] for kind in ("completed", "failed", "stopped_early", "elsewhere"))
        if word == "completed" and self.total > 60 and finished % max(1, self.total // 20) and finished != self.total:
            return
        why = "" if word == "completed" else " (%s)" % (end.problem or end.stopped_by or "exit %s" % end.exit_code)
        self._say("[%d/%d] %s %s%s after %.1f s" % (finished, self.total, word, name, why, end.duration_s))


class OtherEngines:
    """Runs of the queue that another engine works on are left to it, and taken back when it will not finish them."""

    def __init__(self, node: EngineNode, queue: RunQueue, summary: PackSummary, times: lease.LeaseTiming) -> None:
        self._node, self._queue, self._summary, self._times = node, queue, summary, times
        #: Run -> since when its lease has had the same name.
        self._watches: Dict[str, fence.LeaseWatch] = {}
        self._asked: Set[str] = set()
        self._left: List[QueuedRun] = []
        self._done: Set[str] = set()
        #: Engine that is gone -> nodes that failed with it.
        self._lost_with: Dict[str, List[str]] = {}

    def leave(self, item: QueuedRun) -> None:
        self._left.append(item)
        self._summary.count("elsewhere")

    def close_lost(self, standing: QueuedRunStatus) -> None:
        """End the attempt of an engine that is gone, and find out whether its node has failed."""
        close_lost_attempt(standing)
        start = standing.start
        if start is None or start.engine in self._lost_with or standing.claim is None:
            return
        # If it had been told to stop, nothing is wrong with its node.
        after = read_status(self._node.home, layout.run_name_of(standing.claim.run_dir), self._node.token)
        ask = job_constraints.ask_slurm(self._node.environ)
        self._lost_with[start.engine] = (
            [] if after.stopping else job_constraints.nodes_lost_with(start, self._node.me, ask)
        )

    def is_gone(self, standing: QueuedRunStatus) -> bool:
        """Whether nothing of a run that somebody else has can still run: proved dead, or silent for so long.

        An attempt of this job's earlier life, or of an earlier submission, is asked to hand over.
        """
        start, claim = standing.start, standing.claim
        if claim is None or (lease.is_holder_dead(start) and not standing.names.nodes.get(standing.attempt)):
            return claim is not None
        me, name = self._node.me, layout.run_name_of(claim.run_dir)
        ours = start is not None and start.job_id == me.job_id and start.life != me.life
        earlier = start is not None and start.token != self._node.token
        if (ours or earlier) and claim.run_dir not in self._asked:
            self._asked.add(claim.run_dir)
            lease.ask_for_handover(claim.run_dir, standing.attempt, me)
        watch = self._watches.setdefault(name, fence.LeaseWatch())
        return watch.is_silent(standing.attempt, standing.names.lease_names(standing.attempt), start)

    def _is_doubtful(self, standing: QueuedRunStatus) -> bool:
        """Whether a lease has missed two renewals, by the file server's clock, and its run may be ours soon.

        A rename changes the time of a file's status; our own time there is that of a file that we touch now.
        """
        if standing.claim is None:
            return False
        own = os.path.join(self._node.folder, "engine.%s.json" % self._node.me.engine)
        name = layout.lease_file(standing.attempt, "live", standing.renewals)
        try:
            os.utime(own)
            changed = os.stat(os.path.join(standing.claim.run_dir, name)).st_ctime
            return os.stat(own).st_ctime - changed > 2.5 * self._times.beat_s
        except OSError:
            return True  # It has just been renewed, or the file server is away: look again.

    def nodes_failed_under(self, standing: QueuedRunStatus) -> List[str]:
        """Nodes that failed under the last attempt of a run, as far as this engine has found out."""
        if standing.start is None or standing.end is None or standing.end.stopped_by != "lost":
            return []
        return self._lost_with.get(standing.start.engine, [])

    @property
    def failed_nodes(self) -> List[str]:
        return sorted({node for found in self._lost_with.values() for node in found})

    def look(self) -> bool:
        """Take back what engines that are gone, or out of time, had. True if a run was, or may be soon."""
        doubtful = False
        for item in list(self._left):
            standing = read_status(self._node.home, item.name, self._node.token)
            why = standing.end.stopped_by if standing.end is not None else None
            gone = standing.word == "taken" and self.is_gone(standing)
            if gone or (standing.word == "ended" and why in fence.INTERRUPTING_STOPS):
                self._left.remove(item)
                self._summary.count("elsewhere", -1)
                self._queue.put_back(item, last=True)
            elif standing.word == "completed":
                self.is_done(item.name)
            elif standing.word == "taken":
                doubtful = doubtful or self._is_doubtful(standing)
        return doubtful or bool(self._queue.waiting)

    def is_done(self, name: str) -> None:
        """Runs that wait for this one may start."""
        self._done.add(name)
        self._queue.unblock(self._done)

    def look_for_parents(self) -> None:
        """Runs that others depend on may be completed by another engine, or by a job of their own."""
        for name in {name for item in self._queue.blocked for name in item.needs} - self._done:
            if job_constraints.dependency_state(self._node.home, name).completed:
                self.is_done(name)

    @property
    def blocked_runs(self) -> List[QueuedRun]:
        """Runs that wait for one that will not complete, as far as this engine can know."""
        left = {item.name for item in self._left}
        return [item for item in self._queue.blocked if not left.intersection(item.needs)]
