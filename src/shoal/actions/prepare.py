"""From requested runs to a plan: what each needs, checked and laid out. Changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal import redaction
from shoal.actions import decide
from shoal.actions.decide import CheckpointDecision, NodeExclusions, StartDecision, decide_start, with_smoke_runs
from shoal.actions.missing_files import find_missing_files
from shoal.actions.missing_files import missing_files_note as unseen_note
from shoal.actions.snapshot import is_in_git
from shoal.clusters import UNKNOWN, ClusterAnswers, ClusterFacts, read_cluster
from shoal.describe import (
    PYTHON_VARIABLE,
    BlockedRun,
    Cluster,
    PlannedRun,
    Project,
    RequestedRun,
    check_arguments,
    check_dependencies,
    check_scripts,
    empty_argument_note,
    expand_parent_patterns,
    order_runs,
    refuse_duplicate_runs,
    unknown_resume_note,
    with_training_step,
)
from shoal.errors import InputError, RefusedError
from shoal.job import job_constraints, visible_gpus_of_node
from shoal.model import ACTIVE_STATES, ENDED_STATES, RunSpec
from shoal.observe import Observation, RunReader, RunView, observe, past_durations, run_names
from shoal.plan import (
    DEFAULT_MAX_ARRAY,
    PackOptions,
    PlannedSubmission,
    ResolvedRequest,
    check_containers,
    packs,
    plan_submissions,
)
from shoal.search import check_sampler
from shoal.units import plural, shorten_list


class SubmitResult(NamedTuple):
    """What became of one run that was asked for. `did`: submitted, ran, waits, left alone, held, unclear,
    refused, cancelled, would submit.
    """

    name: str
    did: str
    state: str
    reason: str = ""
    job_id: str | None = None
    output_dir: str | None = None
    exit_code: int | None = None


class SubmissionPlan(NamedTuple):
    """Runs that were asked for, checked and laid out: what `plan` shows, and what `submit` carries out.

    `facts` are what the cluster has been asked on the way.
    """

    submissions: list[PlannedSubmission]
    left_alone: list[SubmitResult]
    views: dict[str, RunView]
    notes: list[str]
    continuations: Sequence[CheckpointDecision] = ()
    facts: ClusterFacts = UNKNOWN


class SubmitOptions(NamedTuple):
    """How runs are submitted: their layout, whether completed ones start over, how many may run at once, whether the
    doctor may be overruled, whether jobs get the code as it is now, where a smoke run goes first ("there", as a job, or
    "here"), whether runs with a checkpoint continue from it (None: those whose programs are known to), and whether a
    person is `sure` that a program does."""

    layout: str = "auto"
    rerun: bool = False
    max_parallel: int | None = None
    pack: PackOptions | None = None
    force: bool = False
    snapshot: bool = True
    smoke: str | None = None
    resume: bool | None = None
    sure: bool = False

    @property
    def packs(self) -> bool:
        return self.pack is not None or self.layout in packs.PACK_LAYOUTS

    def runs_smoke_locally(self, cluster: Cluster) -> bool:
        return self.smoke == "here" and not cluster.is_local


DEFAULT_OPTIONS = SubmitOptions()


class SubmitTarget(NamedTuple):
    """Where runs go, and with which environment."""

    project: Project
    cluster: Cluster
    environ: Mapping[str, str]

    @property
    def home(self) -> str:
        return str(self.project.home)


class ChosenRuns(NamedTuple):
    """Which runs start and which are left alone; from which checkpoints those that start continue; and remarks."""

    start: list[PlannedRun]
    left: list[SubmitResult]
    continuations: list[CheckpointDecision]
    notes: list[str]


class LaidOutRuns(NamedTuple):
    """Runs as jobs; smoke runs that are under way already; remarks; and what the cluster was asked."""

    submissions: list[PlannedSubmission]
    left: list[SubmitResult]
    notes: list[str]
    facts: ClusterFacts


def prepare_submission(
    asked: Sequence[RequestedRun], target: SubmitTarget, options: SubmitOptions = DEFAULT_OPTIONS
) -> SubmissionPlan:
    """Decide what each run needs and lay the ones to start over jobs. Reads everything, changes nothing.

    With `options.smoke`, or where a script says so, a short run of each kind stands before them, unless this machine
    runs it first. What the doctor refuses is a RefusedError; with `options.force` it is a note.
    """
    if options.max_parallel is not None and target.cluster.is_local:
        raise InputError(
            "--max-parallel has no effect on this machine, where runs follow each other",
            hint=f"use --layout pack --slots {options.max_parallel}   # runs that many at a time",
        )
    asked, found = _look_at(asked, target)
    views = found.views
    notes = _check_descriptions(asked, target)
    chosen = _choose_runs(asked, found, target, options)
    laid_out = _lay_out_chosen(chosen.start, asked, views, target, options)
    facts, remarks = _check_plan(laid_out, target, options)
    notes += [*chosen.notes, *laid_out.notes, *remarks]
    left = [*chosen.left, *laid_out.left]
    return SubmissionPlan(laid_out.submissions, left, views, notes, chosen.continuations, facts)


def _look_at(asked: Sequence[RequestedRun], target: SubmitTarget) -> tuple[Sequence[RequestedRun], Observation]:
    """The requested runs with their parents by name, and the runs of these names as they are."""
    refuse_duplicate_runs(asked)
    if any(one.run.spec.parents for one in asked):
        asked = expand_parent_patterns(asked, lambda: run_names(target.home))
    return asked, observe(target.home, [one.run.spec.name for one in asked], environ=target.environ)


def _check_descriptions(asked: Sequence[RequestedRun], target: SubmitTarget) -> list[str]:
    """Refuse runs that cannot work as they are described; remarks on the others."""
    project, cluster, environ = target
    specs = [one.run.spec for one in asked]
    notes = [f"{one.run.spec.name} {one.note}" for one in asked if one.note]
    notes += dict.fromkeys(remark for one in asked for remark in one.remarks)
    notes += check_arguments([spec for spec in specs if not spec.function], project)
    _check_samplers(specs, environ)
    if any(spec.script for spec in specs):
        notes += check_scripts(specs, project, environ, local=cluster.is_local)
    return notes + _wandb_sweep_notes(specs, environ)


def _lay_out_chosen(
    start: Sequence[PlannedRun],
    asked: Sequence[RequestedRun],
    views: dict[str, RunView],
    target: SubmitTarget,
    options: SubmitOptions,
) -> LaidOutRuns:
    """Runs to start as jobs that avoid failed nodes, behind their smoke runs."""
    project, cluster, environ = target
    packed = bool(start) and options.packs
    if packed:
        _refuse_packed_scripts([one.run.spec for one in asked])
    exclusions, notes = NodeExclusions(views, project, cluster, environ), list[str]()
    if not packed:
        start, notes = exclusions.avoided_by_each(start)
    asks_settings = len(start) > 1 and not cluster.is_local
    facts = UNKNOWN
    if asks_settings:
        facts = read_cluster(environ, "settings", answers=ClusterAnswers(target.home, environ))
    left: list[SubmitResult] = []
    smoked = {one.run.spec.name for one in asked if one.smoke or options.smoke}
    if smoked and not options.runs_smoke_locally(cluster) and start:
        start, left = add_smoke_runs(start, views, target, smoked)
    earlier = past_durations(target.home, [run.spec.name for run in start if not run.spec.smoke]) if packed else {}
    submissions = lay_out_runs(start, project, cluster, options, earlier, facts.max_array_size)
    if packed:
        submissions[-1], notes = exclusions.avoided_by_all(submissions[-1])
    elif any(run.spec.early_stopping for run in start):
        notes.append("[early_stopping] has no effect outside a pack; use --layout pack or --pilots K")
    return LaidOutRuns(submissions, left, notes, facts)


def _refuse_packed_scripts(specs: Sequence[RunSpec]) -> None:
    if any(spec.in_place for spec in specs):
        raise InputError(
            f"{specs[0].script.get('path', specs[0].name)} is a batch script, which cannot be part of a pack",
            hint="remove --layout: each run is a job; or pack the command that the script runs: shoal pack -- COMMAND",
        )


def _check_plan(laid_out: LaidOutRuns, target: SubmitTarget, options: SubmitOptions) -> tuple[ClusterFacts, list[str]]:
    """What the cluster was asked, and remarks on the jobs. RefusedError for errors of the doctor, unless forced."""
    submissions, project = laid_out.submissions, target.project
    notes = list(dict.fromkeys(note for planned in submissions for note in planned.resolved.notes))
    notes += check_containers(submissions, target.cluster)
    if target.cluster.is_local and (options.pack is None or options.pack.gpus_per_run is None):
        specs = [run.spec for planned in submissions for run in planned.runs]
        notes += missing_gpu_notes(specs, target.environ, options.pack.gpus if options.pack else None)
    if options.snapshot and project.snapshot:
        notes += _missing_file_notes(submissions, project, target.environ)
    if not submissions or target.cluster.is_local:  # a pack on this machine should start at once
        return laid_out.facts, notes
    from shoal.doctor import check_submissions

    facts = laid_out.facts
    if not options.force:
        facts = _refuse_impossible([planned.resolved for planned in submissions], target, facts)
    seen = [
        packs.pack_share(planned, project, target.cluster) if planned.pack is not None else planned
        for planned in submissions
    ]
    return facts, notes + check_submissions(seen, str(project.root), force=options.force)


def _refuse_impossible(requests: Sequence[ResolvedRequest], target: SubmitTarget, facts: ClusterFacts) -> ClusterFacts:
    """Refuse what this cluster cannot run; what it said some minutes ago is asked anew before that."""
    from shoal.doctor import refuse_impossible

    answers = ClusterAnswers(target.home, target.environ)
    facts = read_cluster(target.environ, "nodes", known=facts, answers=answers)
    try:
        refuse_impossible(requests, facts)
    except RefusedError:
        if not answers.forget():
            raise
        facts = read_cluster(target.environ, "nodes", known=facts, answers=answers)
        refuse_impossible(requests, facts)
    return facts


def missing_gpu_notes(specs: Sequence[RunSpec], environ: Mapping[str, str], pack_gpus: int | None = None) -> list[str]:
    """What to tell before runs start on a machine that has fewer GPUs than they, or their pack, ask for. A request is
    portable: they run all the same."""
    wanted = [max(math.ceil(spec.request.gpu_share or spec.request.gpus or 0), pack_gpus or 0) for spec in specs]
    if not any(wanted):
        return []
    here = len(visible_gpus_of_node(environ).ids)
    short = [spec.name for spec, count in zip(specs, wanted, strict=True) if count > here]
    what = f"this machine has {plural(here, 'GPU')} (requested: {max(wanted)})"
    return [f"{what}; starting {shorten_list(short, 3)} without the missing ones"] if short else []


def _wandb_sweep_notes(specs: Sequence[RunSpec], environ: Mapping[str, str]) -> list[str]:
    """Inside a sweep of W&B, wandb takes names, ids and parameters from its server."""
    if not environ.get("WANDB_SWEEP_ID") and not any(spec.env.get("WANDB_SWEEP_ID") for spec in specs):
        return []
    return ["WANDB_SWEEP_ID is set: W&B ignores the names and ids of these runs; unset it unless that is intended"]


def _check_samplers(specs: Sequence[RunSpec], environ: Mapping[str, str]) -> None:
    """Refuse samplers that cannot be loaded, unless another interpreter is to load them."""
    for name in sorted({spec.search["sampler"] for spec in specs if spec.search}):
        if PYTHON_VARIABLE not in environ:
            check_sampler(name)


def _missing_file_notes(
    submissions: Sequence[PlannedSubmission], project: Project, environ: Mapping[str, str]
) -> list[str]:
    """Files of the project that the runs may want to read and will not find."""
    specs = [run.spec for planned in submissions for run in planned.runs if not run.spec.in_place]
    if not specs or project.delivered or (project.toml is None and not is_in_git(project.root, environ)):
        return []
    paths = find_missing_files(
        project.root, environ, project.link, (word for spec in specs for word in _command_words(spec))
    )
    return [unseen_note(paths)] if paths else []


def _command_words(spec: RunSpec) -> list[str]:
    return [*spec.command, *spec.args, *spec.env.values(), *(str(value) for value in spec.params.values())]


def _choose_runs(
    asked: Sequence[RequestedRun],
    found: Observation,
    target: SubmitTarget,
    options: SubmitOptions,
) -> ChosenRuns:
    """Of the requested runs those that start now, in the order of their dependencies."""
    home, views = target.home, found.views
    start: list[PlannedRun] = []
    left: list[SubmitResult] = []
    continuations: list[CheckpointDecision] = []
    notes: list[str] = []
    redaction.refuse_leaks((one.run.spec for one in asked), target.environ)
    reader, known_programs = RunReader(home), dict[tuple[str, ...], str]()
    for one in asked:
        view = views[one.run.spec.name]
        kept = reader.spec(view.name, found.revisions[view.name] or None)
        decision = _decide_run(one, kept, view, options.rerun or one.rerun)
        if not decision.start:
            left.append(
                SubmitResult(view.name, "left alone", view.state, decision.reason, view.job_id, view.output_dir)
            )
            continue
        resume = options.resume if one.resume is None else one.resume
        run, continuation = decide.choose_checkpoint(home, one, kept, view, decision.revision, resume, known_programs)
        start.append(run)
        if continuation is not None:
            continuations.append(continuation)
        elif view.state in ENDED_STATES and (one.by_name or resume):
            notes.append(decide.without_checkpoint(run.spec))
    notes += decide.checkpoint_notes(continuations)
    uncertain = {one.name for one in continuations if not one.known}
    notes += _resume_notes(run.spec for run in start if run.spec.name not in uncertain)
    start, held, inherited = _order_dependencies([one.run.spec for one in asked], start, views, target)
    left += [SubmitResult(one.run.spec.name, "held", "new", one.reason) for one in held]
    return ChosenRuns(start, left, continuations, notes + inherited)


def _resume_notes(specs: Iterable[RunSpec]) -> list[str]:
    """Remarks on steps whose programs may not continue from their checkpoints, each step once."""
    first = {spec.step_kind: spec for spec in specs if spec.checkpoint is not None and not spec.smoke}
    found = [None if spec.resumes else unknown_resume_note(spec) for spec in first.values()]
    return [note for note in (*found, *map(empty_argument_note, first.values())) if note]


def add_smoke_runs(
    start: Sequence[PlannedRun],
    views: dict[str, RunView],
    target: SubmitTarget,
    smoked: set[str] | None = None,
) -> tuple[list[PlannedRun], list[SubmitResult]]:
    """The runs (those named in `smoked`, or all) behind their smoke runs, whose views are added. One that is under way
    already is waited for; any other is done anew, because the code may be another by now."""
    runs = with_smoke_runs(start, target.project, target.cluster, smoked)
    smoke_names = [run.spec.name for run in runs if run.spec.smoke]
    views.update(observe(target.home, smoke_names, environ=target.environ).views)
    reader, found, left = RunReader(target.home), [], []
    for run in runs:
        view = views[run.spec.name]
        if not run.spec.smoke:
            found.append(run)
            continue
        decision = decide_start(run.spec, reader.spec(view.name), view, rerun=view.state not in ACTIVE_STATES)
        if decision.start:
            found.append(run._replace(spec=msgspec.structs.replace(run.spec, revision=decision.revision)))
        else:
            left.append(
                SubmitResult(view.name, "left alone", view.state, decision.reason, view.job_id, view.output_dir)
            )
    return found, left


def _order_dependencies(
    specs: Sequence[RunSpec],
    start: list[PlannedRun],
    views: Mapping[str, RunView],
    target: SubmitTarget,
) -> tuple[list[PlannedRun], list[BlockedRun], list[str]]:
    """Stages in their order, and from where those start whose parents completed; costs nothing without stages."""
    parents = {name for spec in specs for name in spec.parents}
    if not parents:
        return start, [], []
    home = target.home
    check_dependencies(specs, run_names(home))
    others = observe(home, sorted(parents - set(views)), environ=target.environ).views
    placed, held = order_runs(start, {name: view.state for name, view in {**views, **others}.items()})
    notes: dict[str, str] = {}
    for run in placed:
        # A parent that completed will write no checkpoint any more: better to know now than after a night in the queue.
        if run.spec.start_parent and run.spec.start_parent not in run.needs:
            found = job_constraints.apply_parent_outputs(home, {"start_parent": run.spec.start_parent})
            if "cannot_start" in found:
                raise InputError(
                    f"{run.spec.name} cannot start: {found['cannot_start']}",
                    hint=f"shoal logs {run.spec.start_parent}   # what did it save?",
                )
            checkpoint = str(found["start_from"])
            notes.setdefault(checkpoint, f"{run.spec.name} starts from {with_training_step(checkpoint)}")
    return placed, held, list(notes.values())


def lay_out_runs(
    start: Sequence[PlannedRun],
    project: Project,
    cluster: Cluster,
    options: SubmitOptions,
    earlier: Mapping[int, float],
    max_array: int | None = None,
) -> list[PlannedSubmission]:
    """Runs as the jobs that `submit` sends, and that `plan --layouts` compares. A pack is the last of them, behind the
    smoke runs; its queue is ordered by what `earlier` attempts took, by the place of each run in it."""
    requeue = {step.name: step.requeue for step in project.steps.values()}
    submissions = plan_submissions(
        [run for run in start if run.spec.smoke] if options.packs else start,
        project,
        cluster,
        layout="job" if options.packs else options.layout,
        requeue=requeue,
        max_parallel=options.max_parallel,
        largest_array=max_array or DEFAULT_MAX_ARRAY,
    )
    rest = [run for run in start if not run.spec.smoke]
    if options.packs and rest:
        requeues = all(requeue.get(run.spec.step_kind, True) for run in rest)
        pack = options.pack or PackOptions()
        layout = "pilots" if pack.pilots is not None or options.layout == "pilots" else "pack"
        submissions.append(
            packs.plan_pack_submission(rest, project, cluster, pack, earlier, layout=layout, requeue=requeues)
        )
    return submissions


def runs_to_start(
    asked: Sequence[RequestedRun], target: SubmitTarget, options: SubmitOptions = DEFAULT_OPTIONS
) -> list[PlannedRun]:
    """Those of the requested runs that `submit` would start now, in its order."""
    asked, views = _look_at(asked, target)
    return _choose_runs(asked, views, target, options).start


def _decide_run(one: RequestedRun, kept: RunSpec | None, view: RunView, rerun: bool) -> StartDecision:
    if one.run.resume_in is not None and kept is not None:
        if view.state == "completed":
            raise InputError(
                f"{view.name} completed already (attempt {view.attempt}): there is nothing to resume",
                hint="submit its file with --rerun to start it over",
            )
        decision = decide_start(one.run.spec, kept, view, rerun=False, by_name=True)
        if not decision.start:
            raise InputError(f"{view.name} is {decision.reason}", hint=f"shoal cancel {view.name}")
        return decision
    return decide_start(one.run.spec, kept, view, rerun=rerun, by_name=one.by_name)
