"""The small files of a run as typed records. Unknown fields are kept out of the way: a newer shoal may add some.

Those of a submission are the kernel's own types, which jobs use too; here they are read with every field checked.
"""

from __future__ import annotations

import functools
import json
import operator
import os
import typing
from typing import Any, TypeVar

import msgspec

from shoal.errors import InputError
from shoal.kernel import (
    AssignedResources,
    ClaimRecord,
    End,
    FollowUp,
    Outcome,
    RequestedResources,
    SendRecord,
    Start,
    Submission,
    files,
    layout,
    lease,
)
from shoal.kernel import records as kernel

__all__ = [
    "AssignedResources",
    "ClaimRecord",
    "End",
    "FollowUp",
    "Outcome",
    "RequestedResources",
    "SendRecord",
    "Start",
    "Submission",
]

T = TypeVar("T")


class StateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all records; reading one with a newer schema than ours is refused by `read_checked`."""

    schema: int = 1


class Verdict(StateRecord, frozen=True, kw_only=True):
    """Slurm's last word on a job, kept because Slurm forgets: its state word, exit code and reason."""

    word: str
    exit_code: int | None = None
    signal: int | None = None
    by: str | None = None
    node: str | None = None
    reason: str | None = None
    oom_step: bool = False


class DamagedRecord(InputError):
    """A file that cannot be understood; the message names it. The run it belongs to is shown as such, others go on."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="restore that file from a snapshot or backup; other runs are not affected")


def read_checked(path: str, kind: type[T]) -> T | None:
    """The record at `path`, or None if there is none yet."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (ten thousand of these in one status)
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DamagedRecord(f"{path} cannot be read: {(error.strerror or '').lower()}") from None
    return _decoded(path, data, kind)


def _decoded(path: str, data: bytes, kind: type[T]) -> T:
    struct: Any = struct_type(typing.cast("Any", kind))
    try:
        record = _decode(data, struct)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedRecord(f"{path} is damaged: {error}") from None
    refuse_newer(path, record.schema)
    found: T = record if struct is kind else _as_tuple(record, kind)
    return found


def read_start(folder: str, number: int) -> Start | None:
    """How attempt `number` began; None if there is no such."""
    path, parts = _attempt_parts(folder, number)
    return None if parts is None else _decoded(path, parts[0], Start)


def read_end(folder: str, names: layout.RunNames, number: int) -> End | None:
    """How attempt `number` ended, None while it runs; of one that was lost, what can be concluded."""
    state = names.state(number)
    if state == "live":
        return None
    path, parts = _attempt_parts(folder, number)
    if parts is None:
        return None
    if state == "end":
        return _decoded(path, parts[1], End)
    try:
        attempt = lease.read_attempt(folder, names, number)
        return attempt.end if attempt is not None else None
    except ValueError as damage:
        raise DamagedRecord(str(damage)) from None


def _attempt_parts(folder: str, number: int) -> tuple[str, tuple[bytes, bytes] | None]:
    """The file of an attempt, and its two records as they are."""
    path = os.path.join(folder, layout.attempt_file(number, "start"))
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (ten thousand of these in one status)
            first, _, second = file.read().partition(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return path, None
    except OSError as error:
        raise DamagedRecord(f"{path} cannot be read: {(error.strerror or '').lower()}") from None
    return path, (first, second)


def refuse_newer(path: str, schema: int) -> None:
    if schema > 1:
        raise DamagedRecord(f"{path} was written by a newer shoal (schema {schema})")


def encode_file(record: Any) -> bytes:
    return (
        files.to_json(msgspec.to_builtins(record))
        if isinstance(record, msgspec.Struct)
        else kernel.encode_record(record)
    )


@functools.cache
def struct_type(kind: Any) -> Any:
    """What msgspec reads a record as: itself, or for one of the kernel's a struct with the same fields."""
    if not issubclass(kind, tuple):
        return kind
    defaults, nested = kind._field_defaults, dict(_nested(kind))
    hints = {name: struct_type(nested[name]) | None if name in nested else hint for name, hint in _field_types(kind)}
    fields = [(name, hint, defaults[name]) if name in defaults else (name, hint) for name, hint in hints.items()]
    return msgspec.defstruct(kind.__name__, [("schema", int, 1), *fields], frozen=True, kw_only=True)


def _field_types(kind: Any) -> list[tuple[str, Any]]:
    return list(typing.get_type_hints(kind).items())


@functools.cache
def _nested(kind: Any) -> list[tuple[str, Any]]:
    """Fields that hold a record of the kernel, or None."""
    return [
        (name, one) for name, hint in _field_types(kind) for one in typing.get_args(hint) if hasattr(one, "_fields")
    ]


def _as_tuple(record: Any, kind: Any) -> Any:
    found = kind._make(_fields(kind)(record))
    parts = {
        name: _as_tuple(getattr(found, name), nested)
        for name, nested in _nested(kind)
        if getattr(found, name) is not None
    }
    return found._replace(**parts) if parts else found


@functools.cache
def _fields(kind: Any) -> Any:
    return operator.attrgetter(*kind._fields)


def _decode(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Arguments that are not valid UTF-8 are stored as lone surrogates, which only Python's own reader accepts.
        loose: Any = json.loads(data)
        return msgspec.convert(loose, type=kind)
