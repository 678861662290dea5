r"""The one place where text becomes shell words or #SBATCH lines.

How sbatch reads a directive was tested with Slurm 22.05: blanks end a value unless it is in quotes, even after a
backslash; inside double quotes a backslash takes the next character as it is; # begins a comment unless it is in quotes
or escaped; nothing is expanded. So a value that is not plain is put in double quotes, with \, " and # escaped.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from shoal.errors import InputError

_OPTION = re.compile(r"[a-z][a-z0-9-]*", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
_ESCAPED_CHARACTERS = re.compile(r'[\\"#]')
#: Words that bash reads as grammar when they come first in a command.
_KEYWORDS = frozenset({"if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while", "until", "do",
                       "done", "in", "function", "time", "coproc"})  # fmt: skip


def shell_quote(text: str) -> str:
    """One shell word that bash reads back as exactly `text`; a NUL cannot be in any argument and is refused."""
    if "\0" in text:
        raise InputError(f"{text!r} has a NUL character, which no program can receive")
    return shlex.quote(text)


def shell_command(words: Sequence[str]) -> str:
    """A command whose first word cannot turn into an assignment or a keyword."""
    first, rest = words[0], [shell_quote(word) for word in words[1:]]
    quoted = shell_quote(first)
    if quoted == first and ("=" in first or first in _KEYWORDS):
        quoted = f"'{first}'"
    return " ".join([quoted, *rest])


def sbatch_lines(options: Iterable[tuple[str, str | None]]) -> list[str]:
    return [sbatch_line(name, value) for name, value in options]


def sbatch_line(name: str, value: str | None = None) -> str:
    """One #SBATCH line that sbatch reads back as exactly this option; a value of several lines is refused."""
    if not _OPTION.fullmatch(name):
        raise InputError(f"{name!r} is not the name of an sbatch option")
    if value is None:
        return f"#SBATCH --{name}"
    refuse_line_breaks(value, f"--{name}")
    if _PLAIN.fullmatch(value):
        return f"#SBATCH --{name}={value}"
    escaped = _ESCAPED_CHARACTERS.sub(r"\\\g<0>", value)
    return f'#SBATCH --{name}="{escaped}"'


def escape_percent(path: str) -> str:
    """A path for --output or --error that Slurm takes as it is: % would be replaced, a backslash switches that off."""
    refuse_line_breaks(path, "a log path")
    if "\\" in path:
        raise InputError(f"{path!r} has a backslash, which Slurm misreads in log paths")
    return path.replace("%", "%%")


def refuse_line_breaks(value: str, what: str) -> None:
    """A line break in a header line would begin a line of its own: another option, or code."""
    if any(letter in value for letter in "\n\r\0"):
        raise InputError(f"{what} cannot have line breaks or NUL characters: {value!r}", hint="write it in one line")
