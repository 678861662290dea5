"""Why a job is pending, and what its owner can do: Slurm's reasons in sentences, and questions about one job.

Reasons are from the man page of squeue (JOB REASON CODES); an unknown one is shown as it is. `shoal why` also asks
Slurm about the job: its place in the queue, its expected start, and what would start sooner. At most six questions;
`sbatch --test-only` asks the scheduler when a similar job would start, and submits nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shoal.clusters import ask, check_with_sbatch, parse_time_limit_s
from shoal.kernel import parse_time
from shoal.units import format_slurm_time


class PendingReason(NamedTuple):
    """`moves`: it starts by itself sooner or later. `smaller`: asking for less may start it sooner."""

    sentence: str
    action: str | None = None
    moves: bool = True
    smaller: bool = False


_LIMITS_COMMAND = (
    "sacctmgr show assoc user=$USER format=account,qos,grptres,maxtres,maxjobs -P   # the limits that hold for you"
)
_RESERVATION_COMMAND = "scontrol show reservation"

REASONS: dict[str, PendingReason] = {
    "None": PendingReason("Slurm has not looked at it yet"),
    "Priority": PendingReason("jobs with a higher priority are ahead of it in this partition", smaller=True),
    "Resources": PendingReason("it is next, and waits until enough nodes, GPUs, CPUs or memory are free", smaller=True),
    "Dependency": PendingReason("it waits for another job to finish"),
    "DependencyNeverSatisfied": PendingReason(
        "the job that it waits for failed, so it can never start", "shoal cancel {run}", False
    ),
    "BeginTime": PendingReason("its start was set to a later time (a requeued job also waits about two minutes)"),
    "JobArrayTaskLimit": PendingReason("as many tasks of its array run as the array allows at once"),
    "JobHeldUser": PendingReason("it is on hold by its owner", "scontrol release {job}", False),
    "JobHeldAdmin": PendingReason("it is on hold by an administrator", "ask the cluster's administrators", False),
    "JobHoldMaxRequeue": PendingReason("it was requeued too often and is on hold", "scontrol release {job}", False),
    "launch failed requeued held": PendingReason(
        "its launch failed on a node, and Slurm put it on hold", "scontrol release {job}", False
    ),
    "PartitionTimeLimit": PendingReason(
        "it asks for more time than the partition allows", "scontrol show partition {partition}", False
    ),
    "PartitionNodeLimit": PendingReason(
        "it asks for more nodes than the partition allows", "scontrol show partition {partition}", False
    ),
    "PartitionDown": PendingReason("its partition takes no jobs to run now", "sinfo -p {partition}"),
    "PartitionInactive": PendingReason("its partition is switched off", "sinfo -p {partition}"),
    "PartitionConfig": PendingReason(
        "it does not fit the partition's rules", "scontrol show partition {partition}", False
    ),
    "ReqNodeNotAvail": PendingReason(
        "a node that it needs is down, drained or reserved (a maintenance may be planned)",
        _RESERVATION_COMMAND,
        smaller=True,
    ),
    "Reservation": PendingReason("it waits for its reservation to begin", _RESERVATION_COMMAND),
    "ReservationDeleted": PendingReason("its reservation was deleted", "shoal cancel {run}", False),
    "NodeDown": PendingReason("a node that it needs is down", "sinfo -R"),
    "BadConstraints": PendingReason(
        "no node can serve what it asks for", "sinfo -p {partition} -N -o '%N %G %c %m %f'", False
    ),
    "Licenses": PendingReason("it waits for a licence", "scontrol show licenses"),
    "FrontEndDown": PendingReason("no front end of the cluster is available"),
    "InvalidAccount": PendingReason("its account is not valid any more", _LIMITS_COMMAND, False),
    "InvalidQOS": PendingReason("its QOS is not valid", _LIMITS_COMMAND, False),
    "AccountNotAllowed": PendingReason("its account may not use this partition", _LIMITS_COMMAND, False),
    "QOSNotAllowed": PendingReason("its QOS may not be used in this partition", _LIMITS_COMMAND, False),
    "Prolog": PendingReason("the node's prologue is still running"),
    "Cleaning": PendingReason("its earlier run is still being cleaned up"),
    "SystemFailure": PendingReason(
        "Slurm, a file system or the network failed", "ask the cluster's administrators", False
    ),
    "NonZeroExitCode": PendingReason("it ended with an error and is on hold", "scontrol release {job}", False),
    "RaisedSignal": PendingReason("it raised a signal and waits to be requeued"),
    "InactiveLimit": PendingReason("it reached the system's inactivity limit", None, False),
    "SchedDefer": PendingReason("Slurm puts off scheduling while it is busy"),
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": PendingReason(
        "the nodes that it needs are down, drained, or reserved for higher partitions",
        "sinfo -p {partition}",
        smaller=True,
    ),
}
#: Families of words: limits of the account (Assoc*), of the QOS (QOS*), and what they are about.
_LIMIT_SCOPES = {"Assoc": "your account", "QOS": "the QOS"}
_LIMITED_RESOURCES = (
    ("JobsPerUser", "jobs at once"),
    ("SubmitJob", "submitted jobs"),
    ("Jobs", "jobs at once"),
    ("GRES", "GPUs"),
    ("Node", "nodes"),
    ("CpuRunMinutes", "CPU-minutes of running jobs"),
    ("CPURunMinutes", "CPU-minutes of running jobs"),
    ("CpuMinutes", "CPU-minutes"),
    ("CPUMinutes", "CPU-minutes"),
    ("Cpu", "CPUs"),
    ("CPU", "CPUs"),
    ("Memory", "memory"),
    ("Mem", "memory"),
    ("Billing", "billing units"),
    ("Wall", "time"),
    ("Energy", "energy"),
)


def explain_reason(word: str | None) -> PendingReason:
    """The reason behind Slurm's word; an unknown word is quoted, never hidden."""
    text = (word or "None").strip("() ")
    if text in REASONS:
        return REASONS[text]
    for known, reason in REASONS.items():
        if len(known) > 8 and known in text:
            return reason
    for prefix, owner in _LIMIT_SCOPES.items():
        if text.startswith(prefix):
            thing = next((words for key, words in _LIMITED_RESOURCES if key in text), "a resource")
            budget = "Minutes" in text
            sentence = f"{owner} has used up its budget of {thing}" if budget else f"{owner} is at its limit of {thing}"
            per = " for one job: it asks for more than it may ever have" if "PerJob" in text else ""
            return PendingReason(
                f"{sentence}{per} (Slurm: {text})", _LIMITS_COMMAND, moves=not (budget or per), smaller=not budget
            )
    return PendingReason(f"Slurm says {text}", None)


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
        int(priority) if priority.isdecimal() and len(priority) < 19 else None,
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
        if number.strip().isdecimal() and len(number) < 19:
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
