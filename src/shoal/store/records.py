"""The small files of a run as typed records. Unknown fields are kept out of the way: a newer shoal may add some.

Those of a submission are the kernel's own types, which jobs use too; here they are read with every field checked.
"""

from __future__ import annotations

import functools
import json
import os
import typing
from typing import Any, TypeVar

import msgspec

from shoal.errors import InputError
from shoal.kernel import files, layout, lease
from shoal.kernel import records as kernel
from shoal.kernel.records import Asked, Claim, Next, Outcome, Send, Submission

__all__ = ["Asked", "Claim", "Next", "Outcome", "Send", "Submission"]

T = TypeVar("T")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all records; reading one with a newer schema than ours is refused by `read`."""

    schema: int = 1


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of a pack held: its slot, its GPUs by id and its share of each, its CPUs, and whose they were."""

    slot: int = 0
    gpus: list[str] = []
    share: float = 0.0
    cpus: int = 0
    engine: str = ""
    host: str | None = None


class Start(Record, frozen=True, kw_only=True):
    """An attempt began at `t`; where it took over a program that was running already, that began at `program_t`."""

    attempt: int
    generation: int
    revision: int
    token: str
    host: str
    pid: int
    started: str | None
    t: float
    program_t: float | None = None
    output_dir: str
    log_dir: str
    job_id: str | None = None
    job_label: str | None = None
    resume_from: str | None = None
    ends: float | None = None
    nodes: str | None = None
    failed_nodes: list[str] = []
    held: Held | None = None
    beat_s: float = 0.0
    mark: str | None = None
    uid: int | None = None
    agent_pid: int | None = None
    agent_started: str | None = None


class End(Record, frozen=True, kw_only=True):
    attempt: int
    generation: int
    revision: int
    token: str
    output_dir: str
    exit_code: int
    success: bool
    began: float
    ended: float
    duration_s: float
    host: str | None = None
    log_dir: str | None = None
    signal: str | None = None
    stopped_by: str | None = None
    cause: str | None = None
    oom: bool = False
    problem: str | None = None
    expect_s: float | None = None
    job_id: str | None = None
    job_label: str | None = None
    held: Held | None = None
    data: list[dict[str, Any]] = []
    #: The fields of a kernel Next: what follows this end by itself.
    next: dict[str, Any] | None = None


class Verdict(Record, frozen=True, kw_only=True):
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


def read(path: str, kind: type[T]) -> T | None:
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
    struct: Any = checked(typing.cast("Any", kind))
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
        attempt = lease.read(folder, names, number)
        return msgspec.convert(attempt.end, type=End) if attempt is not None else None
    except msgspec.ValidationError as damage:
        raise DamagedRecord(f"{path} is damaged: {damage}") from None
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


def encode(record: Any) -> bytes:
    return files.to_json(msgspec.to_builtins(record)) if isinstance(record, msgspec.Struct) else kernel.encode(record)


@functools.cache
def checked(kind: Any) -> Any:
    """What msgspec reads a record as: itself, or for one of the kernel's a struct with the same fields."""
    if not issubclass(kind, tuple):
        return kind
    defaults, nested = kind._field_defaults, dict(_nested(kind))
    hints = {name: checked(nested[name]) | None if name in nested else hint for name, hint in _hints(kind)}
    fields = [(name, hint, defaults[name]) if name in defaults else (name, hint) for name, hint in hints.items()]
    return msgspec.defstruct(kind.__name__, [("schema", int, 1), *fields], frozen=True, kw_only=True)


def _hints(kind: Any) -> list[tuple[str, Any]]:
    return list(typing.get_type_hints(kind).items())


@functools.cache
def _nested(kind: Any) -> list[tuple[str, Any]]:
    """Fields that hold a record of the kernel, or None."""
    return [(name, one) for name, hint in _hints(kind) for one in typing.get_args(hint) if hasattr(one, "_fields")]


def _as_tuple(record: Any, kind: Any) -> Any:
    values = msgspec.structs.asdict(record)
    del values["schema"]
    for name, nested in _nested(kind):
        if values[name] is not None:
            values[name] = _as_tuple(values[name], nested)
    return kind(**values)


def _decode(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Arguments that are not valid UTF-8 are stored as lone surrogates, which only Python's own reader accepts.
        loose: Any = json.loads(data)
        return msgspec.convert(loose, type=kind)
