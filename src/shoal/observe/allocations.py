"""Allocations of runs: the jobs' own records (kernel/allocations.py), completed by what Slurm still knows.

The end of a job is Slurm's: any look that asks squeue keeps the ends that it shows. For jobs of which none is kept a
report asks sacct, or the controller where there is no accounting, once for all of them. What neither knows ended when
its own record says; and a job that was killed and forgotten, with the last sign of life of its attempts, which is
marked as an estimate.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from shoal.clusters import QueueState
from shoal.kernel import (
    SLURM_ACTIVE_STATES,
    AllocationRecord,
    Grant,
    JobAccount,
    Resize,
    account_path,
    accounts_of,
    by_job,
    find_account,
    keep_account,
    layout,
    read_allocations,
    remembered_accounts,
)
from shoal.observe.run_files import DamagedRecord, RunReader, read_start
from shoal.observe.run_state import RunView

#: A report does without Slurm's word after this long.
_ASK_TIMEOUT_S = 10.0
#: Controllers remember a job for minutes (MinJobAge); one that ended longer ago by its own record is not asked for.
_REMEMBERED_S = 86400.0


class AllocationView(NamedTuple):
    """One time that a job ran, or what a command took on this machine. Resources are over all its nodes.

    `key` is what attempts know it by (Start.allocation). `grant` is what it began with, `resizes` tell when it gave
    nodes back.

    `source` says where `end` comes from: "slurm", "job" (its own record), "now" (it is running), or "estimate".
    """

    key: str
    job_id: str | None
    restarts: int
    cluster: str
    layout: str
    runs: tuple[str, ...]
    grant: Grant
    start: float
    end: float
    source: str
    resizes: tuple[Resize, ...] = ()

    @property
    def is_local(self) -> bool:
        return self.job_id is None

    @property
    def gpus(self) -> int:
        return self.grant.gpus or 0

    @property
    def cpus(self) -> int:
        return self.grant.cpus or 0

    @property
    def duration_s(self) -> float:
        return max(0.0, self.end - self.start)

    @property
    def full_size_s(self) -> float:
        return full_size_s(self.grant, self.resizes, self.start, self.end)

    @property
    def queue_wait_s(self) -> float | None:
        """From eligible to start, as Slurm counts it: waiting for a dependency or a begin time is not queueing."""
        eligible = self.grant.eligible
        return None if self.is_local or eligible is None else max(0.0, self.start - eligible)


def full_size_s(grant: Grant, resizes: Sequence[Resize], start: float, end: float) -> float:
    """How long an allocation lasted; the time after it gave nodes back counts for the part of it that was left."""
    whole = grant.gpus or grant.cpus or 0
    total, part = 0.0, 1.0
    for one in sorted(resizes):
        total += part * max(0.0, min(one.t, end) - start)
        start, part = max(start, one.t), (one.gpus if grant.gpus else one.cpus) / whole if whole else 1.0
    return total + part * max(0.0, end - start)


def read_allocation_views(
    reader: RunReader,
    tokens: Iterable[str],
    signs: Mapping[str, float],
    running: Collection[str],
    environ: Mapping[str, str],
    now: float,
) -> list[AllocationView]:
    """Every allocation of these submissions. `signs` say when attempts in an allocation were last known to live, and
    `running` which of them have an attempt that runs now; both by key."""
    found: list[tuple[str, AllocationRecord]] = []
    for token in dict.fromkeys(tokens):
        found += [(token, one) for one in read_allocations(layout.submission_dir(reader.home, token))]
    accounts = by_job(_ask_slurm([one for _, one in found], environ, now))
    views = []
    for token, record in found:
        account = find_account(accounts, record.job, record.granted.started, record.begin)
        if account is not None:
            keep_account(layout.submission_dir(reader.home, token), account)
        views.append(_view(reader, token, record, signs, running, account, now))
    return views


def keep_ends(home: str, queue_state: QueueState) -> None:
    """Keep the ends of jobs that squeue has shown, each once: their start and end are all that it tells of them."""
    for (token, _), rows in queue_state.rows.items():
        for row in rows:
            if row.ended is None or row.started is None or not row.node:
                continue
            folder = layout.submission_dir(home, token)
            path = account_path(folder, row.job_id, row.started)
            if not os.path.exists(path) and os.path.isdir(folder):
                grant = Grant(started=row.started, ended=row.ended)
                keep_account(folder, JobAccount(row.job_id, 0, grant, row.ended, row.word))


def allocated_gpus(home: str, views: Iterable[RunView]) -> int:
    """GPUs of the allocations in which these runs are running, each allocation once: runs of a pack share them.

    What Slurm granted counts; where a job has no record of that (an adopted one, or one that has just begun), what it
    requested.
    """
    records: dict[str, dict[str, AllocationRecord]] = {}
    found: dict[str, int] = {}
    for view in views:
        if view.state != "running":
            continue
        try:
            start = read_start(layout.run_dir(home, view.name), view.attempt) if view.attempt else None
        except DamagedRecord:
            start = None
        token = start.allocation.partition("/")[0] if start is not None else ""
        if token and token not in records:
            records[token] = {one.key: one for one in read_allocations(layout.submission_dir(home, token))}
        record = records.get(token, {}).get(start.allocation) if start is not None else None
        granted = _gpus_now(record) if record is not None else None
        key = record.key if record is not None else view.job_id or view.name
        found[key] = max(found.get(key, 0), (view.gpus or 0) if granted is None else granted)
    return sum(found.values())


def _gpus_now(record: AllocationRecord) -> int | None:
    return record.resizes[-1].gpus if record.resizes else record.granted.gpus


def _ask_slurm(records: Sequence[AllocationRecord], environ: Mapping[str, str], now: float) -> list[JobAccount]:
    """What Slurm knows of jobs whose records are incomplete; nothing is asked if all of them are whole."""
    lacking = [one for one in records if one.job and (one.granted.ended is None or one.granted.eligible is None)]
    accounts = accounts_of([one.job for one in lacking if one.job], environ, _ASK_TIMEOUT_S) if lacking else []
    if accounts is not None:
        return accounts
    known = sorted(lacking, key=lambda one: one.begin or 0.0)
    recent = [one.job for one in known if one.job and (one.end is None or now - one.end < _REMEMBERED_S)]
    return remembered_accounts(recent, environ, _ASK_TIMEOUT_S)


def _view(
    reader: RunReader,
    token: str,
    record: AllocationRecord,
    signs: Mapping[str, float],
    running: Collection[str],
    account: JobAccount | None,
    now: float,
) -> AllocationView:
    submission = reader.submission(token).submission
    grant = record.granted if account is None else record.granted.over(account.grant)
    if submission is not None:
        asked = Grant(time_limit_s=submission.time_limit_s, submitted=submission.t, gpus=submission.gpus)
        grant = grant.over(asked)
    start = grant.started or record.begin or (submission.t if submission else now)
    if record.job is None and submission is not None:
        start = max(start, submission.t)  # bash 4 writes its begin in whole seconds
    end, source = _end(record, signs, running, account, start, now)
    return AllocationView(
        record.key,
        record.job,
        record.restarts,
        submission.cluster if submission else "",
        (submission.layout if submission else None) or ("array" if submission and submission.is_array else "job"),
        tuple(submission.runs) if submission else (),
        grant,
        start,
        max(start, end),
        source,
        record.resizes or (account.resizes if account is not None else ()),
    )


def _end(
    record: AllocationRecord,
    signs: Mapping[str, float],
    running: Collection[str],
    account: JobAccount | None,
    start: float,
    now: float,
) -> tuple[float, str]:
    told = account.end if account is not None and account.end is not None else record.granted.ended
    if told is not None:
        return told, "slurm"
    if record.end is not None:
        return record.end, "job"
    if record.key in running or (account is not None and account.state in SLURM_ACTIVE_STATES):
        return now, "now"
    return max(start, signs.get(record.key, start)), "estimate"
