"""The small files of a run as typed records. Unknown fields are kept out of the way: a newer shoal may add some."""

from __future__ import annotations

import json
import os
from typing import Any, TypeVar

import msgspec

from shoal.errors import InputError
from shoal.kernel import files, layout, lease
from shoal.model import RunSpec

T = TypeVar("T", bound="Record | RunSpec")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all records; reading one with a newer schema than ours is refused by `read`."""

    schema: int = 1


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one run of a submission asked for, resolved: `gpus`, `cpus` and `memory_mb` are per node."""

    nodes: int = 1
    gpus: int = 0
    gpu_type: str | None = None
    cpus: int | None = None
    memory_mb: int | None = None
    partition: str | None = None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of a pack held: its slot, its GPUs by id and its share of each, its CPUs, and whose they were."""

    slot: int = 0
    gpus: list[str] = []
    share: float = 0.0
    cpus: int = 0
    engine: str = ""
    host: str | None = None


class Submission(Record, frozen=True, kw_only=True):
    """Intent: these runs, as one Slurm job (or array), or as processes on this machine.

    `shape` is None for a job of its own or an array; the runs of a "pack" or of "pilots" wait in a queue in there.
    `needs` are runs that must be done before it starts. `uid` alone sends it, continues its runs and cancels its job.
    """

    token: str
    backend: str
    cluster: str
    slurm_cluster: str | None = None
    job_name: str
    runs: list[str]
    t: float
    host: str
    pid: int
    started: str | None
    uid: int | None = None
    user: str = ""
    by_hand: bool = False
    time_limit_s: int | None = None
    queue: str | None = None
    nodes: int = 1
    gpus: int = 0
    code: str | None = None
    commit: str | None = None
    asked: Asked | None = None
    shape: str | None = None
    needs: list[str] = []

    @property
    def is_array(self) -> bool:
        """Whether each run is a task of its own; the tasks of pilots are not runs."""
        return self.shape is None and len(self.runs) > 1


class Outcome(Record, frozen=True, kw_only=True):
    """What became of a submission: "accepted" with the job's id, or "void". The first one written holds."""

    kind: str
    job_id: str | None = None
    reason: str | None = None
    adopted: bool = False


class Claim(Record, frozen=True, kw_only=True):
    token: str
    revision: int
    output_dir: str
    log_dir: str
    index: int = 0
    resume: bool = False
    switched: bool = False
    t: float = 0.0


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
    try:
        record = _decode(data, kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedRecord(f"{path} is damaged: {error}") from None
    refuse_newer(path, record.schema)
    return record


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
    except ValueError as damage:
        raise DamagedRecord(str(damage)) from None
    return msgspec.convert(attempt.end, type=End) if attempt is not None else None


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


def encode(record: Record) -> bytes:
    return files.to_json(msgspec.to_builtins(record))


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Arguments that are not valid UTF-8 are stored as lone surrogates, which only Python's own reader accepts.
        loose: Any = json.loads(data)
        return msgspec.convert(loose, type=kind)
