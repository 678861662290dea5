"""What a container needs on a node, looked at before anything starts there: its program, its image, what it binds."""

import os
import shutil
from typing import Any, Mapping, Optional, Sequence

from ...kernel import process, slurm
from .container import Container, ContainerError, all_binds, needed_dirs, resolve_container

#: The program that each runtime is, and whose absence is told.
RUNTIME_PROGRAMS = {
    "apptainer": "apptainer",
    "singularity": "singularity",
    "charliecloud": "ch-run",
    "podman": "podman",
    "pyxis": "srun",
}
#: Mounted from the host by charliecloud itself, so that no image needs a folder for what lies in them.
_CHARLIECLOUD_MOUNTS = ("/dev", "/proc", "/sys", "/tmp")  # noqa: S108


def container_problem(
    spec: Mapping[str, Any], environ: Mapping[str, str], more: Sequence[str], here_only: bool
) -> Optional[str]:
    """Before anything starts on this node: why the run's container cannot be used, or None."""
    try:
        one = resolve_container(spec, environ)
        if one is None:
            return None
        if one.by_srun and (here_only or not environ.get("SLURM_JOB_ID")):
            return "pyxis is a plugin of srun, and this run is not started by srun: another `runtime`"
        return missing_on_node(one, needed_dirs(spec, environ, more), environ)
    except ContainerError as error:
        return "%s: %s" % (error.message, error.hint)


def missing_on_node(one: Container, places: Sequence[str], environ: Mapping[str, str]) -> Optional[str]:
    """Why the container cannot be started on this node, with what helps; None if nothing speaks against it."""
    node, program = process.node_name(), RUNTIME_PROGRAMS[one.runtime]
    if shutil.which(program, path=environ.get("PATH")) is None:
        twin = {"apptainer": "singularity", "singularity": "apptainer"}.get(one.runtime, "")
        helps = "install it, or run without: --container none"
        if twin and shutil.which(twin, path=environ.get("PATH")):
            helps = 'runtime = "%s", which is there' % twin
        elif environ.get("SLURM_JOB_ID"):
            helps = 'setup = "module load %s"   # in the cluster\'s profile' % one.runtime
        return "there is no program %s on %s for the container: %s" % (program, node, helps)
    if one.by_srun and not _srun_knows_containers(environ):
        return "srun on %s knows no --container-image, so pyxis is not installed there: another `runtime`" % node
    if one.image_is_path and not os.path.exists(one.image):
        return "there is no image %s on %s: put it there, or name another with `container`" % (one.image, node)
    for bind in all_binds(one, places):
        if not os.path.exists(bind.source):
            told = "%s is to be bound into the container and does not exist on %s: mkdir -p %s, or leave it out"
            return told % (bind.source, node, bind.source)
    return _no_mount_point(one, places)


def _srun_knows_containers(environ: Mapping[str, str]) -> bool:
    """Whether pyxis is there; srun's help has what plugins add to it."""
    done = slurm.run_command(["srun", "--help"], slurm.QUERY_TIMEOUT_S, environ)
    return bool(done.failure) or "--container-image" in done.stdout  # else srun itself will say what is wrong


def _no_mount_point(one: Container, places: Sequence[str]) -> Optional[str]:
    """charliecloud makes no folders in an image that it may not write to; the others do."""
    writable = {"-w", "--write", "-W", "--write-fake"} & {option.partition("=")[0] for option in one.options}
    if one.runtime != "charliecloud" or not os.path.isdir(one.image) or writable:
        return None
    for bind in all_binds(one, places):
        shared = bind.target.startswith(tuple(path + "/" for path in _CHARLIECLOUD_MOUNTS))
        inside = os.path.join(one.image, bind.target.lstrip("/"))
        if not shared and not os.path.lexists(inside):
            return "the image has no folder to bind %s at: mkdir -p %s" % (bind.target, inside)
    return None
