"""Does a program continue from its checkpoint? Known from what its step says, or seen in its source; never assumed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from shoal.describe.project import Project
from shoal.describe.sources import find_reader
from shoal.job import placeholder_names
from shoal.model import RunSpec

RESUME_VARIABLE = "SHOAL_RESUME_FROM"


def with_current_step(spec: RunSpec, project: Project) -> RunSpec:
    """A run that was recorded, with what its step says now about checkpoints: that may have been added to resume it."""
    step = project.steps.get(spec.step_kind)
    if step is None:
        return spec
    args = spec.resume_args if step.resume_args is None else list(step.resume_args)
    return msgspec.structs.replace(spec, checkpoint=step.checkpoint or spec.checkpoint, resume_args=args)


class ResumeDetector:
    """Which programs read the variable; each command is looked at once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], str] = {}

    def how(self, spec: RunSpec) -> str:
        """How it is known that the run's program continues from a checkpoint; "" if it is not."""
        if spec.resume_args is not None:
            return "resume_args"
        words = (*spec.command, *spec.args, *spec.env.values())
        if "resume_from" in placeholder_names([*spec.command, *spec.args]):
            return "{resume_from}"
        if any(RESUME_VARIABLE in word for word in words):
            return RESUME_VARIABLE
        key = (spec.cwd, *spec.command)
        if key not in self._known:
            self._known[key] = find_reader(RESUME_VARIABLE, Path(spec.cwd), spec.command)
        return self._known[key]


def unknown_resume_note(spec: RunSpec) -> str:
    """For a plan: what happens to a run whose program is not known to continue from its checkpoint."""
    return (
        f"step {spec.step_kind}: no file of its program reads {RESUME_VARIABLE}, so a run that is requeued or retried "
        f"may start at step 0; set resume_args in [steps.{spec.step_kind}] of shoal.toml"
    )


def empty_argument_note(spec: RunSpec) -> str | None:
    """For a plan: an argument that is nothing but a flag until there is a checkpoint, which few programs can read."""
    word = next((word for word in (*spec.command, *spec.args) if "resume_from" in placeholder_names([word])), None)
    if word is None or spec.resume_args is not None:
        return None
    told = word.replace("{resume_from}", "")
    shown = f"{told!r}" if told else "an empty argument"
    return (
        f"step {spec.step_kind}: {word} is {shown} until the run has a checkpoint; to pass it only then, set "
        f'resume_args = ["{word}"] in [steps.{spec.step_kind}]'
    )
