"""What `shoal submit` checks before it sends anything: the rules, and whether nodes can serve the request.

The rules look at each planned run, before there is a script, which would not tell them more: the script starts the
agent (job/main.py), and what that starts is known here: `planned_job` builds it by the functions that are used inside
the job (job/launch/launcher_args.py), so the two cannot differ. Errors refuse the submission, warnings are printed.

The nodes are checked because Slurm accepts requests that never start: a time above the partition's limit, for one, is
accepted and then pends forever (measured on Slurm 22.05).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from shoal.batch import SbatchOption, ShellCommand, command_of, parse_option_words
from shoal.clusters import ClusterFacts, NodeKind
from shoal.describe import code_path
from shoal.doctor.check import DiskFiles, check_text, examine_job
from shoal.doctor.finding import Finding
from shoal.doctor.geometry import read_geometry
from shoal.doctor.job import JobFacts, LighthouseCall, ShellExport, read_programs
from shoal.doctor.launchers import LauncherCall, read_launcher, read_srun, unwrap
from shoal.doctor.launches import ScriptLaunch, SrunStep, launches_of
from shoal.errors import InputError, RefusedError
from shoal.job import (
    LAUNCH_MODES,
    TORCH_LAUNCHERS,
    GeometryError,
    LaunchGeometry,
    RankGroup,
    compute_geometry,
    launcher_args,
)
from shoal.model import RunSpec
from shoal.plan import ResolvedRequest
from shoal.units import format_memory, format_slurm_time

#: Slurm's reading of these is what people get wrong, so their own spelling is looked at, not the one we made of it.
_AS_WRITTEN = ("time", "mem", "mem-per-cpu", "mem-per-gpu")
#: Each launch sets these for its ranks, whatever the run says.
_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE")
_CHOSEN_IN_THE_JOB = -1
#: Slurm's signals reach the processes as if nothing stood between: the agent hands them on.
_SIGNALLED = ("exec",)


class _RunLike(Protocol):
    @property
    def spec(self) -> RunSpec: ...


class _SubmissionLike(Protocol):
    @property
    def runs(self) -> Sequence[_RunLike]: ...
    @property
    def resolved(self) -> ResolvedRequest: ...


def check_submissions(submissions: Iterable[_SubmissionLike], root: str, *, force: bool = False) -> list[str]:
    """Warnings as notes; RefusedError for the first error, unless `force`, which makes it a note as well."""
    notes: dict[str, None] = {}
    seen: set[tuple[object, ...]] = set()
    for planned in submissions:
        spec = planned.runs[0].spec
        settings = msgspec.json.encode(spec.launch_settings)
        launched = (tuple(spec.command[:3]), spec.launch, settings, tuple(spec.flags), tuple(spec.env.items()))
        key = (planned.resolved.options, *launched)
        if key in seen:
            continue
        seen.add(key)
        for finding in run_findings(spec, planned.resolved, root):
            if finding.severity == "error" and not force:
                raise RefusedError(
                    f"the doctor refuses {spec.name}: {finding.message} ({finding.code})",
                    hint=f"{finding.fix}   # or --force, to submit it all the same",
                )
            notes[f"{finding.code}: {finding.message}; {finding.fix}"] = None
    return list(notes)


def run_findings(spec: RunSpec, resolved: ResolvedRequest, root: str) -> list[Finding]:
    """Errors and warnings on one run; nothing when it cannot be laid over its request, which others say better."""
    if spec.script:
        return _script_findings(spec)
    folder = Path(code_path(os.path.join(root, spec.start_dir), os.environ))
    try:
        job = planned_job(spec, resolved, folder)
    except GeometryError:
        return []
    return [one for one in examine_job(job, DiskFiles(Path(job.path), folder)) if one.severity != "hint"]


def planned_job(spec: RunSpec, resolved: ResolvedRequest, folder: Path) -> JobFacts:
    """The job of one run: the options that sbatch gets, and the words with which the job starts the run's processes.

    `folder` is where it runs. GeometryError when the launch does not fit the request.
    """
    request, settings = resolved.request, spec.launch_settings
    geometry = compute_geometry(spec.launch, settings.record(), request.nodes or 1, request.gpus or 0, request.cpus)
    command = command_of([*spec.command, *spec.args, *settings.args])
    launches, steps = _launches(spec, geometry, command)
    options = _options(spec, resolved, geometry)
    return JobFacts(
        path=str(folder / f"{spec.stem}.sh"),
        kind="plan",
        header=tuple(options.values()),
        options=options,
        geometry=read_geometry(options),
        commands=(command,),
        launches=tuple(launches),
        steps=tuple(steps),
        exports=tuple(ShellExport(name, value, f"{name}={value}", 0, command) for name, value in _env(spec, geometry)),
        lighthouses=(
            (LighthouseCall(0, geometry.replicas, geometry.min_replicas, geometry.min_replicas == geometry.replicas),)
            if geometry.replicas
            else ()
        ),
        python=read_programs(launches, [folder]),
    )


def _options(spec: RunSpec, resolved: ResolvedRequest, geometry: LaunchGeometry) -> dict[str, SbatchOption]:
    options = dict(resolved.options)
    written = {option.name: option.value for option in parse_option_words(spec.flags)[0] if option.name in _AS_WRITTEN}
    options.update({name: value for name, value in written.items() if name in options})
    if geometry.mode == "process":
        # The agent hides the number of tasks from the program, so that Lightning starts its own processes.
        options.pop("ntasks-per-node", None)
    elif "ntasks-per-node" in options:
        # A run of a pack has a part of the allocation, and its own tasks there.
        options["ntasks-per-node"] = str(geometry.tasks)
        if (cpus := geometry.cpus_per_task) is not None and "cpus-per-task" in options:
            options["cpus-per-task"] = str(cpus)
    return {name: SbatchOption(name, value, 0, "") for name, value in options.items()}


def _launches(
    spec: RunSpec, geometry: LaunchGeometry, command: ShellCommand
) -> tuple[list[ScriptLaunch], list[SrunStep]]:
    """What starts the run, by the same words as inside the job. With replicas it is one of them."""
    if geometry.mode == "process":
        launches, steps = launches_of(command)
        return [one._replace(wrappers=(*_SIGNALLED, *one.wrappers)) for one in launches], steps
    if geometry.mode == "srun":
        srun = _step(spec, geometry.nodes, geometry.tasks, geometry.cpus_per_task)
        launches, _ = launches_of(command, srun)
        started = [one._replace(processes=geometry.processes) for one in launches]
        return started, [SrunStep(0, command, srun.options, tuple(command.texts))]
    if geometry.replicas:
        nodes, gpus, processes = geometry.nodes_per_replica, geometry.replica_gpus, geometry.replica_processes
        share = launcher_args.step_share(gpus, None)
    else:
        nodes, gpus, processes, share = geometry.nodes, geometry.gpus, geometry.processes, []
    launch = _under_launcher(spec, nodes, gpus, processes, command)
    if geometry.mode in TORCH_LAUNCHERS and nodes == 1:
        return [launch], []
    srun = _step(spec, nodes, 1, geometry.cpus_per_task, share)
    return [launch._replace(srun=srun.options)], [
        SrunStep(0, launch.command, srun.options, tuple(launch.command.texts))
    ]


def _step(spec: RunSpec, nodes: int, tasks: int, cpus_per_task: int | None, share: Sequence[str] = ()) -> LauncherCall:
    return read_srun(launcher_args.srun_argv(nodes, tasks, cpus_per_task, name=spec.stem, share=share)[1:])


def _under_launcher(spec: RunSpec, nodes: int, gpus: int, processes: int, command: ShellCommand) -> ScriptLaunch:
    """torchrun, accelerate or deepspeed on each node, which starts the command for each of its ranks."""
    mode = "torchrun" if spec.launch == "replicas" else spec.launch
    group = RankGroup(
        mode=mode,
        nodes=[f"node{number}" for number in range(nodes)],
        processes=processes,
        gpus=gpus,
        argv=command.texts,
        cwd=spec.start_dir,
        log="",
        id=spec.stem,
        start=launcher_args.launcher_program(mode, command.texts),
        wrapper=[],
        address="node0",
        port=0 if nodes == 1 else _CHOSEN_IN_THE_JOB,
        max_restarts=spec.launch_settings.max_restarts or 0,
        options=spec.launch_settings.options,
    )
    call = read_launcher(launcher_args.launcher_argv(group, 0, None))
    if call is None:
        raise InputError(
            f"launch mode {mode!r} cannot be checked: the options of {group.start[0]} are not known",
            hint=f"use another one of {', '.join(LAUNCH_MODES)}",
            place="launch",
        )
    passed, rest = unwrap(command.texts)
    program = read_launcher(rest)
    options = dict(call.options)
    if program is not None and program.program == "python":
        rest = list(program.rest)
        options.update({name: value for name, value in program.options.items() if name == "module"})
    whole = command_of([*group.start, *group.options, *command.texts])
    return ScriptLaunch(
        launcher=call.program,
        line=0,
        command=whole,
        options=options,
        program=rest[0] if rest else "",
        args=tuple(rest[1:]),
        wrappers=(*_SIGNALLED, *passed),
        raw=whole.raw,
        processes=processes,
    )


def _env(spec: RunSpec, geometry: LaunchGeometry) -> list[tuple[str, str]]:
    """Variables of the run and of the job around it; one whose value is only known in the job is empty."""
    env = {**spec.env, **spec.launch_settings.env}
    if (cpus := geometry.cpus_per_task) is not None:
        env.setdefault("SRUN_CPUS_PER_TASK", str(cpus))
        env.setdefault("OMP_NUM_THREADS", str(max(1, cpus // (geometry.processes // geometry.tasks))))
    if geometry.mode != "process":
        env.update(dict.fromkeys(_RENDEZVOUS, ""))
    return list(env.items())


#: Findings that do not hold for a batch script under shoal: it creates the directories of logs, and tells the others
#: itself.
_NOT_FOR_SCRIPTS = frozenset({"D07", "D25", "S11", "S12"})


def _script_findings(spec: RunSpec) -> list[Finding]:
    """Errors and warnings on a batch script, by its text. What the command line changed is not judged by the header."""
    path = os.path.join(spec.cwd, spec.command[spec.script["word"]])
    try:
        text = Path(path).read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return []  # it is started again by its name; its copy was looked at then
    found = check_text(text, path)
    return [
        msgspec.structs.replace(one, message=f"{spec.script['path']}:{one.line}: {one.message}") if one.line else one
        for one in found
        if one.severity != "hint"
        and one.code not in _NOT_FOR_SCRIPTS
        and not (spec.script.get("overridden") and one.code[0] in "DG")
    ]


def refuse_impossible(requests: Sequence[ResolvedRequest], facts: ClusterFacts) -> None:
    """RefusedError with the nearest possible request if one can never start. A silent Slurm refuses nothing."""
    if not facts.node_kinds:
        return
    for resolved in {resolved.options: resolved for resolved in requests}.values():
        _check(resolved, facts)


def _check(resolved: ResolvedRequest, facts: ClusterFacts) -> None:
    asked = resolved.get("partition")
    known = [partition.name for partition in facts.partitions]
    unknown = [name for name in asked.split(",") if name not in known] if asked else []
    if unknown:
        raise RefusedError(
            f"unknown partition {unknown[0]!r} (available: {', '.join(known)})",
            hint=f"--partition={known[0]}, or leave it out and let the cluster's profile choose",
        )
    # A request must fit on one kind of node, not on the best of each.
    excesses = [(kind, _excess_over_node(resolved, kind, facts)) for kind in facts.kinds(asked)]
    if excesses and all(excess for _, excess in excesses):
        closest, excess = min(excesses, key=lambda pair: len(pair[1]))
        parts = [f"{wanted} (at most {limit})" for wanted, limit in excess.values()]
        raise RefusedError(
            f"no node of partition {closest.partition} can serve {' and '.join(parts)}",
            hint=" ".join(f"--{flag}={limit}" for flag, (_, limit) in excess.items()),
        )


def _excess_over_node(resolved: ResolvedRequest, kind: NodeKind, facts: ClusterFacts) -> dict[str, tuple[str, str]]:
    """What is too much for this kind of node: flag -> (asked, possible)."""
    request = resolved.request
    partition = facts.partition(kind.partition)
    max_time_s = None if partition is None else partition.max_time_s
    found = {}
    if (request.gpus or 0) > kind.gpus:
        found["gpus-per-node"] = (f"{request.gpus} GPUs", str(kind.gpus))
    elif request.gpu_type and kind.gpu_types and _request_text(resolved) not in kind.gpu_types:
        found["gres"] = (f"GPU type {_request_text(resolved)}", f"gpu:{kind.gpu_types[0]}:{request.gpus}")
    if (request.cpus or 0) > kind.cpus:
        found["cpus-per-task"] = (f"{request.cpus} CPUs", str(kind.cpus))
    if (request.memory_mb or 0) > kind.memory_mb:
        found["mem"] = (f"{request.memory} of memory", format_memory(kind.memory_mb))
    if request.time_limit_s and max_time_s and request.time_limit_s > max_time_s:
        found["time"] = (f"{request.time} of time", format_slurm_time(max_time_s))
    return found


def _request_text(resolved: ResolvedRequest) -> str | None:
    kind = resolved.request.gpu_type
    return None if kind is None else resolved.cluster.gpu_types.get(kind, kind)
