"""The lines of a batch script, its #SBATCH directives as sbatch reads them, and those that sbatch ignores.

`read_text` accepts any encoding and line ending and describes what it found; it refuses nothing. Tested with Slurm
22.05: directives count up to the first line that is neither blank nor a comment; the line must begin with #SBATCH (no
blank before it), and no blank is needed after it; # begins a comment, also inside a word.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.batch.sbatch_flags import known_options, long_name, short_names
from shoal.batch.shell_words import Heredoc

_MAGIC = "#SBATCH"
#: Spellings that sbatch takes and its help does not show, and those that old scripts still have.
_ALIASES = {"tasks-per-node": "ntasks-per-node", "tasks": "ntasks-per-node", "cluster": "clusters"}
#: `# sbatch -N 2 job.sh`, in small letters and with a blank, is a comment on how to submit, and not meant for sbatch.
_NEAR_DIRECTIVE = re.compile(
    r"(?:(?P<blank>\s+)#SBATCH|#{2,}\s*SBATCH|#\s+SBATCH|#(?!SBATCH)(?i:sbatch))\b\s*:?\s*(?=-)"
)
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%|(?:^|=)<[A-Za-z_][\w -]*>|@@\w+@@|%\(\w+\)s|\{[a-z_]\w*\}")
#: A word in capitals that may be a slip for SBATCH: #SBTACH, #SBATH, #BATCH.
_MISSPELT = re.compile(r"#(?P<word>[A-Z]{4,8})\s+(?=-{1,2}[A-Za-z])")
_HETJOB = re.compile(r"#SBATCH\s+(?:hetjob|packjob)\b")


def is_template(text: str) -> bool:
    """Whether a text has places that another program fills in, such as {{ name }} or <PARTITION>."""
    return bool(_TEMPLATE.search(text))


class SbatchOption(NamedTuple):
    """One option of a directive: its long name, value (None when it has none), line, and how it was written."""

    name: str
    value: str | None
    line: int
    written: str

    @property
    def is_template(self) -> bool:
        return is_template(self.value or "")

    @property
    def is_literal(self) -> bool:
        return "$" not in (self.value or "") and "`" not in (self.value or "") and not self.is_template


class IgnoredDirective(NamedTuple):
    """A line that looks like a directive and is none; `why` is "late", "indented", "misspelt", "spaced" (# SBATCH) or
    "disabled" (##SBATCH)."""

    line: int
    text: str
    why: str
    options: tuple[SbatchOption, ...] = ()


class StrayWord(NamedTuple):
    """A word in a directive that belongs to no option."""

    line: int
    word: str
    text: str


class ScriptDirectives(NamedTuple):
    options: tuple[SbatchOption, ...]
    ignored: tuple[IgnoredDirective, ...]
    strays: tuple[StrayWord, ...]
    lines: tuple[int, ...]
    first_command: int | None
    is_het: bool

    def last(self) -> dict[str, SbatchOption]:
        """As in sbatch, the later one counts."""
        return {option.name: option for option in self.options}


def read_directives(lines: Sequence[str], heredocs: Sequence[Heredoc]) -> ScriptDirectives:
    """All directives and near-directives of a script; text inside here-documents belongs to other scripts."""
    inside = [(one.line, one.last_line) for one in heredocs]
    options: list[SbatchOption] = []
    ignored: list[IgnoredDirective] = []
    strays: list[StrayWord] = []
    read: list[int] = []
    first_command: int | None = None
    is_het = False
    for number, line in enumerate(lines, start=1):
        if line.startswith(_MAGIC):
            if any(first <= number < last for first, last in inside):
                continue
            is_het = is_het or bool(_HETJOB.match(line))
            found, stray = parse_option_words(split_directive(line[len(_MAGIC) :]), number)
            if first_command is not None:
                ignored.append(IgnoredDirective(number, line, "late", tuple(found)))
            elif not is_het:
                options += found
                strays += [StrayWord(number, word, line) for word in stray]
                read.append(number)
            continue
        match = _match_near_directive(line)
        if match is not None and not any(first <= number < last for first, last in inside):
            why = _ignored_reason(line, match)
            found, _ = parse_option_words(split_directive(line[match.end() :]), number)
            ignored.append(IgnoredDirective(number, line, why, tuple(found)))
        elif first_command is None and line.strip() and not line.lstrip().startswith("#"):
            first_command = number
    return ScriptDirectives(tuple(options), tuple(ignored), tuple(strays), tuple(read), first_command, is_het)


def _match_near_directive(line: str) -> re.Match[str] | None:
    """The beginning of a line that was perhaps meant as a directive."""
    if "#" not in line[:40]:
        return None
    if "batch" in line.lower() and (match := _NEAR_DIRECTIVE.match(line)) is not None:
        return match
    match = _MISSPELT.match(line)
    return match if match is not None and _is_slip_for_sbatch(match["word"]) else None


def _is_slip_for_sbatch(word: str) -> bool:
    """Letters in another order, or one letter too few, too many or wrong."""
    right = _MAGIC[1:]
    if word == right:
        return False
    if sorted(word) == sorted(right):
        return True
    longer, shorter = (word, right) if len(word) > len(right) else (right, word)
    if len(longer) == len(shorter):
        return sum(one != other for one, other in zip(word, right, strict=True)) == 1
    return any(longer[:at] + longer[at + 1 :] == shorter for at in range(len(longer)))


def _ignored_reason(line: str, match: re.Match[str]) -> str:
    if match.re is _MISSPELT:
        return "misspelt"
    if match["blank"]:
        return "indented"
    if "SBATCH" not in line:
        return "misspelt"
    return "disabled" if line.startswith("##") else "spaced"


def split_directive(text: str) -> list[str]:
    """Words of a directive as sbatch splits them: quotes hold blanks, a backslash one character, # ends the line."""
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    escaped = False
    for letter in text:
        if escaped:
            word, escaped = [*(word or []), letter], False
        elif letter == "\\":
            escaped = True
        elif letter == "#":
            break
        elif quote:
            if letter == quote:
                quote = ""
            else:
                word = [*(word or []), letter]
        elif letter in "\"'":
            quote, word = letter, word or []
        elif letter.isspace():
            if word is not None:
                words.append("".join(word))
            word = None
        else:
            word = [*(word or []), letter]
    if word is not None:
        words.append("".join(word))
    return words


def parse_option_words(words: Sequence[str], line: int = 0) -> tuple[list[SbatchOption], list[str]]:
    """Options in every spelling of sbatch, and the words that belong to none."""
    found: list[SbatchOption] = []
    stray: list[str] = []
    takes = known_options()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and len(word) > 2:
            written, equals, value = word[2:].partition("=")
            name = _ALIASES.get(written) or long_name(written)
            if equals:
                found.append(SbatchOption(name, value, line, word))
            elif takes.get(name) == 2 or (name not in takes and rest and not rest[0].startswith("-")):
                found.append(SbatchOption(name, rest.pop(0) if rest else None, line, word))
            else:
                found.append(SbatchOption(name, None, line, word))
        elif word.startswith("-") and len(word) > 1 and word != "--":
            found += _short_option(word, rest, line, stray)
        else:
            stray.append(word)
    return found, stray


def _short_option(word: str, rest: list[str], line: int, stray: list[str]) -> list[SbatchOption]:
    found: list[SbatchOption] = []
    takes, names = known_options(), short_names()
    for position, letter in enumerate(word[1:], start=2):
        name = names.get(letter)
        if name is None:
            stray.append(word)
            break
        if takes[name] == 2:
            value = word[position:].removeprefix("=") or (rest.pop(0) if rest else None)
            return [*found, SbatchOption(name, value, line, word[: position - 1] if position > 2 else word[:2])]
        found.append(SbatchOption(name, None, line, word))
    return found


def partitions_asked(options: Mapping[str, SbatchOption]) -> str | None:
    """What --partition says: names with commas between them."""
    return options["partition"].value if "partition" in options else None


#: Slurm's default max_script_size; a longer script is refused by the controller.
SLURM_MAX_BYTES = 4 * 1024 * 1024
#: Beyond this the text is generated, and reading it would take longer than people wait; directives stand at the top.
MAX_BYTES = 512 * 1024

_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


class ScriptText(NamedTuple):
    """`encoding` is utf-8, utf-8-sig, utf-16, latin-1 or binary; lines of a binary file are not given."""

    lines: tuple[str, ...]
    encoding: str
    size: int
    cut: bool = False
    crlf: int = 0
    first_crlf: int = 0
    has_nul: bool = False

    @property
    def body(self) -> str:
        return "\n".join(self.lines)


def read_text(path: Path) -> ScriptText:
    """The text of a file; OSError when it cannot be read, never anything else."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES)
        size = len(data) if len(data) < MAX_BYTES else path.stat().st_size
    return decode_text(data, size)


def decode_text(data: bytes, size: int | None = None) -> ScriptText:
    """Describe bytes; `size` is the whole file's when `data` is its beginning."""
    size = len(data) if size is None else size
    cut = size > len(data)
    encoding = next((name for bom, name in _BOMS if data.startswith(bom)), None) or _guess_encoding(data)
    if encoding == "binary":
        return ScriptText((), encoding, size, cut, has_nul=b"\0" in data)
    text = data.decode(encoding, "replace")
    if cut:
        text = text[: text.rfind("\n") + 1]
    ends_crlf = [number for number, line in enumerate(text.split("\n"), start=1) if line.endswith("\r")]
    # Not splitlines(): a form feed or a Unicode separator does not end a line for sbatch or bash.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if lines and not lines[-1]:
        lines.pop()
    return ScriptText(
        tuple(lines), encoding, size, cut, len(ends_crlf), ends_crlf[0] if ends_crlf else 0, b"\0" in data
    )


def _guess_encoding(data: bytes) -> str:
    head = data[:4096]
    nuls = head.count(b"\0")
    if nuls:
        # Text in UTF-16 has a NUL in every second byte; a program has them in runs.
        odd, even = head[1::2].count(b"\0"), head[::2].count(b"\0")
        if nuls * 3 > len(head) and min(odd, even) * 8 < nuls:
            return "utf-16-le" if odd > even else "utf-16-be"
        return "binary"
    if len(_CONTROL.findall(head)) * 20 > len(head) > 0:
        return "binary"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        # A cut inside a character at the end is not another encoding.
        return "utf-8" if error.start > len(data) - 4 else "latin-1"
    return "utf-8"
