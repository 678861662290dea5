"""Send what earlier jobs could not send: retries, follow-up jobs, notifications.

`status`, the commands that wait for runs, and `submit` do it, and print what they sent; plans and reports do not. Slurm
has just answered, so a send is worth trying. Of several processes that try, the claim of the next generation lets one
do it; a send that does not arrive is void, and the follow-up stays owed (kernel/submission.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from shoal.kernel import Outcome, fence, layout, submission
from shoal.observe import AskQueue, Observation, RunFiles, SettledRuns, observe

#: A look at many runs is not to last minutes; the next one does the rest.
_MAX_FOLLOW_UPS_PER_LOOK = 20


def observe_and_follow_up(
    home: str,
    names: Iterable[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
    ask: AskQueue | None = None,
    settled: SettledRuns | None = None,
) -> Observation:
    """`observe`, and send what is owed."""
    environ = os.environ if environ is None else environ
    found = observe(home, names, environ=environ, clock=clock, ask=ask, settled=settled)
    sent: list[str] = []
    with contextlib.suppress(OSError, ValueError):  # a folder that we may not write in stays as it is
        sent += _submit_pending(home, found, clock(), environ)
    if os.path.exists(os.path.join(home, "notify.json")):
        from shoal.job import environment, notifications  # only for projects that want to be told

        notifications.resend_unsent(home, {**environ, **environment.read_secrets(environ)})
    return found._replace(sent=tuple(sent))


def _submit_pending(home: str, found: Observation, now: float, environ: Mapping[str, str]) -> Iterator[str]:
    if not found.owing or found.slurm_t is None:
        return
    single: list[RunFiles] = []
    queues: set[str] = set()
    for files in found.owing:
        if files.end is not None and files.end.next and files.end.generation == files.generation:
            single.append(files)
        elif files.claim is not None:
            queues.add(files.claim.token)
    for files in single[:_MAX_FOLLOW_UPS_PER_LOOK]:
        yield from _continue_run(home, files, now, environ)
    for token in queues:
        yield from _continue_queue(home, token, found, now, environ)


def _continue_run(home: str, files: RunFiles, now: float, environ: Mapping[str, str]) -> Iterator[str]:
    from shoal.job import recovery  # only where something is owed: it can submit jobs

    end = files.end
    job = (end.job_label or end.job_id) if end is not None else None
    if (
        end is None
        or end.next is None
        or not job
        or not submission.is_follow_up_due(end.ended, files.given_up_t, now, environ)
    ):
        return
    claim = fence.read_claim(layout.run_dir(home, files.name), files.generation)
    if claim is not None:
        new_job, words = recovery.continue_run(home, files.name, claim, files.names.generation, end.next, job)
        if new_job is not None:
            yield f"{files.name} continues as job {new_job} ({end.next.cause}{words})"


def _continue_queue(home: str, token: str, found: Observation, now: float, environ: Mapping[str, str]) -> Iterator[str]:
    """Settle follow-up jobs of a pack that nobody acknowledged, and send those that are still owed."""
    from shoal.job import follow_up  # only where something is owed: it can submit jobs

    folder, tried_at = layout.submission_dir(home, token), 0.0
    intent = submission.read_submission_record(home, token)
    grace_s = float(environ.get("SHOAL_SUBMIT_GRACE_S") or submission.SEND_GRACE_S)
    for index, record, outcome in submission.read_sends(folder)[1:]:
        tried_at = max(tried_at, record.t)
        job = found.jobs.get(f"{intent.job_name}-{index}") if intent is not None else None
        if outcome is None and job is not None:
            submission.write_outcome(home, token, Outcome("accepted", job_id=job, adopted=True), index)
        elif outcome is None and (found.slurm_t or 0.0) > record.t + grace_s:
            submission.write_outcome(home, token, Outcome("void", reason="Slurm never received the submission"), index)
    for following in follow_up.pending_follow_ups(folder):
        if submission.is_follow_up_due(float(following.get("t") or 0.0), tried_at, now, environ):
            yield f"pack {token}: {follow_up.submit_queue_follow_up(folder, following, dict(environ))}"
