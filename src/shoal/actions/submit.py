"""`shoal submit` and `shoal pack`: which files or commands, evaluated when, in which order, and the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from shoal import redaction
from shoal.actions import idempotency
from shoal.actions.cancel import cancel_runs, removed_runs
from shoal.actions.decide import CheckpointDecision, refuse_uncertain_resume
from shoal.actions.execute import execute_plan, run_smoke_locally, save_names
from shoal.actions.idempotency import UserCommand
from shoal.actions.prepare import (
    DEFAULT_OPTIONS,
    SubmissionPlan,
    SubmitOptions,
    SubmitResult,
    SubmitTarget,
    prepare_submission,
)
from shoal.describe import (
    Cluster,
    Project,
    RequestedRun,
    StepCall,
    SweepFlags,
    SweepNames,
    SweepOptions,
    read_calls,
    read_pack,
    read_scripts,
)
from shoal.errors import InputError
from shoal.model import FAILED_STATES, SUCCESSFUL_STATES
from shoal.plan import PackOptions, PlannedSubmission, choose_cluster
from shoal.units import shorten_list


class SubmitListener(Protocol):
    """Who hears of results and remarks while they come, and may be asked before anything is sent.

    `chooses`: whether runs continue from their checkpoints; None where nobody can be asked. `is_sure`: whether a person
    wants that although their programs may start over.
    """

    def __call__(self, result: SubmitResult) -> None: ...
    def note(self, text: str) -> None: ...
    def agrees(self, plan: SubmissionPlan, cluster: Cluster) -> bool: ...
    def chooses(self, found: Sequence[CheckpointDecision]) -> bool | None: ...
    def is_sure(self, found: Sequence[CheckpointDecision]) -> bool: ...


class UnattendedListener:
    """The answers of a program: send, decide by the settings, and do not continue where a run may start over."""

    def agrees(self, plan: SubmissionPlan, cluster: Cluster) -> bool:
        return True

    def chooses(self, found: Sequence[CheckpointDecision]) -> bool | None:
        return None

    def is_sure(self, found: Sequence[CheckpointDecision]) -> bool:
        return False


def submit_target(project: Project, on: str | None, environ: Mapping[str, str]) -> SubmitTarget:
    """The cluster that `on` names, or the one that fits where this process runs."""
    cluster = choose_cluster(project, on, environ, inside_job="SLURM_JOB_ID" in environ)
    return SubmitTarget(project, cluster, environ)


class CommandOptions(NamedTuple):
    """How the command itself behaves. `follow`: show the output of runs on this machine; `prune`: cancel active runs
    that a sweep no longer describes; `command_id`: the name that a person gave the command; `claimed` is called when
    the runs of a pack on this machine are claimed, while they run."""

    follow: bool = True
    dry_run: bool = False
    prune: bool = False
    command_id: str | None = None
    claimed: Callable[[], None] | None = None


DEFAULT_COMMAND = CommandOptions()


def submit_scripts(
    paths: Sequence[Path],
    target: SubmitTarget,
    *,
    tell: SubmitListener,
    command: CommandOptions,
    sweep: SweepOptions | None = None,
    options: SubmitOptions = DEFAULT_OPTIONS,
    on: str | None = None,
) -> list[SubmitResult]:
    """Submit scripts in order. All are read first, so that a mistake in the last one stops the first."""
    project, cluster, environ = target
    asked, grown = read_scripts(paths, project, environ, sweep)
    cluster = cluster_of_scripts(asked, project, cluster, environ, on)
    if command.prune and not grown:
        raise InputError("--prune has no effect: none of these files is a sweep", hint="remove --prune")
    report_secrets(environ, cluster, tell)
    target = target._replace(cluster=cluster)
    return submit_runs(asked, target, tell=tell, options=options, command=command, grown=grown)


def cluster_of_scripts(
    asked: Sequence[RequestedRun], project: Project, cluster: Cluster, environ: Mapping[str, str], on: str | None
) -> Cluster:
    """The cluster that the scripts themselves name, unless the command line named one (`on`) or they name none."""
    named = {one.on for one in asked}
    if on or named <= {None}:
        return cluster
    if len(named) > 1:
        words = " and ".join(sorted(name or "no cluster" for name in named))
        raise InputError(f"these scripts do not agree where to run: {words}", hint="choose for all of them: --on NAME")
    return choose_cluster(project, named.pop(), environ)


def _handle_removed(
    target: SubmitTarget,
    grown: Sequence[SweepNames],
    asked: Sequence[RequestedRun],
    tell: SubmitListener,
    prune: bool,
) -> None:
    """Say which active runs a sweep no longer has, and cancel them if that was asked for."""
    gone = removed_runs(target.home, grown, [one.run.spec.name for one in asked], target.environ)
    if prune and gone:
        cancel_runs(target.home, gone, target.environ)
        for view in gone:
            tell(SubmitResult(view.name, "cancelled", "cancelled", "no longer described", view.job_id, view.output_dir))
    elif gone:
        names = shorten_list([view.name for view in gone], 3)
        tell.note(f"{len(gone)} active runs are no longer described ({names}); --prune cancels them")


def submit_call(
    calls: Sequence[StepCall],
    project: Project,
    environ: Mapping[str, str],
    *,
    secret: Sequence[str],
    tell: SubmitListener,
) -> list[SubmitResult]:
    """What one script asked for when a person ran it with bash."""
    asked, grown = read_calls(calls, project)
    cluster = choose_cluster(project, asked[0].on, environ)
    if secret:
        tell.note(f"{', '.join(secret)} looks secret and is not kept with the run")
    report_secrets(environ, cluster, tell)
    command = CommandOptions(dry_run=asked[0].dry_run)
    return submit_runs(asked, SubmitTarget(project, cluster, environ), tell=tell, command=command, grown=grown)


def report_secrets(environ: Mapping[str, str], cluster: Cluster, tell: SubmitListener) -> None:
    """Say what stays behind: a job on another machine does not get this environment's secrets from us."""
    if cluster.is_local:
        return
    _, names = redaction.split_environment(environ)
    from shoal.job import read_secrets

    missing = [name for name in names if name not in read_secrets(environ) and not name.startswith("SHOAL_")]
    if missing:
        tell.note(
            f"{', '.join(missing)} stays on this machine; to give it to jobs: {redaction.secrets_file_hint(missing[0])}"
        )


def submit_runs(
    asked: Sequence[RequestedRun],
    target: SubmitTarget,
    *,
    tell: SubmitListener,
    options: SubmitOptions = DEFAULT_OPTIONS,
    command: CommandOptions = DEFAULT_COMMAND,
    user_command: UserCommand | None = None,
    grown: Sequence[SweepNames] = (),
) -> list[SubmitResult]:
    """Check what is asked for and carry it out; with `dry_run`, say what would be done.

    `user_command` is what this is part of, where the caller knows more about what it means than runs and `options`.
    `grown` is what the names of sweeps among them rest on. Nothing changes before everything was checked.
    """
    described = asked
    if user_command is None and not command.dry_run:
        user_command = _command_of(asked, target, options, command.command_id)
    before: list[SubmitResult] = []
    if user_command is not None and user_command.record is not None:
        before, asked = _continue_command(user_command, asked, tell, rerun=options.rerun)
        options = options._replace(rerun=False)
        if not asked:
            idempotency.finish_command(target.home, user_command)
            return before
    plan = prepare_submission(asked, target, options)
    if command.dry_run:
        return _tell_dry_run(plan, target.cluster, tell)
    plan = _choose_continuations(plan, asked, target, options, tell)
    if not tell.agrees(plan, target.cluster):
        return []
    save_names(target.project, grown)
    if options.runs_smoke_locally(target.cluster):
        smoked = run_smoke_locally(plan, target, tell=tell, follow=command.follow)
        if any(result.did != "ran" or result.state != "completed" for result in smoked):
            _notify_ends(target, smoked)
            return smoked
    for note in plan.notes:
        tell.note(note)
    if grown:
        _handle_removed(target, grown, described, tell, command.prune)
    results = before + execute_plan(
        plan,
        target,
        follow=command.follow,
        tell=tell,
        note=tell.note,
        snapshot=options.snapshot,
        user_command=user_command,
        claimed=command.claimed,
    )
    _notify_ends(target, results)
    return results


def _notify_ends(target: SubmitTarget, results: Sequence[SubmitResult]) -> None:
    """Runs on this machine are through: [notify] may want to know; jobs on Slurm tell by themselves."""
    ran = {result.name.split("/")[0]: result.name for result in results if result.did == "ran"}
    if ran:
        from shoal.job import notifications, read_secrets

        for name in ran.values():
            notifications.notify_end(target.home, name, {**target.environ, **read_secrets(target.environ)})


def _command_of(
    asked: Sequence[RequestedRun], target: SubmitTarget, options: SubmitOptions, command_id: str | None
) -> UserCommand | None:
    """The command that this is, where giving it twice would start runs twice or a person named it."""
    if not command_id and not options.rerun and not any(one.rerun for one in asked):
        return None
    meaning = (options, [(one.run.spec.name, one.run.spec.digest, one.rerun) for one in asked])
    names = [one.run.spec.name for one in asked]
    return idempotency.find_command(target.home, "submit", names, meaning, command_id, target.environ)


def _continue_command(
    user_command: UserCommand, asked: Sequence[RequestedRun], tell: SubmitListener, *, rerun: bool
) -> tuple[list[SubmitResult], Sequence[RequestedRun]]:
    """What the command has done before, which is told again, and the runs that it has still to start."""
    tell.note(user_command.describe())
    before = user_command.results()
    for result in before:
        tell(result)
    return before, [] if user_command.is_done else idempotency.remaining_runs(asked, user_command, rerun=rerun)


def _choose_continuations(
    plan: SubmissionPlan,
    asked: Sequence[RequestedRun],
    target: SubmitTarget,
    options: SubmitOptions,
    tell: SubmitListener,
) -> SubmissionPlan:
    """The plan after a person was asked whether runs continue from checkpoints; refuses what stays uncertain."""
    open_ones = [one for one in plan.continuations if one.is_open]
    resume = tell.chooses(open_ones) if open_ones else None
    if resume is not None:
        plan = prepare_submission(asked, target, options._replace(resume=resume))
    sure = {one.run.spec.name for one in asked if options.sure or one.sure}
    doubtful = [one for one in plan.continuations if one.is_uncertain and one.name not in sure]
    if doubtful and not tell.is_sure(doubtful):
        refuse_uncertain_resume(doubtful)
    return plan


def _tell_dry_run(plan: SubmissionPlan, cluster: Cluster, tell: SubmitListener) -> list[SubmitResult]:
    """Tell what would happen; the runs that would be submitted."""
    for note in plan.notes:
        tell.note(note)
    for result in plan.left_alone:
        tell(result)
    would = [
        SubmitResult(run.spec.name, "would submit", "new", f"{planned.layout} on {cluster.name}")
        for planned in plan.submissions
        for run in planned.runs
    ]
    for result in would:
        tell(result)
    return would


class PackResult(NamedTuple):
    """What became of a pack. `planned` is None when nothing was left to do; `local` when it ran here, to the end;
    `began` is when the command did: runs may have been tried before.
    """

    home: str
    names: list[str]
    results: list[SubmitResult]
    planned: PlannedSubmission | None
    local: bool
    dry_run: bool
    began: float

    @property
    def exit_code(self) -> int:
        """0 all completed (or submitted), 4 some not; 130 or 143 if it was interrupted."""
        if self.dry_run or not self.local:
            return 0
        unfinished = [result for result in self.results if result.state not in SUCCESSFUL_STATES]
        codes = [result.exit_code for result in unfinished if result.exit_code and result.exit_code > 128]
        if codes and not any(result.state in FAILED_STATES for result in unfinished):
            return codes[0]
        return 4 if unfinished else 0


class PackCommand(NamedTuple):
    """What `shoal pack` was told: words after its flags, parameters, options of the pack, relative cost, name."""

    words: Sequence[str]
    sweep: SweepFlags
    options: PackOptions
    cost: str | None
    name: str | None
    rerun: bool


def submit_pack(
    pack: PackCommand, target: SubmitTarget, command: CommandOptions, note: Callable[[str], None]
) -> PackResult:
    """Read the commands, lay them out as one queue, and work through it or submit it."""
    began, (project, cluster, environ) = time.time(), target
    asked, grown = read_pack(pack.words, pack.sweep, project, name=pack.name, cost=pack.cost, is_local=cluster.is_local)
    names = [one.run.spec.name for one in asked]
    user_command, rerun = None, pack.rerun
    before: list[SubmitResult] = []
    if (rerun or command.command_id) and not command.dry_run:
        meaning = (cluster.name, pack.options, [(one.run.spec.name, one.run.spec.digest) for one in asked])
        user_command = idempotency.find_command(target.home, "pack", names, meaning, command.command_id, environ)
    if user_command is not None and user_command.record is not None:
        note(user_command.describe())
        before = user_command.results()
        asked = [] if user_command.is_done else idempotency.remaining_runs(asked, user_command, rerun=rerun)
        rerun = False
    plan = prepare_submission(asked, target, SubmitOptions("pack", rerun, pack=pack.options))
    for text in plan.notes:
        note(text)
    planned = plan.submissions[0] if plan.submissions else None
    if command.dry_run:
        return PackResult(target.home, names, plan.left_alone, planned, cluster.is_local, True, began)
    save_names(project, grown)
    results = before + execute_plan(plan, target, follow=command.follow, note=note, user_command=user_command)
    return PackResult(target.home, names, results, planned, cluster.is_local, False, began)
