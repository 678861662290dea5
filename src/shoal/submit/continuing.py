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

from shoal.describe import VARIABLE, Asked, PlannedRun, Sources, output_folders, with_step
from shoal.errors import RefusedError
from shoal.kernel import checkpoints, layout, resumed
from shoal.model import ENDED, RunSpec
from shoal.observe import RunView

_EXAMPLE = '["--resume={resume_from}"]'
#: More runs than this are counted, not named.
_MOST_NAMED = 3


class Continuation(NamedTuple):
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
    def is_doubtful(self) -> bool:
        return self.resumes and not self.known


def settle(
    home: str,
    one: Asked,
    kept: RunSpec | None,
    view: RunView,
    revision: int,
    wish: bool | None,
    sources: Sources,
) -> tuple[PlannedRun, Continuation | None]:
    """A run that starts as `revision`, in the folder that it continues in; and from what, if there is a checkpoint.

    `kept` is the run as it was recorded. `wish` is what a person said: resume, or start over.
    """
    known = sources.how(one.run.spec) if one.run.spec.checkpoint is not None else ""
    spec = msgspec.structs.replace(one.run.spec, revision=revision, resumes=known)
    found = _find(home, one, spec, view, wish) if kept is not None and revision == kept.revision else None
    if found is None:
        return one.run._replace(spec=spec), None
    spec = msgspec.structs.replace(spec, resumes=found.known)
    return one.run._replace(spec=spec, resume_in=found.folder if found.resumes else None), found


def _find(home: str, one: Asked, spec: RunSpec, view: RunView, wish: bool | None) -> Continuation | None:
    folder = one.run.resume_in
    if spec.checkpoint is None or (folder is None and view.state not in ENDED):
        return None
    folders = [folder] if folder is not None else output_folders(home, spec.name, spec.revision)
    found = [(path, newest) for path in folders if (newest := checkpoints.newest(path, spec.checkpoint)) is not None]
    if not found:
        return None
    known = spec.resumes or _seen_to_continue(home, spec.name)
    resumes = folder is not None or (bool(known) if wish is None else wish)
    by_name, is_open = folder is not None or one.by_name, folder is None and wish is None
    return Continuation(spec.name, view.state, *found[0], resumes, known, spec.step_kind, by_name, is_open)


def _seen_to_continue(home: str, name: str) -> str:
    number = resumed.seen(layout.run_dir(home, name))
    return f"attempt {number}" if number else ""


def without_checkpoint(spec: RunSpec) -> str:
    """For a run that was to continue."""
    pattern = f" {spec.checkpoint}" if spec.checkpoint else ""
    return f"{spec.name} starts from the beginning: it has no checkpoint{pattern}"


def refuse_doubtful(found: Sequence[Continuation]) -> None:
    """Refuse to resume runs whose programs may start over and write over their checkpoints."""
    first = found[0]
    raise RefusedError(
        f"cannot tell whether {first.name} continues from {os.path.relpath(first.checkpoint)}: {why_unknown(first)}",
        hint=f"set resume_args = {_EXAMPLE} in [steps.{first.step}] of shoal.toml ([] if the program needs none), "
        "or add --yes, which keeps a copy of the checkpoint",
    )


def why_unknown(one: Continuation) -> str:
    return f"no file of its program reads {VARIABLE}, and step {one.step} has no resume_args"


def notes(found: Sequence[Continuation]) -> list[str]:
    """What happens to each of them, in words; many at once are counted."""
    told: list[str] = []
    for resumes in (True, False):
        group = [one for one in found if one.resumes == resumes]
        if len(group) > _MOST_NAMED:
            told.append(f"{len(group)} runs that did not end well {_many(group, resumes)}")
        else:
            told += [f"{one.name} {_words(one)}" for one in group]
    return told


def _words(one: Continuation) -> str:
    where = with_step(one.checkpoint)
    if one.resumes:
        told = "" if one.by_name else f" ({one.state} before; --fresh starts it over)"
        return (
            f"continues from {where}{told}"
            if one.known
            else f"is given {where}, but may start over: {why_unknown(one)}"
        )
    if one.known:
        return f"starts over in a new folder (--fresh); its checkpoint {where} stays"
    return f"starts over in a new folder; its checkpoint {where} stays: {why_unknown(one)}"


def _many(group: Sequence[Continuation], resumes: bool) -> str:
    if resumes:
        return "continue from their newest checkpoints (--fresh starts them over)"
    unknown = next((one for one in group if not one.known), None)
    why = f": {why_unknown(unknown)}" if unknown else " (--fresh)"
    return f"start over in new folders; their checkpoints stay{why}"
