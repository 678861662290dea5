"""The lines of a log: fit to be quoted, told apart by who wrote them, and the exceptions among them. Pure.

Logs are other people's text: a line is only ever quoted, cut, and cleaned of what could act on a terminal.
"""

import re
from typing import List, NamedTuple, Optional, Sequence, Set, Tuple

_MAX_QUOTED = 200
_MAX_LINE = 4000
#: What Slurm says about a job is about the job, whatever its programs say.
SLURM_LINE = r"^(slurmstepd|srun|slurmd|slurm_script|batch): |^\*\*\* (JOB|STEP)"
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
QUOTED_RANK = r"shoal: the end of .*rank-(\d+)\S*:$"
#: What C++ logs before its words; a progress bar may stand before it on the same line.
CPP_PREFIX = r"^.*?\[[EFWI][\d:. ]*\w+\.cpp:\d+\]\s*"
_CHAINED = r"During handling of the above exception|The above exception was the direct cause"
MAX_MESSAGE_LINES = 20


class LogLine(NamedTuple):
    """A line without its prefix; `stream` tells apart who wrote it."""

    at: int
    stream: str
    text: str


class LoggedException(NamedTuple):
    """An exception: its first line, the rest of its message, whether it was raised while handling the one before, and
    whether it did not end the program."""

    line: LogLine
    message: Tuple[str, ...]
    is_chained: bool
    is_aside: bool


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


def parse_lines(lines: Sequence[str]) -> List[LogLine]:
    found, quoted = [], ""
    for at, line in enumerate(lines):
        text, stream = strip_escapes(line[:_MAX_LINE].rstrip()), ""
        start = re.match(QUOTED_RANK, text)
        if start:
            quoted = start.group(1)
        while True:
            match = re.match(_PREFIX, text)
            if match is None:
                break
            text = text[match.end() :]
            own = match.group("rank") or match.group("task") or match.group("actor")
            stream = own or (quoted if match.group("quote") else stream)
        found.append(LogLine(at, stream, text))
    return found


def find_exceptions(parsed: Sequence[LogLine]) -> Tuple[List[LoggedException], Set[int]]:
    """Every exception in the order of its lines, and the places of lines that belong to tracebacks."""
    raised: List[LoggedException] = []
    used: Set[int] = set()
    for stream in dict.fromkeys(line.stream for line in parsed):
        raised += _stream_exceptions([line for line in parsed if line.stream == stream], used)
    return sorted(raised, key=lambda one: one.line.at), used


def _stream_exceptions(lines: Sequence[LogLine], used: Set[int]) -> List[LoggedException]:
    raised: List[LoggedException] = []
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
            raised.append(LoggedException(line._replace(text=text.strip()), message, chained, aside))
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


def _message(lines: Sequence[LogLine], place: int) -> Tuple[str, ...]:
    """The further lines of an exception's message: until an empty one, or whatever begins something else."""
    found: List[str] = []
    for line in lines[place + 1 : place + 1 + MAX_MESSAGE_LINES]:
        text = line.text.strip()
        if (
            not text
            or re.search(_HEADER, text)
            or re.match(_EXCEPTION, text)
            or re.match(CPP_PREFIX, text)
            or "---" in text
        ):
            break
        if re.match(SLURM_LINE, text) or text.startswith("shoal: "):
            break
        found.append(text)
    return tuple(found)
