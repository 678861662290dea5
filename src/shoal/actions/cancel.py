"""Stop runs: the request is written down first, then Slurm or the process is told. The agent obeys the file as well.

Slurm refuses to cancel the job of another user of a shared project: its agent reads the request. Runs of a sweep that
its file no longer describes are found by their specs, always reported, and cancelled only on request.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from shoal.clusters import scancel, squeue
from shoal.describe import SweepNames
from shoal.errors import SchedulerError
from shoal.job import replacements_of
from shoal.kernel import SLURM_ENDED_STATES, is_shared, layout, lease, list_names, new_token, processes, user_name
from shoal.model import ACTIVE_STATES, QUEUED_STATES
from shoal.observe import CANCEL_REQUESTED, RunReader, RunView, Start, Submission, observe, run_writer


class CancelResult(NamedTuple):
    """The runs that were cancelled; of these, run -> user, those whose job another user has and which ends itself."""

    names: list[str]
    end_themselves: dict[str, str]


class CancelledRun(NamedTuple):
    """A run that was active: its state and job before, and whether it was cancelled. `ends_itself`: its job belongs to
    another user, whose agent reads the request."""

    name: str
    state: str
    job_id: str | None
    cancelled: bool
    ends_itself: bool


class CancelReport(NamedTuple):
    """What became of the active runs among those that were named, and the users whose jobs end themselves."""

    runs: list[CancelledRun]
    users: list[str]


def cancel_active(
    home: str,
    names: Sequence[str],
    environ: Mapping[str, str],
    *,
    agrees: Callable[[Sequence[RunView]], bool] | None = None,
    dry_run: bool = False,
    command_id: str | None = None,
) -> CancelReport:
    """Cancel those of the runs that are active, and send runs that waited for their room.

    `agrees` is asked before several runs, or a job that shoal did not submit, are cancelled; without it they are.
    """
    views = active_runs(home, names)
    asks = len(views) > 1 or any(view.adopted for view in views)
    result = CancelResult([], {})
    if views and not dry_run and (agrees is None or not asks or agrees(views)):
        from shoal.actions.budget import admit_waiting  # only where something is cancelled

        result = cancel_runs(home, views, environ, command_id)
        admit_waiting(home)
    runs = [
        CancelledRun(view.name, view.state, view.job_id, view.name in result.names, view.name in result.end_themselves)
        for view in views
    ]
    return CancelReport(runs, sorted(set(result.end_themselves.values())))


def active_runs(home: str, names: Sequence[str]) -> list[RunView]:
    views = observe(home, names).views
    return [view for view in views.values() if view.state in ACTIVE_STATES]


def cancel_runs(
    home: str, views: Sequence[RunView], environ: Mapping[str, str], command_id: str | None = None
) -> CancelResult:
    """Cancel these runs, and replacements that would take them over; the result names the former.

    After success each has its cancel request on disk, which the fence and the heartbeat obey, and its job is being
    ended, or ends itself where it is another user's. When Slurm does not answer, SchedulerError: the request stays,
    and a job that starts later ends itself at once.
    """
    names = [view.name for view in views]
    replacements = [other for name in names for other in replacements_of(home, name) if other not in names]
    views = [*views, *(active_runs(home, replacements) if replacements else ())]
    reader = RunReader(home)
    jobs: dict[str, list[int | None]] = {}
    adopted: dict[str, str] = {}
    queues: dict[str, Submission] = {}
    end_themselves: dict[str, str] = {}
    request = {"t": time.time(), "user": user_name(), "command_id": command_id or new_token()}
    for view in views:
        run_writer.request_cancel(home, view.name, view.generation, request)
        files = reader.run(view.name)
        submission = files.origin.submission if files.origin else None
        if files.claim is None or submission is None:
            continue
        if not processes.is_own_record({"uid": submission.uid}) and os.geteuid() != 0:
            if view.state in ACTIVE_STATES - {"waiting"}:
                end_themselves[view.name] = submission.user
        elif submission.layout is not None:
            queues.setdefault(files.claim.token, submission)  # the engine sees the request; the others go on
        elif submission.adopted:
            adopted[view.job_id or ""] = submission.job_name
        elif submission.backend == "slurm":
            jobs.setdefault(files.claim.token, []).append(files.claim.index if len(submission.runs) > 1 else None)
        elif files.start is not None and files.start.generation == files.generation:
            _stop_local_run(files.start)
    for token, submission in queues.items():
        if submission.backend == "slurm" and not _still_wanted(home, submission, reader):
            jobs[token] = [None, *range(len(submission.runs))]
    if jobs or adopted:
        _cancel_jobs(jobs, adopted, environ)
    return CancelResult(names, {name: user for name, user in end_themselves.items() if name in names})


def cancel_own_jobs(home: str, views: Sequence[RunView], environ: Mapping[str, str]) -> None:
    """In a shared project: cancel our own jobs that wait in Slurm's queue and whose runs another user cancelled."""
    if not is_shared(home):
        return
    waiting = [view for view in views if view.state in QUEUED_STATES and view.reason == CANCEL_REQUESTED]
    if waiting:
        with contextlib.suppress(SchedulerError):  # the request stays on disk
            cancel_runs(home, waiting, environ)


def _still_wanted(home: str, submission: Submission, reader: RunReader) -> bool:
    """Whether a queue has a run left that is neither cancelled nor ended; without one its jobs can go."""
    for name in submission.runs:
        files = reader.run(name)
        ours = files.claim is not None and files.claim.token == submission.token and not files.cancelled
        if ours and (files.end is None or files.end.generation != files.generation):
            return True
    return False


def _cancel_jobs(
    jobs: Mapping[str, Sequence[int | None]], adopted: Mapping[str, str], environ: Mapping[str, str]
) -> None:
    """Cancel by id, but only ids that carry our token right now, or the name of an adopted job: ids are reused."""
    snapshot = squeue(environ)
    if snapshot.problem is not None:
        raise SchedulerError(
            f"Slurm does not answer: {snapshot.problem}", hint="the runs will end themselves as soon as they start"
        )
    ids = [
        row.label
        for token, indices in jobs.items()
        for index in indices
        for row in snapshot.rows.get((token, index), ())
        if row.word not in SLURM_ENDED_STATES
    ]
    found = [snapshot.adopted_row(label, name) for label, name in adopted.items()]
    ids += [row.label for row in found if row is not None and row.word not in SLURM_ENDED_STATES]
    scancel(ids, environ)


def _stop_local_run(start: Start) -> None:
    """Ask a run on this machine to end; what is left of one whose guard and agent were killed is killed too."""
    if processes.is_process_alive({"host": start.host, "pid": start.pid, "started": start.started, "uid": start.uid}):
        os.kill(start.pid, signal.SIGTERM)
    else:
        lease.kill_leftovers_of(start)


def _runs_of(home: str, experiments: Iterable[str]) -> list[str]:
    """The runs of these experiments; a sweep that is given again has nearly all of them, so they are not sorted."""
    root = layout.runs_dir(home)
    return [f"{one}/{stem}" for one in sorted(experiments) for stem in sorted(list_names(os.path.join(root, one)))]


def removed_runs(
    home: str, grown: Sequence[SweepNames], described: Collection[str], environ: Mapping[str, str]
) -> list[RunView]:
    """Live runs that belong to these sweeps and are not among the described ones; what has ended stays as it is."""
    bases = {(one.experiment, one.base) for one in grown if one.is_file}
    if not bases:
        return []
    prefixes = tuple(f"{experiment}/{base}" for experiment, base in bases)
    known = set(described)
    reader = RunReader(home)
    names = []
    for name in _runs_of(home, {experiment for experiment, _ in bases}):
        if name in known or not name.startswith(prefixes):
            continue
        spec = reader.spec(name)
        if spec is not None and (spec.experiment, spec.sweep) in bases:
            names.append(name)
    views = observe(home, names, environ=environ).views if names else {}
    return [view for view in views.values() if view.state in ACTIVE_STATES]
