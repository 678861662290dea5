"""Parse what Slurm prints: job states, rows of squeue and sacct, and the answers of sbatch. Pure.

Only delimited fields are asked for; Slurm's --json changed its shape in every other release. Text of an unexpected
shape is ignored. A state that is in no list is never an end.
"""

import re
import time
from typing import List, NamedTuple, Optional

from .lazy import regex

#: Slurm's words for a job that is still in its hands -> ours.
SLURM_ACTIVE_STATES = {
    "PENDING": "pending",
    "REQUEUED": "pending",
    "REQUEUE_HOLD": "blocked",
    "REQUEUE_FED": "pending",
    "RESV_DEL_HOLD": "blocked",
    "SPECIAL_EXIT": "blocked",
    "CONFIGURING": "pending",
    "RUNNING": "running",
    "COMPLETING": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "SUSPENDED": "running",
    "STOPPED": "running",
}
#: Slurm's words for a job that has ended, and holds nothing any more -> ours.
SLURM_ENDED_STATES = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "LAUNCH_FAILED": "failed",
    "RECONFIG_FAIL": "failed",
    "OUT_OF_MEMORY": "oom",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
}
SQUEUE_FIELDS = "%A|%F|%K|%T|%N|%a|%U|%S|%e|%r|%j"
SACCT_FIELDS = "JobID,JobIDRaw,State,ExitCode,NodeList,Start,End,JobName"
_CANCELLED_BY = regex(r"CANCELLED by (\S+)")
_EXIT = regex(r"(\d{1,9}):(\d{1,9})")

_JOB_ID_LINE = regex(r"^(\d+)(?:;\S+)?$", re.ASCII | re.MULTILINE)
#: The controller could not be reached at all: the request never left, so it may be sent again.
_NOT_SENT_TEXTS = ("connect failure", "connection refused", "could not establish a configuration source")
#: The connection broke in the middle: the request may have arrived.
_UNCLEAR_TEXTS = (
    "timed out", "zero bytes", "receive failure", "send failure", "shutdown failure", "connection reset",
    "unexpected message",
)  # fmt: skip
#: sbatch, or the controller, read the request and said no.
_REFUSAL = regex(
    r"batch job submission failed|unrecognized option|invalid|requires an argument|fatal:|--help|not available"
    r"|ambiguous|does not look like a batch script|unable to open",
    re.IGNORECASE,
)
_PREFIX = regex(r"^(?:sbatch: )?(?:error: )?")


class SbatchAnswer(NamedTuple):
    """sbatch's. kind: "accepted" (job_id), "refused" (Slurm read it and said no), "unreached" (never sent), "unclear".

    A non-zero exit of sbatch does not mean "not submitted": a controller that was busy for ten seconds may create the
    job after sbatch gave up (measured). Only answers that prove otherwise count as refused; everything else is unclear
    and is settled later by looking for the job's name.
    """

    kind: str
    job_id: Optional[str] = None
    message: str = ""


class JobRow(NamedTuple):
    """One line of squeue or sacct about one of our jobs. `started` of a job that waits is an estimate."""

    job_id: str
    word: str
    name: str
    task: Optional[int] = None
    array_job_id: Optional[str] = None
    node: Optional[str] = None
    reason: Optional[str] = None
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    by: Optional[str] = None
    oom_step: bool = False
    account: Optional[str] = None
    uid: Optional[int] = None
    started: Optional[float] = None
    ended: Optional[float] = None

    @property
    def label(self) -> str:
        return self.job_id if self.task is None else "%s_%d" % (self.array_job_id, self.task)

    @property
    def has_ended(self) -> bool:
        return self.word in SLURM_ENDED_STATES


class JobState(NamedTuple):
    """A job that Slurm knows. `preempted`: another one takes its place, at once or after a grace time. `timed_out`: its
    time limit is over, and Slurm is ending it."""

    word: str
    preempted: bool
    timed_out: bool = False


def classify_sbatch(returncode: int, stdout: str, stderr: str) -> SbatchAnswer:
    """What sbatch's words prove. Warnings on stderr beside a job id are only warnings."""
    match = _JOB_ID_LINE.search(stdout)
    if returncode == 0 and match is not None:
        return SbatchAnswer("accepted", match.group(1), stderr.strip())
    message = " ".join(_PREFIX.sub("", line) for line in stderr.strip().splitlines())
    low = message.lower()
    if any(word in low for word in _UNCLEAR_TEXTS):
        return SbatchAnswer("unclear", message=message)
    if any(word in low for word in _NOT_SENT_TEXTS):
        return SbatchAnswer("unreached", message=message)
    if returncode > 0 and _REFUSAL.search(message):
        return SbatchAnswer("refused", message=message)
    return SbatchAnswer("unclear", message=message or "sbatch ended with code %d and said nothing" % returncode)


def is_controller_silent(stderr: str) -> bool:
    """Whether a program says that the controller did not answer, rather than what it answered."""
    low = stderr.lower()
    return "unable to contact slurm controller" in low or any(
        word in low for word in (*_NOT_SENT_TEXTS, *_UNCLEAR_TEXTS)
    )


def has_no_cluster(stderr: str) -> bool:
    """Whether a program found neither a slurm.conf nor a controller in DNS: Slurm is installed here and not set up."""
    return "dns srv lookup failed" in stderr.lower()


def has_ended_already(stderr: str) -> bool:
    """Whether scancel failed because there was nothing left to cancel."""
    return "already completing" in stderr or "Invalid job id" in stderr


def is_job_unknown(text: str) -> bool:
    """Whether Slurm answered that it has no such job (any more)."""
    low = text.lower()
    return "invalid job id" in low or ("job " in low and " not found" in low)


def has_no_accounting(stderr: str) -> bool:
    """Whether sacct says that this cluster keeps no accounts, rather than that they cannot be reached."""
    return "accounting storage is disabled" in stderr.lower()


def parse_squeue(text: str) -> List[JobRow]:
    """Lines in our own format; what does not fit is passed over, because other people's job names are in there too."""
    rows = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < 11:
            continue
        job_id, array_job_id, index, word, node, account, uid, started, ended = fields[:9]
        rows.append(
            JobRow(
                job_id,
                word,
                name=fields[-1],
                task=whole_number(index),
                array_job_id=array_job_id,
                node=node or None,
                reason="|".join(fields[9:-1]) or None,
                account=account,
                uid=whole_number(uid),
                started=parse_time(started),
                ended=parse_time(ended) if word in SLURM_ENDED_STATES else None,  # else it is an estimate
            )
        )
    return rows


def parse_sacct(text: str) -> List[JobRow]:
    """Rows of jobs, in sacct's order (a requeued job has one row per time it ran); steps only add what they know."""
    rows: List[JobRow] = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < 8:
            continue
        shown_id, raw_id, state, exit_text, node, started, ended = fields[:7]
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
                name="|".join(fields[7:]),
                task=whole_number(index),
                array_job_id=array_job_id,
                node=node if node not in ("", "None assigned") else None,
                exit_code=int(code.group(1)) if code else None,
                signal=int(code.group(2)) if code else None,
                by=by.group(1) if by else None,
                started=parse_time(started),
                ended=parse_time(ended),
            )
        )
    return rows


def parse_job_state(text: str, job: str) -> Optional[JobState]:
    """The row of `job` of squeue's JobID,State,PreemptTime,Reason. A task of an array is asked for by its own number,
    which for the last one is the array's: the row tells them apart.
    """
    for row in map(str.split, text.splitlines()):
        if row[:1] == [job] and len(row) >= 3:
            return JobState(row[1], row[2] not in ("N/A", "None"), row[3:4] == ["TimeLimit"])
    return None


def parse_time(text: str) -> Optional[float]:
    """The first word of a line as a time of Slurm, which is local time without a zone; None for N/A and the like."""
    try:
        return time.mktime(time.strptime(text.split()[0], "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, IndexError, OverflowError):
        return None


def replace_job(waits: str, old: str, new: str) -> Optional[str]:
    """squeue's "afterok:12_3(unfulfilled),afterany:9" with one job for another, as scontrol takes it; or None."""
    plain = re.sub(r"\([^)]*\)", "", waits)
    changed = re.sub(r"(?<=:)%s(?=[:,?]|$)" % re.escape(old), new, plain)
    return changed if changed != plain else None


def whole_number(text: str) -> Optional[int]:
    """Of up to 18 digits; None for all else, also for digits that int() does not take or takes seconds for."""
    return int(text) if text.isdigit() and text.isascii() and len(text) <= 18 else None
