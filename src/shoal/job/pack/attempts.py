"""Whether this engine may take a run's next attempt, whether an ended run is retried; a run that has a slot.

Decided from the records on disk alone, so that several engines of one queue, and one that starts later, decide alike.
"""

import math
import time
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional

from ...kernel import INTERRUPTING_STOPS, AssignedResources, End, fence, lease
from .. import attempt
from ..attempt import Attempt
from ..recovery import CONTINUING_CAUSES
from ..sampler import SamplerProcess, with_parameters
from . import run_status
from .allocator import Assignment
from .node import EngineNode
from .queue import PackSettings, QueuedRun, RunQueue
from .run_status import OtherEngines, PackSummary, QueuedRunStatus


class PackAttempt(Attempt):
    """One attempt of a queue's run, in its slot."""

    def __init__(
        self,
        claim: fence.Claim,
        held: lease.Lease,
        spec: Dict[str, Any],
        item: QueuedRun,
        assignment: Assignment,
        grace_s: float,
    ) -> None:
        super().__init__(claim, held, spec)
        self.item, self.assignment = item, assignment
        self.grace_s, self.warn_s, self.limit_s = grace_s, item.warn_s, item.limit_s


_CLAIM_POLL_S = 0.01


_MAX_BACKOFF_S = 3600.0


class PackRetry(NamedTuple):
    """After `wait_s`, and with so many slots' part of the node's memory."""

    wait_s: float = 0.0
    slots: int = 1


class AttemptOwnership:
    """Takes runs that may start, and puts those that go on back into the queue. `slots` share the node's memory."""

    def __init__(
        self,
        queue: RunQueue,
        settings: PackSettings,
        node: EngineNode,
        slots: int,
        others: OtherEngines,
        summary: PackSummary,
        say: Callable[[str], None],
        sampler: SamplerProcess,
    ) -> None:
        self._queue, self._settings, self._node, self._slots = queue, settings, node, slots
        self._others, self._summary, self._say = others, summary, say
        self._sampler = sampler
        #: When the next run in order may have been claimed, while they still are.
        self.claims_at: Optional[float] = None

    def take(self, item: QueuedRun, assignment: Assignment, held: AssignedResources) -> Optional[PackAttempt]:
        """Take the run's next attempt if it may still run; None if there is nothing (more) to do for it now."""
        all_claimed = self._node.all_claimed()
        standing = self._look(item)
        if standing.word == "taken" and self._others.is_gone(standing):
            self._others.close_lost(standing)
            standing = self._look(item)
        if standing.word == "taken":
            self._others.leave(item)
            return None
        if standing.word == "completed":
            self._summary.count("completed")
            self._others.is_done(item.name)
            return None
        if standing.word == "ended":
            more = self._plan_retry(standing)
            if more is None:
                stopped_early = standing.end is not None and standing.end.stopped_by == "early_stopping"
                self._summary.count("stopped_early" if stopped_early else "failed")
                return None
            if more.slots > item.need.slots:
                self._put_back(item, more._replace(wait_s=0.0))
                return None
        if standing.word == "gone" and not all_claimed:
            # Claims are made in the queue's order: this one is next.
            self._queue.put_back(item)
            self.claims_at = time.monotonic() + _CLAIM_POLL_S
        if standing.word == "gone":
            return None
        running = self._begin(standing, item, assignment, held)
        if running is None:
            self._others.leave(item)
        return running

    def _begin(
        self, standing: run_status.QueuedRunStatus, item: QueuedRun, assignment: Assignment, held: AssignedResources
    ) -> Optional[PackAttempt]:
        claim, node = run_status.required_claim(standing), self._node
        spec = attempt.read_run_spec(node.home, claim, node.code, node.environ)
        spec = with_parameters(node.home, spec, self._sampler, node.me)
        own = attempt.begin_attempt(
            claim,
            standing.attempt + 1,
            node.me,
            spec,
            has_earlier_attempt=bool(standing.attempts),
            environ=node.environ,
            failed_nodes=self._others.nodes_failed_under(standing),
            held=held,
        )
        return None if own is None else PackAttempt(claim, own, spec, item, assignment, self._settings.grace_s)

    def after(self, item: QueuedRun, end: End, ours: bool) -> str:
        """An end is on disk: does the run go on? What became of it, in a word, counted and told."""
        why = end.stopped_by
        if not ours:
            self._others.leave(item)
            self._say("%s was taken over by another engine, which took this one for dead" % item.name)
            return "elsewhere"
        more = None
        if not end.success:
            standing = self._look(item)
            more = self._plan_retry(standing) if standing.word == "ended" else None
        if end.success:
            self._summary.count("completed")
            self._queue.learn(item, end.duration_s)
            self._others.is_done(item.name)
            word = "completed"
        elif why == "probe":
            self._queue.put_by_length(item._replace(expect_s=end.expect_s or 0.0))
            word = "waits:"
        elif why == "early_stopping":
            self._summary.count("stopped_early")
            word = "stopped"
        elif more is not None:
            stopped = why in INTERRUPTING_STOPS and why != "lost"
            self._put_back(item, more)
            self._summary.count("stopped" if stopped else "retried")
            word = "stopped" if stopped else "failed, retrying:"
        else:
            word = "cancelled" if why == "cancelled" else "failed"
            self._summary.count("stopped" if why == "cancelled" else "failed")
        self._summary.tell(item.name, word, end)
        return word

    def _look(self, item: QueuedRun) -> run_status.QueuedRunStatus:
        return run_status.read_status(self._node.home, item.name, self._node.token)

    def _plan_retry(self, standing: run_status.QueuedRunStatus) -> Optional[PackRetry]:
        return plan_retry(standing, self._settings, run_status.recovery_policy(standing), self._slots)

    def _put_back(self, item: QueuedRun, how: PackRetry) -> None:
        item = item._replace(need=item.need._replace(slots=how.slots))
        if how.wait_s:
            self._queue.put_off(item, time.monotonic() + how.wait_s)
        else:
            self._queue.put_back(item, last=True)


def plan_retry(
    standing: QueuedRunStatus, settings: PackSettings, policy: Mapping[str, Any], slots: int
) -> Optional[PackRetry]:
    """How a run that ended goes on, or None if it does not. `slots` are what the node has.

    An interruption always continues, a lost engine twice; then the step's policy for the cause counts, and --retries.
    The memory of a node is divided among its slots: to have twice as much is to keep a second slot empty.
    """
    end = standing.end
    why, cause = (end.stopped_by, str(end.cause)) if end is not None else (None, "None")
    width = _slots_for_memory(standing.causes.get("oom", 0), float(policy.get("memory_factor") or 1), slots)
    if why == "lost":
        return PackRetry(slots=width) if standing.lost <= settings.losses else None
    if why in INTERRUPTING_STOPS:
        return PackRetry(slots=width)
    if why in ("cancelled", "superseded", "early_stopping"):
        return None
    before = standing.causes.get(cause, 1) - 1
    allowed = (
        int(policy.get("max_follow_ups") or 0)
        if cause in CONTINUING_CAUSES
        else int((policy.get("max_retries") or {}).get(cause, 0))
    )
    if before < allowed and not (
        cause == "oom" and width == _slots_for_memory(before, float(policy.get("memory_factor") or 1), slots)
    ):
        wait_s = 0.0 if cause in CONTINUING_CAUSES else float(policy.get("backoff_s") or 0) * 2**before
        return PackRetry(min(wait_s, _MAX_BACKOFF_S), width)
    return PackRetry(slots=width) if standing.attempts <= settings.retries else None


def _slots_for_memory(times: int, factor: float, slots: int) -> int:
    """Slots of a run that lacked memory so many times, at most all of them."""
    return min(slots, math.ceil(factor ** min(times, 16)))
