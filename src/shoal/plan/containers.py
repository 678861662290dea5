"""The container of a run for planning: its settings complete or refused, one line of text, and its part of a script.

In a generated script the container is the bash array `container`, used where the launch mode needs it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from shoal.batch import shell_command, shell_quote
from shoal.describe import Cluster
from shoal.errors import InputError
from shoal.job import Container, ContainerError, build_container, container_argv, merge_settings, with_absolute_paths
from shoal.model import ContainerSettings, RunSpec

if TYPE_CHECKING:
    from shoal.plan.submissions import PlannedSubmission

_NO_SETTINGS = ContainerSettings()


def check_containers(submissions: Sequence[PlannedSubmission], cluster: Cluster) -> list[str]:
    """What containers the submissions start, as notes; InputError for one that could not be started."""
    notes: dict[str, None] = {}
    seen: set[object] = set()
    for planned in submissions:
        for run in planned.runs:
            key = (id(planned.resolved), planned.layout, msgspec.json.encode(run.spec.container))
            if key in seen:
                continue
            seen.add(key)
            one = container_of(run.spec, cluster)
            if one is not None:
                _check_runnable(one, run.spec, cluster, packed=planned.pack is not None)
                gpus = bool(planned.request.gpus)
                notes[describe_container(one, run.spec, gpus=gpus)] = None
    return list(notes)


def container_of(spec: RunSpec, cluster: Cluster) -> Container | None:
    """The step's or experiment's settings over the profile's; None where no image is named."""
    if spec.container == cluster.container == _NO_SETTINGS:
        return None
    try:
        one = build_container(merge_settings(spec.container.record(), cluster.container.record()))
    except ContainerError as error:
        raise InputError(error.message, hint=error.hint, place=f"container of {spec.name}") from None
    return None if one is None else with_absolute_paths(one, spec.cwd)


def describe_container(one: Container, spec: RunSpec, *, gpus: bool) -> str:
    """One line for people: the words, and what they stand around. What the node adds (data, scratch) is not in it."""
    try:
        line = shell_command(container_argv(one, [spec.cwd], spec.cwd, gpus, os.getuid() == 0))
    except ContainerError as error:
        raise InputError(error.message, hint=error.hint, place=f"container of {spec.name}") from None
    around = {"process": "the program", "srun": "each task of srun"}.get(spec.launch, "each node's launcher")
    return f"container: srun {line}" if one.by_srun else f"container: {line}   # around {around}"


def _check_runnable(one: Container, spec: RunSpec, cluster: Cluster, *, packed: bool) -> None:
    place = f"container of {spec.name}"
    if one.by_srun and (cluster.is_local or packed):
        where = "this machine is not Slurm" if cluster.is_local else "runs of a pack are not started by srun"
        hint = "--container none   # runs it without one" if cluster.is_local else "--layout job"
        raise InputError(f"pyxis is a plugin of srun, and {where}", hint=hint, place=place)
    # What lies in the project is where it runs as well; other folders may exist on the nodes alone.
    known = cluster.is_local or Path(one.image).is_relative_to(spec.cwd)
    if one.image_is_path and known and "$" not in one.image and not os.path.exists(os.path.expanduser(one.image)):
        folder = os.path.dirname(one.image)
        hint = f"ls {shell_command([folder])}" if os.path.isdir(folder) else f"mkdir -p {shell_command([folder])}"
        raise InputError(f"there is no image {one.image}", hint=f"{hint}   # where it is expected", place=place)


_VARIABLE = re.compile(r"(\$\{[A-Za-z_][A-Za-z0-9_]*\}|\$[A-Za-z_][A-Za-z0-9_]*)")
_WIDTH = 110


class ContainerText(NamedTuple):
    """`lines` come before the launch; `around` before what runs inside, `step` among srun's own flags."""

    lines: str = ""
    around: str = ""
    step: str = ""


def container_lines(one: Container | None, scratch: str | None, *, gpus: bool, as_root: bool) -> ContainerText:
    """The folder that the script is submitted from and the profile's scratch are bound beside what was asked for."""
    if one is None:
        return ContainerText()
    one = one._replace(
        image=_expand_home(one.image), binds=[*map(_expand_home, one.binds), "$PWD", *([scratch] if scratch else [])]
    )
    array = _wrap_words([shell_text(word) for word in container_argv(one, [], "$PWD", gpus, as_root)])
    check = ""
    if one.image_is_path:
        image = shell_text(one.image)
        check = f'[ -e {image} ] || {{ echo "error: there is no image" {image} >&2; exit 2; }}\n'
    # ch-run stops without it, and not every job has it.
    user = 'export USER="${USER:-$(id -un)}"\n' if one.runtime == "charliecloud" else ""
    lines = f"{check}{user}container=(\n{array}\n)\n"
    return (
        ContainerText(lines, step=' "${container[@]}"')
        if one.by_srun
        else ContainerText(lines, around='"${container[@]}" ')
    )


def shell_text(text: str) -> str:
    """One shell word in which $NAMES are the job's own values."""
    parts = [f'"{part}"' if _VARIABLE.fullmatch(part) else shell_quote(part) for part in _VARIABLE.split(text) if part]
    return "".join(parts) or "''"


def _expand_home(path: str) -> str:
    return f"$HOME{path[1:]}" if path == "~" or path.startswith("~/") else path


def _wrap_words(found: list[str]) -> str:
    lines = [""]
    for word in found:
        if lines[-1] and len(lines[-1]) + len(word) > _WIDTH:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else f"    {word}"
    return "\n".join(lines)
