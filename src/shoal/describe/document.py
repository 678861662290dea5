"""A TOML file whose values know their line.

tomllib gives no positions, so a small scanner reads the same text once more. It may trust the text, because tomllib has
accepted it by then.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, TypeVar

from shoal.describe.tables import BadValue, Key, convert, expected
from shoal.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

#: tomllib needs quadratic time and memory for hostile input, above all for a key of many parts, which cannot span
#: lines. No honest settings file is this large.
MAX_BYTES = 256 * 1024
MAX_LINE = 8192
#: Keys are noted to this depth; ours have at most five parts.
MAX_DEPTH = 12

_WHERE = re.compile(r"\(at (?:line (\d+), column (\d+)|end of document)\)")


class Document:
    """A parsed file: `values`, and `place(key)` as "shoal.toml:12"."""

    def __init__(self, shown: str, text: str) -> None:
        self.shown = shown
        self.values = _parse(shown, text)
        self._lines = _Scanner(text).lines

    @property
    def top(self) -> Table:
        return Table(self, (), self.values)

    def place(self, key: Key) -> str:
        """The line where a key, or else the nearest table around it, is written."""
        for length in range(len(key), 0, -1):
            if (line := self._lines.get(key[:length])) is not None:
                return f"{self.shown}:{line}"
        return self.shown


class Given(Document):
    """Values that were not read from TOML: every place is where the call, or the flag, stands."""

    def __init__(self, place: str, values: dict[str, Any]) -> None:
        self.shown, self.values = place, values
        self._lines: dict[Key, int] = {}


def read_document(path: Path, shown: str) -> Document:
    """Read and parse a file; whatever is wrong with it is an InputError that begins with its place."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise InputError("this is a folder, not a file", place=shown) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=shown) from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"more than {MAX_BYTES // 1024} KiB is too large for a settings file", place=shown)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"byte {error.start} is not UTF-8", hint="save it as UTF-8", place=f"{shown}:{line}") from None
    return Document(shown, text.replace("\r\n", "\n"))


class Table:
    """One table of a document: its values and where they stand."""

    def __init__(self, document: Document, key: Key, values: Any) -> None:
        self.document, self.key = document, key
        self.values: dict[str, Any] = values
        if not isinstance(values, dict):
            raise self.refused(expected("a table"))

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def read(self, wanted: type[T]) -> T:
        """The values as a declared type; every mistake is an InputError with its line."""
        try:
            return convert(self.values, wanted)
        except BadValue as bad:
            raise self.refused(bad) from None

    def table(self, name: str) -> Table:
        """A table inside this one; absent is the same as empty."""
        return Table(self.document, (*self.key, name), self.values.get(name, {}))

    def place(self, *rest: str | int) -> str:
        return self.document.place(self.key + rest)

    def error(self, rest: Key, message: str, hint: str | None = None) -> InputError:
        return InputError(message, hint=hint, place=self.place(*rest))

    def refused(self, bad: BadValue) -> InputError:
        """The error of a value in this table, with its whole key, its value and its line."""
        value: Any = self.values
        for part in bad.key if bad.shows_value else ():
            value = value[part]
        key = self.key + bad.key
        message = bad.message(".".join(str(part) for part in key), value)
        return InputError(message, hint=bad.hint, place=self.document.place(key))


def _parse(shown: str, text: str) -> dict[str, Any]:
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > MAX_LINE:
            raise InputError(f"a line of more than {MAX_LINE} characters is too long", place=f"{shown}:{number}")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        at = _WHERE.search(message)
        line = at[1] if at is not None and at[1] else str(text.count("\n") + 1)
        what = _WHERE.sub("", message).strip()
        hint = 'a table is [steps.train], a value is command = "python train.py": https://toml.io'
        raise InputError(
            f"this is not TOML: {what[:1].lower()}{what[1:]}", hint=hint, place=f"{shown}:{line}"
        ) from None
    except RecursionError:
        raise InputError("the values are nested too deeply", place=shown) from None
    except ValueError as error:  # a date such as 2026-02-30, or a number with thousands of digits
        raise InputError(f"this is not TOML: {error}", place=shown) from None


class _Scanner:
    """The line of every key of a text that tomllib has accepted; elements of lists are numbered."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.lines: dict[Key, int] = {}
        self._counted_at, self._line = 0, 1
        self._elements: dict[Key, int] = {}
        table: Key = ()
        while self._skip(" \t\n\r"):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._assignment(table)

    def _header(self) -> Key:
        double = self.text.startswith("[[", self.at)
        line = self._line_here()
        self.at += 2 if double else 1
        key = self._key()
        self._note(key, line)
        self.at += 2 if double else 1
        if not double:
            return key
        self._elements[key] = self._elements.get(key, -1) + 1
        return (*key, self._elements[key])

    def _assignment(self, table: Key) -> None:
        self._skip(" \t")
        line = self._line_here()
        key = table + self._key()
        self._note(key, line)
        self.at += 1  # the equals sign
        self._value(key)

    def _key(self) -> Key:
        parts: list[str | int] = []
        while True:
            self._skip(" \t")
            if self.text[self.at] in "\"'":
                start = self.at
                self._string()
                parts.append(next(iter(tomllib.loads(f"{self.text[start : self.at]} = 0"))))
            else:
                start = self.at
                while self.text[self.at] not in " \t.=]":
                    self.at += 1
                parts.append(self.text[start : self.at])
            self._skip(" \t")
            if self.text[self.at] != ".":
                return tuple(parts)
            self.at += 1

    def _value(self, key: Key) -> None:
        self._skip(" \t\n\r")
        first = self.text[self.at]
        if first in "\"'":
            self._string()
        elif first in "[{":
            self.at += 1
            index = 0
            while self._skip(" \t\n\r,") and self.text[self.at] not in "]}":
                if first == "[":
                    self._note((*key, index), self._line_here())
                    self._value((*key, index))
                else:
                    self._assignment(key)
                index += 1
            self.at += 1
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}\n#":
                self.at += 1

    def _string(self) -> None:
        quote = self.text[self.at]
        mark = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(mark)
        while not self.text.startswith(mark, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(mark)
        while len(mark) == 3 and self.text.startswith(quote, self.at):  # up to two quotes may end a long string
            self.at += 1

    def _skip(self, blanks: str) -> bool:
        """Step over blanks and comments; False at the end of the text."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text[self.at] in blanks:
                self.at += 1
            else:
                return True
        return False

    def _note(self, key: Key, line: int) -> None:
        for length in range(1, min(len(key), MAX_DEPTH) + 1):
            self.lines.setdefault(key[:length], line)

    def _line_here(self) -> int:
        self._line += self.text.count("\n", self._counted_at, self.at)
        self._counted_at = self.at
        return self._line
