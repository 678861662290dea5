"""Settings as declared types: a table of a file is a msgspec.Struct, and `convert` makes one or says what is wrong.

class Smoke(SettingsTable, frozen=True):
    steps: Count = 3
    time_s: Seconds = field(default=600, name="time")

`rule` adds a condition to a type. A type such as `Seconds` is read by a function of ours and is a plain value
afterwards, which is what mypy sees. What is wrong is told with its key, whose line the document knows.
"""

from __future__ import annotations

import json
import re
import shlex
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from shoal.errors import InputError
from shoal.redaction import is_secret, secrets_file_hint
from shoal.units import format_memory, format_slurm_time, parse_duration_s, parse_memory_mb

Key = tuple[str | int, ...]
T = TypeVar("T")

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: What only a shell understands: > | && ; and their kin, also >log.txt, 2>&1 and `cd x;`.
_OPERATOR = re.compile(r"[|&;<]|\|\||&&|\|&|(?:\d*|&)>>?(?:&?[^\s'\"<>=]*)|[^\s'\"]+;")
_MAX_SHOWN = 60


class SettingsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the declared tables; `__post_init__` may raise a BadValue about several keys together."""


class BadValue(ValueError):
    """What is wrong with the value at `key`, counted from the value that was to be converted.

    `Table.read` makes an InputError of it, which names the whole key and the line.
    """

    def __init__(
        self, why: str, *, key: Key = (), hint: str | None = None, layout: str = "invalid {key}: {why}"
    ) -> None:
        super().__init__(why)
        self.why, self.key, self.hint, self._layout = why, key, hint, layout

    @property
    def shows_value(self) -> bool:
        return "{value}" in self._layout

    def message(self, dotted: str, value: Any) -> str:
        shown = repr(value) if not isinstance(value, bool) else str(value).lower()
        shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
        return self._layout.format(key=dotted, value=shown, why=self.why)

    def inside(self, outer: Key, hint: str | None = None) -> BadValue:
        return BadValue(self.why, key=outer + self.key, hint=self.hint or hint, layout=self._layout)


def expected(what: str, *, key: Key = (), hint: str | None = None) -> BadValue:
    return BadValue(what, key=key, hint=hint, layout="invalid {key} = {value}: expected {why}")


def unknown_key(name: str, allowed: Sequence[str]) -> BadValue:
    from difflib import get_close_matches

    near = get_close_matches(name, allowed, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    return BadValue(guess, key=(name,), hint=f"allowed here: {', '.join(allowed)}", layout="unknown key {key!r}{why}")


def rule(holds: Callable[[Any], object], words: str, example: str | None = None) -> Meta:
    """A condition on a value: `Annotated[str, rule(...)]`. `words` complete "expected ..."; `example` is the hint.
    `holds` may also raise a BadValue with words of its own."""
    return Meta(description=words, examples=[example] if example else None, extra={"holds": holds})


def one_of(choices: Collection[str]) -> Meta:
    return rule(lambda word: word in choices, f"one of {', '.join(sorted(choices))}")


def convert(value: Any, wanted: type[T]) -> T:
    """The value as a declared type, or a BadValue."""
    try:
        found = msgspec.convert(value, wanted, dec_hook=_read)
    except msgspec.ValidationError:
        _refuse(value, wanted)
        raise
    _check(found, wanted)
    return found


def _read(wanted: Any, value: Any) -> Any:
    try:
        return wanted.read(value)
    except InputError as error:
        raise BadValue(error.message, hint=error.hint) from None


def _check(value: Any, wanted: Any, key: Key = (), hint: str | None = None) -> None:
    """Raise a BadValue where the rules of a type do not hold for a converted value, or for one inside."""
    hint = _example(wanted) or hint
    if get_origin(wanted) in (Union, types.UnionType):
        for kind in _kinds(wanted, whole=True):
            plain = next(_kinds(kind))
            if value is not None and isinstance(value, get_origin(plain) or plain):
                _check(value, kind, key, hint)
    elif get_origin(wanted) is Annotated:
        for meta in get_args(wanted)[1:]:
            try:
                fits = not meta.extra or meta.extra["holds"](value)
            except BadValue as bad:
                raise bad.inside(key, hint) from None
            if not fits:
                raise expected(meta.description, key=key, hint=hint)
        _check(value, get_args(wanted)[0], key, hint)
    elif isinstance(value, SettingsTable) and type(value) is wanted:
        for name, field, inner, default in _types(wanted):
            if (found := getattr(value, name)) is not default:
                _check(found, inner, (*key, field), hint)
    elif get_origin(wanted) is dict:
        for name, item in value.items():
            _check(item, get_args(wanted)[1], (*key, name), hint)
    elif get_origin(wanted) in (list, tuple):
        for index, item in enumerate(value):
            _check(item, get_args(wanted)[0], (*key, index), hint)


@cache
def _types(table: type[msgspec.Struct]) -> list[tuple[str, str, Any, Any]]:
    return [(field.name, field.encode_name, field.type, field.default) for field in msgspec.structs.fields(table)]


def _refuse(value: Any, wanted: Any, key: Key = (), hint: str | None = None) -> None:
    """Raise a BadValue about the first value that msgspec refused; its hint is the innermost example.

    msgspec's own error names a path, but not the key of a dict, and an unknown key may look like a path.
    """
    hint = _example(wanted) or hint
    for kind in _kinds(wanted):
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            fields = {field: inner for _, field, inner, _ in _types(kind)}
            for name, inner in value.items():
                if name not in fields:
                    raise unknown_key(name, list(fields)).inside(key)
                _refuse(inner, fields[name], (*key, name), hint)
            for one in msgspec.structs.fields(kind):
                if one.required and one.encode_name not in value:
                    raise BadValue("", key=(*key, one.name), hint=_example(one.type), layout="missing key {key!r}")
        elif isinstance(value, dict) and get_origin(kind) is dict:
            for name, inner in value.items():
                allowed = get_args(get_args(kind)[0])
                if allowed and name not in allowed:
                    raise unknown_key(name, allowed).inside(key)
                _refuse(inner, get_args(kind)[1], (*key, name), hint)
        elif isinstance(value, list) and get_origin(kind) in (list, tuple):
            for index, inner in enumerate(value):
                _refuse(inner, get_args(kind)[0], (*key, index), hint)
    try:
        msgspec.convert(value, wanted, dec_hook=_read)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, BadValue):
            raise error.__cause__.inside(key, hint) from None
        raise expected(" or ".join(map(_words, _kinds(wanted, whole=True))), key=key, hint=hint) from None


def _kinds(wanted: Any, *, whole: bool = False) -> Iterator[Any]:
    """The types that a value may have: those of a union, without None; and without their Meta unless `whole`."""
    if get_origin(wanted) in (Union, types.UnionType):
        for kind in get_args(wanted):
            yield from _kinds(kind, whole=whole)
    elif get_origin(wanted) is Annotated and not whole:
        yield from _kinds(get_args(wanted)[0])
    elif wanted is not type(None):
        yield wanted


def _example(wanted: Any) -> str | None:
    metas = get_args(wanted)[1:] if get_origin(wanted) is Annotated else ()
    return next((meta.examples[0] for meta in metas if meta.examples), None)


def _words(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return next((meta.description for meta in get_args(kind)[1:] if meta.description), _words(get_args(kind)[0]))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    names = {str: "a string", int: "a whole number", bool: "true or false", list: "a list", tuple: "a list"}
    return names.get(get_origin(kind) or kind, "a table")


def _is_line(text: str) -> bool:
    if not text.strip():
        raise expected("a string that is not empty", hint="remove the line to leave it open")
    return text.isprintable()


# -- types ------------------------------------------------------------------------------------------------------------

Count = Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
CountOrZero = Annotated[int, Meta(ge=0, description="a whole number of at least 0")]
Text = Annotated[str, rule(_is_line, "a string of one printable line")]
Plain = Annotated[str, rule(lambda text: "\0" not in text, "a string without NUL characters")]
Strings = tuple[Plain, ...]


class _ReadBy(type):
    """A type that msgspec leaves to `_read`. It asks what a function returns for its type, which is any."""

    def __instancecheck__(cls, value: object) -> bool:
        return True


def read_by(function: Callable[[Any], Any]) -> Any:
    """The type of values that this function reads; for mypy it is declared as what the function returns."""
    return _ReadBy(function.__name__, (), {"read": staticmethod(function)})


def read_words(value: Any) -> tuple[str, ...]:
    """A command: a list of strings, or a string that is split as a shell would. No shell reads it, so what only a
    shell understands is refused."""
    if not isinstance(value, str):
        if not isinstance(value, list):
            raise expected("a string or a list of strings")
        return convert(value, Strings)
    convert(value, Plain)
    try:
        words, quoted = shlex.split(value), shlex.split(value, posix=False)
    except ValueError as error:
        why = f"the string cannot be split into words: {str(error).lower()}"
        raise BadValue(why, hint='write a list, which is taken as it is: ["python", "train.py"]') from None
    for word in quoted:
        if _OPERATOR.fullmatch(word):
            raise BadValue(
                f"no shell reads {word!r}: the program would get it as an argument",
                hint=f"use {json.dumps(['bash', '-c', value])}, or quote {word} if the program wants it",
            )
    return tuple(words)


def read_environment(value: Any) -> dict[str, str]:
    """Environment variables. Secrets are refused: these values are written into scripts and records."""
    if not isinstance(value, dict):
        raise expected("a table")
    for name, item in value.items():
        if not _ENV_NAME.fullmatch(name):
            raise BadValue(f"{name!r} is not the name of an environment variable", key=(name,))
        if is_secret(name, str(item)):
            why = "the variable looks like a secret, and its value would be written into scripts"
            raise BadValue(why, key=(name,), hint=secrets_file_hint(name))
        if isinstance(item, bool) or not isinstance(item, str | int | float) or "\0" in str(item):
            raise expected("a string or a number", key=(name,))
    return {name: str(item) for name, item in value.items()}


if TYPE_CHECKING:
    Words = tuple[str, ...]
    Environment = dict[str, str]
    Seconds = int
    SlurmTime = str
    Memory = str
else:
    Words, Environment = read_by(read_words), read_by(read_environment)
    Seconds = read_by(lambda value: parse_duration_s(convert(value, Text)))
    SlurmTime = read_by(lambda value: format_slurm_time(parse_duration_s(convert(value, Text))))
    Memory = read_by(lambda value: format_memory(parse_memory_mb(convert(value, Text))))


class MetricTable(SettingsTable, frozen=True):
    """`metric = { name = "val_loss", mode = "min" }`"""

    name: Annotated[Text, Meta(examples=['metric = { name = "val_loss", mode = "min" }'])]
    mode: Annotated[str, one_of(("min", "max"))] | None = None


#: `metric = "val_loss"`: the metric that tables of runs show and sort by.
MetricSetting = Text | MetricTable


def metric_record(metric: str | MetricTable | None) -> dict[str, str]:
    """A metric setting as run specs and views keep it: `name`, and `mode` where one is set."""
    if metric is None or isinstance(metric, str):
        return {} if metric is None else {"name": metric}
    return {"name": metric.name, **({"mode": metric.mode} if metric.mode else {})}


class StatusTable(SettingsTable, frozen=True):
    """[status], which `status` reads alone."""

    columns: Text | None = None
    metric: MetricSetting | None = None
