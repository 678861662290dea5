"""Finish what was ordered before: retries and follow-ups that their jobs could not send, notices that were not sent.

`status`, the views that wait for runs, and `submit` do it, and say what they sent; plans and reports only look.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping

from shoal.observe import Ask, Observation, observe


def observe_and_finish(
    home: str,
    names: Iterable[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
    ask: Ask | None = None,
) -> tuple[Observation, list[str]]:
    """`observe`, and what was sent then, a sentence each."""
    environ = os.environ if environ is None else environ
    found = observe(home, names, environ=environ, clock=clock, ask=ask)
    sent = _send_owed(home, found, clock(), environ)
    if os.path.exists(os.path.join(home, "notify.json")):
        from shoal.agent import environment, notices  # only for projects that want to be told

        notices.tell_again(home, {**environ, **environment.read_secrets(environ)})
    return found, sent


def _send_owed(home: str, found: Observation, now: float, environ: Mapping[str, str]) -> list[str]:
    """A folder that we may not write in stays as it is."""
    runs = [files for files in found.owing if files.claim is not None]
    if not runs or found.slurm_t is None:
        return []
    from shoal.agent import answering  # only then: it can submit jobs

    debts = []
    for files in runs:
        end, claim = files.end, files.claim
        following = end.next if end is not None and end.generation == files.generation else None
        job, ended = (end.job_label or end.job_id, end.ended) if end is not None else (None, 0.0)
        token = claim.token if claim is not None else ""
        seen = files.names.generation
        debts.append(answering.Debt(files.name, token, files.generation, seen, following, job, ended, files.given_up_t))
    with contextlib.suppress(OSError, ValueError):
        return answering.answer(home, debts, found.jobs, found.slurm_t, now, environ)
    return []
