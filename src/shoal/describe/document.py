"""A TOML file whose values know their line, and the errors for unknown keys and wrong types.

tomllib gives no positions, so a small scanner walks the same text once more. It may trust the text, because tomllib has
accepted it by then.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import InputError
from shoal.secrecy import is_secret, secrets_file_hint

Key = tuple[str | int, ...]

#: tomllib needs quadratic time and memory for hostile input, above all for a key of many parts, which cannot span
#: lines. No honest settings file is this large.
MAX_BYTES = 256 * 1024
MAX_LINE = 8192
#: Keys are noted to this depth; ours have at most five parts.
MAX_DEPTH = 12

_WHERE = re.compile(r"\(at (?:line (\d+), column (\d+)|end of document)\)")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: What only a shell understands: > | && ; and their kin, also >log.txt, 2>&1 and `cd x;`.
_OPERATOR = re.compile(r"[|&;<]|\|\||&&|\|&|(?:\d*|&)>>?(?:&?[^\s'\"<>=]*)|[^\s'\"]+;")


class Document:
    """A parsed file: `values`, and `place(key)` as "shoal.toml:12"."""

    def __init__(self, shown: str, text: str) -> None:
        self.shown = shown
        self.values = _parse(shown, text)
        self._lines = _Scanner(text).lines

    def table(self, allowed: Sequence[str]) -> Table:
        return Table(self, (), self.values, allowed)

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
    """One table of a document, read by key and type. A key outside `allowed` is an error as soon as it is opened."""

    def __init__(self, document: Document, key: Key, values: Any, allowed: Sequence[str] | None = None) -> None:
        self.document, self.key = document, key
        if not isinstance(values, dict):
            raise self.error((), f"{self._dotted(())} must be a table, not {_kind(values)}")
        self.values: dict[str, Any] = values
        if allowed is not None:
            for name in values:
                if name not in allowed:
                    raise self._unknown(name, allowed)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def place(self, *rest: str | int) -> str:
        return self.document.place(self.key + rest)

    def error(self, rest: Key, message: str, hint: str | None = None) -> InputError:
        return InputError(message, hint=hint, place=self.document.place(self.key + rest))

    def table(self, name: str, allowed: Sequence[str] | None = None) -> Table:
        """A table inside this one; absent is the same as empty."""
        return Table(self.document, (*self.key, name), self.values.get(name, {}), allowed)

    def tables(self, name: str) -> dict[str, Table]:
        """The tables inside a table, such as every [steps.NAME]."""
        outer = self.table(name)
        return {inner: Table(self.document, (*outer.key, inner), value) for inner, value in outer.values.items()}

    def text(self, name: str, choices: Collection[str] | None = None) -> str | None:
        """A non-empty string of one line."""
        value = self._of(name, str, "a string")
        if value is None:
            return None
        if not value.strip():
            raise self.error((name,), f"{self._dotted((name,))} is empty", hint="remove the line to leave it open")
        if not value.isprintable():
            raise self.error((name,), f"{self._dotted((name,))} has line breaks or characters that cannot be printed")
        if choices is not None and value not in choices:
            listed = ", ".join(sorted(choices))
            raise self.error((name,), f"{self._dotted((name,))} = {value!r} is unknown; allowed are {listed}")
        return str(value)

    def integer(self, name: str, least: int) -> int | None:
        value = self._of(name, int, "a whole number")
        if value is not None and value < least:
            raise self.error((name,), f"{self._dotted((name,))} must be at least {least}, not {value}")
        return None if value is None else int(value)

    def flag(self, name: str) -> bool | None:
        value = self._of(name, bool, "true or false")
        return None if value is None else bool(value)

    def strings(self, name: str) -> tuple[str, ...] | None:
        """A list of strings; None when absent."""
        value = self._of(name, list, "a list of strings")
        if value is None:
            return None
        for index, item in enumerate(value):
            if not isinstance(item, str) or "\0" in item:
                raise self.error((name, index), f"{self._dotted((name,))} must hold strings, not {_kind(item)}")
        return tuple(value)

    def words(self, name: str) -> tuple[str, ...] | None:
        """A command: a list of strings, or a string that is split as a shell would; None when absent. No shell reads
        it, so what only a shell understands is refused."""
        written = self.values.get(name)
        if isinstance(written, list):
            return self.strings(name)
        text = self._of(name, str, "a string or a list of strings")
        if text is None:
            return None
        if "\0" in text:
            raise self.error((name,), f"{name} has a NUL character")
        try:
            words, quoted = shlex.split(text), shlex.split(text, posix=False)
        except ValueError as error:
            raise self.error(
                (name,),
                f"{name} cannot be split into words: {str(error).lower()}",
                hint=f'a list is taken as it is: {name} = ["python", "train.py"]',
            ) from None
        for word in quoted:
            if _OPERATOR.fullmatch(word):
                raise self.error(
                    (name,),
                    f"{name} has {word!r}, which no shell reads: the program would get it as an argument",
                    hint=f"{name} = {json.dumps(['bash', '-c', text])}   # or quote {word} if the program wants it",
                )
        return tuple(words)

    def lines(self, name: str) -> tuple[str, ...] | None:
        """Shell lines: one string, which may have several lines, or a list of strings."""
        value = self.values.get(name)
        if not isinstance(value, str):
            return self.strings(name)
        if "\0" in value:
            raise self.error((name,), f"{self._dotted((name,))} has a NUL character")
        return tuple(value.strip("\n").split("\n"))

    def environment(self, name: str) -> dict[str, str]:
        """A table of environment variables. Secrets are refused: these values are written into scripts and records."""
        inner = self.table(name)
        found = {}
        for variable, value in inner.values.items():
            if not _ENV_NAME.fullmatch(variable):
                raise inner.error((variable,), f"{variable!r} is not the name of an environment variable")
            if is_secret(variable, str(value)):
                raise inner.error(
                    (variable,),
                    f"{variable} looks like a secret, and what stands here is written into scripts",
                    hint=secrets_file_hint(variable),
                )
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise inner.error((variable,), f"{variable} must be a string or a number, not {_kind(value)}")
            if "\0" in str(value):
                raise inner.error((variable,), f"{variable} has a NUL character")
            found[variable] = str(value)
        return found

    def _of(self, name: str, wanted: type, words: str) -> Any:
        value = self.values.get(name)
        # bool is an int in Python, but not in TOML.
        if value is None or (isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))):
            return value
        raise self.error((name,), f"{self._dotted((name,))} must be {words}, not {_kind(value)}")

    def _unknown(self, name: str, allowed: Sequence[str]) -> InputError:
        from difflib import get_close_matches

        near = get_close_matches(name, allowed, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        return self.error(
            (name,), f"unknown key {self._dotted((name,))!r}{guess}", hint=f"allowed here: {', '.join(allowed)}"
        )

    def _dotted(self, rest: Key) -> str:
        return ".".join(str(part) for part in self.key + rest)


def _kind(value: Any) -> str:
    names = {bool: "true/false", str: "a string", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return names.get(type(value), "a date or time")


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
