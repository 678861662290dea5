"""Do what is owed (kernel/owed.py) for jobs that could not: a command has found it (finishing.py).

Slurm has just answered it, so a send is worth trying. Of several who try, the claim of the next generation lets one do
it; a send that does not arrive is void, and the run owes it again.
"""

from typing import List, Mapping, NamedTuple, Optional

from ..kernel import fence, layout, owed, submission
from ..kernel.records import Next, Outcome
from . import survival
from .pack import follow

#: A look at many runs is not to last minutes; the next one does the rest.
_MAX_AT_ONCE = 20


class Debt(NamedTuple):
    """A run whose end is to be followed: `seen` is its newest generation, `following` a Next, `job` the job that ended.

    For a run of a pack `following` is None: its queue is to be continued.
    """

    name: str
    token: str
    generation: int
    seen: int
    following: Optional[Next]
    job: Optional[str]
    ended_at: float
    tried_at: Optional[float]


def answer(
    home: str, debts: List[Debt], jobs: Mapping[str, str], answered_at: float, now: float, environ: Mapping[str, str]
) -> List[str]:
    """Send what is due; what was sent, a sentence each. `jobs` are the names of this user's jobs and their ids, as they
    were at `answered_at`."""
    told: List[str] = []
    for debt in [debt for debt in debts if debt.following][:_MAX_AT_ONCE]:
        if not debt.job or not owed.is_due(debt.ended_at, debt.tried_at, now, environ):
            continue
        claim = fence.read_claim(layout.run_dir(home, debt.name), debt.generation)
        if claim is not None and debt.following:
            job, words = survival.continue_run(home, debt.name, claim, debt.seen, debt.following, debt.job)
            if job is not None:
                told.append("%s continues as job %s (%s%s)" % (debt.name, job, debt.following.cause, words))
    for token in {debt.token for debt in debts if debt.following is None}:
        told += _answer_queue(home, token, jobs, answered_at, now, environ)
    return told


def _answer_queue(
    home: str, token: str, jobs: Mapping[str, str], answered_at: float, now: float, environ: Mapping[str, str]
) -> List[str]:
    """Settle follow-up jobs that nobody acknowledged, and send those that are still owed."""
    folder, tried_at = layout.submission_dir(home, token), 0.0
    intent = submission.read(home, token)
    grace_s = float(environ.get("SHOAL_SUBMIT_GRACE_S") or submission.GRACE_S)
    for index, order, outcome in submission.sends(folder)[1:]:
        tried_at = max(tried_at, order.t)
        job = jobs.get("%s-%d" % (intent.job_name, index)) if intent is not None else None
        if outcome is None and job is not None:
            submission.settle(home, token, Outcome("accepted", job_id=job, adopted=True), index)
        elif outcome is None and answered_at > order.t + grace_s:
            submission.settle(home, token, Outcome("void", reason="Slurm never received the submission"), index)
    due = [one for one in follow.still_owed(folder) if owed.is_due(float(one.get("t") or 0.0), tried_at, now, environ)]
    return ["pack %s: %s" % (token, follow.submit_follow_up(folder, one, dict(environ))) for one in due]
