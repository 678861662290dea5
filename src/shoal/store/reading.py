"""Read a run's folder: one listing, then only the files that its state depends on."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from shoal.kernel import files, layout
from shoal.kernel.files import names_in
from shoal.model import RunSpec
from shoal.store import records
from shoal.store.records import Claim, DamagedRecord, End, Outcome, Start, Submission, Verdict

# msgspec learns a type when it is first used, and two threads that do so at once crash Python (measured).
for _kind in (RunSpec, Claim, End, Outcome, Start, Submission, Verdict):
    msgspec.json.Decoder(_kind)


class SubmissionFiles(NamedTuple):
    """A submission's folder. `sending` means that Slurm may know the job, whatever else is missing.

    `waiting` means that it waits for room under the budget, and is not abandoned; `sent` is when that ended, if it did.
    """

    submission: Submission | None
    outcome: Outcome | None
    sending: bool
    waiting: bool = False
    sent: float | None = None


class RunFiles(NamedTuple):
    """The files of a run that matter: those of its newest generation that was not given up, and its newest attempt.

    `start` and `end` are those of the newest attempt, whichever generation it belongs to; it runs if it has no end.
    """

    name: str
    names: layout.RunNames
    generation: int = 0
    claim: Claim | None = None
    origin: SubmissionFiles | None = None
    start: Start | None = None
    end: End | None = None
    cancelled: bool = False
    verdict: Verdict | None = None
    given_up: str | None = None
    damage: str | None = None
    cancel_reason: str | None = None


def read_submission(home: str, token: str) -> SubmissionFiles:
    folder = layout.submission_dir(home, token)
    names = names_in(folder)
    return SubmissionFiles(
        records.read(os.path.join(folder, "submission.json"), Submission),
        records.read(os.path.join(folder, "outcome.json"), Outcome) if "outcome.json" in names else None,
        "sending" in names,
        "waiting.json" in names and "sending" not in names,
        _sent(folder) if "waiting.json" in names and "sending" in names else None,
    )


def _sent(folder: str) -> float | None:
    mark = files.read_json(os.path.join(folder, "sending")) or {}
    return float(mark["t"]) if "t" in mark else None


class Reader:
    """Reads runs of one state folder and remembers submissions, which many runs of an array share."""

    def __init__(self, home: str) -> None:
        self.home = home
        self._submissions: dict[str, SubmissionFiles] = {}

    def run(self, name: str) -> RunFiles:
        """The run's files; a damaged one is told in `damage` and hides only what it held."""
        folder = layout.run_dir(self.home, name)
        names = layout.parse_names(())
        try:
            names = layout.parse_names(names_in(folder))
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
        revision = revision or layout.parse_names(names_in(folder)).revision
        return read_spec(os.path.join(folder, layout.spec_file(revision))) if revision else None

    def newest_claim(self, name: str) -> Claim | None:
        """By which the run was last submitted, whatever came of it."""
        folder = layout.run_dir(self.home, name)
        generation = layout.parse_names(names_in(folder)).generation
        return records.read(os.path.join(folder, layout.submit_file(generation, "claim")), Claim)

    def script_file(self, name: str) -> str | None:
        """The script with which it was last submitted."""
        claim = self.newest_claim(name)
        return os.path.join(layout.submission_dir(self.home, claim.token), "script.sh") if claim else None

    def flags(self, spec: RunSpec) -> list[str]:
        """What a run asks of sbatch when it goes on: its own flags, or those of the trial that took it over."""
        folder = layout.run_dir(self.home, spec.name)
        for generation in reversed(layout.parse_names(names_in(folder)).submits.get("claim", [])):
            claim = records.read(os.path.join(folder, layout.submit_file(generation, "claim")), Claim)
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
            return records.read(path(generation, kind), Verdict) if names.has_submit(generation, kind) else None

        attempt = names.attempt
        end = records.read_end(folder, names, attempt) if attempt else None
        if end is not None and end.success and end.generation == names.generation:
            return RunFiles(name, names, end.generation, end=end, verdict=verdict(end.generation))
        generation, claim, origin, given_up = self._standing_claim(names, path)
        for number in reversed(names.attempts.get("end", ())) if claim is not None else ():
            # The fence lets nobody repeat what ended well, so nothing that came later can have undone it.
            earlier = end if number == attempt else records.read_end(folder, names, number)
            if earlier is not None and earlier.success and claim is not None and earlier.revision == claim.revision:
                kept = verdict(earlier.generation, earlier.attempt)
                return RunFiles(name, names, earlier.generation, end=earlier, verdict=kept)
        start = records.read_start(folder, attempt) if attempt else None
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
            given_up,
            cancel_reason=_reason(path(generation, "cancel")) if names.has_submit(generation, "cancel") else None,
        )

    def _standing_claim(
        self, names: layout.RunNames, path: Callable[[int, str], str]
    ) -> tuple[int, Claim | None, SubmissionFiles | None, str | None]:
        """The newest generation whose submission was not given up, and why a newer one was."""
        given_up = None
        for generation in reversed(names.submits.get("claim", [])):
            claim = records.read(path(generation, "claim"), Claim)
            if claim is None:
                continue
            origin = self.submission(claim.token)
            if origin.outcome is None or origin.outcome.kind != "void":
                return generation, claim, origin, given_up
            given_up = given_up or origin.outcome.reason
        return 0, None, None, given_up


def _reason(path: str) -> str | None:
    """Why a run was cancelled, where it was not a person who did it."""
    reason = (files.read_json(path) or {}).get("reason")
    return None if reason is None else str(reason)


def read_spec(path: str) -> RunSpec | None:
    return records.read(path, RunSpec)
