"""`shoal report --check`: allocations of a report beside what Slurm's accounting says of the same jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shoal.errors import SchedulerError
from shoal.kernel import JobAccount, accounts_of, by_job, find_account
from shoal.observe import full_size_s
from shoal.units import plural, shorten_list
from shoal.views.render import print_json, table_lines
from shoal.views.report.allocation_costs import AllocationRow
from shoal.views.terminal import detect_screen

#: sacct counts whole seconds: a difference of this much, or of this part, is none.
TOLERANCE_S, TOLERANCE = 1.0, 0.01


class AccountDifference(NamedTuple):
    """One figure of one job, ours and Slurm's."""

    job_id: str
    what: str
    ours: float
    slurm: float

    @property
    def is_large(self) -> bool:
        if self.what in ("GPUs", "CPUs"):
            return self.ours != self.slurm
        return abs(self.ours - self.slurm) > max(TOLERANCE_S, TOLERANCE * abs(self.slurm))


class AccountCheck(NamedTuple):
    """`missing` are jobs that accounting does not know; `running` are not compared."""

    compared: int
    differences: list[AccountDifference]
    missing: list[str]
    running: int


def check_with_sacct(rows: Sequence[AllocationRow], environ: Mapping[str, str]) -> AccountCheck:
    """Compare times, GPUs, CPUs and limits of every ended job. SchedulerError if Slurm keeps no accounts."""
    jobs = [row for row in rows if row.view.job_id is not None]
    ended = [row for row in jobs if row.view.source != "now"]
    ids = [row.view.job_id for row in ended if row.view.job_id is not None]
    accounts = accounts_of(ids, environ) if ids else []
    if accounts is None:
        raise SchedulerError(
            "sacct does not answer: this cluster keeps no accounts, or its database is away",
            hint="shoal report   # uses the jobs' own records",
        )
    known = by_job(accounts)
    differences: list[AccountDifference] = []
    missing: list[str] = []
    for row in ended:
        account = find_account(known, row.view.job_id, row.view.grant.started, row.view.start)
        if account is None or account.end is None:
            missing.append(row.view.grant.job_label or row.view.job_id or "")
        else:
            differences += [one for one in _compare(row, account) if one.is_large]
    return AccountCheck(len(ended) - len(missing), differences, missing, len(jobs) - len(ended))


def _compare(row: AllocationRow, account: JobAccount) -> list[AccountDifference]:
    view, theirs = row.view, account.grant
    job = view.grant.job_label or view.job_id or ""
    pairs = [
        ("seconds", view.full_size_s, full_size_s(theirs, account.resizes, theirs.started or 0.0, account.end or 0.0)),
        ("GPUs", float(view.gpus), float(theirs.gpus or 0)),
        ("CPUs", float(view.cpus), float(theirs.cpus or 0)),
        ("time limit, s", float(view.grant.time_limit_s or 0), float(theirs.time_limit_s or 0)),
    ]
    if view.queue_wait_s is not None and theirs.eligible is not None and theirs.started is not None:
        pairs.append(("queue wait, s", view.queue_wait_s, max(0.0, theirs.started - theirs.eligible)))
    return [AccountDifference(job, what, ours, slurm) for what, ours, slurm in pairs]


def show_check(found: AccountCheck, *, as_json: bool, quiet: bool) -> int:
    """Print the comparison; 1 if a figure differs."""
    if as_json:
        print_json({**found._asdict(), "differences": [one._asdict() for one in found.differences]})
        return 1 if found.differences else 0
    rows = [(one.job_id, one.what, f"{one.ours:g}", f"{one.slurm:g}") for one in found.differences]
    if rows:
        print("\n".join(table_lines(("JOB", "WHAT", "SHOAL", "SACCT"), rows, detect_screen())))
    if not quiet:
        notes = [f"{plural(len(found.missing), 'job')} not in sacct: {shorten_list(found.missing, 3)}"]
        notes = (notes if found.missing else []) + ([f"{found.running} running"] if found.running else [])
        differ = plural(len({one.job_id for one in found.differences}), "job")
        print("; ".join([f"{plural(found.compared, 'job')} compared with sacct, {differ} differ", *notes]))
    return 1 if found.differences else 0
