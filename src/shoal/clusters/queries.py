"""Questions to Slurm about our jobs: squeue, sacct, scancel and `sbatch --test-only`, with shoal's errors and hints.

Jobs are recognised by the token in their name, never by id alone: after a controller crash Slurm hands the same id out
again (measured). `check_with_sbatch` asks whether Slurm would take a request and when it would start, and submits
nothing.

SchedulerError
├── ProgramMissingError   the program is not on this machine: nothing was asked of Slurm
└── TimedOutError         no answer in time: Slurm may or may not have acted
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from shoal.errors import InputError, SchedulerError, ShoalError
from shoal.kernel import JobRow, is_controller_silent, parse_time, slurm
from shoal.names import token_of_job

#: Of a question about the cluster: a command goes on without the answer.
QUESTION_TIMEOUT_S = 10.0


class ProgramMissingError(SchedulerError):
    """The program could not be started."""


class TimedOutError(SchedulerError):
    """The program was stopped by us; what Slurm did with the question is not known."""


def run(
    argv: Sequence[str], timeout_s: float, *, stdin: str | None = None, environ: Mapping[str, str] | None = None
) -> slurm.CommandResult:
    """Run `argv` to its end and return what it said; `environ` is the caller's environment before cleaning.

    Raises ProgramMissingError when nothing was started, TimedOutError when it was started and stopped, and InputError
    when an argument cannot be passed to any program (a NUL in it, or too long).
    """
    return checked(slurm.run_command(argv, timeout_s, os.environ if environ is None else environ, stdin))


def checked(done: slurm.CommandResult) -> slurm.CommandResult:
    """`done` if the program ran to its end, whatever it said; else the error for what happened to it."""
    if done.failure == slurm.TIMED_OUT:
        raise TimedOutError(done.stderr, hint="scontrol ping  # is the controller up?")
    if done.failure == slurm.PROGRAM_MISSING:
        raise ProgramMissingError(
            done.stderr, hint="put Slurm's programs on PATH, or run on this machine with --on local"
        )
    if done.failure:
        raise InputError(done.stderr)
    return done


def ask(
    argv: Sequence[str],
    environ: Mapping[str, str],
    timeout_s: float = QUESTION_TIMEOUT_S,
    silent: list[str] | None = None,
) -> str | None:
    """What a program prints; None where it cannot be asked, and then `silent` gets a sentence about it."""
    try:
        done = run(argv, timeout_s, environ=environ)
    except SchedulerError as error:
        problem = error.message
    else:
        if done.ok:
            return done.stdout
        problem = (done.stderr.strip().splitlines() or ["failed"])[-1].removeprefix(f"{argv[0]}: ")
    if silent is not None:
        silent.append(f"{argv[0]}: {problem}")
    return None


#: (token, array index or None) -> its rows, the newest last; of a job without a token (its label, None).
Rows = dict[tuple[str, int | None], list[JobRow]]


class QueueState(NamedTuple):
    """What Slurm said at one moment, `t`. `problem`: it did not answer; then absence from `rows` says nothing."""

    rows: Rows
    problem: str | None = None
    t: float | None = None

    def row(self, token: str, index: int, size: int) -> JobRow | None:
        """The newest row of one run: `index` of an array of `size`, or the only job of the token."""
        return newest(self.rows.get((token, index if size > 1 else None), []))

    def adopted_row(self, label: str, name: str) -> JobRow | None:
        """The row of a job that shoal did not submit; the name, because Slurm reuses ids."""
        return newest(row for row in self.rows.get((label, None), []) if row.name == name)

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
        found[(row.label, None) if token is None else (token, row.task)].append(row)
    return dict(found)


_STARTS = re.compile(r"to start at (\S+)")
_EMPTY_SCRIPT = "#!/bin/bash\ntrue\n"


class SbatchCheck(NamedTuple):
    """What sbatch said. `accepted` is None when Slurm did not answer; `problem`, when it could not be asked."""

    accepted: bool | None
    text: str
    problem: ShoalError | None = None

    @property
    def objection(self) -> str:
        """Why the request is refused, in one line."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        messages = [line.removeprefix("sbatch: ").removeprefix("error: ").removeprefix("fatal: ") for line in lines]
        last = next(
            (line for line in reversed(messages) if line.startswith("allocation failure")), (*messages, "refused")[0]
        )
        return last.removeprefix("allocation failure: ").strip()

    @property
    def start(self) -> float | None:
        """When a job like this would start (Unix time), if Slurm says so."""
        match = _STARTS.search(self.text)
        return None if match is None else parse_time(match[1])


def check_with_sbatch(
    options: Sequence[str],
    environ: Mapping[str, str],
    script: str | None = None,
    timeout_s: float = QUESTION_TIMEOUT_S,
) -> SbatchCheck:
    """Ask about the batch script at the path `script`, or about an empty one, with `options` on top."""
    argv = ["sbatch", "--test-only", *options, *([script] if script is not None else [])]
    try:
        done = run(argv, timeout_s, environ=environ, stdin=_EMPTY_SCRIPT if script is None else None)
    except (SchedulerError, InputError) as error:
        return SbatchCheck(None, error.message, error)
    text = done.stderr or done.stdout
    return SbatchCheck(True if done.ok else None if is_controller_silent(text) else False, text)
