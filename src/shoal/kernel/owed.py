"""What is owed: the end of an attempt says what follows it by itself, and it is owed until a submission of it stands.

An end record has `next` where the step's policy wants another job. Nothing else is stored about it: it is owed while no
later generation is open or accepted and the run was not cancelled. The ending job tries for OWED_S; after that any
`status` or `submit` of the same user does it, and any job of theirs that ends, by the ordinary transaction of the next
generation, whose claim only one of them wins. `owed/<token>`, left by a job that gave up, only spares other
jobs the search; it decides nothing.
"""

import os
from typing import Iterable, Mapping, Optional

from .records import FollowUp

#: How long the ending job itself waits for Slurm to answer, and others leave it alone.
FOLLOW_UP_GRACE_S = 60.0
FOLLOW_UP_REASON = "continues as soon as Slurm answers"


def follow_up_grace_s(environ: Mapping[str, str]) -> float:
    return float(environ.get("SHOAL_OWED_S") or FOLLOW_UP_GRACE_S)


def is_follow_up_pending(
    following: Optional[FollowUp],
    ended: int,
    standing: int,
    refused: bool,
    claims: Iterable[int],
    cancels: Iterable[int],
) -> bool:
    """Whether what follows an end of generation `ended` still has to be done.

    `standing` is the newest generation whose submission was not given up, `refused` whether Slurm refused a later one:
    it would refuse it again. A person who cancelled the run since then does not want it any more.
    """
    if not following or ended != standing or refused or ended not in claims:
        return False
    return not any(generation >= ended for generation in cancels)


def is_follow_up_due(
    ended_at: float, tried_at: Optional[float], now: float, environ: Mapping[str, str] = os.environ
) -> bool:
    """Whether somebody else than the ending job may do it now: it had its time, and so had whoever tried last.

    A time far in the future was written by a clock that was wrong, and says nothing.
    """
    age_s, wait = now - max(ended_at, tried_at or 0.0), follow_up_grace_s(environ)
    return not -wait < age_s < wait
