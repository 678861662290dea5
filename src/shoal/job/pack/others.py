"""What a queue depends on outside of its engine: runs that other engines have, and runs that others build on."""

import os
from typing import Dict, List, Set

from ...kernel import fence, layout, lease
from .. import nodes, stages
from . import claims
from .node import EngineNode
from .queue import QueuedRun, RunQueue
from .tally import PackSummary


class OtherEngines:
    """Runs of the queue that another engine works on are left to it, and taken back when it will not finish them."""

    def __init__(self, node: EngineNode, queue: RunQueue, tally: PackSummary, times: lease.LeaseTiming) -> None:
        self._node, self._queue, self._tally, self._times = node, queue, tally, times
        #: Run -> since when its lease has had the same name.
        self._watches: Dict[str, fence.LeaseWatch] = {}
        self._asked: Set[str] = set()
        self._left: List[QueuedRun] = []
        self._done: Set[str] = set()
        #: Engine that is gone -> nodes that failed with it.
        self._lost_with: Dict[str, List[str]] = {}

    def leave(self, item: QueuedRun) -> None:
        self._left.append(item)
        self._tally.count("elsewhere")

    def close_lost(self, standing: claims.QueuedRunStatus) -> None:
        """End the attempt of an engine that is gone, and find out whether its node has failed."""
        claims.close_lost_attempt(standing)
        start = standing.start
        if start is None or start.engine in self._lost_with or standing.claim is None:
            return
        # If it had been told to stop, nothing is wrong with its node.
        after = claims.read_status(self._node.home, layout.run_name_of(standing.claim.run_dir), self._node.token)
        ask = nodes.ask_slurm(self._node.environ)
        self._lost_with[start.engine] = [] if after.stopping else nodes.nodes_lost_with(start, self._node.me, ask)

    def is_gone(self, standing: claims.QueuedRunStatus) -> bool:
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

    def _is_doubtful(self, standing: claims.QueuedRunStatus) -> bool:
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

    def nodes_failed_under(self, standing: claims.QueuedRunStatus) -> List[str]:
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
            standing = claims.read_status(self._node.home, item.name, self._node.token)
            why = standing.end.stopped_by if standing.end is not None else None
            gone = standing.word == "taken" and self.is_gone(standing)
            if gone or (standing.word == "ended" and why in fence.INTERRUPTING_STOPS):
                self._left.remove(item)
                self._tally.count("elsewhere", -1)
                self._queue.put_back(item, last=True)
            elif standing.word == "done":
                self.is_done(item.name)
            elif standing.word == "taken":
                doubtful = doubtful or self._is_doubtful(standing)
        return doubtful or bool(self._queue.waiting)

    def is_done(self, name: str) -> None:
        """Runs that wait for this one may start."""
        self._done.add(name)
        self._queue.unblock(self._done)

    def look_for_parents(self) -> None:
        """Runs that others build on may be done by another engine, or by a job of their own."""
        for name in {name for item in self._queue.blocked for name in item.needs} - self._done:
            if stages.dependency_state(self._node.home, name).done:
                self.is_done(name)

    @property
    def blocked_runs(self) -> List[QueuedRun]:
        """Runs that wait for one that will not be done, as far as this engine can know."""
        left = {item.name for item in self._left}
        return [item for item in self._queue.blocked if not left.intersection(item.needs)]
