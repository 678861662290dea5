"""The agent's side of a launch: write the launch spec to a file, and give the command of the launcher that reads it.

The file is beside the attempt's logs. It holds no secrets: the environment reaches the launcher like any process's.
"""

import os
import shutil
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ...kernel import node_name
from .. import allocation
from . import container
from .geometry import LAUNCH_DEFAULTS, GeometryError, compute_geometry, describe_geometry, geometry_record
from .rank_group import write_json


def launch_dir(log: str, attempt: int) -> str:
    """Where a launch keeps its notes and the logs of its ranks: beside the attempt's own."""
    return os.path.join(os.path.dirname(log), "attempt-%d.launch" % attempt)


class AttemptPaths(NamedTuple):
    """The files and directories of an attempt: `usage` is where samples of memory and GPUs go, `binds` are directories
    that its program must see, wherever it runs."""

    log: str
    output_dir: str
    usage: str
    binds: List[str]


def prepare_launch(
    spec: Mapping[str, Any],
    attempt: int,
    values: Mapping[str, str],
    environ: Mapping[str, str],
    paths: AttemptPaths,
    here_only: bool,
) -> Tuple[List[str], Optional[str]]:
    """(the command that the attempt runs, None), or ([], why it cannot be launched here)."""
    settings = {key: value for key, value in (spec.get("launch_settings") or {}).items() if value is not None}
    nodes, gpus = (
        int(environ.get(name) or default) for name, default in (("SHOAL_NODES", 1), ("SHOAL_GPUS_PER_NODE", 0))
    )
    cpus = environ.get("SHOAL_CPUS_PER_NODE")
    try:
        geometry = compute_geometry(spec.get("launch", "process"), settings, nodes, gpus, int(cpus) if cpus else None)
        found = allocation.find_resources(geometry, environ, here_only)
        if not found.slurm:
            geometry = allocation.fold_onto_machine(geometry, environ)
    except GeometryError as error:
        return [], "%s: %s" % (error.message, error.hint)
    except allocation.AllocationMismatch as error:
        return [], str(error)
    program = spec["command"][0]
    if "{" not in program and not container.has_container(spec) and not _is_executable(program, spec["cwd"], environ):
        return [], "there is no program %s on %s" % (program, node_name())
    folder = launch_dir(paths.log, attempt)
    os.makedirs(folder, exist_ok=True)
    record: Dict[str, Any] = {
        "what": describe_geometry(geometry),
        "geometry": geometry_record(geometry),
        "settings": dict(LAUNCH_DEFAULTS, **settings),
        "slurm": found.slurm,
        "job": found.job,
        "nodes": found.nodes,
        "cpus": found.cpus,
        "memory_mb": found.memory_mb,
        "id": "%s-%d" % (found.job, attempt),
        "command": spec["command"],
        "args": spec.get("args", []),
        "resume_args": spec.get("resume_args") or [],
        "values": dict(values),
        "cwd": spec["cwd"],
        "root": spec.get("root"),
        "folder": folder,
        "log": paths.log,
        "output_dir": paths.output_dir,
        "checkpoint": spec.get("checkpoint"),
        "use": paths.usage,
        "container": spec.get("container") or {},
        "places": paths.binds,
    }
    path = os.path.join(folder, "plan.json")
    write_json(path, record)
    return [*agent_argv(), "launch", path], None


def agent_argv() -> List[str]:
    """How this very agent is called again, quickly: no site packages, no user settings."""
    return [sys.executable, "-I", "-S", os.path.abspath(sys.argv[0])]


def process_environment(environ: Dict[str, str]) -> Dict[str, str]:
    """The environment of a single program in a Slurm job, which is not one of srun's tasks.

    Lightning takes SLURM_NTASKS for a promise that srun starts its ranks: with one task and eight GPUs it would train
    one process on an eighth of the data and call it done (measured with 2.6). Without it, it starts its own.
    """
    env = dict(environ)
    if env.get("SLURM_JOB_ID"):
        for name in ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"):
            env.pop(name, None)
        if env.get("SLURM_CPUS_PER_TASK"):
            # srun does not take it from the job since 22.05; threads of BLAS would count the node's cores.
            env.setdefault("SRUN_CPUS_PER_TASK", env["SLURM_CPUS_PER_TASK"])
            env.setdefault("OMP_NUM_THREADS", env["SLURM_CPUS_PER_TASK"])
    return env


def _is_executable(program: str, cwd: str, environ: Mapping[str, str]) -> bool:
    if "/" in program:
        return os.access(os.path.join(cwd, program), os.X_OK)
    return shutil.which(program, path=environ.get("PATH")) is not None
