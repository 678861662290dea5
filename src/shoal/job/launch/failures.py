"""Which rank failed first, and with what code. torchrun itself ends with 1 whatever its ranks did, and srun with the
highest code, which is that of a task which it ended itself because of the first, if the signal killed that one."""

import glob
import os
import re
from typing import List, NamedTuple, Optional

from ...kernel import find_cause
from . import family

_TAIL_BYTES = 256 * 1024
_RANK_TAIL_BYTES = 16 * 1024
_ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):\s*\[\d+\]:\s*time\s*:\s*(?P<time>\S+)\s*host\s*:\s*(?P<host>\S+)\s*"
    r"rank\s*:\s*(?P<rank>\d+)[^\n]*\s*exitcode\s*:\s*(?P<code>-?\d+)"
)
_SRUN_TASK_EXIT = re.compile(
    r"^srun: error: \S+: tasks? \[?(?P<task>\d+)[\d,\-\]]*: Exited with exit code (?P<code>\d+)$", re.MULTILINE
)
#: From here on srun ends tasks, or somebody cancelled the step.
_ENDED_BY_SLURM_LINE = re.compile(r"_step_signal: Terminating|\*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED")
#: As steps.LocalRanks says it.
_LOCAL_RANK = re.compile(r"^shoal: rank (?P<task>\d+) ended with code", re.MULTILINE)
_RANK_LOG = re.compile(r"rank-(\d+)[^/]*\.out\Z")
_NOT_INSTALLED = re.compile(
    r"(\S+): Error while finding module specification for '\S+' \(ModuleNotFoundError: No module named '([\w.]+)'\)"
)


class RankFailure(NamedTuple):
    time: str
    host: str
    rank: int
    exit_code: int


def first_failure(text: str) -> Optional[RankFailure]:
    """The earliest root cause in what torchrun printed; ranks that were merely told to end come last."""
    found = [
        RankFailure(match["time"], match["host"], int(match["rank"]), family.shell_exit_code(int(match["code"])))
        for match in _ROOT_CAUSE.finditer(text)
    ]
    return min(found, key=lambda failure: (failure.exit_code == 143, failure.time)) if found else None


def read_tail(path: str, begin: int = 0, most: int = _TAIL_BYTES) -> str:
    """The end of a log, at most its last 256 KiB, and nothing from before `begin`."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin, size - most))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def first_exit_code(returncode: int, log: str, begin: int) -> int:
    """The exit code of the rank that failed first, where torchrun or srun said so; otherwise the launcher's own."""
    code = family.shell_exit_code(returncode)
    if code == 0:
        return 0
    text = read_tail(log, begin)
    failure = first_failure(text)
    if failure is not None and failure.exit_code:
        return failure.exit_code
    task = _SRUN_TASK_EXIT.search(_ENDED_BY_SLURM_LINE.split(text, maxsplit=1)[0]) if code > 128 else None
    return int(task["code"]) if task is not None else code


def missing_launcher(log: str, begin: int) -> Optional[str]:
    """What is missing if the launcher could not even be found, in words."""
    match = _NOT_INSTALLED.search(read_tail(log, begin))
    if match is None:
        return None
    return "%s is not installed in the job's environment: %s -m pip install %s" % (match[2], match[1], match[2])


def first_failed_rank(text: str) -> Optional[int]:
    """The rank that torchrun, srun or we ourselves say failed first."""
    failure = first_failure(text)
    task = _SRUN_TASK_EXIT.search(_ENDED_BY_SLURM_LINE.split(text, maxsplit=1)[0]) or _LOCAL_RANK.search(text)
    return failure.rank if failure is not None else int(task["task"]) if task is not None else None


def log_tails(log: str, text: str, lines: int = 15, ranks: int = 2) -> List[str]:
    """The ends of logs that tell why ranks failed: first that of the rank which the launcher's `text` names, then those
    that were written to first, because other ranks fail a little later and because of that one."""
    named = first_failed_rank(text)
    found = []
    for path in glob.glob(glob.escape(log) + "rank-*.out"):
        match = _RANK_LOG.search(path)
        last = read_tail(path, most=_RANK_TAIL_BYTES).splitlines()[-lines:]
        rank = int(match.group(1)) if match is not None else None
        if last and (rank == named or find_cause(last) is not None):
            found.append((rank != named, _mtime(path), path, last))
    told: List[str] = []
    for _, _, path, last in sorted(found)[:ranks]:
        told.append("the end of %s:" % path)
        told += ["  " + line for line in last]
    if len(found) > ranks:
        told.append("%d more ranks failed; their logs are beside these" % (len(found) - ranks))
    return told


def _mtime(path: str) -> float:
    try:
        return os.path.getmtime(path)
    except OSError:
        return 0.0
