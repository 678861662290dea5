"""Runs as submissions: one job each, or one array for many equal runs; the script of a job; and the maximum cost.

The cost is in GPU-hours, with the time from the first start to the last end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal import __version__
from shoal.batch import escape_percent, parse_flags, shell_quote
from shoal.describe import Cluster, PlannedRun, Project
from shoal.errors import InputError
from shoal.job import CONTAINER_VARIABLE, describe_geometry
from shoal.kernel import submission
from shoal.model import Request, RunSpec
from shoal.plan.batch_script import script_header, setup_text
from shoal.plan.containers import container_of, describe_container
from shoal.plan.pack_queue import PackQueue
from shoal.plan.sbatch_options import ResolvedRequest, resolve_request
from shoal.units import format_duration

#: Slurm's own default of MaxArraySize is 1001, and the index 1000 is the last.
DEFAULT_MAX_ARRAY = 1001
#: Slurm looks at time limits twice a minute, and sends what would come late at the look before.
_MIN_WARNING_S = 30
LAYOUTS = ("auto", "job", "array", "pack", "pilots")


class PlannedSubmission(NamedTuple):
    """One job, or one array with a task for each run, all of which ask for the same; or a queue (`pack`) inside one."""

    runs: tuple[PlannedRun, ...]
    shape: str
    resolved: ResolvedRequest
    requeue: bool
    at_once: int | None = None
    pack: PackQueue | None = None

    @property
    def request(self) -> Request:
        return self.resolved.request

    @property
    def needs(self) -> list[str]:
        """Runs outside of it that it waits for."""
        own = {run.spec.name for run in self.runs}
        return list(dict.fromkeys(name for run in self.runs for name in run.needs if name not in own))

    @property
    def any_end(self) -> bool:
        """Whether it starts however those end, because only some of its runs build on them; the others may run."""
        return any(not set(self.needs) <= set(run.needs) for run in self.runs)


def plan_submissions(
    runs: Sequence[PlannedRun],
    project: Project,
    cluster: Cluster,
    *,
    shape: str = "auto",
    requeue: Mapping[str, bool] | None = None,
    at_once: int | None = None,
    largest_array: int = DEFAULT_MAX_ARRAY,
) -> list[PlannedSubmission]:
    """Group runs into submissions, in the order of their first runs. On Slurm equal runs share arrays of at most
    `largest_array` tasks, unless shape says otherwise.
    """
    if shape == "array" and cluster.is_local:
        raise InputError("an array is a Slurm job, and this machine is not Slurm", hint="leave --shape out")
    known: dict[object, ResolvedRequest] = {}
    groups: dict[object, tuple[ResolvedRequest, bool, list[PlannedRun]]] = {}
    for number, run in enumerate(runs):
        asks = _request_key(run.spec)
        if asks not in known:
            known[asks] = resolve_request(
                run.spec.request,
                parse_flags(run.spec.flags, nodes=run.spec.request.nodes),
                cluster,
                project.clusters,
                launch=run.spec.launch,
                settings=run.spec.launch_settings,
            )
        resolved = known[asks]
        if not cluster.is_local:
            _check_warning(run.spec, resolved)
        again = resolved.requeue if resolved.requeue is not None else (requeue or {}).get(run.spec.step_kind, True)
        alone = shape == "job" or cluster.is_local
        key = number if alone else (resolved.options, again, run.spec.step_kind, resolved.geometry, run.needs)
        groups.setdefault(key, (resolved, again, []))[2].append(run)
    return [
        PlannedSubmission(tuple(part), "array" if len(part) > 1 else "job", resolved, again, at_once)
        for resolved, again, group in groups.values()
        for part in (group[i : i + largest_array] for i in range(0, len(group), largest_array))
    ]


def _check_warning(spec: RunSpec, resolved: ResolvedRequest) -> None:
    warn_s, limit_s = spec.survive.get("warn_s"), resolved.request.time_limit_s
    if warn_s and limit_s is not None and limit_s <= warn_s + _MIN_WARNING_S:
        limit = format_duration(limit_s)
        raise InputError(
            f"{spec.name} is to be warned {format_duration(warn_s)} before a limit of {limit}: as soon as it starts",
            hint=f'a longer time, or warn = "1m" in [steps.{spec.step_kind}.survive]',
        )


def _request_key(spec: RunSpec) -> object:
    """What the options of a run's job depend on; runs of a sweep mostly share it."""
    return (spec.request, tuple(spec.flags), spec.launch, msgspec.json.encode(spec.launch_settings))


def slurm_job_name(planned: PlannedSubmission, token: str) -> str:
    """The Slurm job name; an array is named after its first run."""
    first = planned.runs[0].spec
    return submission.job_name(first.name, token)


def shoal_options(
    planned: PlannedSubmission, folder: str, root: str, indices: Sequence[int]
) -> list[tuple[str, str | None]]:
    """What shoal itself asks of sbatch, beside the request."""
    pattern = "slurm-%A_%a.out" if planned.shape in ("array", "pilots") else "slurm-%j.out"
    options: list[tuple[str, str | None]] = [
        ("output", f"{escape_percent(folder)}/{pattern}"),
        ("open-mode", "append"),
        ("chdir", root),
        ("kill-on-invalid-dep", "yes"),
        ("requeue" if planned.requeue else "no-requeue", None),
    ]
    warn_s = planned.runs[0].spec.survive.get("warn_s")
    if warn_s and planned.pack is None and planned.resolved.get("signal") is None:
        options.append(("signal", f"B:USR1@{warn_s}"))
    if planned.shape == "array":
        options.append(("array", format_indices(indices) + (f"%{planned.at_once}" if planned.at_once else "")))
    if planned.pack is not None and planned.shape == "pilots":
        options.append(("array", f"0-{planned.pack.pilots - 1}"))
    return options


def submission_script(
    planned: PlannedSubmission,
    folder: str,
    agent: str,
    root: str,
    token: str,
    python: str = sys.executable,
    shared: bool = False,
) -> str:
    """The batch script: header, the cluster's set-up, and the agent that runs the step.

    The job name in the header has no token: whoever submits this file by hand means another run of it, and the agent
    tells the two apart by the token. In a `shared` project it executes no agent but that of whoever runs the script.
    """
    first = planned.runs[0].spec
    what = first.name if len(planned.runs) == 1 else f"{len(planned.runs)} runs, the first {first.name}"
    comments = (
        f"{what}; made by shoal {__version__} (submission {token}).",
        "It does the same when run by hand: sbatch script.sh, or bash script.sh.",
    )
    options = [
        ("job-name", f"{first.experiment}.{first.stem}"),
        *planned.resolved.options,
        *shoal_options(planned, folder, root, range(len(planned.runs))),
    ]
    # A single job inside somebody's array would find the array's index in its environment, and it is not ours.
    index = '"${SLURM_ARRAY_TASK_ID:-all}"' if planned.shape == "array" else "0"
    role, words = ("", f"--index {index} ") if planned.pack is None else ("pack ", "")
    launch = "\n".join(
        (
            *_launch_spec(planned),
            f"python={shell_quote(python)}",
            '[ -x "$python" ] || python=python3',
            *([_check_agent_path(agent)] if shared else []),
            "set_up",
            f'exec "$python" -I {shell_quote(agent)} {role}{shell_quote(folder)} \\',
            f'    {words}--set-up-exit "$?"',
        )
    )
    return f"{script_header(options, comments)}\n{setup_text(planned.resolved.cluster)}\n{launch}\n"


def _check_agent_path(agent: str) -> str:
    said = f"shoal: not started: {agent} is another user's file; use shoal retry"
    return f"[[ -O {shell_quote(agent)} ]] || {{ echo {shell_quote(said)} >&2; exit 1; }}"


def _launch_spec(planned: PlannedSubmission) -> list[str]:
    """What the launcher needs to know and a job's own environment tells badly; for people it says what runs where.

    Of a container it is the cluster's part that the script tells; the rest stands in each run's own record.
    """
    geometry, cluster, spec = planned.resolved.geometry, planned.resolved.cluster, planned.runs[0].spec
    one = container_of(spec, cluster)
    lines = []
    if geometry.mode != "process" or (one is not None and planned.pack is None):
        cpus = "" if geometry.cpus is None else f" SHOAL_CPUS_PER_NODE={geometry.cpus}"
        lines.append(f"# {describe_geometry(geometry)}")
        lines.append(f"export SHOAL_NODES={geometry.nodes} SHOAL_GPUS_PER_NODE={geometry.gpus}{cpus}")
    if one is not None:
        lines.append(f"# {describe_container(one, spec, gpus=bool(geometry.gpus))}")
    if settings := cluster.container.record():
        lines.append(f"export {CONTAINER_VARIABLE}={shell_quote(json.dumps(settings))}")
    return lines


def format_indices(indices: Sequence[int]) -> str:
    """0,1,2,5 -> "0-2,5", as sbatch --array takes it."""
    parts: list[list[int]] = []
    for index in indices:
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def log_root(cluster: Cluster, root: str) -> str | None:
    """The folder that the profile names for logs, or None: then logs stand in the run's output folder."""
    if cluster.origin("logs") == "default":
        return None
    fixed = []
    for part in cluster.logs.split("/"):
        if "%" in part:
            break
        fixed.append(part)
    return os.path.normpath(os.path.join(root, "/".join(fixed)))


def max_gpu_hours(planned: PlannedSubmission) -> float:
    """GPUs times the time limit."""
    request = planned.request
    jobs = len(planned.runs) if planned.pack is None else max(1, planned.pack.pilots)
    return jobs * (request.nodes or 1) * (request.gpus or 0) * (request.time_limit_s or 0) / 3600


def max_makespan_s(submissions: Sequence[PlannedSubmission], *, one_by_one: bool) -> float | None:
    """When the last run has ended if each takes its whole time limit and nothing waits in the queue; None if one has no
    limit. Submissions come after those that they need, and with `one_by_one` each run after the one before."""
    ends: dict[str, float] = {}
    last = 0.0
    for planned in submissions:
        limit_s = planned.request.time_limit_s
        if limit_s is None:
            return None
        begin = (
            last if one_by_one or planned.at_once else max((ends.get(name, 0.0) for name in planned.needs), default=0.0)
        )
        last = begin + limit_s * _sequential_runs(planned, one_by_one)
        ends.update((run.spec.name, last) for run in planned.runs)
    return max(ends.values(), default=None)


def _sequential_runs(planned: PlannedSubmission, one_by_one: bool) -> int:
    """How many of its runs follow each other."""
    if planned.pack is not None:
        return 1
    runs = len(planned.runs)
    return runs if one_by_one else -(-runs // (planned.at_once or runs))
