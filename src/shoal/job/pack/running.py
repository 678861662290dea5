"""A run of a pack that has a slot: an attempt, its place in the queue, and what it holds of the node."""

from typing import Any, Dict

from ...kernel import fence, lease
from ..attempt import Attempt
from .books import Assignment
from .queue import QueuedRun


class PackAttempt(Attempt):
    """One attempt of a queue's run, in its slot."""

    def __init__(
        self,
        claim: fence.Claim,
        held: lease.Lease,
        spec: Dict[str, Any],
        item: QueuedRun,
        holding: Assignment,
        grace_s: float,
    ) -> None:
        super().__init__(claim, held, spec)
        self.item, self.holding = item, holding
        self.grace_s, self.warn_s, self.limit_s = grace_s, item.warn_s, item.limit_s
