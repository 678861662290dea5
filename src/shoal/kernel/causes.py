"""What the end of a log says about how a run failed. Pure: lines in, a cause out; the tables are the knowledge.

The cause is an exception's own line, never a line of source in its traceback. Where several ranks write into one log
each is read by itself, and a rank that failed only because another one did, or a launcher that only counts who failed,
gives way to that one. log_lines.py reads the lines.
"""

import functools
import re
import signal
from typing import Dict, Iterable, List, NamedTuple, Optional, Pattern, Sequence, Set, Tuple

from .log_lines import (
    CPP_PREFIX,
    MAX_MESSAGE_LINES,
    QUOTED_RANK,
    SLURM_LINE,
    LoggedException,
    LogLine,
    clean_log_line,
    find_exceptions,
    parse_lines,
)


class Cause(NamedTuple):
    """`kind` is stable and for machines, `line` the log's own words, `at` its place in the lines that were given,
    `rank` whose words they are, where the log tells."""

    kind: str
    line: str
    at: int
    rank: Optional[int] = None


#: kind -> what a person would call it. The order is the order of belief: a full GPU also ends in a Python error.
KIND_TEXTS = {
    "cuda_oom": "CUDA out of memory",
    "host_oom": "out of memory on the host",
    "disk": "disk full or over quota",
    "shared_memory": "too little shared memory (/dev/shm)",
    "cuda_assert": "an assertion in a CUDA kernel, most often an index out of range",
    "gpu_error": "a GPU fault",
    "shared_gpu": "two ranks on one GPU",
    "checkpoint": "a checkpoint cannot be read",
    "nccl_timeout": "NCCL time-out: a rank waited in vain for the others",
    "nccl": "NCCL communication failure",
    "time_limit": "time limit",
    "preempted": "preempted",
    "node": "node failure",
    "port": "network port already in use",
    "import": "a Python module is missing",
    "usage": "wrong arguments",
    "network": "no network from the node",
    "unfinished_group": "Python ended while a process group was still at work",
    "crash": "the program crashed",
    "python": "Python error",
    "shell": "a command was not found",
    "launch": "the launch does not fit the allocation",
    "message": "the program's own error message",
}
# Patterns are compiled when the first failure is looked into: what sees no failure, as most agents, needs none of them.

#: Exit codes that shells and conventions give a meaning; those above 128 name a signal.
_EXIT_CODE_TEXTS = {
    74: "input/output error, often a full disk",
    75: "asks to be started again",
    78: "wrong configuration",
    124: "time-out",
    126: "the command cannot be executed",
    127: "command not found",
}
#: Kinds whose line says it all: their words before it would only repeat it.
SELF_EXPLAINING_KINDS = frozenset({"python", "shell", "crash", "import", "usage", "launch", "message"})
#: Ends that Slurm or the kernel has a word for: the log need not say anything.
KIND_OF_STATE = {"oom": "host_oom", "timeout": "time_limit", "preempted": "preempted", "node_fail": "node"}
_PATTERNS = {
    "cuda_oom": r"CUDA out of memory|HIP out of memory|cuda\.OutOfMemoryError|torch\.OutOfMemoryError"
    r"|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory|CUDA_ERROR_OUT_OF_MEMORY",
    "host_oom": r"oom[-_]kill|Detected \d+ oom|^MemoryError|DefaultCPUAllocator: (can't|not enough)"
    r"|Cannot allocate memory|killed by signal: Killed|numpy.*ArrayMemoryError",
    "disk": r"No space left on device|Disk quota exceeded|\[Errno (28|122)\]",
    "shared_memory": r"insufficient shared memory|/dev/shm.*No space|unable to open shared memory object"
    r"|out of shared memory",
    "cuda_assert": r"device-side assert",
    "gpu_error": r"CUDA error: (?!out of memory)|uncorrectable ECC|device\(s\) is/are busy or unavailable"
    r"|no CUDA-capable device|CUDA driver version is insufficient|Xid \(",
    "shared_gpu": r"Duplicate GPU detected",
    "checkpoint": r"PytorchStreamReader failed|BadZipFile|SafetensorError: .*deserializ"
    r"|unexpected EOF, expected \d+ more"
    r"|UnpicklingError: (pickle data was truncated|invalid load key|unpickling stack underflow)"
    r"|EOFError: Ran out of input|Unable to (synchronously )?open file \(truncated file",
    "nccl_timeout": r"collective operation timeout|NCCL watchdog thread terminated.*time(d )?out"
    r"|Timeout at NCCL work|Timeout at collective",
    "nccl": r"NCCL (error|WARN.*(timeout|failed|closed))|nccl(System|Internal|Unhandled|Remote)\w*Error"
    r"|ProcessGroupNCCL.*(timeout|abort)|DistBackendError|ncclCommInitRank failed",
    "time_limit": r"DUE TO TIME LIMIT",
    "preempted": r"DUE TO PREEMPTION",
    "node": r"DUE TO NODE FAILURE|DUE TO NODE_FAIL|Node failure on",
    "port": r"Address already in use|EADDRINUSE",
    "import": r"^(ModuleNotFoundError|ImportError)\b",
    "usage": r"^\S+( \S+){0,3}: error: |^Error: (No such (option|command)|(Missing|Invalid value for|Got unexpected) )"
    r"|^Could not (override|append to) '|Flags parsing error|^ERROR: Could not consume arg"
    r"|^(In '[^']*': )?Could not find '\S+'|^Key '.*' is not in struct|^Missing mandatory value: ",
    "network": r"Max retries exceeded|Name or service not known|Temporary failure in name resolution"
    r"|Network is unreachable",
    "unfinished_group": r"^terminate called without an active exception",
    "crash": r"\(exitcode: -\d+\)|Segmentation fault|core dumped|^Aborted|Illegal instruction|Bus error",
    "shell": r": command not found|: No such file or directory$|: Permission denied$",
    "message": r"^Error (locating|in call to|instantiating) |^(\S+: )?(fatal|error|FATAL|ERROR|Error)( error)?: \S",
}
#: Kinds that end a program, or its ranks, whatever else is printed. The words of all others also stand in warnings.
_FATAL_KINDS = frozenset(
    [
        "cuda_oom",
        "host_oom",
        "cuda_assert",
        "gpu_error",
        "shared_gpu",
        "nccl_timeout",
        "nccl",
        "time_limit",
        "preempted",
        "node",
        "unfinished_group",
        "crash",
    ]
)
#: A line counts if at most so many lines of text, and of progress, follow it: else the program went on.
_MAX_AFTER = (10, 2)
_MAX_AFTER_GRAVE = (60, 10)
#: Of a program that chose its exit code, what it said last tells more than what it met before.
_MAX_TEXT_BEFORE_CHOICE = 3
#: Not counted among what follows: continued lines, stacks of C++, and what launchers and Slurm add at the end.
_NOISE_LINE = r"\s|$|frame #|\[?[EFWI]\d{4} |[=*-]{3}|\[\d+\]:|shoal: |[\w.]+ FAILED$|Root Cause|Failures:|<NO_OTHER"
#: Words of somebody who goes on.
_WARNING_LINE = (
    r"\b(WARN(ING)?|[Ww]arning|INFO|DEBUG)\b|\b[Cc]ontinu(e|es|ing)\b|\b[Ii]gnor(e|ed|es|ing)\b|\b[Rr]etrying\b"
    r"|\b[Ss]kipp(ed|ing)\b|\b[Ff]all(s|ing)? back\b|\b[Tt]rying\b"
)
_SLURM_KINDS = ("host_oom", "time_limit", "preempted", "node")
#: Not looked for in exceptions: these are the words of shells and of Slurm.
_NO_TRACEBACK_KINDS = frozenset(
    {"time_limit", "preempted", "node", "usage", "shell", "message", "crash", "unfinished_group"}
)
#: Failures that follow from another rank's, or from somebody who stopped this one.
_CONSEQUENCE = (
    r"Connection (closed by|reset by|refused by) (remote )?peer|Connection closed by remote peer|Broken pipe"
    r"|BrokenPipeError|ConnectionResetError|ncclRemoteError|ncclUnhandledCudaError.*peer|DistNetworkError"
    r"|DistStoreError|SignalException|^KeyboardInterrupt|Socket Timeout|collective operation timeout"
    r"|remote process exited|process group has been aborted|NCCL communicator was aborted|EOFError$"
)
#: Exceptions that say only that a child failed; the child's own words say why.
_WRAPPERS = (
    r"ChildFailedError|CalledProcessError|ProcessRaisedException|ProcessExitedException|^SystemExit|RemoteTraceback"
    r"|BrokenProcessPool|RayTaskError|WorkerCrashedError"
)
#: Where a launcher says who failed.
_LAUNCHER_LINE = r"srun: error: |shoal: (rank|the end of|replica)|Root Cause"
_GROUP = r"\(\d+ sub-exceptions?\)$"
_ROOT_RANK = r"^  rank +: (\d+) \(local_rank"
_ROOT = r"^Root Cause \(first observed failure\)"


@functools.lru_cache(maxsize=1)
def _matchers() -> Dict[str, Pattern[str]]:
    return {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}


def find_cause(lines: Sequence[str], exit_code: Optional[int] = None) -> Optional[Cause]:
    """The most telling line among the last ones of a log, or None when nothing in them looks like an end.

    What the program survived is no cause: a warning, an error that it handled. An exception that ends Python gives it
    exit code 1; a program that says something after one and ends with another code has chosen to. `exit_code` 78 is the
    launcher's own: then its last sentence is the cause.
    """
    parsed = parse_lines(lines)
    if exit_code == 78:
        own_lines = [
            line for line in parsed if line.text.startswith("shoal: ") and not re.match(QUOTED_RANK, line.text)
        ]
        if own_lines:
            return Cause("launch", clean_log_line(own_lines[-1].text[7:]), own_lines[-1].at)
    raised, used = find_exceptions(parsed)
    loose = [line for line in parsed if line.at not in used]
    by_slurm = _find_outside_tracebacks(
        [line for line in loose if re.match(SLURM_LINE, line.text)], _SLURM_KINDS, exit_code
    )
    if by_slurm is not None:
        return by_slurm
    raised = _without_handled(raised, parsed, used, exit_code)
    own = [_cause_of(one, raised) for one in _last_of_each(raised, wrappers=False)]
    first = _choose(own, _root_rank(parsed))
    if first is not None and not re.search(_CONSEQUENCE, first.line):
        return first
    found = _find_outside_tracebacks(loose, tuple(_PATTERNS), exit_code)
    if found is not None and (first is None or found.kind.startswith("nccl")):
        return found
    wrapping = [_cause_of(one, raised) for one in _last_of_each(raised, wrappers=True)]
    return first or _choose(wrapping, None)


def _is_chosen(exit_code: Optional[int]) -> bool:
    """Whether a program must have asked for this exit code: not that of an exception, of a shell or of a signal."""
    return exit_code not in (None, 1, 2, 126, 127) and not 128 < (exit_code or 0) < 128 + signal.NSIG


def _continued_after(after: Iterable[LogLine], max_text: int, max_progress: int) -> bool:
    """Whether more than so many lines of text, or of progress, follow."""
    from .progress_lines import parse_progress  # here: an agent whose program does not fail needs no part of it

    text = steps = 0
    for line in after:
        if parse_progress(line.text) is not None:
            steps += 1
        elif not re.match(_NOISE_LINE, line.text) and not re.match(SLURM_LINE, line.text):
            text += 1
        if text > max_text or steps > max_progress:
            return True
    return False


def _without_handled(
    raised: Sequence[LoggedException], parsed: Sequence[LogLine], used: Set[int], exit_code: Optional[int]
) -> List[LoggedException]:
    """Without those after which their program went on. Where a launcher tells who failed, others may print on."""
    if any(_is_wrapper(one) for one in raised) or any(re.match(_LAUNCHER_LINE, line.text) for line in parsed):
        return list(raised)
    handled = set()
    for one in _last_of_each(raised, wrappers=False):
        after = [
            line
            for line in parsed
            if line.stream == one.line.stream
            and line.at > one.line.at
            and (line.at not in used or line.text.strip() in one.message)
        ]
        # Further lines of its message cannot be told from what is printed next, unless it is known what they say.
        is_known = _cause_of(one, raised).kind != "python"
        max_text = (MAX_MESSAGE_LINES if is_known else 0) if _is_chosen(exit_code) else len(after)
        if _continued_after(after, max_text, _MAX_AFTER_GRAVE[1] if max_text else 0):
            handled.add(one.line.stream)
    return [one for one in raised if one.line.stream not in handled]


def is_consequence(cause: Cause) -> bool:
    """Whether the rank that says so failed only because another one did, or because the network between them did."""
    return cause.kind in ("nccl", "nccl_timeout") or bool(re.search(_CONSEQUENCE, cause.line))


def describe_exit_code(code: Optional[int]) -> str:
    """An exit code with what it means, where that is known: "exit code 137 (SIGKILL)"."""
    if code is None:
        return "exit code not known"
    meaning = _EXIT_CODE_TEXTS.get(code)
    if meaning is None and 128 < code < 128 + signal.NSIG:
        try:
            meaning = signal.Signals(code - 128).name
        except ValueError:
            meaning = None
    return "exit code %d%s" % (code, " (%s)" % meaning if meaning else "")


def _last_of_each(raised: Sequence[LoggedException], wrappers: bool) -> List[LoggedException]:
    """The exception that ended each stream. Of an exception group that is the first of its exceptions."""
    found = []
    for stream in dict.fromkeys(one.line.stream for one in raised):
        mine = [one for one in raised if one.line.stream == stream]
        group = next(
            (place for place in range(len(mine) - 1, -1, -1) if re.search(_GROUP, mine[place].line.text)), None
        )
        if group is not None and not wrappers and len(mine) > group + 1:
            mine = mine[: group + 2]
        fit = [one for one in mine if _is_wrapper(one) == wrappers]
        ended = [one for one in fit if not one.is_aside] or fit
        own = [one for one in ended if not re.search(_CONSEQUENCE, one.line.text)]
        found += (own or ended)[-1:]
    return found


def _is_wrapper(one: LoggedException) -> bool:
    name = one.line.text.partition(":")[0].rpartition(".")[2]
    return bool(re.search(_WRAPPERS, name)) or bool(re.search(_GROUP, one.line.text))


def _cause_of(one: LoggedException, raised: Sequence[LoggedException]) -> Cause:
    """An exception with its kind; one that was raised because of a full disk and the like gives way to that."""
    mine = [other for other in raised if other.line.stream == one.line.stream]
    place = mine.index(one)
    while True:
        kind = _kind(one)
        if kind != "python" or not mine[place].is_chained or place == 0:
            break
        place -= 1
        if _kind(mine[place]) != "python":
            return _as_cause(mine[place], _kind(mine[place]))
    return _as_cause(one, kind)


def _kind(one: LoggedException) -> str:
    texts = (one.line.text, *one.message)
    for kind, pattern in _matchers().items():
        if kind not in _NO_TRACEBACK_KINDS and any(pattern.search(text) for text in texts):
            return kind
    return "python"


def _as_cause(one: LoggedException, kind: str) -> Cause:
    """The exception's line; or that of its message which tells the kind, or follows a bare "RuntimeError:"."""
    text, pattern = one.line.text, _matchers().get(kind)
    more = [line for line in one.message if any(letter.isalnum() for letter in line)]
    if text.endswith(":") and more:
        text = "%s %s" % (text, more[0])
    if pattern is not None and not pattern.search(text):
        text = next((line for line in one.message if pattern.search(line)), text)
    return Cause(kind, clean_log_line(text), one.line.at, _rank(one.line.stream))


def _find_outside_tracebacks(
    lines: Sequence[LogLine], kinds: Tuple[str, ...], exit_code: Optional[int]
) -> Optional[Cause]:
    for kind in kinds:
        pattern = _matchers()[kind]
        for place in range(len(lines) - 1, -1, -1):
            line = lines[place]
            text = re.sub(CPP_PREFIX, "", line.text).strip()
            if pattern.search(text):
                if kind not in _FATAL_KINDS and re.search(_WARNING_LINE, line.text):
                    continue
                max_text, max_steps = _MAX_AFTER_GRAVE if kind in _FATAL_KINDS else _MAX_AFTER
                if _is_chosen(exit_code) and kind not in _FATAL_KINDS and kind != "message":
                    max_text = _MAX_TEXT_BEFORE_CHOICE
                if _continued_after(
                    (one for one in lines[place + 1 :] if one.stream == line.stream), max_text, max_steps
                ):
                    break
                rank = re.search(r"\bRank (\d+)\]", text)
                return Cause(kind, clean_log_line(text), line.at, int(rank.group(1)) if rank else _rank(line.stream))
    return None


def _choose(causes: Sequence[Cause], root: Optional[int]) -> Optional[Cause]:
    """Of several ranks that failed: not one that only followed, the one that torchrun names, the first."""
    own = [one for one in causes if not re.search(_CONSEQUENCE, one.line)] or list(causes)
    named = [one for one in own if root is not None and one.rank == root]
    return min(named or own, key=lambda one: one.at, default=None)


def _root_rank(parsed: Sequence[LogLine]) -> Optional[int]:
    at = next((place for place, line in enumerate(parsed) if re.match(_ROOT, line.text)), None)
    ranks = (re.match(_ROOT_RANK, line.text) for line in parsed[at : at + 8]) if at is not None else iter(())
    return next((int(match.group(1)) for match in ranks if match), None)


def _rank(stream: str) -> Optional[int]:
    return int(stream) if stream.isdigit() else None
