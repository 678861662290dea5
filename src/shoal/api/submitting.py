"""Start runs: plan, submit, pack, resume, retry.

`tell` hears of each run and of remarks while they come, and answers the questions that a person would. Unless it is
given, remarks go to the log "shoal", and a step that needs a person's answer is refused with an InputError.
"""

from __future__ import annotations

import os

from shoal.api.projects import ProjectPath, project_or_directory, read_project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from shoal.actions import (
        CommandOptions,
        PackCommand,
        PackResult,
        PlanReport,
        RetryChange,
        SubmitListener,
        SubmitOptions,
        SubmitResult,
        SubmitTarget,
    )
    from shoal.describe import Project, SweepOptions
    from shoal.plan import LayoutComparison, PackOptions


def plan(
    files: Sequence[Path] = (),
    *,
    sweep: SweepOptions | None = None,
    options: SubmitOptions | None = None,
    on: str | None = None,
    project: ProjectPath = None,
) -> PlanReport:
    """What `submit` would do with the same arguments. Changes nothing."""
    from shoal.actions import SubmitOptions, plan_scripts

    found = _project_of(files, sweep, project)
    return plan_scripts(files, found, os.environ, sweep=sweep, options=options or SubmitOptions(), on=on)


def compare_layouts(
    files: Sequence[Path] = (),
    *,
    sweep: SweepOptions | None = None,
    startup_s: float = 0.0,
    rerun: bool = False,
    on: str | None = None,
    project: ProjectPath = None,
) -> LayoutComparison:
    """What the runs that `submit` would start cost in each layout. `startup_s`: what each allocation needs before its
    first run. Changes nothing."""
    from shoal.actions import compare_script_layouts

    found = _project_of(files, sweep, project)
    return compare_script_layouts(files, found, os.environ, sweep=sweep, on=on, startup_s=startup_s, rerun=rerun)


def submit(
    files: Sequence[Path] = (),
    *,
    sweep: SweepOptions | None = None,
    options: SubmitOptions | None = None,
    budget: str | None = None,
    on: str | None = None,
    tell: SubmitListener | None = None,
    command: CommandOptions | None = None,
    project: ProjectPath = None,
) -> list[SubmitResult]:
    """Submit experiment files and batch scripts, or the command `sweep.words`; what became of each run.

    Runs that are active or completed are left alone. `budget`, such as "jobs=20,gpus=32", is what the project may hold
    on the cluster from now on. On this machine the runs are executed before it returns.
    """
    from shoal.actions import SubmitOptions, set_limits, submit_scripts, submit_target
    from shoal.observe import open_state_dir

    target = submit_target(_project_of(files, sweep, project), on, os.environ)
    if budget:
        set_limits(open_state_dir(target.project.home, target.project.shared_by), target.cluster, budget)
    return submit_scripts(
        files,
        target,
        tell=tell or _log(),
        command=command or _unattended(),
        sweep=sweep,
        options=options or SubmitOptions(),
        on=on,
    )


def runs_here(*, on: str | None = None, project: ProjectPath = None) -> bool:
    """Whether `submit` and `retry` execute runs on this machine, and so return when they have ended."""
    from shoal.actions import submit_target

    return submit_target(project_or_directory(project), on, os.environ).cluster.is_local


def pack_target(options: PackOptions, *, on: str | None = None, project: ProjectPath = None) -> SubmitTarget:
    """Where a pack goes: this machine, unless a cluster is named or its options describe an allocation."""
    from shoal.actions import submit_target

    is_allocation = options.gpus or options.pilots or options.nodes
    return submit_target(project_or_directory(project), on or (None if is_allocation else "local"), os.environ)


def pack(
    commands: PackCommand,
    target: SubmitTarget,
    *,
    note: Callable[[str], None] | None = None,
    command: CommandOptions | None = None,
) -> PackResult:
    """Run many commands in one allocation: here, to their end, or as Slurm jobs. `note` hears remarks."""
    from shoal.actions import submit_pack

    return submit_pack(commands, target, command or _unattended(), note or _log().note)


def resume(
    run: str,
    flags: Sequence[str] = (),
    *,
    sure: bool = False,
    on: str | None = None,
    tell: SubmitListener | None = None,
    command: CommandOptions | None = None,
    project: ProjectPath = None,
) -> list[SubmitResult]:
    """Continue a run, by its name or one of its output directories, from its newest checkpoint.

    `flags` are options of sbatch on top of what it had. `sure`: also if the program is not known to continue.
    """
    from shoal.actions import resume_run

    return resume_run(
        run,
        flags,
        read_project(project),
        os.environ,
        tell=tell or _log(),
        sure=sure,
        on=on,
        command=command or _unattended(),
    )


def retry(
    which: Sequence[str] = (),
    *,
    states: str | None = None,
    causes: str | None = None,
    change: RetryChange | None = None,
    on: str | None = None,
    tell: SubmitListener | None = None,
    command: CommandOptions | None = None,
    project: ProjectPath = None,
) -> list[SubmitResult]:
    """Start failed runs again, from their newest checkpoints; all of the project, or those that `which` names.

    `states` and `causes` are words with commas between them; `change` is what the next attempt asks for.
    """
    from shoal.actions import RetryChange, RetrySelection, retry_runs

    return retry_runs(
        RetrySelection(which, states, causes),
        change or RetryChange(),
        read_project(project),
        os.environ,
        tell=tell or _log(),
        on=on,
        command=command or _unattended(),
    )


def _project_of(files: Sequence[Path], sweep: SweepOptions | None, project: ProjectPath) -> Project:
    """Commands and batch scripts need no shoal.toml."""
    if not files and not (sweep and sweep.words):
        from shoal.errors import InputError

        raise InputError("missing FILE or -- COMMAND", hint="shoal run -- python train.py   # or: shoal run job.sbatch")
    from shoal.describe import is_experiment_source

    is_experiment = any(is_experiment_source(path) for path in files)
    return read_project(project) if is_experiment else project_or_directory(project)


def _log() -> SubmitListener:
    from shoal.functions import SubmitLog

    return SubmitLog()


def _unattended() -> CommandOptions:
    from shoal.actions import CommandOptions

    return CommandOptions(follow=False)
