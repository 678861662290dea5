"""A container around a run's processes: its settings, its command line and binds, and what a node lacks to start it.

Every runtime but one is a prefix: its words come before the program, or before the launcher of a node's ranks, so that
torchrun and its ranks share one container on each node. pyxis is a plugin of srun: its words are flags of the step, and
whatever the step starts is inside from the beginning. Program, image and binds are checked on the node before anything
starts there.
"""

import json
import os
import shutil
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ...kernel import processes, slurm
from .. import environment

RUNTIMES = ("apptainer", "singularity", "charliecloud", "podman", "pyxis")
#: `container = "none"`: no container, although the cluster's profile has one.
NO_CONTAINER = "none"
GPU_VENDORS = ("nvidia", "amd", "none")
#: The cluster's part of the settings, as the batch script hands it to the agent.
CONTAINER_VARIABLE = "SHOAL_CONTAINER"


class ContainerError(ValueError):
    """Settings that cannot be turned into words; `hint` says what would do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Container(NamedTuple):
    """`binds` are "SOURCE", "SOURCE:TARGET" or "SOURCE:TARGET:ro"; `workdir` None means: where the program would be."""

    runtime: str
    image: str
    binds: Sequence[str] = ()
    gpu: str = "nvidia"
    options: Sequence[str] = ()
    workdir: Optional[str] = None

    @property
    def by_srun(self) -> bool:
        return self.runtime == "pyxis"

    @property
    def image_is_path(self) -> bool:
        """Whether the image is a file or folder; else it is the name of one in a registry or a store."""
        if self.runtime in ("podman", "pyxis"):
            return self.image.startswith(("/", "./", "../", "~", "$")) or self.image.endswith(".sqsh")
        return "://" not in self.image


class Bind(NamedTuple):
    source: str
    target: str
    mode: str = ""


def merge_settings(step: Mapping[str, Any], cluster: Mapping[str, Any]) -> Dict[str, Any]:
    """What a step says over what its cluster says: binds add up, options only where the runtime is the same."""
    merged = dict(cluster, **step)
    if step.get("image") and not step.get("runtime") and merged.get("runtime") == NO_CONTAINER:
        del merged["runtime"]
    merged["binds"] = list(dict.fromkeys([*cluster.get("binds", ()), *step.get("binds", ())]))
    same = merged.get("runtime") == cluster.get("runtime")
    merged["options"] = [*(cluster.get("options", ()) if same else ()), *step.get("options", ())]
    return merged


def build_container(settings: Mapping[str, Any]) -> Optional[Container]:
    """The container that merged settings describe; None without an image, or if none is wanted."""
    if not has_container({"container": settings}):
        return None
    if not settings.get("runtime"):
        raise ContainerError(
            "nothing says how the image %s is run" % settings["image"],
            'runtime = "apptainer"   # in [clusters.NAME.container]; or %s' % ", ".join(RUNTIMES[1:]),
        )
    return Container(**{key: settings[key] for key in Container._fields if settings.get(key)})


def resolve_settings(spec: Mapping[str, Any], environ: Mapping[str, str]) -> Dict[str, Any]:
    """A run's spec with the whole of its container: its own settings over those of the cluster, told by the script."""
    return dict(
        spec, container=merge_settings(spec.get("container") or {}, json.loads(environ.get(CONTAINER_VARIABLE) or "{}"))
    )


def has_container(spec: Mapping[str, Any]) -> bool:
    """Whether a settled spec has a container."""
    settings = spec.get("container") or {}
    return bool(settings.get("image")) and settings.get("runtime") != NO_CONTAINER


def resolve_container(spec: Mapping[str, Any], environ: Mapping[str, str]) -> Optional[Container]:
    """The container of a settled spec, with whole paths, $NAMES and ~ as in the job's environment; None without one."""
    one = build_container(spec.get("container") or {})
    if one is None:
        return None

    def full(word: str, what: str) -> str:
        try:
            return environment.expand_path(word, environ)
        except environment.VariableNotSet as name:
            raise ContainerError(
                "the container's %s is %s, and $%s is not set in the job" % (what, word, name),
                "export %s=...   # in the cluster's setup" % name,
            )

    filled = one._replace(
        image=full(one.image, "image"),
        binds=[full(bind, "bind") for bind in one.binds],
        workdir=None if one.workdir is None else full(one.workdir, "workdir"),
    )
    return with_absolute_paths(filled, spec.get("root") or spec["cwd"])


def with_absolute_paths(one: Container, root: str) -> Container:
    """The same with whole paths: what is relative begins at the project's root."""

    def full(path: str) -> str:
        return path if path.startswith(("/", "~", "$")) else os.path.normpath(os.path.join(root, path))

    image = full(one.image) if one.image_is_path else one.image
    return one._replace(image=image, binds=[full(bind) for bind in one.binds])


def parse_bind(text: str) -> Bind:
    source, target, mode, *more = (*text.split(":"), "", "")
    if not source or any(more) or mode not in ("", "ro", "rw") or "," in text or not text.isprintable():
        raise ContainerError("%r is not a bind" % text, 'binds = ["/data", "/scratch:/scratch:ro"]')
    return Bind(source, target or source, mode)


def all_binds(one: Container, places: Sequence[str]) -> List[Bind]:
    """The user's binds, and those of `places` that they do not cover: each at its own path, links followed."""
    asked = [parse_bind(text) for text in one.binds]
    covered = [bind.target for bind in asked if bind.source == bind.target and bind.mode != "ro"]
    needed = sorted({path for place in places for path in (os.path.abspath(place), os.path.realpath(place))})
    for path in needed:  # parents come before what lies in them
        if not any(path == other or path.startswith(other.rstrip("/") + "/") for other in covered):
            if ":" in path or "," in path:
                raise ContainerError("%r cannot be bound: it has a colon or comma" % path, "rename the folder")
            covered.append(path)
            asked.append(Bind(path, path))
    return asked


def container_argv(one: Container, places: Sequence[str], cwd: str, gpus: bool, as_root: bool) -> List[str]:
    """The prefix, or for pyxis srun's flags. `places` are folders of this machine that the program needs."""
    binds = all_binds(one, places)
    return _BUILDERS[one.runtime](one, binds, one.workdir or cwd, one.gpu if gpus else "none", as_root)


def _apptainer(one: Container, binds: List[Bind], cwd: str, gpu: str, as_root: bool) -> List[str]:
    flags = {"nvidia": ["--nv"], "amd": ["--rocm"], "none": []}[gpu]
    mounts = [word for bind in binds for word in ("--bind", _format_bind(bind))]
    return [one.runtime, "exec", *flags, *mounts, "--pwd", cwd, *one.options, one.image]


def _charliecloud(one: Container, binds: List[Bind], cwd: str, gpu: str, as_root: bool) -> List[str]:
    for bind in binds:
        if bind.mode == "ro":
            raise ContainerError(
                "charliecloud has no read-only binds: %s" % ":".join(bind), "binds = [%r]" % ":".join(bind[:2])
            )
    return ["ch-run", *("--bind=%s:%s" % bind[:2] for bind in binds), "--cd=%s" % cwd, *one.options, one.image, "--"]


def _podman(one: Container, binds: List[Bind], cwd: str, gpu: str, as_root: bool) -> List[str]:
    # Processes of a run find each other by address, pid and shared memory; podman would hide all three.
    flags = ["--rm", "--network=host", "--ipc=host", "--pid=host", "--env-host", "--security-opt=label=disable"]
    flags += [] if as_root else ["--userns=keep-id"]
    flags += ["--volume=%s" % _format_bind(bind) for bind in binds]
    devices = {"nvidia": ["--device=nvidia.com/gpu=all"], "amd": ["--device=/dev/kfd", "--device=/dev/dri"], "none": []}
    image = ["--rootfs", one.image] if one.image_is_path else [one.image]
    return ["podman", "run", *flags, *devices[gpu], "--workdir=%s" % cwd, "--entrypoint=", *one.options, *image]


def _pyxis(one: Container, binds: List[Bind], cwd: str, gpu: str, as_root: bool) -> List[str]:
    mounts = ",".join(_format_bind(bind) for bind in binds)
    flags = ["--container-image=%s" % one.image, "--container-mounts=%s" % mounts, "--container-workdir=%s" % cwd]
    return [*flags, *one.options]


_BuildArgv = Callable[[Container, List[Bind], str, str, bool], List[str]]
_BUILDERS: Dict[str, _BuildArgv] = {
    "apptainer": _apptainer,
    "singularity": _apptainer,
    "charliecloud": _charliecloud,
    "podman": _podman,
    "pyxis": _pyxis,
}


def _format_bind(bind: Bind) -> str:
    return ":".join(part for part in bind if part)


def needed_dirs(spec: Mapping[str, Any], environ: Mapping[str, str], more: Sequence[str]) -> List[str]:
    """Folders that a run needs: its code, outputs, logs and state (`more`), what it starts from, scratch, its data."""
    found = [spec["cwd"], *more, environ.get("SHOAL_PARENT_DIR", "")]
    try:
        found.append(environment.expand_path(environ.get("SHOAL_SCRATCH", ""), environ))
    except environment.VariableNotSet:
        pass  # It is not used then; who stages data says so.
    found += [os.path.dirname(environ.get(name, "")) for name in ("SHOAL_START_FROM", "SHOAL_RESUME_FROM")]
    found += [value for name, value in environ.items() if name.startswith("SHOAL_DATA_") and value.startswith("/")]
    return [place for place in found if place and os.path.isdir(place)]


def runtime_environment(environ: Mapping[str, str]) -> Dict[str, str]:
    """What a runtime itself wants to find in the environment and a bare job may lack: ch-run stops without $USER."""
    if environ.get("USER"):
        return {}
    import pwd

    try:
        return {"USER": pwd.getpwuid(os.getuid()).pw_name}
    except KeyError:
        return {"USER": str(os.getuid())}


class ContainerArgs(NamedTuple):
    """A container as words: `around` a program, or flags of srun. Without the paths `needs` it cannot be started."""

    around: Sequence[str] = ()
    step_flags: Sequence[str] = ()
    needs: Sequence[str] = ()


def container_args(
    spec: Mapping[str, Any], environ: Mapping[str, str], more: Sequence[str], gpus: bool
) -> ContainerArgs:
    """The container of a run; empty where it has none."""
    one = resolve_container(spec, environ)
    if one is None:
        return ContainerArgs()
    places = needed_dirs(spec, environ, more)
    found = container_argv(one, places, spec["cwd"], gpus, os.getuid() == 0)
    if one.by_srun:
        return ContainerArgs(step_flags=found)
    sources = [bind.source for bind in all_binds(one, places)]
    return ContainerArgs(found, needs=([one.image] if one.image_is_path else []) + sources)


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
    node, program = processes.node_name(), RUNTIME_PROGRAMS[one.runtime]
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
            message = "%s is to be bound into the container and does not exist on %s: mkdir -p %s, or leave it out"
            return message % (bind.source, node, bind.source)
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
