"""Ask Slurm about our jobs: one squeue for all of them, one sacct for those that squeue has forgotten.

Jobs are recognised by the token in their name, never by id alone: after a controller crash Slurm hands the same id out
again (measured).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shoal.clusters.commands import checked
from shoal.errors import SchedulerError
from shoal.kernel import JobRow, slurm
from shoal.names import token_of_job

#: (token, array index or None) -> its rows, the newest last.
Rows = dict[tuple[str, int | None], list[JobRow]]


class QueueState(NamedTuple):
    """What Slurm said at one moment, `t`. `problem`: it did not answer; then absence from `rows` says nothing."""

    rows: Rows
    problem: str | None = None
    t: float | None = None

    def row(self, token: str, index: int, size: int) -> JobRow | None:
        """The newest row of one run: `index` of an array of `size`, or the only job of the token."""
        return newest(self.rows.get((token, index if size > 1 else None), []))

    def rows_of(self, token: str) -> list[JobRow]:
        """Every job of a submission: the tasks of an array, and later jobs that continue it."""
        return [row for (name, _), rows in self.rows.items() if name == token for row in rows]


def newest(rows: Iterable[JobRow]) -> JobRow | None:
    """The row that is about now: of a job that is still in Slurm's hands, or else the last."""
    # A requeued job has one row in accounting for each time that it ran, and only its last one counts.
    last = list({row.job_id: row for row in rows}.values())
    live = [row for row in last if not row.has_ended]
    found = live or last
    return found[-1] if found else None


def squeue(environ: Mapping[str, str] | None = None, users: Sequence[str] = ()) -> QueueState:
    """Everything of ours that Slurm still has in memory: waiting, running, and ended less than MinJobAge ago.

    With `users`, everything of theirs, as far as Slurm shows it.
    """
    asked_at = time.time()
    rows, problem = slurm.squeue(os.environ if environ is None else environ, users)
    return QueueState({}, problem) if problem is not None else QueueState(by_token(rows), t=asked_at)


def sacct(job_ids: Iterable[str], since: float, environ: Mapping[str, str] | None = None) -> Rows | None:
    """The accounting rows of jobs that squeue has forgotten; None without accounting."""
    rows = slurm.sacct(job_ids, since, os.environ if environ is None else environ)
    return None if rows is None else by_token(rows)


def scancel(job_ids: Iterable[str], environ: Mapping[str, str] | None = None) -> None:
    """Cancel jobs by id; the caller has just seen them under our names. A job that has ended already is no error."""
    ids = list(job_ids)
    if not ids:
        return
    done = checked(slurm.scancel(ids, os.environ if environ is None else environ))
    if not done.ok:
        raise SchedulerError(f"scancel failed: {done.problem}", hint="scontrol ping  # is the controller up?")


def by_token(rows: Iterable[JobRow]) -> Rows:
    found: Rows = defaultdict(list)
    for row in rows:
        token = token_of_job(row.name)
        if token is not None:
            found[token, row.task].append(row)
    return dict(found)
