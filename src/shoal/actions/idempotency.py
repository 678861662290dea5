"""A command that is repeated continues its first execution: --rerun, retry, resume and switch.

Before its first claim such a command is written down (commands/<id>.json): what it means, and for each run the
generation that was there. Its claims carry the id. When all of it was carried out, commands/<id>.done says so. The same
command of the same person while one is not finished is that one: what it has claimed stays, the rest is done.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.actions.prepare import SubmitResult
from shoal.describe import RequestedRun
from shoal.errors import InputError
from shoal.kernel import CommandRecord, files, layout, new_token, processes
from shoal.kernel import records as kernel
from shoal.model import INTERRUPTED_STATES
from shoal.observe import ClaimRecord, RunReader, RunView, observe, run_files

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class UserCommand(NamedTuple):
    """A command's identity. `record` is what an earlier command wrote down about it, None for a new one; `submitted`
    are runs that it has started already, `cut_off` those on this machine that it claimed and that never came to an end,
    `others` those that another command has submitted since. `is_done`: there is nothing left to do.
    """

    id: str
    kind: str = ""
    digest: str = ""
    record: CommandRecord | None = None
    submitted: Mapping[str, RunView] = {}
    cut_off: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    is_done: bool = False

    @property
    def is_written(self) -> bool:
        """Whether the command has to be written down: one that may be repeated needs no record."""
        return bool(self.digest)

    def describe(self) -> str:
        """One line for the person who gives a command again."""
        assert self.record is not None  # noqa: S101 (a fact of the caller, not input)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.record.t))
        count = f"{len(self.submitted)} of {len(self.record.runs)} runs were submitted already"
        if self.is_done:
            return f"command {self.id} of {when} is complete: {count}, nothing is repeated"
        return f"continues the unfinished command of {when}: {count} (--command-id NAME starts a new command)"

    def results(self) -> list[SubmitResult]:
        """What was done before, as it is told again."""
        done = [
            SubmitResult(
                name,
                "unclear" if view.state == "unknown" else "submitted",
                view.state,
                (view.reason or "") if view.state == "unknown" else "by the same command",
                view.job_id,
                view.output_dir,
            )
            for name, view in self.submitted.items()
        ]
        since = "another command has submitted it since"
        return done + [SubmitResult(name, "left alone", "waiting", since) for name in sorted(self.others)]


def unrecorded_command(given: str | None = None) -> UserCommand:
    """For a command that may be repeated: its claims carry an id, and nothing is written down about it."""
    return UserCommand(_check_id(given) or new_token())


def find_command(
    home: str, kind: str, names: Iterable[str], options: Any, given: str | None, environ: Mapping[str, str]
) -> UserCommand:
    """The command with this meaning: the one that this person gave and that is not done, or a new one.

    With a `given` id it is the command of that id, done or not; InputError if that was another command.
    """
    digest = hashlib.sha256(json.dumps([kind, sorted(names), repr(options)]).encode()).hexdigest()[:16]
    record = _read_command(home, _check_id(given)) if given else _unfinished_command(home, digest)
    if record is None:
        return UserCommand(given or new_token(), kind, digest)
    if record.digest != digest:
        raise InputError(
            f"--command-id {given} was used for another command ({record.kind}, {len(record.runs)} runs)",
            hint="use a new name for a new command, or repeat the same command",
        )
    return _command_progress(home, UserCommand(record.id, kind, digest, record), environ)


def remaining_runs(asked: Sequence[RequestedRun], user_command: UserCommand, *, rerun: bool) -> list[RequestedRun]:
    """What a command that is given again has still to do. `rerun` starts completed runs over, but those that were
    cut off continue."""
    done = {*user_command.submitted, *user_command.others}
    left = [one for one in asked if one.run.spec.name not in done]
    return [one._replace(rerun=(one.rerun or rerun) and one.run.spec.name not in user_command.cut_off) for one in left]


def record_command(home: str, user_command: UserCommand, generations: Mapping[str, int]) -> None:
    """Before the first claim: the command, and the generation of each run that was there before."""
    if not user_command.is_written or user_command.record is not None:
        return
    files.make_dir(_commands_dir(home))
    who = processes.own_identity()
    record = CommandRecord(
        user_command.id,
        user_command.kind,
        user_command.digest,
        dict(generations),
        time.time(),
        user=kernel.user_name(),
        **who,
    )
    files.create_exclusive(os.path.join(_commands_dir(home), f"{user_command.id}.json"), kernel.encode_record(record))


def finish_command(home: str, user_command: UserCommand) -> None:
    """All of it was carried out: given again, it is a new command."""
    if user_command.is_written:
        files.create_exclusive(os.path.join(_commands_dir(home), f"{user_command.id}.done"), b"{}\n", sync=False)


def _command_progress(home: str, user_command: UserCommand, environ: Mapping[str, str]) -> UserCommand:
    """How far a command has come, by the claims that carry its id."""
    record = user_command.record
    assert record is not None  # noqa: S101
    reader, submitted, others = RunReader(home), [], []
    for name, before in record.runs.items():
        claims = [claim for claim in _claims_after(home, name, before) if not _was_abandoned(reader, claim)]
        if any(claim.command_id == record.id for claim in claims):
            submitted.append(name)
        elif claims:
            others.append(name)
    views = observe(home, submitted, environ=environ).views if submitted else {}
    # A run on this machine that was interrupted was not carried out: its command was killed, or Ctrl-C ended it.
    cut_off = {name for name, view in views.items() if view.state in INTERRUPTED_STATES and _is_local(reader, name)}
    cut_off |= {name for name, view in views.items() if view.state == "new"}
    kept = {name: view for name, view in views.items() if name not in cut_off}
    is_done = f"{record.id}.done" in files.list_names(_commands_dir(home))
    return user_command._replace(submitted=kept, cut_off=frozenset(cut_off), others=frozenset(others), is_done=is_done)


def _claims_after(home: str, name: str, before: int) -> list[ClaimRecord]:
    folder = layout.run_dir(home, name)
    numbers = layout.parse_names(files.list_names(folder)).submits.get("claim", [])
    paths = [os.path.join(folder, layout.submit_file(number, "claim")) for number in numbers if number > before]
    return [claim for claim in (run_files.read_checked(path, ClaimRecord) for path in paths) if claim is not None]


def _was_abandoned(reader: RunReader, claim: ClaimRecord) -> bool:
    outcome = reader.submission(claim.token).outcome
    return outcome is not None and outcome.kind == "void"


def _is_local(reader: RunReader, name: str) -> bool:
    claim = reader.newest_claim(name)
    submission = reader.submission(claim.token).submission if claim is not None else None
    return submission is not None and submission.backend == "local"


def _unfinished_command(home: str, digest: str) -> CommandRecord | None:
    """The newest command of this person that means the same and is not done."""
    names = set(files.list_names(_commands_dir(home)))
    ids = [name[:-5] for name in names if name.endswith(".json") and f"{name[:-5]}.done" not in names]
    found = []
    for one in ids:
        with contextlib.suppress(run_files.DamagedRecord):  # of somebody else in a shared project, or broken
            found.append(_read_command(home, one))
    mine = [record for record in found if record and record.digest == digest and record.user == kernel.user_name()]
    return max(mine, key=lambda record: record.t, default=None)


def _read_command(home: str, name: str | None) -> CommandRecord | None:
    return run_files.read_checked(os.path.join(_commands_dir(home), f"{name}.json"), CommandRecord)


def _check_id(given: str | None) -> str | None:
    if given is not None and _ID.fullmatch(given) is None:
        raise InputError(
            f"invalid --command-id {given!r}: expected at most 64 letters, digits, '.', '_' or '-'",
            hint="use a name such as --command-id nightly-1",
        )
    return given


def _commands_dir(home: str) -> str:
    return os.path.join(home, "commands")
