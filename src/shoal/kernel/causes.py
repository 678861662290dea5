"""What the end of a log says about how a run failed. Pure: lines in, a cause out; the tables are the knowledge.

The cause is an exception's own line, never a line of source in its traceback. Where several ranks write into one log
each is read by itself, and a rank that failed only because another one did, or a launcher that only counts who failed,
gives way to that one. Logs are other people's text: a line is only ever quoted, cut, and cleaned of what could act on
a terminal.
"""

import functools
import re
import signal
from typing import Dict, Iterable, List, NamedTuple, Optional, Pattern, Sequence, Set, Tuple

_MAX_QUOTED = 200
_MAX_LINE = 4000


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
#: What Slurm says about a job is about the job, whatever its programs say.
_SLURM_LINE = r"^(slurmstepd|srun|slurmd|slurm_script|batch): |^\*\*\* (JOB|STEP)"
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
_HEADER = r"(Exception Group )?Traceback \(most recent call last\)"
_FRAME = r'\s*File "[^"]*", line \d+'
_RICH_BOX = r"\s*[│╭╰┃┏┗❱]"
#: A traceback below such a line did not end the program.
_SIDE_TRACEBACK = r"Exception ignored in|Error in atexit|Exception in thread|--- Logging error ---"
#: The first line of an exception, dotted name and perhaps a message, where a traceback shows that it is one ...
_RAISED = r"[A-Za-z_][\w.]*(\[\w+\])?(:( .*)?)?$"
#: ... and where nothing does.
_EXCEPTION = (
    r"([A-Za-z_][\w.]*\.)?([A-Z]\w*(Error|Exception|Interrupt|Exit|Failure|Timeout|Closed)|StopIteration)\b(: .*|:)?$"
)
#: Prefixes that launchers put before each line: "[rank3]: ", "[default3]:", "3: ", "(Worker pid=12) ", a time.
_PREFIX = (
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?Z? (?=\[)|std(?:err|out): "
    r"|\[(?:rank|default)(?P<rank>\d+)\]:\s?|(?P<task>\d+): |\((?P<actor>\w[^()]{0,80}pid=\d+[^()]{0,80})\)\s"
    r"|(?P<quote>shoal:   )"
)
_QUOTED = r"shoal: the end of .*rank-(\d+)\S*:$"
#: What C++ logs before its words; a progress bar may stand before it on the same line.
_CPP_LOG = r"^.*?\[[EFWI][\d:. ]*\w+\.cpp:\d+\]\s*"
_ROOT_RANK = r"^  rank +: (\d+) \(local_rank"
_ROOT = r"^Root Cause \(first observed failure\)"
_CHAINED = r"During handling of the above exception|The above exception was the direct cause"
_MAX_MESSAGE_LINES = 20


@functools.lru_cache(maxsize=1)
def _matchers() -> Dict[str, Pattern[str]]:
    return {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}


class _Line(NamedTuple):
    """A line without its prefix; `stream` tells apart who wrote it."""

    at: int
    stream: str
    text: str


class _LoggedException(NamedTuple):
    """An exception: its first line, the rest of its message, whether it was raised while handling the one before, and
    whether it did not end the program."""

    line: _Line
    message: Tuple[str, ...]
    is_chained: bool
    is_aside: bool


def find_cause(lines: Sequence[str], exit_code: Optional[int] = None) -> Optional[Cause]:
    """The most telling line among the last ones of a log, or None when nothing in them looks like an end.

    What the program survived is no cause: a warning, an error that it handled. An exception that ends Python gives it
    exit code 1; a program that says something after one and ends with another code has chosen to. `exit_code` 78 is the
    launcher's own: then its last sentence is the cause.
    """
    parsed = _parse(lines)
    if exit_code == 78:
        said = [line for line in parsed if line.text.startswith("shoal: ") and not re.match(_QUOTED, line.text)]
        if said:
            return Cause("launch", clean_log_line(said[-1].text[7:]), said[-1].at)
    raised, used = _tracebacks(parsed)
    loose = [line for line in parsed if line.at not in used]
    by_slurm = _find_outside_tracebacks(
        [line for line in loose if re.match(_SLURM_LINE, line.text)], _SLURM_KINDS, exit_code
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


def _continued_after(after: Iterable[_Line], max_text: int, max_progress: int) -> bool:
    """Whether more than so many lines of text, or of progress, follow."""
    from .progress_lines import parse_progress  # here: an agent whose program does not fail needs no part of it

    text = steps = 0
    for line in after:
        if parse_progress(line.text) is not None:
            steps += 1
        elif not re.match(_NOISE_LINE, line.text) and not re.match(_SLURM_LINE, line.text):
            text += 1
        if text > max_text or steps > max_progress:
            return True
    return False


def _without_handled(
    raised: Sequence[_LoggedException], parsed: Sequence[_Line], used: Set[int], exit_code: Optional[int]
) -> List[_LoggedException]:
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
        max_text = (_MAX_MESSAGE_LINES if is_known else 0) if _is_chosen(exit_code) else len(after)
        if _continued_after(after, max_text, _MAX_AFTER_GRAVE[1] if max_text else 0):
            handled.add(one.line.stream)
    return [one for one in raised if one.line.stream not in handled]


def is_consequence(cause: Cause) -> bool:
    """Whether the rank that says so failed only because another one did, or because the network between them did."""
    return cause.kind in ("nccl", "nccl_timeout") or bool(re.search(_CONSEQUENCE, cause.line))


def describe_exit_code(code: int) -> str:
    """An exit code with what it means, where that is known: "exit code 137 (SIGKILL)"."""
    meaning = _EXIT_CODE_TEXTS.get(code)
    if meaning is None and 128 < code < 128 + signal.NSIG:
        try:
            meaning = signal.Signals(code - 128).name
        except ValueError:
            meaning = None
    return "exit code %d%s" % (code, " (%s)" % meaning if meaning else "")


def last_line(lines: Sequence[str]) -> str:
    """The last line with something on it, fit to be quoted; empty if there is none."""
    return next((text for text in (clean_log_line(line) for line in reversed(lines)) if text), "")


def clean_log_line(line: str) -> str:
    """A log line fit to be quoted: escapes and control characters gone, cut to a length."""
    printable = "".join(letter if letter.isprintable() else " " for letter in strip_escapes(line))
    text = " ".join(printable.split())
    return text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 1] + "…"


_ESCAPES = (
    "\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\|$)"
    "|[PX^_][^\x1b]*(?:\x1b\\\\|$)|[@-Z\\\\-_0-9=>()#%*+]?)"
    "|[\x80-\x9f]"
)


def strip_escapes(text: str) -> str:
    """Without terminal sequences: colours, cursor movements, titles, hyperlinks."""
    return re.sub(_ESCAPES, "", text)


def error_signature(line: str) -> str:
    """The same for the same error on other hosts, ranks, sizes and addresses: numbers and paths become #."""
    text = re.sub(r"0x[0-9a-fA-F]+", "#", clean_log_line(line))
    text = re.sub(r"(/[\w.+-]+){2,}", "#", text)
    return re.sub(r"\d+(\.\d+)?", "#", text)


def _parse(lines: Sequence[str]) -> List[_Line]:
    found, quoted = [], ""
    for at, line in enumerate(lines):
        text, stream = strip_escapes(line[:_MAX_LINE].rstrip()), ""
        start = re.match(_QUOTED, text)
        if start:
            quoted = start.group(1)
        while True:
            match = re.match(_PREFIX, text)
            if match is None:
                break
            text = text[match.end() :]
            own = match.group("rank") or match.group("task") or match.group("actor")
            stream = own or (quoted if match.group("quote") else stream)
        found.append(_Line(at, stream, text))
    return found


def _tracebacks(parsed: Sequence[_Line]) -> Tuple[List[_LoggedException], Set[int]]:
    """Every exception in the order of its lines, and the places of lines that belong to tracebacks."""
    raised: List[_LoggedException] = []
    used: Set[int] = set()
    for stream in dict.fromkeys(line.stream for line in parsed):
        raised += _stream_exceptions([line for line in parsed if line.stream == stream], used)
    return sorted(raised, key=lambda one: one.line.at), used


def _stream_exceptions(lines: Sequence[_Line], used: Set[int]) -> List[_LoggedException]:
    raised: List[_LoggedException] = []
    indent: Optional[int] = None  # of the traceback that we are in
    chained = aside = False
    for place, line in enumerate(lines):
        text = re.sub(r"^\s*(\||\+(?= Exception Group)) ?", "", line.text)
        depth = len(text) - len(text.lstrip())
        if re.match(_HEADER, text.lstrip()):
            before = [one.text for one in lines[max(0, place - 3) : place] if one.text.strip()]
            aside = bool(before) and bool(re.search(_SIDE_TRACEBACK, before[-1]))
            indent = depth
            used.add(line.at)
        elif _is_body(text, depth, indent, above=place > 0 and lines[place - 1].at in used):
            used.add(line.at)
        elif re.search(_CHAINED, text):
            chained = True
        elif re.match(_RAISED if indent is not None else _EXCEPTION, text.strip()) and (
            indent is not None or not depth
        ):
            message = _message(lines, place)
            used.update(one.at for one in lines[place : place + 1 + len(message)])
            raised.append(_LoggedException(line._replace(text=text.strip()), message, chained, aside))
            indent, chained = None, False
        elif indent is not None:
            indent = None
    return raised


def _is_body(text: str, depth: int, indent: Optional[int], above: bool) -> bool:
    """Whether a line is a frame or source of a traceback, also of one whose beginning was cut off; `above`: the line
    above it is."""
    if re.match(_RICH_BOX, text):
        return True
    if indent is not None:
        return depth > indent or not text.strip()
    return bool(re.match(_FRAME, text)) or (above and depth > 0)


def _message(lines: Sequence[_Line], place: int) -> Tuple[str, ...]:
    """The further lines of an exception's message: until an empty one, or whatever begins something else."""
    found: List[str] = []
    for line in lines[place + 1 : place + 1 + _MAX_MESSAGE_LINES]:
        text = line.text.strip()
        if (
            not text
            or re.search(_HEADER, text)
            or re.match(_EXCEPTION, text)
            or re.match(_CPP_LOG, text)
            or "---" in text
        ):
            break
        if re.match(_SLURM_LINE, text) or text.startswith("shoal: "):
            break
        found.append(text)
    return tuple(found)


def _last_of_each(raised: Sequence[_LoggedException], wrappers: bool) -> List[_LoggedException]:
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


def _is_wrapper(one: _LoggedException) -> bool:
    name = one.line.text.partition(":")[0].rpartition(".")[2]
    return bool(re.search(_WRAPPERS, name)) or bool(re.search(_GROUP, one.line.text))


def _cause_of(one: _LoggedException, raised: Sequence[_LoggedException]) -> Cause:
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


def _kind(one: _LoggedException) -> str:
    texts = (one.line.text, *one.message)
    for kind, pattern in _matchers().items():
        if kind not in _NO_TRACEBACK_KINDS and any(pattern.search(text) for text in texts):
            return kind
    return "python"


def _as_cause(one: _LoggedException, kind: str) -> Cause:
    """The exception's line; or that of its message which tells the kind, or follows a bare "RuntimeError:"."""
    text, pattern = one.line.text, _matchers().get(kind)
    more = [line for line in one.message if any(letter.isalnum() for letter in line)]
    if text.endswith(":") and more:
        text = "%s %s" % (text, more[0])
    if pattern is not None and not pattern.search(text):
        text = next((line for line in one.message if pattern.search(line)), text)
    return Cause(kind, clean_log_line(text), one.line.at, _rank(one.line.stream))


def _find_outside_tracebacks(
    lines: Sequence[_Line], kinds: Tuple[str, ...], exit_code: Optional[int]
) -> Optional[Cause]:
    for kind in kinds:
        pattern = _matchers()[kind]
        for place in range(len(lines) - 1, -1, -1):
            line = lines[place]
            text = re.sub(_CPP_LOG, "", line.text).strip()
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


def _root_rank(parsed: Sequence[_Line]) -> Optional[int]:
    at = next((place for place, line in enumerate(parsed) if re.match(_ROOT, line.text)), None)
    ranks = (re.match(_ROOT_RANK, line.text) for line in parsed[at : at + 8]) if at is not None else iter(())
    return next((int(match.group(1)) for match in ranks if match), None)


def _rank(stream: str) -> Optional[int]:
    return int(stream) if stream.isdigit() else None
