"""What a log's last lines say about how a run died. Pure: text in, a cause out; the tables are the knowledge.

Logs are other people's text: a line is only ever quoted, cut, and cleaned of what could act on a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from shoal.views.render import plain

_LONGEST = 200


class Cause(NamedTuple):
    """`kind` is stable and for machines, `line` the log's own words, `at` its place in the lines that were given."""

    kind: str
    line: str
    at: int


#: kind -> what a person would call it. The order is the order of belief: a full GPU also ends in a Python error.
WORDS = {
    "cuda_oom": "CUDA out of memory",
    "host_oom": "out of memory on the host",
    "disk": "disk full or over quota",
    "shared_memory": "too little shared memory (/dev/shm)",
    "cuda_assert": "an assertion in a CUDA kernel, most often an index out of range",
    "gpu_error": "a GPU fault",
    "shared_gpu": "two ranks on one GPU",
    "nccl": "NCCL communication failure",
    "time_limit": "time limit",
    "preempted": "preempted",
    "node": "node failure",
    "port": "network port already in use",
    "import": "a Python module is missing",
    "network": "no network from the node",
    "unfinished_group": "Python ended while a process group was still at work",
    "crash": "the program crashed",
    "python": "Python error",
    "shell": "a command was not found",
}
#: Ends that Slurm or the kernel has a word for: the log need not say anything.
KIND_OF_STATE = {"oom": "host_oom", "timeout": "time_limit", "preempted": "preempted", "node_fail": "node"}
_PATTERNS = {
    "cuda_oom": r"CUDA out of memory|cuda\.OutOfMemoryError|torch\.OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED"
    r"|RESOURCE_EXHAUSTED: Out of memory|CUDA_ERROR_OUT_OF_MEMORY",
    "host_oom": r"oom[-_]kill|Detected \d+ oom|^MemoryError|DefaultCPUAllocator: (can't|not enough)"
    r"|Cannot allocate memory|killed by signal: Killed|numpy.*ArrayMemoryError",
    "disk": r"No space left on device|Disk quota exceeded|\[Errno (28|122)\]",
    "shared_memory": r"insufficient shared memory|/dev/shm.*No space|unable to open shared memory object",
    "cuda_assert": r"device-side assert",
    "gpu_error": r"CUDA error: (?!out of memory)|uncorrectable ECC|device\(s\) is/are busy or unavailable"
    r"|no CUDA-capable device|CUDA driver version is insufficient|Xid \(",
    "shared_gpu": r"Duplicate GPU detected",
    "nccl": r"NCCL (error|WARN.*(timeout|failed|closed))|nccl(System|Internal|Unhandled|Remote)\w*Error"
    r"|collective operation timeout|ProcessGroupNCCL.*(timeout|abort)",
    "time_limit": r"DUE TO TIME LIMIT",
    "preempted": r"DUE TO PREEMPTION",
    "node": r"DUE TO NODE FAILURE|DUE TO NODE_FAIL|Node failure on",
    "port": r"Address already in use|EADDRINUSE",
    "import": r"^(ModuleNotFoundError|ImportError)\b",
    "network": r"Max retries exceeded|Name or service not known|Temporary failure in name resolution"
    r"|Network is unreachable",
    "unfinished_group": r"^terminate called without an active exception",
    "crash": r"Segmentation fault|core dumped|^Aborted|Illegal instruction|Bus error",
    "shell": r": command not found|: No such file or directory$|: Permission denied$",
}


@cache
def _matchers() -> dict[str, re.Pattern[str]]:
    """Compiled when the first failure is looked into: a status of runs that are fine needs none of them."""
    return {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}


#: The last line of a traceback: an exception's dotted name, perhaps with a message.
_EXCEPTION = re.compile(
    r"([A-Za-z_][\w.]*\.)?[A-Z]\w*(Error|Exception|Interrupt|Exit|Failure|Warning|Timeout|Closed)\b(:.*)?$"
)
_BARE = re.compile(r"([A-Za-z_][\w.]*\.)?(AssertionError|KeyError|StopIteration|SystemExit)\b.*")
#: Prefixes that launchers put before each line: "[rank3]: ", "3: ", "(pid=12) ".
_PREFIX = re.compile(r"^(\[\w*rank\W?\d+\]:\s?|\s*\d+:\s|\(\w+ pid=\d+[^)]*\)\s)")
_WRAPPERS = re.compile(r"ChildFailedError|CalledProcessError|^SystemExit")
#: Kinds that may only follow from what a traceback tells.
_WEAK = ("shell", "network", "unfinished_group", "crash")


def find_cause(lines: Sequence[str]) -> Cause | None:
    """The most telling line among the last ones of a log, or None when nothing in them looks like an end."""
    stripped = [_PREFIX.sub("", line.rstrip()) for line in lines]
    best: Cause | None = None
    for kind, pattern in _matchers().items():
        for at in range(len(stripped) - 1, -1, -1):
            if len(stripped[at]) < 4000 and pattern.search(stripped[at].strip()):
                if kind != "shell" or best is None:
                    best = Cause(kind, clean(stripped[at]), at)
                break
        if best is not None:
            break
    thrown = _last_exception(stripped)
    if best is None or (best.kind in _WEAK and thrown is not None and not _WRAPPERS.search(thrown.line)):
        return thrown or best
    return best


def clean(line: str) -> str:
    """A log line fit to be quoted: escapes and control characters gone, cut to a length."""
    text = " ".join(plain(strip_escapes(line)).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


_ESCAPES = re.compile(
    "\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\|$)"
    "|[PX^_][^\x1b]*(?:\x1b\\\\|$)|[@-Z\\\\-_0-9=>()#%*+]?)"
    "|[\x80-\x9f]"
)


def strip_escapes(text: str) -> str:
    """Without terminal sequences: colours, cursor movements, titles, hyperlinks."""
    return _ESCAPES.sub("", text)


def signature(line: str) -> str:
    """The same for the same error on other hosts, ranks, sizes and addresses: numbers and paths become #."""
    text = re.sub(r"0x[0-9a-fA-F]+", "#", clean(line))
    text = re.sub(r"(/[\w.+-]+){2,}", "#", text)
    return re.sub(r"\d+(\.\d+)?", "#", text)


def _last_exception(lines: Sequence[str]) -> Cause | None:
    """The line that ends the last traceback; one that only says that a child failed gives way to an earlier one."""
    wrapper = None
    for at in range(len(lines) - 1, -1, -1):
        text = lines[at].strip()
        if len(text) > 4000 or lines[at][:1].isspace():
            continue
        if _EXCEPTION.match(text) or _BARE.match(text):
            if _WRAPPERS.search(text):
                wrapper = wrapper or Cause("python", clean(text), at)
                continue
            return Cause("python", clean(text), at)
    return wrapper
