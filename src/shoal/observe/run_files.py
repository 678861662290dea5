"""Read a run's directory: one listing, then only the files that its state depends on, as typed records.

Unknown fields are ignored: a newer shoal may add some. The records of a submission are the kernel's own types, which
jobs use too; here every field is checked.
"""

from __future__ import annotations

import functools
import json
import operator
import os
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

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
    list_names,
    read_bound,
    submission,
)
from shoal.kernel import records as kernel
from shoal.model import RunSpec

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


def read_verdict(folder: str, names: layout.RunNames, end: End) -> Verdict | None:
    """What Slurm said last of the job of an attempt, if a command has kept it."""
    kind = layout.verdict_kind(end.attempt)
    if not names.has_submit(end.generation, kind):
        return None
    return read_checked(os.path.join(folder, layout.submit_file(end.generation, kind)), Verdict)


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


# msgspec learns a type when it is first used, and two threads that do so at once crash Python (measured).
for _kind in (RunSpec, ClaimRecord, End, Outcome, SendRecord, Start, Submission, Verdict):
    msgspec.json.Decoder(struct_type(_kind))


class SubmissionFiles(NamedTuple):
    """A submission's folder. `sent` is when it was sent: from then on Slurm may know the job, whatever else is missing.

    `waiting` means that it waits for room under the budget, and is not abandoned; `owes` that the time of a pack was up
    and no job continues it yet.
    """

    submission: Submission | None
    outcome: Outcome | None
    sent: float | None = None
    waiting: bool = False
    owes: bool = False


class RunFiles(NamedTuple):
    """The files of a run that matter: those of its newest generation that was not given up, and its newest attempt.

    `start` and `end` are those of the newest attempt, whichever generation it belongs to; it runs if it has no end.
    """

    name: str
    names: layout.RunNames
    generation: int = 0
    claim: ClaimRecord | None = None
    origin: SubmissionFiles | None = None
    start: Start | None = None
    end: End | None = None
    cancelled: bool = False
    verdict: Verdict | None = None
    given_up: str | None = None
    damage: str | None = None
    cancel_reason: str | None = None
    given_up_t: float | None = None
    refused: bool = False
    #: Slurm refused every submission of it, and each time the command that a person gave has said so.
    only_refused: bool = False

    @property
    def is_adopted(self) -> bool:
        """Whether its job was there before shoal knew of it, so that nothing inside the job writes records."""
        if self.origin is not None and self.origin.submission is not None:
            return self.origin.submission.adopted
        return self.end is not None and self.end.adopted

    @property
    def owes(self) -> bool:
        """Whether the newest end is to be followed by another job, and none was sent yet (shoal.kernel.submission)."""
        end, submits = self.end, self.names.submits
        if self.origin is not None and self.origin.owes:
            left = end is None or end.generation != self.generation or end.stopped_by in ("walltime", "probe")
            return left and not self.cancelled
        return end is not None and submission.is_follow_up_pending(
            end.next, end.generation, self.generation, self.refused, submits.get("claim", ()), submits.get("cancel", ())
        )


def read_submission(home: str, token: str) -> SubmissionFiles:
    folder = layout.submission_dir(home, token)
    names = list_names(folder)
    submission = read_checked(os.path.join(folder, "submission.json"), Submission)
    outcome = sent = None
    if layout.outcome_file() in names:
        outcome = read_checked(os.path.join(folder, layout.outcome_file()), Outcome)
    if layout.send_file(0) in names:
        # Only an open question needs its time; thousands of others are not read for it.
        record = read_checked(os.path.join(folder, layout.send_file(0)), SendRecord) if outcome is None else None
        sent = record.t if record is not None else 0.0
    waiting = submission is not None and submission.waits and sent is None and outcome is None
    owes = submission is not None and submission.layout is not None and _has_pending_queue_job(folder, names)
    return SubmissionFiles(submission, outcome, sent, waiting, owes)


def _has_pending_queue_job(folder: str, names: Sequence[str]) -> bool:
    if not any(name.startswith("engine.") and name.endswith(".end") for name in names):
        return False
    from shoal.job import follow_up  # only for packs whose jobs have ended

    opened = any(outcome is None for _, _, outcome in submission.read_sends(folder)[1:])
    return opened or bool(follow_up.pending_follow_ups(folder))


class RunReader:
    """Reads runs of one state folder and remembers submissions, which many runs of an array share."""

    def __init__(self, home: str) -> None:
        self.home = home
        self._submissions: dict[str, SubmissionFiles] = {}

    def run(self, name: str) -> RunFiles:
        """The run's files; a damaged one is told in `damage` and hides only what it held."""
        folder = layout.run_dir(self.home, name)
        names = layout.parse_names(())
        try:
            names = layout.parse_names(list_names(folder))
            return self._read(name, folder, names)
        except DamagedRecord as damage:
            return RunFiles(name, names, generation=names.generation, damage=str(damage))
        except OSError as error:
            return RunFiles(name, names, damage=f"{error.filename or folder} cannot be read: {error.strerror}")

    def submission(self, token: str) -> SubmissionFiles:
        if token not in self._submissions:
            self._submissions[token] = read_submission(self.home, token)
        return self._submissions[token]

    def spec(self, name: str, revision: int | None = None) -> RunSpec | None:
        """What the run is; None for a run that was never recorded."""
        folder = layout.run_dir(self.home, name)
        revision = revision or layout.parse_names(list_names(folder)).revision
        spec = read_spec(os.path.join(folder, layout.spec_file(revision))) if revision else None
        return spec if spec is None or not spec.search else self._with_trial_parameters(spec)

    def _with_trial_parameters(self, spec: RunSpec) -> RunSpec:
        """The run with what its search has chosen, once that is known."""
        try:
            bound = read_bound(self.home, spec.experiment, spec.search["name"])
        except ValueError as damage:
            raise DamagedRecord(str(damage)) from None
        if bound is None:
            return spec
        return msgspec.structs.replace(spec, params={**spec.params, **bound.params, **bound.derived})

    def newest_claim(self, name: str) -> ClaimRecord | None:
        """By which the run was last submitted, whatever came of it."""
        folder = layout.run_dir(self.home, name)
        generation = layout.parse_names(list_names(folder)).generation
        return read_checked(os.path.join(folder, layout.submit_file(generation, "claim")), ClaimRecord)

    def script_file(self, name: str) -> str | None:
        """The script with which it was last submitted."""
        claim = self.newest_claim(name)
        return os.path.join(layout.submission_dir(self.home, claim.token), "script.sh") if claim else None

    def flags(self, spec: RunSpec) -> list[str]:
        """What a run asks of sbatch when it goes on: its own flags, or those of the replacement that took it over."""
        folder = layout.run_dir(self.home, spec.name)
        for generation in reversed(layout.parse_names(list_names(folder)).submits.get("claim", [])):
            claim = read_checked(os.path.join(folder, layout.submit_file(generation, "claim")), ClaimRecord)
            if claim is not None and claim.switched and claim.revision == spec.revision:
                submission = self.submission(claim.token).submission
                taken = self.spec(submission.runs[claim.index]) if submission else None
                return taken.flags if taken else spec.flags
        return spec.flags

    def _read(self, name: str, folder: str, names: layout.RunNames) -> RunFiles:
        def path(number: int, kind: str) -> str:
            return os.path.join(folder, layout.submit_file(number, kind))

        def verdict(generation: int, attempt: int = names.attempt) -> Verdict | None:
            kind = layout.verdict_kind(attempt)
            return read_checked(path(generation, kind), Verdict) if names.has_submit(generation, kind) else None

        attempt = names.attempt
        end = read_end(folder, names, attempt) if attempt else None
        if end is not None and end.success and end.generation == names.generation:
            return RunFiles(name, names, end.generation, end=end, verdict=verdict(end.generation))
        generation, claim, origin, void = self._standing_claim(names, path)
        for number in reversed(names.attempts.get("end", ())) if claim is not None else ():
            # The fence lets no job repeat a completed attempt, so nothing that came later can have undone it.
            earlier = end if number == attempt else read_end(folder, names, number)
            if earlier is not None and earlier.success and claim is not None and earlier.revision == claim.revision:
                kept = verdict(earlier.generation, earlier.attempt)
                return RunFiles(name, names, earlier.generation, end=earlier, verdict=kept)
        start = read_start(folder, attempt) if names.has_attempt(attempt, "start") else None
        return RunFiles(
            name,
            names,
            generation,
            claim,
            origin,
            start,
            end,
            names.has_submit(generation, "cancel"),
            verdict(generation),
            void[0][1].reason if void else None,
            cancel_reason=_cancel_reason(path(generation, "cancel"))
            if names.has_submit(generation, "cancel")
            else None,
            given_up_t=void[0][0].t if void else None,
            refused=any(outcome.refused for _, outcome in void),
            only_refused=claim is None and bool(void) and all(self._was_refused_at_once(*one) for one in void),
        )

    def _was_refused_at_once(self, claim: ClaimRecord, outcome: Outcome) -> bool:
        """Whether a submission was refused at once: one that waited for room was refused when nobody looked."""
        submission = self.submission(claim.token).submission
        return outcome.refused and submission is not None and not submission.waits

    def _standing_claim(
        self, names: layout.RunNames, path: Callable[[int, str], str]
    ) -> tuple[int, ClaimRecord | None, SubmissionFiles | None, list[tuple[ClaimRecord, Outcome]]]:
        """The newest generation whose submission was not given up, and the newer ones that were, newest first."""
        void: list[tuple[ClaimRecord, Outcome]] = []
        for generation in reversed(names.submits.get("claim", [])):
            claim = read_checked(path(generation, "claim"), ClaimRecord)
            if claim is None:
                continue
            origin = self.submission(claim.token)
            if origin.outcome is None or origin.outcome.kind != "void":
                return generation, claim, origin, void
            void.append((claim, origin.outcome))
        return 0, None, None, void


def _cancel_reason(path: str) -> str | None:
    """Why a run was cancelled, where it was not a person who did it."""
    reason = (files.read_json(path) or {}).get("reason")
    return None if reason is None else str(reason)


def read_spec(path: str) -> RunSpec | None:
    return read_checked(path, RunSpec)
