"""One file for each time an allocation began: when, what was granted, and when it ended.

    submissions/<token>/allocation.<job>.<restarts>.<pid>    job: Slurm's id, or "local"; pid: of the batch script

    begin 1763409600.123456      the first command of the batch script, before any set-up
    granted {"gpus": 2, ...}     the job, from its environment
    resized 1763409630.5 {"gpus": 1, ...}   from then on: nodes were given back to Slurm
    slurm {"gpus": 2, ...}       the job at its end, from scontrol
    end 1763409660.25            the last process of the job

    submissions/<token>/account.<job>.<start>    what Slurm said of it afterwards, kept by whoever asked

    account {"ended": 1763409661, ...}
    resized 1763409630.5 {"gpus": 1, ...}

Slurm notices the end of a job after the job itself, on a busy node by seconds, and counts until then: its own word on
the end comes first where it is known. A line that is missing or damaged costs what it says and no more: the job was
killed, or the disk was full. Costs are sums over these files, so a job whose set-up fails counts although no attempt
began.
"""

import contextlib
import json
import os
import re
import shlex
import time
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import files, layout, slurm
from .slurm_job import JobDescription
from .slurm_text import SLURM_ENDED_STATES

#: <token>/<file>, which is what an allocation is known by, for everything that runs in it.
ALLOCATION_VARIABLE = "SHOAL_ALLOCATION"
_FILE = re.compile(r"allocation\.(\w+)\.(\d+)\.(\d+)\Z")
_ACCOUNT_FILE = re.compile(r"account\.(\d+)\.(\d+)\Z")
#: How long an ending job waits for scontrol.
_ASK_TIMEOUT_S = 5.0
#: Jobs in one question.
_MAX_JOBS = 500
#: Clocks of two machines, and Slurm's whole seconds, may differ by this much.
_CLOCKS_S = 5.0


class Grant(NamedTuple):
    """What an allocation has, over all its nodes. None: not known. Times are Unix seconds."""

    nodes: Optional[int] = None
    gpus: Optional[int] = None
    cpus: Optional[int] = None
    memory_mb: Optional[int] = None
    node_list: Optional[str] = None
    partition: Optional[str] = None
    job_label: Optional[str] = None
    time_limit_s: Optional[int] = None
    submitted: Optional[float] = None
    eligible: Optional[float] = None
    started: Optional[float] = None
    #: When the job ended, as Slurm says: processes of a cancelled job have a moment longer, which is not counted.
    ended: Optional[float] = None
    billing: Optional[float] = None
    local: Optional[bool] = None

    def over(self, base: "Grant") -> "Grant":
        """This, and what it does not know from `base`."""
        known = {name: value for name, value in self._asdict().items() if value is not None}
        return base._replace(**known)


#: What changes when a job gives nodes back.
_SIZE_FIELDS = ("nodes", "gpus", "cpus", "memory_mb", "node_list", "billing")


class Resize(NamedTuple):
    """From `t` on an allocation had this much, over all its nodes."""

    t: float
    gpus: int
    cpus: int


class JobAccount(NamedTuple):
    """What Slurm says of one time that a job ran; `end` is None while it runs. `grant` is what it began with."""

    job_id: str
    restarts: int
    grant: Grant
    end: Optional[float] = None
    state: str = ""
    resizes: Tuple[Resize, ...] = ()


class AllocationRecord(NamedTuple):
    """An allocation as its file tells. `key` is <token>/<file>; `job` is None on this machine, also inside another job
    that is not ours. `granted` is what it began with."""

    key: str
    job: Optional[str]
    restarts: int = 0
    begin: Optional[float] = None
    end: Optional[float] = None
    granted: Grant = Grant()
    resizes: Tuple[Resize, ...] = ()


def begin_lines(folder: str, shared: bool) -> List[str]:
    """Bash that writes the first line into a submission's folder, whose name needs no quotes. A full disk does not stop
    the script."""
    submissions, token = os.path.split(folder)
    name = "%s/allocation.${SLURM_JOB_ID:-local}.${SLURM_RESTART_COUNT:-0}.$$" % token
    return [
        'export %s="%s"' % (ALLOCATION_VARIABLE, name),
        # Bash 5 knows fractions of a second, with the comma of some languages.
        "(umask %s; printf 'begin %%s\\n' \"${EPOCHREALTIME:-$(printf '%%(%%s)T' -1)}\" >> %s/\"$%s\") 2> /dev/null"
        % ("007" if shared else "077", shlex.quote(submissions), ALLOCATION_VARIABLE),
    ]


class AllocationLog:
    """The file of the allocation that this process is in; written by its batch step alone. Never raises."""

    def __init__(self, home: str, environ: Mapping[str, str]) -> None:
        self._job, self._environ = environ.get("SLURM_JOB_ID"), environ
        token, _, name = environ.get(ALLOCATION_VARIABLE, "").partition("/")
        self._path = os.path.join(layout.submission_dir(home, token), name) if _FILE.match(name) else None

    def begin(self, own_job: bool, local: Optional[Grant] = None) -> None:
        """What was granted, as far as the environment tells. `local` is what a run takes that is no job of Slurm's."""
        if not own_job:
            self._job = None
        grant = grant_of_environment(self._environ) if own_job else (local or Grant())._replace(local=True)
        self._add("granted " + _encode(grant))

    def ask_slurm(self) -> None:
        """Slurm forgets a job minutes after its end, so the job asks while it runs."""
        grant = self._shown()
        if grant is not None:
            self._add("slurm " + _encode(grant))

    def _shown(self) -> Optional[Grant]:
        """What scontrol says of this job now, unless it waits in the queue for its next start already."""
        life = _integer(self._environ.get("SLURM_RESTART_COUNT")) or 0
        shown = slurm.show_job(self._job, self._environ, _ASK_TIMEOUT_S) if self._job else None
        return next((grant_of_job(job) for job in shown or () if (job.job_id, job.life) == (self._job, life)), None)

    def resize(self, nodes_before: int, nodes: int) -> None:
        """The job goes on with fewer nodes. Where Slurm does not count GPUs, each node has as many as the first."""
        now, before = time.time(), grant_of_environment(self._environ)
        shown = self._shown() or Grant()
        part = Grant(
            nodes=nodes,
            gpus=(before.gpus or 0) * nodes // max(1, before.nodes or nodes_before),
            cpus=(before.cpus or 0) * nodes // max(1, before.nodes or nodes_before),
        )
        size = {name: value for name, value in shown.over(part)._asdict().items() if name in _SIZE_FIELDS}
        self._add("resized %.3f %s" % (now, _encode(Grant(**size))))

    def end(self) -> None:
        self._add("end %.3f" % time.time())

    def _add(self, line: str) -> None:
        if self._path is None:  # a script of an older shoal
            return
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError:
            return
        try:
            os.write(fd, line.encode("ascii", "replace") + b"\n")
        except OSError:
            pass
        finally:
            os.close(fd)


def read_allocations(folder: str) -> List[AllocationRecord]:
    """Every allocation of a submission, in the order in which they began, with what Slurm said of it and was kept."""
    names = files.list_names(folder)
    accounts = by_job(one for one in (_read_account(folder, name) for name in names) if one is not None)
    records = [_read(folder, name) for name in names if name.startswith("allocation.")]
    known = [_complete(one, accounts) for one in records if one is not None]
    return sorted(known, key=lambda one: (one.begin or 0.0, one.key))


def _complete(record: AllocationRecord, accounts: Mapping[str, Sequence[JobAccount]]) -> AllocationRecord:
    account = find_account(accounts, record.job, record.granted.started, record.begin)
    if account is None:
        return record
    granted = record.granted.over(account.grant)._replace(ended=account.end)
    return record._replace(granted=granted, resizes=record.resizes or account.resizes)


def by_job(accounts: Iterable[JobAccount]) -> Dict[str, List[JobAccount]]:
    found: Dict[str, List[JobAccount]] = {}
    for account in accounts:
        found.setdefault(account.job_id, []).append(account)
    return found


def find_account(
    accounts: Mapping[str, Sequence[JobAccount]], job: Optional[str], started: Optional[float], begin: Optional[float]
) -> Optional[JobAccount]:
    """Slurm's account of the time that a job ran from `started` on, or whose script began at `begin`.

    A job's number is not enough: a requeued job has several, a controller that lost its state counts from one again,
    and clusters that share their accounts have the same numbers.
    """
    for account in reversed(accounts.get(job or "", ())):
        start, end = account.grant.started, account.end
        if start is None:
            continue
        if started is not None:
            if abs(start - started) <= 1:
                return account
        elif begin is not None and start - _CLOCKS_S <= begin <= (begin if end is None else end) + _CLOCKS_S:
            return account
    return None


def keep_account(folder: str, account: JobAccount) -> None:
    """Keep what Slurm said of a job that has ended, because Slurm forgets; what is kept already is not written again.
    A directory that we may not write in costs another question."""
    start, end = account.grant.started, account.end
    if start is None or end is None:
        return
    lines = ["account " + _encode(account.grant._replace(ended=end))]
    lines += ["resized %.3f %s" % (one.t, _encode(Grant(gpus=one.gpus, cpus=one.cpus))) for one in account.resizes]
    data = "".join(line + "\n" for line in lines).encode("ascii")
    path = account_path(folder, account.job_id, start)
    with contextlib.suppress(OSError):
        if files.read_bytes(path) != data:
            files.replace(path, data, sync=False)


def account_path(folder: str, job: str, started: float) -> str:
    return os.path.join(folder, "account.%s.%d" % (job, started))


def _read_account(folder: str, name: str) -> Optional[JobAccount]:
    match = _ACCOUNT_FILE.match(name)
    if match is None:
        return None
    account = JobAccount(match.group(1), 0, Grant(started=float(match.group(2))))
    for word, value in _read_lines(os.path.join(folder, name)):
        with contextlib.suppress(ValueError, TypeError):
            if word == "account":
                grant = _decode(value)
                account = account._replace(grant=grant.over(account.grant), end=grant.ended)
            elif word == "resized":
                account = account._replace(resizes=(*account.resizes, _read_resize(value)))
    return account if account.end is not None else None


def _read_lines(path: str) -> List[Tuple[str, str]]:
    """First word and rest of each line; what stands behind the last line break was cut off."""
    try:
        with open(path, "rb") as file:
            lines = file.read(1 << 16).decode("ascii", "replace").split("\n")[:-1]
    except OSError:
        return []
    return [(word, value) for word, _, value in (line.partition(" ") for line in lines)]


def _read(folder: str, name: str) -> Optional[AllocationRecord]:
    match = _FILE.match(name)
    if match is None:
        return None
    job = match.group(1)
    record = AllocationRecord(
        "%s/%s" % (os.path.basename(folder), name), None if job == "local" else job, int(match.group(2))
    )
    for word, value in _read_lines(os.path.join(folder, name)):
        with contextlib.suppress(ValueError, TypeError):
            if word == "begin" and record.begin is None:
                record = record._replace(begin=float(value.replace(",", ".")))
            elif word == "end":
                record = record._replace(end=float(value))
            elif word == "resized":
                record = record._replace(resizes=(*record.resizes, _read_resize(value)))
            elif word in ("granted", "slurm"):
                granted = _decode(value)
                if record.resizes:
                    granted = granted._replace(**dict.fromkeys(_SIZE_FIELDS))
                record = record._replace(granted=granted.over(record.granted))
    return record._replace(job=None) if record.granted.local else record


def _read_resize(value: str) -> Resize:
    t, _, size = value.partition(" ")
    return _resize(float(t), _decode(size))


def _resize(t: float, size: Grant) -> Resize:
    return Resize(t, size.gpus or 0, size.cpus or 0)


def _encode(grant: Grant) -> str:
    return json.dumps({name: value for name, value in grant._asdict().items() if value is not None})


def _decode(text: str) -> Grant:
    values: Dict[str, Any] = json.loads(text)
    return Grant(**{name: value for name, value in values.items() if name in Grant._fields})


def grant_of_environment(environ: Mapping[str, str]) -> Grant:
    """What Slurm tells a batch script of its own job."""
    nodes = _integer(environ.get("SLURM_JOB_NUM_NODES"))
    cpus = _sum_per_node(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    per_node, per_cpu = _integer(environ.get("SLURM_MEM_PER_NODE")), _integer(environ.get("SLURM_MEM_PER_CPU"))
    memory_mb = per_node * (nodes or 1) if per_node else per_cpu * cpus if per_cpu and cpus else None
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return Grant(
        nodes=nodes,
        gpus=(_integer(environ.get("SLURM_GPUS_ON_NODE")) or 0) * (nodes or 1),
        cpus=cpus,
        memory_mb=memory_mb,
        node_list=environ.get("SLURM_JOB_NODELIST"),
        partition=environ.get("SLURM_JOB_PARTITION"),
        job_label="%s_%s" % (array, task) if array and task else environ.get("SLURM_JOB_ID"),
        started=_number(environ.get("SLURM_JOB_START_TIME")),
    )


def grant_of_job(job: JobDescription) -> Grant:
    """What Slurm says of a job that it has started. Many clusters do not count GPUs (AccountingStorageTRES): then the
    job's environment tells."""
    tres = dict(part.partition("=")[::2] for part in job.tres.split(","))
    return Grant(
        nodes=_integer(tres.get("node")) or job.nodes,
        gpus=_integer(tres.get("gres/gpu")),
        cpus=_integer(tres.get("cpu")),
        memory_mb=None if job.memory_mb is None else job.memory_mb * job.nodes,
        node_list=job.node_list,
        partition=job.partition,
        job_label=job.label,
        time_limit_s=job.time_limit_s,
        submitted=job.submitted,
        eligible=job.eligible,
        started=job.started,
        ended=job.ended if job.word in SLURM_ENDED_STATES or job.word in ("COMPLETING", "REQUEUED") else None,
        billing=_number(tres.get("billing")),
    )


def accounts_of(
    jobs: Sequence[str], environ: Mapping[str, str], timeout_s: float = slurm.QUERY_TIMEOUT_S
) -> Optional[List[JobAccount]]:
    """What accounting knows of jobs, a row for each time that one ran; None without accounting."""
    found: List[JobAccount] = []
    numbers = sorted(set(jobs))
    for at in range(0, len(numbers), _MAX_JOBS):
        rows = slurm.accounted_jobs(numbers[at : at + _MAX_JOBS], environ, timeout_s)
        if rows is None:
            return None
        found += _lives(rows)
    return found or None


def _lives(rows: Sequence[JobDescription]) -> List[JobAccount]:
    """One for each time that a job ran. sacct has a row for each of its sizes, all but the last one RESIZING."""
    lives: Dict[str, List[JobAccount]] = {}
    for row in rows:
        if row.started is None:  # it was cancelled while it waited
            continue
        of_job = lives.setdefault(row.job_id, [])
        grant = grant_of_job(row)
        if of_job and of_job[-1].state == "RESIZING":
            resizes = (*of_job[-1].resizes, _resize(row.started, grant))
            of_job[-1] = of_job[-1]._replace(end=grant.ended, state=row.word, resizes=resizes)
        else:
            of_job.append(JobAccount(row.job_id, len(of_job), grant, grant.ended, row.word))
    return [one for of_job in lives.values() for one in of_job]


def remembered_accounts(
    jobs: Sequence[str], environ: Mapping[str, str], timeout_s: float = slurm.QUERY_TIMEOUT_S
) -> List[JobAccount]:
    """What the controller still has in memory of jobs, in one question: the last _MAX_JOBS of them."""
    shown = slurm.queued_jobs(list(dict.fromkeys(jobs))[-_MAX_JOBS:], environ, timeout_s) if jobs else None
    accounts = [(job, grant_of_job(job)) for job in shown or ()]
    return [
        JobAccount(job.job_id, job.life, grant, grant.ended if job.word in SLURM_ENDED_STATES else None, job.word)
        for job, grant in accounts
    ]


def _sum_per_node(text: str) -> Optional[int]:
    """4(x2),2 -> 10, as SLURM_JOB_CPUS_PER_NODE writes it."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return sum(int(number) * int(times or 1) for number, times in parts) if parts else None


def _integer(text: Optional[str]) -> Optional[int]:
    return int(text) if text and text.isdigit() else None


def _number(text: Optional[str]) -> Optional[float]:
    try:
        return float(text) if text else None
    except ValueError:
        return None
