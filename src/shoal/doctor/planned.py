"""A run that shoal has planned, as the job that the rules look at: the counterpart of script.py without any text.

What starts the run is built by the functions that are used inside the job (job/launch/launcher_args.py), so the two
cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.batch import SbatchOption, ShellCommand, command_of, parse_option_words
from shoal.doctor.geometry import read_geometry
from shoal.doctor.job import JobFacts, LighthouseCall, ShellExport, read_programs
from shoal.doctor.launchers import LauncherCall, read_launcher, read_srun, unwrap
from shoal.doctor.launches import ScriptLaunch, SrunStep, launches_of
from shoal.job import TORCH_LAUNCHERS, LaunchGeometry, RankGroup, compute_geometry, launcher_args
from shoal.model import RunSpec
from shoal.plan import ResolvedRequest

#: Slurm's reading of these is what people get wrong, so their own spelling is looked at, not the one we made of it.
_AS_WRITTEN = ("time", "mem", "mem-per-cpu", "mem-per-gpu")
#: Each launch sets these for its ranks, whatever the run says.
_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE")
_CHOSEN_IN_THE_JOB = -1
#: Slurm's signals reach the processes as if nothing stood between: the agent hands them on.
_SIGNALLED = ("exec",)


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
        if geometry.cpus_per_task is not None and "cpus-per-task" in options:
            options["cpus-per-task"] = str(geometry.cpus_per_task)
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
    unit = RankGroup(
        mode=spec.launch,
        nodes=[f"node{number}" for number in range(nodes)],
        processes=processes,
        gpus=gpus,
        argv=command.texts,
        cwd=spec.cwd,
        log="",
        id=spec.stem,
        start=launcher_args.launcher_program(spec.launch, command.texts),
        wrapper=[],
        address="node0",
        port=0 if nodes == 1 else _CHOSEN_IN_THE_JOB,
        max_restarts=spec.launch_settings.max_restarts or 0,
        options=spec.launch_settings.options,
    )
    call = read_launcher(launcher_args.launcher_argv(unit, 0, None))
    passed, rest = unwrap(command.texts)
    program = read_launcher(rest)
    options = dict(call.options) if call is not None else {}
    if program is not None and program.program == "python":
        rest = list(program.rest)
        options.update({name: value for name, value in program.options.items() if name == "module"})
    whole = command_of([*unit.start, *unit.options, *command.texts])
    return ScriptLaunch(
        launcher="torchrun" if call is None else call.program,
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
    if geometry.cpus_per_task is not None:
        env.setdefault("SRUN_CPUS_PER_TASK", str(geometry.cpus_per_task))
        env.setdefault("OMP_NUM_THREADS", str(max(1, geometry.cpus_per_task // (geometry.processes // geometry.tasks))))
    if geometry.mode != "process":
        env.update(dict.fromkeys(_RENDEZVOUS, ""))
    return list(env.items())
