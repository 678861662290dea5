"""The state of runs, derived from their directories and one squeue. Nothing is started or sent.

What is learnt about open questions is written down. Slurm is asked before the files of an active run are finally read:
a job that has left its queue wrote its files first. Nothing here needs Slurm to answer, and a project whose runs have
all ended does not ask it.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import pwd
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from shoal.clusters import QueueState, newest, sacct, squeue
from shoal.kernel import SLURM_ENDED_STATES, JobRow, fence, layout, lease, processes, submission
from shoal.model import ACTIVE_STATES
from shoal.observe import adopted_runs, run_writer
from shoal.observe.allocations import keep_ends
from shoal.observe.run_files import Outcome, RunFiles, RunReader, Submission, Verdict
from shoal.observe.run_state import (
    FORGOTTEN_WORD,
    Evidence,
    RunView,
    derive_state,
    is_lease_live,
    verdict_of_row,
    was_interrupted,
)
from shoal.observe.run_writer import ObservationHistory
from shoal.observe.settled_runs import Recalled, SettledRuns
from shoal.observe.state_dir import run_names

SUBMIT_GRACE_S = submission.SEND_GRACE_S
#: How long after its end a job that no longer shows anywhere is asked about.
_SACCT_AFTER_S = 60.0


class Observation(NamedTuple):
    """The runs asked for, as they are. `slurm_problem` is set when Slurm was needed and did not answer; `slurm_t` is
    when it last did, None if nobody had to ask. `owing` are those of this user that another job is to follow, which
    nobody has sent yet (actions/pending_follow_ups.py); then `jobs` has the names of the user's jobs and their ids.
    `sent` is what a command that may act has sent for them, a sentence each."""

    views: dict[str, RunView]
    slurm_problem: str | None = None
    slurm_t: float | None = None
    owing: tuple[RunFiles, ...] = ()
    jobs: Mapping[str, str] = {}
    sent: tuple[str, ...] = ()
    #: Ended runs whose directories were not looked at this time (settled_runs.py).
    unchecked: frozenset[str] = frozenset()
    #: The newest revision of each run that was read, so that whoever needs its spec need not list its directory again.
    revisions: Mapping[str, int] = {}

    def listed(self, words: Sequence[str] = ()) -> dict[str, RunView]:
        """Those that a list shows: without runs that Slurm refused, unless one of the words names them."""
        return {
            name: view
            for name, view in self.views.items()
            if not view.refused or name in words or name.partition("/")[2] in words
        }


#: (environment, time of the newest claim) -> the queue as it was after that claim. Views share one through a file.
AskQueue = Callable[[Mapping[str, str], float], QueueState]


class ObserveRuns(Protocol):
    """`observe`, or what a command gives a view in its place: one that also sends what is owed."""

    def __call__(
        self,
        home: str,
        names: Iterable[str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        ask: AskQueue | None = None,
        settled: SettledRuns | None = None,
    ) -> Observation: ...


def observe(
    home: str,
    names: Iterable[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
    ask: AskQueue | None = None,
    settled: SettledRuns | None = None,
) -> Observation:
    """The state of the named runs, or of all runs. Answers found on the way are kept (verdicts, adopted jobs).
    `settled` spares reading ended runs that have not changed."""
    environ = os.environ if environ is None else environ
    wanted = list(run_names(home) if names is None else dict.fromkeys(names))
    if settled is None:
        return _observe(home, wanted, environ, clock, ask, None)
    recalled = settled.recall(wanted)
    found = _observe(home, [name for name in wanted if name not in recalled.views], environ, clock, ask, settled)
    if settled.drop_if_wrong():
        recalled = Recalled({}, frozenset())
        found = _observe(home, wanted, environ, clock, ask, settled)
    settled.save()
    views = {name: recalled.views.get(name) or found.views[name] for name in wanted}
    return found._replace(views=views, unchecked=recalled.unchecked)


def _observe(
    home: str,
    wanted: Iterable[str],
    environ: Mapping[str, str],
    clock: Callable[[], float],
    ask: AskQueue | None,
    settled: SettledRuns | None,
) -> Observation:
    runs, asked, queue_state = _read_runs(home, wanted, environ, ask)
    rows = _find_rows(runs, asked, queue_state, environ)
    keep_ends(home, queue_state)
    now = clock()
    grace_s = float(environ.get("SHOAL_SUBMIT_GRACE_S") or SUBMIT_GRACE_S)
    reader, watching = RunReader(home), ObservationHistory(home)
    views = {}
    lines: dict[str, set[str]] = {}
    owing: list[RunFiles] = []
    me = getpass.getuser()
    for name, files in runs.items():
        answered = name in asked and queue_state.problem is None and not _is_older_than_end(queue_state, files)
        # Where Slurm hides other people's jobs, it says nothing about theirs.
        answered = answered and (name in rows or _user_of(files) in (me, ""))
        if answered and files.is_adopted and adopted_runs.catch_up(home, files, rows.get(name), environ, now):
            files = reader.run(name)
        if _settle_unacknowledged(
            home, files, rows.get(name), queue_state.t if answered else None, now, grace_s, lines
        ):
            files = reader.run(name)
        evidence = _evidence(files, rows.get(name), answered, now)
        watching.note_checked(name)
        if files.is_adopted:
            pass  # nobody renews its lease; Slurm's word is all there is
        elif files.start is not None and files.names.may_run(files.start.attempt):
            keeps = lease.timing_of(files.start)
            evidence = evidence._replace(silent_s=_silent_s(files, evidence, watching), times=keeps)
            if _close_if_over(home, files, evidence):
                files = reader.run(name)
        elif _is_missing(files, evidence):
            missing_s = watching.since(name, f"missing {files.generation}")
            evidence = evidence._replace(missing_s=missing_s, times=lease.timing(environ))
        _keep_verdict(home, files, evidence)
        views[name] = derive_state(files, evidence)
        if settled is not None:
            settled.keep(files, views[name])
        if answered and files.owes and _user_of(files) == me:
            owing.append(files)
    watching.save()
    queued = [row for rows in queue_state.rows.values() for row in rows] if owing else []
    jobs = {row.name: row.array_job_id or row.job_id for row in queued}
    revisions = {name: files.names.revision for name, files in runs.items()}
    return Observation(views, queue_state.problem, queue_state.t, tuple(owing), jobs, revisions=revisions)


def _read_runs(
    home: str, names: Iterable[str], environ: Mapping[str, str], ask: AskQueue | None
) -> tuple[dict[str, RunFiles], set[str], QueueState]:
    """The files of all runs, those that Slurm was asked about, and its answer.

    Slurm is asked as soon as one run needs it; that run and all after it are read when the answer is there. Those read
    before need none. A shared answer may be older than the newest claim: then it is asked for again.
    """
    reader = RunReader(home)
    runs: dict[str, RunFiles] = {}
    asked: set[str] = set()
    queue_state: QueueState | None = None
    here = None
    for name in names:
        files = reader.run(name)
        if _needs_slurm(files):
            if queue_state is None:
                from shoal.clusters import cluster_name  # only where Slurm is asked

                here, queue_state = cluster_name(environ), squeue(environ) if ask is None else ask(environ, 0.0)
                reader = RunReader(home)
                files = reader.run(name)
            if _is_on_cluster(files, here):
                asked.add(name)
        runs[name] = files
    newest = max((claim.t for name in asked if (claim := runs[name].claim) is not None), default=0.0)
    if ask is not None and queue_state is not None and queue_state.problem is None and (queue_state.t or 0.0) <= newest:
        queue_state = ask(environ, newest)
        reader = RunReader(home)
        runs.update((name, reader.run(name)) for name in asked)
    others = {_user_of(runs[name]) for name in asked} - {getpass.getuser(), ""}
    if others and ask is None and queue_state is not None and queue_state.problem is None:
        theirs = squeue(environ, sorted(others))
        queue_state = queue_state._replace(rows={**theirs.rows, **queue_state.rows})
    return runs, asked, queue_state or QueueState({})


def _user_of(files: RunFiles) -> str:
    """Who submitted the run: several people may share a project."""
    submission = files.origin.submission if files.origin else None
    if submission is None:
        return ""
    return (_user_name(submission.uid) if submission.uid is not None else None) or submission.user


@functools.cache
def _user_name(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _is_older_than_end(queue_state: QueueState, files: RunFiles) -> bool:
    """Whether a shared answer shows the job as it was before the run ended by itself, and so says nothing any more."""
    end = files.end
    if end is None or end.generation != files.generation or queue_state.t is None or was_interrupted(end):
        return False
    return end.ended > queue_state.t


def _needs_slurm(files: RunFiles) -> bool:
    """Whether Slurm's word could change anything. An end record does not settle it: a requeued job has one as well."""
    submission = files.origin.submission if files.origin else None
    on_slurm = submission is not None and submission.backend == "slurm"
    return on_slurm and (files.verdict is None or files.owes or is_lease_live(files))


def _is_on_cluster(files: RunFiles, here: str | None) -> bool:
    """Whether the Slurm that we can ask is the one that has the job; another would say that it never heard of it."""
    submission = files.origin.submission if files.origin else None
    there = submission.slurm_cluster if submission else None
    return here is None or there is None or here == there


def _find_rows(
    runs: Mapping[str, RunFiles], asked: Iterable[str], queue_state: QueueState, environ: Mapping[str, str]
) -> dict[str, JobRow]:
    """The newest row of each run that was asked about: from squeue, and for those it has forgotten from sacct."""
    found: dict[str, JobRow] = {}
    queues: dict[str, list[JobRow]] = {}
    kept_queues: dict[str, list[JobRow]] = {}
    forgotten = []
    for name in asked:
        files = runs[name]
        if files.claim is None or files.origin is None or files.origin.submission is None:
            continue
        if _is_older_than_end(queue_state, files):
            continue
        row = _row_in(queue_state, files, queues)
        if row is not None:
            found[name] = row
        if row is None or row.word == "FAILED":
            forgotten.append(files)  # Only sacct knows the steps, and so whether FAILED was lack of memory.
    if not forgotten or queue_state.problem is not None:
        return found
    ids = [files.origin.outcome.job_id for files in forgotten if files.origin and files.origin.outcome]
    # Jobs that continue a queue are known by name alone.
    in_queues = any(_waits_in_queue(files) for files in forgotten)
    complete = all(ids) and len(ids) == len(forgotten) and not in_queues
    oldest = min(files.claim.t for files in forgotten if files.claim)
    kept = QueueState(sacct([i for i in ids if i] if complete else [], oldest, environ) or {})
    for files in forgotten:
        if files.claim and files.origin and files.origin.submission:
            row = _row_in(kept, files, kept_queues)
            if row is not None:
                found[files.name] = row
    return found


def _waits_in_queue(files: RunFiles) -> bool:
    submission = files.origin.submission if files.origin else None
    return submission is not None and submission.layout is not None


def _row_in(queue_state: QueueState, files: RunFiles, queues: dict[str, list[JobRow]]) -> JobRow | None:
    """The row of the run's job. For a run of a queue: of the job that works on it, or else of one that may come to it.

    `queues` remembers the rows of each queue, which thousands of runs may share.
    """
    claim, submission = files.claim, files.origin.submission if files.origin else None
    if claim is None or submission is None:
        return None
    if submission.adopted:
        outcome = files.origin.outcome if files.origin else None
        return queue_state.adopted_row(outcome.job_id or "" if outcome else "", submission.job_name)
    if submission.layout is None:
        return queue_state.row(claim.token, claim.index, len(submission.runs))
    if claim.token not in queues:
        queues[claim.token] = queue_state.rows_of(claim.token)
    rows = queues[claim.token]
    if files.start is not None and files.start.generation == files.generation:
        ended = files.end is not None and files.end.attempt == files.start.attempt
        own = newest(row for row in rows if row.job_id == files.start.job_id)
        live = newest(row for row in rows if row.word not in SLURM_ENDED_STATES)
        return (live or own) if ended else (own or live)
    return newest(row for row in rows if row.word == "RUNNING") or newest(rows)


def _settle_unacknowledged(
    home: str,
    files: RunFiles,
    row: JobRow | None,
    answered_at: float | None,
    now: float,
    grace_s: float,
    lines: dict[str, set[str]],
) -> bool:
    """Decide a submission that nobody acknowledged, if the evidence allows it; True if something was decided."""
    if files.claim is None or files.origin is None or files.origin.outcome is not None:
        return False
    intent, token = files.origin.submission, files.claim.token
    outcome = None
    if row is not None:
        outcome = Outcome(kind="accepted", job_id=row.array_job_id or row.job_id, adopted=True)
    elif files.start is not None and files.start.generation == files.generation:
        outcome = Outcome(kind="accepted", job_id=files.start.job_id, adopted=True)
    elif files.origin.sent is not None and intent is not None and intent.backend == "slurm":
        if answered_at is not None and answered_at > (files.origin.sent or files.claim.t) + grace_s:
            outcome = Outcome(kind="void", reason="Slurm never received the submission")
    elif files.origin.waiting and intent is not None:
        if not _may_claimer_continue(intent, now, grace_s):
            _requeue_unsent(home, intent, lines)
        return False
    elif intent is None or not _may_claimer_continue(intent, now, grace_s):
        outcome = Outcome(kind="void", reason="the command ended before it sent anything")
    if outcome is not None:
        with contextlib.suppress(OSError):
            submission.write_outcome(home, token, outcome)
            return True
    return False


def _requeue_unsent(home: str, intent: Submission, lines: dict[str, set[str]]) -> None:
    """A command that was killed between claim and line left a submission that waits and would never be sent."""
    if intent.queue is None or intent.user != getpass.getuser():
        return
    from shoal.job import admission  # only where something waits: most projects have no budget

    if intent.queue not in lines:
        lines[intent.queue] = {token for _, token in admission.waiting_entries(home, intent.queue)}
    if intent.token not in lines[intent.queue]:
        with contextlib.suppress(OSError):
            admission.enqueue(home, intent.queue, intent.token, admission.submission_counts(intent))


def _may_claimer_continue(intent: Submission, now: float, grace_s: float) -> bool:
    alive = processes.is_process_alive({key: getattr(intent, key) for key in ("host", "pid", "started", "uid")})
    return alive if alive is not None else now < intent.t + grace_s


def _evidence(files: RunFiles, row: JobRow | None, asked: bool, now: float) -> Evidence:
    submission = files.origin.submission if files.origin else None
    if submission is None or submission.backend == "slurm":
        return Evidence(asked, now, row)
    begun = files.start is not None and files.start.generation == files.generation
    witness = files.start if begun else submission
    alive = processes.is_process_alive({key: getattr(witness, key) for key in ("host", "pid", "started")})
    return Evidence(True, now, None, alive)


def _silent_s(files: RunFiles, evidence: Evidence, watching: ObservationHistory) -> float | None:
    """For how long this host has seen the lease unchanged; None where nothing speaks against it: Slurm shows the job as
    running, does not answer, or the process is there."""
    shown = evidence.row is not None and evidence.row.word not in SLURM_ENDED_STATES
    if shown or not evidence.asked or evidence.alive or files.start is None:
        return None
    number = files.start.attempt
    return watching.since(files.name, f"{number} {files.names.lease_names(number)}")


def _close_if_over(home: str, files: RunFiles, evidence: Evidence) -> bool:
    """Close the leases of an attempt of which nothing can still run: its death is proved, or it was silent for longer
    than its guards let it run. True if its files have changed, by us or by somebody who was faster."""
    start, silent_s = files.start, evidence.silent_s
    if start is None or silent_s is None:
        return False
    # Where this host can tell whether its processes live, silence proves nothing.
    dead = lease.is_holder_dead(start)
    silent = silent_s >= evidence.times.take_s and (dead or lease.is_holder_alive(start) is None)
    if not dead and not silent:
        return False
    with contextlib.suppress(OSError):
        fence.close_attempt(layout.run_dir(home, files.name), files.names, start.attempt, start, silent)
    return True


def _is_missing(files: RunFiles, evidence: Evidence) -> bool:
    """Whether a job that Slurm has accepted is not shown any more, and its run has not begun."""
    begun = files.start is not None and files.start.generation == files.generation
    return evidence.asked and evidence.row is None and not begun and _is_accepted(files) and files.verdict is None


def _keep_verdict(home: str, files: RunFiles, evidence: Evidence) -> None:
    """Write down what Slurm said last; a folder we may not write in loses only that."""
    claim, row = files.claim, evidence.row
    if claim is None or not evidence.asked or evidence.alive is not None or files.generation == 0:
        return
    ended = files.end is not None and files.end.generation == files.generation and not files.is_adopted
    with contextlib.suppress(OSError):
        if row is not None and row.word in SLURM_ENDED_STATES and files.verdict is None:
            run_writer.write_verdict(home, files, verdict_of_row(row))
        elif row is None and ended and files.end is not None and evidence.now - files.end.ended > _SACCT_AFTER_S:
            run_writer.write_verdict(home, files, Verdict(word=FORGOTTEN_WORD))


def _is_accepted(files: RunFiles) -> bool:
    return files.origin is not None and files.origin.outcome is not None


def active_runs(views: Iterable[RunView]) -> list[RunView]:
    return [view for view in views if view.state in ACTIVE_STATES]
