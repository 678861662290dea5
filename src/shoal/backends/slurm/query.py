"""Ask Slurm about our jobs: one squeue for all of them, one sacct for those that squeue has forgotten.

Only delimited fields are asked for; Slurm's --json changed its shape in every other release. Jobs are recognised by the
token in their name, never by id alone: after a controller crash Slurm hands the same id out again (measured).
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shoal.backends.slurm.commands import run
from shoal.errors import SchedulerError
from shoal.names import token_of_job
from shoal.store.slurm_words import ENDED_WORDS, JobRow

QUERY_TIMEOUT_S = 30.0
_SQUEUE_FIELDS = "%A|%F|%K|%T|%N|%r|%j"
_SACCT_FIELDS = "JobID,JobIDRaw,State,ExitCode,NodeList,JobName"
_CANCELLED_BY = re.compile(r"CANCELLED by (\S+)")
_EXIT = re.compile(r"(\d+):(\d+)")

#: (token, array index or None) -> its rows, the newest last.
Rows = dict[tuple[str, int | None], list[JobRow]]


class Snapshot(NamedTuple):
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
    live = [row for row in last if row.word not in ENDED_WORDS]
    found = live or last
    return found[-1] if found else None


def squeue(environ: Mapping[str, str] | None = None, users: Sequence[str] = ()) -> Snapshot:
    """Everything of ours that Slurm still has in memory: waiting, running, and ended less than MinJobAge ago.

    With `users`, everything of theirs, as far as Slurm shows it.
    """
    asked_at = time.time()
    whose = ["-u", ",".join(users)] if users else ["--me"]
    try:
        done = run(["squeue", *whose, "-t", "all", "-r", "-h", "-o", _SQUEUE_FIELDS], QUERY_TIMEOUT_S, environ=environ)
    except SchedulerError as error:
        return Snapshot({}, error.message)
    if done.returncode != 0:
        return Snapshot({}, " ".join(done.stderr.split()) or f"squeue ended with code {done.returncode}")
    return Snapshot(by_token(parse_squeue(done.stdout)), t=asked_at)


def parse_squeue(text: str) -> list[JobRow]:
    """Lines in our own format; what does not fit is passed over, because other people's job names are in there too."""
    rows = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < 7:
            continue
        job_id, array_job_id, index, word, node = fields[:5]
        rows.append(
            JobRow(
                job_id,
                word,
                name=fields[-1],
                task=int(index) if index.isascii() and index.isdigit() else None,
                array_job_id=array_job_id,
                node=node or None,
                reason="|".join(fields[5:-1]) or None,
            )
        )
    return rows


def sacct(job_ids: Iterable[str], since: float, environ: Mapping[str, str] | None = None) -> Rows | None:
    """The accounting rows of jobs that squeue has forgotten, steps folded into their job; None without accounting.

    `since` is when the oldest of them was submitted: sacct would look at today only.
    """
    begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since - 86400))
    ids = sorted({job_id.partition("_")[0] for job_id in job_ids})
    wanted = ["-j", ",".join(ids)] if 0 < len(ids) <= 500 else []
    argv = ["sacct", "-D", "-n", "-P", "-S", begin, *wanted, "-o", _SACCT_FIELDS]
    try:
        done = run(argv, QUERY_TIMEOUT_S, environ=environ)
    except SchedulerError:
        return None
    return by_token(parse_sacct(done.stdout)) if done.returncode == 0 else None


def parse_sacct(text: str) -> list[JobRow]:
    """Rows of jobs, in sacct's order (a requeued job has one row per time it ran); steps only add what they know."""
    rows: list[JobRow] = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < 6:
            continue
        shown_id, raw_id, state, exit_text, node = fields[:5]
        word = state.split(" ", 1)[0].rstrip("+")
        base, _, step = shown_id.partition(".")
        if step:
            if rows and rows[-1].label == base and word == "OUT_OF_MEMORY":
                rows[-1] = rows[-1]._replace(oom_step=True)
            continue
        array_job_id, _, index = base.partition("_")
        by, code = _CANCELLED_BY.match(state), _EXIT.fullmatch(exit_text)
        rows.append(
            JobRow(
                raw_id,
                word,
                name="|".join(fields[5:]),
                task=int(index) if index.isascii() and index.isdigit() else None,
                array_job_id=array_job_id,
                node=node if node not in ("", "None assigned") else None,
                exit_code=int(code[1]) if code else None,
                signal=int(code[2]) if code else None,
                by=by[1] if by else None,
            )
        )
    return rows


def scancel(job_ids: Iterable[str], environ: Mapping[str, str] | None = None) -> None:
    """Cancel jobs by id; the caller has just seen them under our names. A job that has ended already is no error."""
    ids = list(job_ids)
    if not ids:
        return
    done = run(["scancel", *ids], QUERY_TIMEOUT_S, environ=environ)
    said = " ".join(done.stderr.split())
    if done.returncode != 0 and "already completing" not in said and "Invalid job id" not in said:
        raise SchedulerError(f"scancel failed: {said}", hint="scontrol ping  # is the controller up?")


def by_token(rows: Iterable[JobRow]) -> Rows:
    found: Rows = defaultdict(list)
    for row in rows:
        token = token_of_job(row.name)
        if token is not None:
            found[token, row.task].append(row)
    return dict(found)
