"""Runs as submissions: one job per run, or one array for many equal runs; the script of a job; and the maximum cost.

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
from shoal.batch import escape_percent, parse_flags, shell_command, shell_quote
from shoal.describe import Cluster, PlannedRun, Project
from shoal.errors import InputError
from shoal.job import CONTAINER_VARIABLE, describe_geometry, fill_placeholders, format_value
from shoal.kernel import begin_lines, submission
from shoal.model import Request, RunSpec
from shoal.plan.batch_script import script_header, setup_text
from shoal.plan.containers import container_of, describe_container
from shoal.plan.pack_queue import PackQueue
from shoal.plan.sbatch_options import ResolvedRequest, resolve_request
from shoal.units import format_duration, format_indices

#: Slurm's own default of MaxArraySize is 1001, and the index 1000 is the last.
DEFAULT_MAX_ARRAY = 1001
#: Slurm looks at time limits twice a minute, and sends what would come late at the look before.
_MIN_WARNING_S = 30


class PlannedSubmission(NamedTuple):
    """One job, or one array with a task for each run, all of which ask for the same; or a queue (`pack`) inside one."""

    runs: tuple[PlannedRun, ...]
    layout: str
    resolved: ResolvedRequest
    requeue: bool
    max_parallel: int | None = None
    pack: PackQueue | None = None

    @property
    def request(self) -> Request:
        return self.resolved.request

    @property
    def needs(self) -> list[str]:
        """Runs outside of it that it waits for."""
        if not any(run.needs for run in self.runs):
            return []
        own = {run.spec.name for run in self.runs}
        return list(dict.fromkeys(name for run in self.runs for name in run.needs if name not in own))

    @property
    def any_end(self) -> bool:
        """Whether it starts however those end, because only some of its runs build on them; the others may run."""
        needs = set(self.needs)
        return bool(needs) and any(not needs.issubset(run.needs) for run in self.runs)


def plan_submissions(
    runs: Sequence[PlannedRun],
    project: Project,
    cluster: Cluster,
    *,
    layout: str = "auto",
    requeue: Mapping[str, bool] | None = None,
    max_parallel: int | None = None,
    largest_array: int = DEFAULT_MAX_ARRAY,
) -> list[PlannedSubmission]:
    """Group runs into submissions, in the order of their first runs. On Slurm equal runs share arrays of at most
    `largest_array` tasks, unless layout says otherwise.
    """
    is_local = cluster.is_local
    if layout == "array" and is_local:
        raise InputError("an array is a Slurm job, and this machine is not Slurm", hint="leave --layout out")
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
                as_written=bool(run.spec.script),
            )
        resolved = known[asks]
        if not is_local:
            _check_warning(run.spec, resolved)
        requeues = resolved.requeue if resolved.requeue is not None else (requeue or {}).get(run.spec.step_kind, True)
        alone = layout == "job" or is_local or run.spec.adopted
        key = number if alone else (*_job_key(run, resolved), requeues)
        groups.setdefault(key, (resolved, requeues, []))[2].append(run)
    return [
        PlannedSubmission(
            tuple(part),
            "array" if len(part) > 1 else "job",
            resolved,
            requeues,
            max_parallel or group[0].spec.script.get("max_parallel"),
        )
        for resolved, requeues, group in groups.values()
        for part in (group[i : i + largest_array] for i in range(0, len(group), largest_array))
    ]


def _job_key(run: PlannedRun, resolved: ResolvedRequest) -> tuple[object, ...]:
    """Runs with equal keys may share an array: budgets may limit a step or an experiment, so they share both."""
    script = run.spec.script
    limited = (script["path"], script["max_parallel"]) if "max_parallel" in script else ()
    return (
        resolved.options,
        run.spec.step_kind,
        run.spec.experiment,
        resolved.geometry,
        run.needs,
        limited,
        script.get("export"),
    )


def _check_warning(spec: RunSpec, resolved: ResolvedRequest) -> None:
    warn_s, limit_s = spec.recovery.get("warn_before_s"), resolved.request.time_limit_s
    if warn_s and limit_s is not None and limit_s <= warn_s + _MIN_WARNING_S:
        limit = format_duration(limit_s)
        raise InputError(
            f"{spec.name} is to be warned {format_duration(warn_s)} before a limit of {limit}: as soon as it starts",
            hint=f'a longer time, or warn_before = "1m" in [steps.{spec.step_kind}.recovery]',
        )


def _request_key(spec: RunSpec) -> object:
    """What the options of a run's job depend on; runs of a sweep mostly share it."""
    return (
        spec.request,
        tuple(spec.flags),
        spec.launch,
        msgspec.json.encode(spec.launch_settings),
        bool(spec.script),
    )


def slurm_job_name(planned: PlannedSubmission, token: str) -> str:
    """The Slurm job name; an array is named after its first run."""
    first = planned.runs[0].spec
    return submission.job_name(first.name, token)


def shoal_options(
    planned: PlannedSubmission, folder: str, root: str, indices: Sequence[int]
) -> list[tuple[str, str | None]]:
    """What shoal itself asks of sbatch, beside the request."""
    pattern = "slurm-%A_%a.out" if planned.layout in ("array", "pilots") else "slurm-%j.out"
    options: list[tuple[str, str | None]] = [
        ("output", f"{escape_percent(folder)}/{pattern}"),
        ("open-mode", "append"),
        ("chdir", root),
        ("kill-on-invalid-dep", "yes"),
        ("requeue" if planned.requeue else "no-requeue", None),
    ]
    if (export := planned.runs[0].spec.script.get("export")) is not None:
        options.append(("export", export))
    warn_s = planned.runs[0].spec.recovery.get("warn_before_s")
    if warn_s and planned.pack is None and planned.resolved.get("signal") is None:
        options.append(("signal", f"B:USR1@{warn_s}"))
    if planned.layout == "array":
        options.append(
            ("array", format_indices(indices) + (f"%{planned.max_parallel}" if planned.max_parallel else ""))
        )
    if planned.pack is not None and planned.layout == "pilots":
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
    saved: bool = True,
) -> str:
    """The batch script: header, the cluster's set-up, and the agent that runs the step.

    The job name in the header has no token: whoever submits this file by hand means another run of it, and the agent
    tells the two apart by the token. In a `shared` project it executes no agent but that of whoever runs the script.
    """
    first = planned.runs[0].spec
    what = first.name if len(planned.runs) == 1 else f"{len(planned.runs)} runs, the first {first.name}"
    comments = (
        f"{what}; made by shoal {__version__} (submission {token}).",
        "It does the same when run by hand: sbatch script.sh, or bash script.sh."
        if saved
        else "shoal submit writes this script with its token; this copy cannot be submitted.",
    )
    options = [
        ("job-name", f"{first.experiment}.{first.stem}"),
        *planned.resolved.options,
        *shoal_options(planned, folder, root, range(len(planned.runs))),
    ]
    # A single job inside somebody's array would find the array's index in its environment, and it is not ours.
    index = '"${SLURM_ARRAY_TASK_ID:-all}"' if planned.layout == "array" else "0"
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
    begin = "\n".join(("# What it costs is counted from here.", *begin_lines(folder, shared)))
    return f"{script_header(options, comments)}\n{begin}\n\n{setup_text(planned.resolved.cluster)}\n{launch}\n"


def unsent_script(planned: PlannedSubmission, python: str = sys.executable) -> str:
    """A script for plain sbatch that executes batch scripts or commands as the runs that `shoal submit` would start:
    each is submitted once, whoever comes first."""
    first, name = planned.runs[0].spec, f"{planned.runs[0].spec.experiment}.{planned.runs[0].spec.stem}"
    comments = (
        f"{first.name if len(planned.runs) == 1 else f'{len(planned.runs)} runs'}; made by shoal {__version__}.",
        "Submitted with sbatch, it starts the same runs as shoal submit does.",
    )
    array = [("array", format_indices(range(len(planned.runs))))] if len(planned.runs) > 1 else []
    directory = first.script["submit_dir"] if first.script else first.start_dir
    options = [("job-name", name), *planned.resolved.options, ("chdir", directory), *array]
    words = [shell_command([python, "-m", "shoal", "submit", *_submit_words(run.spec)]) for run in planned.runs]
    if len(words) == 1:
        return f"{script_header(options, comments)}\nexec {words[0]}\n"
    cases = "\n".join(f"    {index}) exec {line} ;;" for index, line in enumerate(words))
    return f'{script_header(options, comments)}\ncase "$SLURM_ARRAY_TASK_ID" in\n{cases}\nesac\n'


def _submit_words(spec: RunSpec) -> list[str]:
    """The arguments of `shoal submit` that describe one run of a batch script or of a command."""
    script = spec.script
    sets = [f"--set={name}={format_value(value)}" for name, value in spec.params.items()]
    seed = [] if spec.seed is None else [f"--seeds={spec.seed}"]
    if not script:
        checkpoint = [f"--checkpoint={spec.checkpoint}"] if spec.checkpoint else []
        return ["--on=local", f"--name={spec.experiment}", *checkpoint, *sets, *seed, "--", *spec.command]
    task = [f"--array={script['array']['index']}"] if "array" in script else []
    path = os.path.join(spec.cwd, fill_placeholders(spec.command[script["word"]], {}))
    args = ["--", *script["args"]] if script.get("args") else []
    return [path, "--on=local", f"--name={spec.experiment}", *script.get("options", ()), *task, *sets, *seed, *args]


def _check_agent_path(agent: str) -> str:
    message = f"shoal: not started: {agent} is another user's file; use shoal retry"
    return f"[[ -O {shell_quote(agent)} ]] || {{ echo {shell_quote(message)} >&2; exit 1; }}"


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


def job_count(planned: PlannedSubmission) -> int:
    """How many Slurm jobs it is; each task of an array is one."""
    return len(planned.runs) if planned.pack is None else max(1, planned.pack.pilots)


class MaxCost(NamedTuple):
    """What submissions cost at most: GPUs times time limits, and the time from the first start to the last end if each
    run takes its whole limit and `gpus_at_once` are free. Times are None where a job has no limit.

    The first two do not count follow-up jobs; those ask for `follow_up_gpu_hours` more.
    """

    gpu_hours: float
    makespan_s: float | None
    gpus_at_once: int
    max_follow_ups: int
    follow_up_gpu_hours: float
    makespan_with_follow_ups_s: float | None


def max_cost(submissions: Sequence[PlannedSubmission], *, one_by_one: bool = False) -> MaxCost:
    """`one_by_one`: each run starts when the one before has ended, as on this machine."""
    follow_ups = [_max_follow_ups(planned) for planned in submissions]
    hours = [_job_gpu_hours(planned) for planned in submissions]
    return MaxCost(
        gpu_hours=sum(job_count(planned) * each for planned, each in zip(submissions, hours, strict=True)),
        makespan_s=_max_makespan_s(submissions, one_by_one),
        gpus_at_once=_gpus_at_once(submissions),
        max_follow_ups=sum(follow_ups),
        follow_up_gpu_hours=sum(count * each for count, each in zip(follow_ups, hours, strict=True)),
        makespan_with_follow_ups_s=_max_makespan_s(submissions, one_by_one, follow_ups=True),
    )


def _max_follow_ups(planned: PlannedSubmission) -> int:
    """How many jobs may follow its jobs, all together: after a time limit, and after causes that its step retries."""
    if planned.resolved.cluster.is_local:
        return 0
    if planned.pack is not None:
        return planned.pack.options.max_follow_ups
    return sum(_follow_ups_of_run(run.spec) for run in planned.runs)


def _follow_ups_of_run(spec: RunSpec) -> int:
    retries: Mapping[str, int] = spec.recovery.get("max_retries") or {}
    return int(spec.recovery.get("max_follow_ups") or 0) + sum(map(int, retries.values()))


def _job_gpu_hours(planned: PlannedSubmission) -> float:
    request = planned.request
    return (request.nodes or 1) * (request.gpus or 0) * (request.time_limit_s or 0) / 3600


def _gpus_at_once(submissions: Sequence[PlannedSubmission]) -> int:
    """Submissions that wait for others need no more GPUs than these had."""
    first = [planned for planned in submissions if not planned.needs]
    return sum(
        (planned.request.nodes or 1)
        * (planned.request.gpus or 0)
        * min(job_count(planned), planned.max_parallel or job_count(planned))
        for planned in first
    )


def _max_makespan_s(
    submissions: Sequence[PlannedSubmission], one_by_one: bool, *, follow_ups: bool = False
) -> float | None:
    """Submissions come after those that they need. With `follow_ups`, all follow-up jobs are needed too."""
    ends: dict[str, float] = {}
    last = 0.0
    for planned in submissions:
        limit_s = planned.request.time_limit_s
        if limit_s is None:
            return None
        begin = (
            last
            if one_by_one or planned.max_parallel
            else max((ends.get(name, 0.0) for name in planned.needs), default=0.0)
        )
        last = begin + limit_s * _sequential_jobs(planned, one_by_one, follow_ups)
        ends.update((run.spec.name, last) for run in planned.runs)
    return max(ends.values(), default=None)


def _sequential_jobs(planned: PlannedSubmission, one_by_one: bool, follow_ups: bool) -> int:
    """How many of its jobs follow each other."""
    if planned.pack is not None:
        return 1 + (_max_follow_ups(planned) if follow_ups else 0)
    runs = len(planned.runs)
    waves = runs if one_by_one else -(-runs // (planned.max_parallel or runs))
    more = max(_follow_ups_of_run(run.spec) for run in planned.runs) if follow_ups and _max_follow_ups(planned) else 0
    return waves * (1 + more)
