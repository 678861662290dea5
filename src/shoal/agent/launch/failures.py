"""Which rank failed first, and with what code. torchrun itself ends with 1 whatever its ranks did, and srun with the
highest code, which is that of a task which it ended itself because of the first, if the signal killed that one."""

import glob
import os
import re
from typing import List, NamedTuple, Optional

from . import family

_TAIL_BYTES = 256 * 1024
_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):\s*\[\d+\]:\s*time\s*:\s*(?P<time>\S+)\s*host\s*:\s*(?P<host>\S+)\s*"
    r"rank\s*:\s*(?P<rank>\d+)[^\n]*\s*exitcode\s*:\s*(?P<code>-?\d+)"
)
_TASK = re.compile(r"^srun: error: \S+: tasks? [\d,\-\[\]]+: Exited with exit code (?P<code>\d+)$", re.MULTILINE)
#: From here on srun ends tasks, or somebody cancelled the step.
_ENDED = re.compile(r"_step_signal: Terminating|\*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED")
_NOT_INSTALLED = re.compile(
    r"(\S+): Error while finding module specification for '\S+' \(ModuleNotFoundError: No module named '([\w.]+)'\)"
)


class Failure(NamedTuple):
    time: str
    host: str
    rank: int
    exit_code: int


def first_failure(text: str) -> Optional[Failure]:
    """The earliest root cause in what torchrun printed; ranks that were merely told to end come last."""
    found = [
        Failure(match["time"], match["host"], int(match["rank"]), family.exit_code(int(match["code"])))
        for match in _CAUSE.finditer(text)
    ]
    return min(found, key=lambda failure: (failure.exit_code == 143, failure.time)) if found else None


def read_tail(path: str, begin: int = 0) -> str:
    """The end of a log, at most its last 256 KiB, and nothing from before `begin`."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin, size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def true_code(returncode: int, err: str, begin: int) -> int:
    """The exit code of the rank that failed first, where torchrun or srun said so; otherwise the launcher's own."""
    code = family.exit_code(returncode)
    if code == 0:
        return 0
    text = read_tail(err, begin)
    failure = first_failure(text)
    if failure is not None and failure.exit_code:
        return failure.exit_code
    task = _TASK.search(_ENDED.split(text, maxsplit=1)[0]) if code > 128 else None
    return int(task["code"]) if task is not None else code


def not_installed(err: str, begin: int) -> Optional[str]:
    """What is missing if the launcher could not even be found, in words."""
    match = _NOT_INSTALLED.search(read_tail(err, begin))
    if match is None:
        return None
    return "%s is not installed in the job's environment: %s -m pip install %s" % (match[2], match[1], match[2])


def last_words(log: str, lines: int = 15, ranks: int = 2) -> List[str]:
    """The ends of the error logs that were written to first: other ranks fail because of that one, a little later."""
    found = []
    for path in glob.glob(glob.escape(log) + "rank-*.err"):
        try:
            if os.path.getsize(path) > 0:
                found.append((os.path.getmtime(path), path))
        except OSError:
            continue
    told: List[str] = []
    for _, path in sorted(found)[:ranks]:
        told.append("the end of %s:" % path)
        told += ["  " + line for line in read_tail(path).splitlines()[-lines:]]
    return told
