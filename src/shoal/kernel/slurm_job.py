"""What Slurm says about one job, whoever submitted it: its request, its times, its end, its script and its log files.

`parse_jobs` reads `scontrol show job`, `parse_accounting` the fields of sacct, `parse_queued` columns of squeue; all
give a `JobDescription`. Lines of
scontrol that hold free text (name, command, comment, paths) are read whole, so that a comment with `StdOut=` in it
changes no log. Pure, except `log_path`, which looks which of the files that a pattern may mean exists.
"""

import glob
import os
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from .lazy import regex
from .slurm_text import parse_time, whole_number

#: Lines of scontrol whose value is free text to the end of the line.
_FREE_LINES = (
    "Command", "SubmitLine", "WorkDir", "Comment", "AdminComment", "SystemComment", "StdErr", "StdIn", "StdOut",
)  # fmt: skip
_PAIR = regex(r"([A-Za-z][\w:/]*)=(\S*)")
_FIRST_LINE = regex(r"JobId=(\d+) (.*?)JobName=(.*)")
_USER = regex(r"(.*)\((\d{1,18})\)")
_EXIT = regex(r"(\d{1,9}):(\d{1,9})")
_TIME_LIMIT = regex(r"(?:(\d{1,9})-)?(\d{1,9}):(\d{1,9})(?::(\d{1,9}))?")
_MEMORY = regex(r"(\d{1,18}(?:\.\d{0,18})?)([KMGTP]?)")
_GPU_COUNT = regex(r"gres[/:]gpu(?::([A-Za-z][\w.-]*))?[=:](\d{1,18})(?!\d)")
_LOG_PATTERN = regex(r"%(%|(\d*)([AabJjNnstuxh]))")
_MEMORY_MB = {"K": 1 / 1024, "M": 1, "": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
#: What stands in the place of a task's number where the tasks of an array wait together.
_NO_TASK = "4294967294"

#: Of sacct; JobName is last, because people choose its letters, and WorkDir comes before it by its number of fields.
ACCOUNTING_FIELDS = (
    "JobID", "JobIDRaw", "User", "UID", "State", "ExitCode", "Submit", "Eligible", "Start", "End", "Timelimit",
    "Partition", "Account", "QOS", "NNodes", "NCPUS", "ReqTRES", "AllocTRES", "NodeList", "Cluster",
    "WorkDir", "JobName",
)  # fmt: skip

#: Of squeue: its name for a column, the width, and sacct's name for the same. Columns can be told apart by width in
#: every version; only the name of a job may have blanks, and is not asked for.
QUEUED_COLUMNS = (
    ("JobID", 24, "JobIDRaw"), ("ArrayJobID", 24, ""), ("ArrayTaskID", 24, ""), ("RestartCnt", 24, ""),
    ("UserName", 64, "User"), ("UserID", 24, "UID"), ("State", 24, "State"), ("SubmitTime", 24, "Submit"),
    ("EligibleTime", 24, "Eligible"), ("StartTime", 24, "Start"), ("EndTime", 24, "End"),
    ("TimeLimit", 24, "Timelimit"), ("Partition", 64, "Partition"), ("Account", 64, "Account"), ("QOS", 64, "QOS"),
    ("NumNodes", 24, "NNodes"), ("NumCPUs", 24, "NCPUS"), ("tres-alloc", 255, "AllocTRES"),
    ("NodeList", 1000, "NodeList"),
)  # fmt: skip


class JobDescription(NamedTuple):
    """A job. `label` is what people type: 123, or 123_4 for a task of an array. `tasks` is set where several tasks wait
    together: their numbers as Slurm writes them. `gpus`, `cpus` and `memory_mb` are per node. `stdout` and `stderr` are
    patterns, see `log_path`. `tres` is what it was granted over all nodes, as Slurm writes it. `life` counts how
    often Slurm has put the job into the queue again.
    """

    label: str
    job_id: str
    name: str
    word: str
    user: str
    uid: Optional[int]
    array_job_id: Optional[str] = None
    task: Optional[int] = None
    tasks: str = ""
    is_heterogeneous: bool = False
    is_batch: bool = True
    life: int = 0
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    by: Optional[str] = None
    reason: Optional[str] = None
    submitted: Optional[float] = None
    eligible: Optional[float] = None
    started: Optional[float] = None
    ended: Optional[float] = None
    time_limit_s: Optional[int] = None
    partition: Optional[str] = None
    account: Optional[str] = None
    qos: Optional[str] = None
    nodes: int = 1
    gpus: int = 0
    gpu_type: Optional[str] = None
    cpus: Optional[int] = None
    ntasks: Optional[int] = None
    cpus_per_task: Optional[int] = None
    memory_mb: Optional[int] = None
    node_list: Optional[str] = None
    batch_host: Optional[str] = None
    work_dir: Optional[str] = None
    command: Optional[str] = None
    submit_line: Optional[str] = None
    stdout: Optional[str] = None
    stderr: Optional[str] = None
    cluster: Optional[str] = None
    tres: str = ""


def parse_jobs(text: str) -> List[JobDescription]:
    """The jobs of `scontrol show job`: one, the tasks of an array, or the parts of a heterogeneous job."""
    blocks = re.split(r"\n(?=JobId=\d)", "\n" + text)
    found = [_parse_job(block.strip("\n")) for block in blocks if block.startswith("JobId=")]
    return [job for job in found if job is not None]


def _parse_job(block: str) -> Optional[JobDescription]:
    first, _, rest = block.partition("\n")
    match = _FIRST_LINE.match(first)
    if match is None:
        return None
    field = _fields(rest)
    head = dict(_PAIR.findall(match.group(2)))
    job_id, name = match.group(1), match.group(3)
    array_job_id, index = head.get("ArrayJobId"), head.get("ArrayTaskId", "")
    task = whole_number(index)
    user = _USER.match(field.get("UserId", ""))
    exit_code = _EXIT.match(field.get("ExitCode", ""))
    started = parse_time(field.get("StartTime", ""))
    word = field.get("JobState", "")
    nodes = max(1, whole_number(field.get("NumNodes", "").partition("-")[0]) or 1)
    tres = field.get("AllocTRES") or field.get("ReqTRES") or field.get("TRES") or ""
    tres = tres if tres != "(null)" else field.get("ReqTRES", "")
    gpus, gpu_type = _gpus(tres, field, nodes)
    cpus = whole_number(field.get("NumCPUs", "").partition("-")[0])
    return JobDescription(
        label="%s_%d" % (array_job_id, task) if array_job_id and task is not None else job_id,
        job_id=job_id,
        name=name,
        word=word,
        user=user.group(1) if user else "",
        uid=int(user.group(2)) if user else None,
        array_job_id=array_job_id,
        task=task,
        tasks=index if array_job_id and task is None else "",
        is_heterogeneous="HetJobId" in head,
        is_batch=field.get("BatchFlag") != "0",
        life=whole_number(field.get("Restarts", "")) or 0,
        exit_code=int(exit_code.group(1)) if exit_code else None,
        signal=int(exit_code.group(2)) if exit_code else None,
        reason=_given(field.get("Reason")),
        submitted=parse_time(field.get("SubmitTime", "")),
        eligible=parse_time(field.get("EligibleTime", "")),
        started=started if word != "PENDING" and _given(field.get("NodeList")) else None,  # else it is an estimate
        ended=parse_time(field.get("EndTime", "")),
        time_limit_s=parse_time_limit_s(field.get("TimeLimit", "")),
        partition=_given(field.get("Partition")),
        account=_given(field.get("Account")),
        qos=_given(field.get("QOS")),
        nodes=nodes,
        gpus=gpus,
        gpu_type=gpu_type,
        cpus=cpus // nodes if cpus else None,
        ntasks=whole_number(field.get("NumTasks", "")),
        cpus_per_task=whole_number(field.get("CPUs/Task", "")),
        memory_mb=_memory_mb(tres, nodes),
        node_list=_given(field.get("NodeList")),
        batch_host=_given(field.get("BatchHost")),
        work_dir=_given(field.get("WorkDir")),
        command=_given(field.get("Command")),
        submit_line=_given(field.get("SubmitLine")),
        stdout=_given(field.get("StdOut")),
        stderr=_given(field.get("StdErr")),
        tres=tres,
    )


def _fields(text: str) -> Dict[str, str]:
    """KEY=VALUE pairs; the first of a key counts, and a line of free text is one value."""
    found: Dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        pairs: List[Tuple[str, str]] = [(key, value.strip())] if key in _FREE_LINES else _PAIR.findall(line)
        for name, part in pairs if equals else ():
            found.setdefault(name, part)
    return found


def parse_accounting(text: str) -> List[JobDescription]:
    """The jobs of sacct with ACCOUNTING_FIELDS, in its order: a requeued job has a row for each time that it ran."""
    found = []
    for line in text.splitlines():
        values = line.split("|", len(ACCOUNTING_FIELDS) - 1)
        if len(values) == len(ACCOUNTING_FIELDS):
            found.append(_parse_row(dict(zip(ACCOUNTING_FIELDS, values))))
    return found


def _parse_row(row: Dict[str, str]) -> JobDescription:
    word, _, who = row["State"].partition(" by ")
    word = word.split(" ", 1)[0].rstrip("+")
    shown = row["JobID"]
    array_job_id, underscore, index = shown.partition("_")
    task = whole_number(index)
    exit_code = _EXIT.match(row["ExitCode"])
    nodes = max(1, whole_number(row["NNodes"]) or 1)
    gpus, gpu_type = _gpus(row["ReqTRES"], {}, nodes)
    cpus = whole_number(row["NCPUS"])
    started = parse_time(row["Start"])
    return JobDescription(
        label=shown,
        job_id=row["JobIDRaw"],
        name=row["JobName"],
        word=word,
        user=row["User"],
        uid=whole_number(row["UID"]),
        array_job_id=array_job_id if underscore else None,
        task=task,
        tasks=index if underscore and task is None else "",
        is_heterogeneous="+" in shown,
        exit_code=int(exit_code.group(1)) if exit_code else None,
        signal=int(exit_code.group(2)) if exit_code else None,
        by=who or None,
        submitted=parse_time(row["Submit"]),
        eligible=parse_time(row["Eligible"]),
        started=None if row["NodeList"] in ("", "None assigned") else started,
        ended=parse_time(row["End"]),
        time_limit_s=parse_time_limit_s(row["Timelimit"]),
        partition=_given(row["Partition"]),
        account=_given(row["Account"]),
        qos=_given(row["QOS"]),
        nodes=nodes,
        gpus=gpus,
        gpu_type=gpu_type,
        cpus=cpus // nodes if cpus else None,
        memory_mb=_memory_mb(row["ReqTRES"], nodes),
        node_list=None if row["NodeList"] == "None assigned" else _given(row["NodeList"]),
        work_dir=_given(row["WorkDir"]),
        cluster=_given(row["Cluster"]),
        tres=row["AllocTRES"],
    )


def parse_queued(text: str) -> List[JobDescription]:
    """The jobs of squeue with QUEUED_COLUMNS. It tells neither their names nor how they ended."""
    found = []
    for line in text.splitlines():
        cells, at = {}, 0
        for name, width, _ in QUEUED_COLUMNS:
            cells[name], at = line[at : at + width].strip(), at + width
        if not cells["JobID"].isdigit():
            continue
        row = dict.fromkeys(ACCOUNTING_FIELDS, "")
        row.update((accounted, cells[name]) for name, _, accounted in QUEUED_COLUMNS if accounted)
        is_task = cells["ArrayTaskID"].isdigit()
        label = "%s_%s" % (cells["ArrayJobID"], cells["ArrayTaskID"]) if is_task else cells["JobID"]
        row.update(JobID=label, ReqTRES=cells["tres-alloc"])
        job = _parse_row(row)._replace(life=whole_number(cells["RestartCnt"]) or 0)
        found.append(job._replace(started=None) if job.word == "PENDING" else job)  # else it is an estimate
    return found


def parse_time_limit_s(text: str) -> Optional[int]:
    """Seconds of [days-]hours:minutes:seconds; None for UNLIMITED and the like."""
    match = _TIME_LIMIT.fullmatch(text)
    if match is None:
        return None
    days, first, second, third = (int(part or 0) for part in match.groups())
    # With two numbers and no days Slurm means minutes and seconds.
    hours, minutes, seconds = (first, second, third) if match.group(4) or match.group(1) else (0, first, second)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _gpus(tres: str, field: Dict[str, str], nodes: int) -> Tuple[int, Optional[str]]:
    """GPUs per node, and their type if Slurm names it."""
    pairs = _GPU_COUNT.findall(tres)
    total = max((int(count) for kind, count in pairs), default=0)
    if not pairs:  # a job that waits, on a cluster that does not count GPUs
        pairs = _GPU_COUNT.findall(field.get("TresPerNode", "").replace("gres:gpu", "gres/gpu"))
        total = max((int(count) * nodes for kind, count in pairs), default=0)
    named = next((kind for kind, _ in pairs if kind), None)
    return -(-total // nodes), named or None


def _memory_mb(tres: str, nodes: int) -> Optional[int]:
    match = re.search(r"(?:^|,)mem=([\d.]+[KMGTP]?)", tres)
    parts = _MEMORY.fullmatch(match.group(1)) if match else None
    return None if parts is None else int(float(parts.group(1)) * _MEMORY_MB[parts.group(2)] / nodes)


def _given(text: Optional[str]) -> Optional[str]:
    return None if text in (None, "", "(null)", "N/A", "None", "Unknown") else text


# ---- log files


def log_path(job: JobDescription, pattern: Optional[str]) -> Optional[str]:
    """The file that a pattern of sbatch --output means for a job; None where it goes to no file that can be read.

    scontrol fills in most of a pattern, and leaves the rest to the node. %N is the node's own host name, which may
    differ from Slurm's name for it: then the only file that fits is taken.
    """
    if not pattern or pattern == os.devnull:
        return None
    if _NO_TASK in pattern:
        if job.task is None:
            return None
        pattern = pattern.replace(_NO_TASK, str(job.task))
    path = os.path.join(job.work_dir or "/", _fill(job, pattern, job.batch_host))
    if not os.path.exists(path):
        places = glob.glob(os.path.join(glob.escape(job.work_dir or "/"), _fill(job, pattern, None)))
        if len(places) == 1:
            return places[0]
    return path


def _fill(job: JobDescription, pattern: str, host: Optional[str]) -> str:
    """The pattern with its %x replaced; without a `host` as a pattern for glob."""
    short = host.partition(".")[0] if host else "*"
    values = {
        "A": job.array_job_id or job.job_id,
        "a": "" if job.task is None else str(job.task),
        "b": "" if job.task is None else str(job.task % 10),
        "J": job.job_id,
        "j": job.job_id,
        "N": short,
        "h": short,
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": job.user,
        "x": job.name,
    }

    def put(match: "re.Match[str]") -> str:
        if match.group(1) == "%":
            return "%"
        value = values[match.group(3)]
        return value.rjust(int(match.group(2)), "0") if match.group(2) and value.isdigit() else value

    if host:
        return _LOG_PATTERN.sub(put, pattern)
    parts = re.split(r"(%\d*[Nh])", pattern)
    return "".join("*" if at % 2 else glob.escape(_LOG_PATTERN.sub(put, part)) for at, part in enumerate(parts))
