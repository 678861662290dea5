"""Ask Slurm, on demand, about one pending job: its place in the queue, its expected start, and what would be sooner.

At most six questions, only when a person asks `why`. `sbatch --test-only` asks the scheduler when a job like this one
would start, and submits nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shoal.clusters import ask, check_with_sbatch, parse_time_limit_s
from shoal.kernel import parse_time
from shoal.units import format_slurm_time

_TIMEOUT_S = 20.0
_FIELDS = "%r|%P|%Q|%S|%V|%l|%D|%C|%m|%b|%E"
_GPUS = re.compile(r"(?:gres[:/])?gpu:(?:([A-Za-z][\w.-]*):)?(\d+)")
_IN_HEADER = re.compile(r"#SBATCH --(gres|gpus-per-node|gpus)=(\S+)")


class PendingJob(NamedTuple):
    """What squeue tells about one pending job."""

    reason: str
    partition: str
    priority: int | None
    start: float | None
    submitted: float | None
    time_limit_s: int | None
    nodes: str
    cpus: str
    memory: str
    tres: str
    dependency: str


class PartitionNodes(NamedTuple):
    """Nodes of a partition by what they are doing."""

    by_state: dict[str, int]
    total: int


class EarlierStart(NamedTuple):
    """A change of the request, and when Slurm would start it."""

    what: str
    flag: str
    start: float


def query_pending_job(job: str, environ: Mapping[str, str]) -> PendingJob | None:
    """The job's row in the queue; None if it is not there or Slurm does not answer."""
    text = ask(["squeue", "-h", "--start", "-j", job, "-o", _FIELDS], environ, _TIMEOUT_S) or ""
    if not text.strip():
        text = ask(["squeue", "-h", "-j", job, "-o", _FIELDS], environ, _TIMEOUT_S) or ""
    fields = text.splitlines()[0].split("|") if text.strip() else []
    if len(fields) < 11:
        return None
    # A reason may hold the separator; the ten fields behind it do not.
    reason, rest = "|".join(fields[:-10]), fields[-10:]
    partition, priority, start, submitted, limit, nodes, cpus, memory, tres, dependency = rest
    return PendingJob(
        reason,
        partition,
        int(priority) if priority.isdigit() else None,
        parse_time(start),
        parse_time(submitted),
        parse_time_limit_s(limit),
        nodes,
        cpus,
        memory,
        tres,
        dependency if dependency not in ("(null)", "") else "",
    )


class QueuePosition(NamedTuple):
    """Pending jobs that come before one, each task of an array counted; `own_tasks` are of the job's own array."""

    jobs: int
    own_tasks: int


def queue_position(job: str, waiting: PendingJob, environ: Mapping[str, str]) -> QueuePosition | None:
    """How many pending jobs of its partition come before it; None if Slurm does not tell."""
    if waiting.priority is None:
        return None
    text = ask(["squeue", "-h", "-r", "-t", "PD", "-p", waiting.partition, "-o", "%Q|%F|%K"], environ, _TIMEOUT_S)
    return None if text is None else count_jobs_before(text, job, waiting.priority)


def count_jobs_before(text: str, job: str, priority: int) -> QueuePosition:
    """From lines of priority, job and task: a higher priority is before it, and of equal ones the lower number, as
    Slurm's scheduler sorts them. Pure."""
    own_job, _, own_task = job.partition("_")
    mine = (-priority, *_job_and_task(own_job, own_task))
    jobs = own_tasks = 0
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 3 or not fields[0].isdigit():
            continue
        if (-int(fields[0]), *_job_and_task(fields[1], fields[2])) < mine:
            jobs += 1
            own_tasks += fields[1] == own_job and bool(own_task)
    return QueuePosition(jobs, own_tasks)


def _job_and_task(job: str, task: str) -> tuple[int, int]:
    return (int(job) if job.isdigit() else 0, int(task) if task.isdigit() else 0)


def partition_nodes(partition: str, environ: Mapping[str, str]) -> PartitionNodes | None:
    text = ask(["sinfo", "-h", "-p", partition, "-o", "%D|%T"], environ, _TIMEOUT_S)
    if text is None:
        return None
    counts: dict[str, int] = {}
    for line in text.splitlines():
        number, _, state = line.partition("|")
        word = state.rstrip("*$~#!%@^-+") or "unknown"
        if number.strip().isdigit():
            counts[word] = counts.get(word, 0) + int(number)
    return PartitionNodes(counts, sum(counts.values()))


def expected_start(script: str, extra: Iterable[str], environ: Mapping[str, str]) -> float | None:
    """When Slurm would start this script if it were submitted now with these options on top."""
    return check_with_sbatch([*extra], environ, script, _TIMEOUT_S).start


def smaller_requests(waiting: PendingJob, header: str) -> list[tuple[str, str]]:
    """(in words, sbatch flag) of requests that ask for less: half the time, half the GPUs. Pure."""
    found = []
    if waiting.time_limit_s and waiting.time_limit_s >= 1200:
        half = waiting.time_limit_s // 2
        found.append((f"half the time limit ({format_slurm_time(half)})", f"--time={format_slurm_time(half)}"))
    gpus = _IN_HEADER.search(header)
    if gpus is not None and (match := _GPUS.search(gpus[2]) or re.fullmatch(r"(?:([A-Za-z][\w.-]*):)?(\d+)", gpus[2])):
        kind, number = match[1], int(match[2])
        if number >= 2:
            spelled = f"{kind}:{number // 2}" if kind else str(number // 2)
            value = f"gpu:{spelled}" if gpus[1] == "gres" else spelled
            found.append((f"{number // 2} instead of {number} GPUs", f"--{gpus[1]}={value}"))
    return found


def find_earlier_starts(
    script: str, header: str, waiting: PendingJob, environ: Mapping[str, str], now: float
) -> tuple[float | None, list[EarlierStart]]:
    """(when this request would start, smaller requests that would start at least a minute earlier)."""
    array = ["--array=0"] if "#SBATCH --array" in header else []
    base = waiting.start or expected_start(script, array, environ)
    found = []
    for words, flag in smaller_requests(waiting, header):
        start = expected_start(script, [*array, flag], environ)
        if start is not None and (base is None or start < base - 60) and start > now - 86400:
            found.append(EarlierStart(words, flag, start))
    return base, found
