"""The container of a run as planning sees it: complete or refused, and told in one line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.batch import shell_command
from shoal.describe import Cluster
from shoal.errors import InputError
from shoal.job import Container, ContainerError, build_container, container_argv, merge_settings, with_absolute_paths
from shoal.model import RunSpec

if TYPE_CHECKING:
    from shoal.plan.submissions import PlannedSubmission


def check_containers(submissions: Sequence[PlannedSubmission], cluster: Cluster) -> list[str]:
    """What containers the submissions start, as notes; InputError for one that could not be started."""
    notes: dict[str, None] = {}
    seen: set[object] = set()
    for planned in submissions:
        for run in planned.runs:
            key = (id(planned.resolved), planned.shape, msgspec.json.encode(run.spec.container))
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
        hint = "--container none   # runs it without one" if cluster.is_local else "--shape job"
        raise InputError(f"pyxis is a plugin of srun, and {where}", hint=hint, place=place)
    # What lies in the project is where it runs as well; other folders may exist on the nodes alone.
    known = cluster.is_local or Path(one.image).is_relative_to(spec.cwd)
    if one.image_is_path and known and "$" not in one.image and not os.path.exists(os.path.expanduser(one.image)):
        folder = os.path.dirname(one.image)
        hint = f"ls {shell_command([folder])}" if os.path.isdir(folder) else f"mkdir -p {shell_command([folder])}"
        raise InputError(f"there is no image {one.image}", hint=f"{hint}   # where it is expected", place=place)
