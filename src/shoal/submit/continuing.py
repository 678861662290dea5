"""A run that ended before it was done and left a checkpoint: does it continue from there, or start over?

Without a word from a person it continues if its program is known to do that, and else starts over in a new folder:
neither can lose what was computed, because the old folder stays. A person may choose (--resume, --fresh); a resume that
the program may ignore is asked about, or refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from shoal.describe import (
    RESUME_VARIABLE,
    PlannedRun,
    RequestedRun,
    ResumeDetector,
    output_directories,
    with_training_step,
)
from shoal.errors import RefusedError
from shoal.kernel import checkpoints, layout, resumed
from shoal.model import ENDED_STATES, RunSpec
from shoal.observe import RunView

_RESUME_ARGS_EXAMPLE = '["--resume={resume_from}"]'
#: More runs than this are counted, not named.
_MAX_NAMED = 3


class CheckpointDecision(NamedTuple):
    """A run with a checkpoint that starts again. `resumes`: it continues from it; `known`: how it is known that its
    program can do that, "" if it is not; `by_name`: a person asked for this very run; `is_open`: nobody has chosen.
    """

    name: str
    state: str
    folder: str
    checkpoint: str
    resumes: bool
    known: str
    step: str
    by_name: bool = False
    is_open: bool = False

    @property
    def is_uncertain(self) -> bool:
        return self.resumes and not self.known


def choose_checkpoint(
    home: str,
    one: RequestedRun,
    kept: RunSpec | None,
    view: RunView,
    revision: int,
    wish: bool | None,
    sources: ResumeDetector,
) -> tuple[PlannedRun, CheckpointDecision | None]:
    """A run that starts as `revision`, in the folder that it continues in; and from what, if there is a checkpoint.

    `kept` is the run as it was recorded. `wish` is what a person said: resume, or start over.
    """
    known = sources.how(one.run.spec) if one.run.spec.checkpoint is not None else ""
    spec = msgspec.structs.replace(one.run.spec, revision=revision, resumes=known)
    found = _find_checkpoint(home, one, spec, view, wish) if kept is not None and revision == kept.revision else None
    if found is None:
        return one.run._replace(spec=spec), None
    spec = msgspec.structs.replace(spec, resumes=found.known)
    return one.run._replace(spec=spec, resume_in=found.folder if found.resumes else None), found


def _find_checkpoint(
    home: str, one: RequestedRun, spec: RunSpec, view: RunView, wish: bool | None
) -> CheckpointDecision | None:
    folder = one.run.resume_in
    if spec.checkpoint is None or (folder is None and view.state not in ENDED_STATES):
        return None
    folders = [folder] if folder is not None else output_directories(home, spec.name, spec.revision)
    found = [
        (path, newest)
        for path in folders
        if (newest := checkpoints.newest_checkpoint(path, spec.checkpoint)) is not None
    ]
    if not found:
        return None
    known = spec.resumes or _resumed_before(home, spec.name)
    resumes = folder is not None or (bool(known) if wish is None else wish)
    by_name, is_open = folder is not None or one.by_name, folder is None and wish is None
    return CheckpointDecision(spec.name, view.state, *found[0], resumes, known, spec.step_kind, by_name, is_open)


def _resumed_before(home: str, name: str) -> str:
    number = resumed.newest_resumed_attempt(layout.run_dir(home, name))
    return f"attempt {number}" if number else ""


def without_checkpoint(spec: RunSpec) -> str:
    """For a run that was to continue."""
    pattern = f" {spec.checkpoint}" if spec.checkpoint else ""
    return f"{spec.name} starts from the beginning: it has no checkpoint{pattern}"


def refuse_uncertain_resume(found: Sequence[CheckpointDecision]) -> None:
    """Refuse to resume runs whose programs may start over and write over their checkpoints."""
    first = found[0]
    raise RefusedError(
        f"cannot tell whether {first.name} continues from {os.path.relpath(first.checkpoint)}: "
        f"{unknown_resume_reason(first)}",
        hint=f"set resume_args = {_RESUME_ARGS_EXAMPLE} in [steps.{first.step}] of shoal.toml ([] if the program needs "
        "none), or add --yes, which keeps a copy of the checkpoint",
    )


def unknown_resume_reason(one: CheckpointDecision) -> str:
    return f"no file of its program reads {RESUME_VARIABLE}, and step {one.step} has no resume_args"


def checkpoint_notes(found: Sequence[CheckpointDecision]) -> list[str]:
    """What happens to each of them, in words; many at once are counted."""
    told: list[str] = []
    for resumes in (True, False):
        group = [one for one in found if one.resumes == resumes]
        if len(group) > _MAX_NAMED:
            told.append(f"{len(group)} runs that did not end well {_checkpoint_summary(group, resumes)}")
        else:
            told += [f"{one.name} {_checkpoint_sentence(one)}" for one in group]
    return told


def _checkpoint_sentence(one: CheckpointDecision) -> str:
    where = with_training_step(one.checkpoint)
    if one.resumes:
        told = "" if one.by_name else f" ({one.state} before; --fresh starts it over)"
        return (
            f"continues from {where}{told}"
            if one.known
            else f"is given {where}, but may start over: {unknown_resume_reason(one)}"
        )
    if one.known:
        return f"starts over in a new folder (--fresh); its checkpoint {where} stays"
    return f"starts over in a new folder; its checkpoint {where} stays: {unknown_resume_reason(one)}"


def _checkpoint_summary(group: Sequence[CheckpointDecision], resumes: bool) -> str:
    if resumes:
        return "continue from their newest checkpoints (--fresh starts them over)"
    unknown = next((one for one in group if not one.known), None)
    why = f": {unknown_resume_reason(unknown)}" if unknown else " (--fresh)"
    return f"start over in new folders; their checkpoints stay{why}"
