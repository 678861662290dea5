"""From requested runs to an order: what each needs, checked and laid out. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal import redaction
from shoal.clusters import UNKNOWN, ClusterFacts, read_cluster
from shoal.describe import (
    BlockedRun,
    Cluster,
    PlannedRun,
    Project,
    RequestedRun,
    ResumeDetector,
    bool_parameters_as_text,
    check_dependencies,
    empty_argument_note,
    ignored_directives,
    order_runs,
    parents_of,
    refuse_braces_in_values,
    refuse_dropped_arguments,
    refuse_duplicate_runs,
    unknown_resume_note,
    unused_checkpoints,
    unused_parameters,
    unused_seeds,
    with_training_step,
)
from shoal.errors import InputError
from shoal.job import job_constraints
from shoal.model import ACTIVE_STATES, ENDED_STATES, RunSpec
from shoal.observe import RunReader, RunView, observe, run_names
from shoal.plan import (
    DEFAULT_MAX_ARRAY,
    PackOptions,
    PlannedSubmission,
    check_containers,
    packs,
    past_durations,
    plan_submissions,
)
from shoal.submit import decide
from shoal.submit.decide import CheckpointDecision, NodeExclusions, StartDecision, decide_start, with_smoke_runs
from shoal.submit.missing_files import find_missing_files
from shoal.submit.missing_files import missing_files_note as unseen_note
from shoal.submit.snapshot import is_in_git


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
    """How runs are submitted: their shape, whether done ones start over, how many may run at once, whether the doctor
    may be overruled, whether jobs get the code as it is now, where a smoke run goes first ("there", as a job, or
    "here"), whether runs with a checkpoint continue from it (None: those whose programs are known to), and whether a
    person is `sure` that a program does."""

    shape: str = "auto"
    again: bool = False
    at_once: int | None = None
    pack: PackOptions | None = None
    force: bool = False
    snapshot: bool = True
    smoke: str | None = None
    resume: bool | None = None
    sure: bool = False

    def runs_smoke_locally(self, cluster: Cluster) -> bool:
        return self.smoke == "here" and not cluster.is_local


DEFAULT_OPTIONS = SubmitOptions()


def prepare_submission(
    asked: Sequence[RequestedRun],
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
    how: SubmitOptions = DEFAULT_OPTIONS,
) -> SubmissionPlan:
    """Decide what each run needs and lay the ones to start over jobs. Reads everything, changes nothing.

    With `how.smoke`, or where a script says so, a short run of each kind stands before them, unless this machine runs
    it first. What the doctor refuses is a RefusedError; with `how.force` it is a note.
    """
    refuse_duplicate_runs(asked)
    if how.at_once is not None and cluster.is_local:
        raise InputError(
            "--at-once has no effect on this machine, where runs follow each other",
            hint=f"use --shape pack --slots {how.at_once}   # runs that many at a time",
        )
    home = str(project.home)
    specs = [one.run.spec for one in asked]
    views = observe(home, [spec.name for spec in specs], environ=environ).views
    notes = [f"{one.run.spec.name} {one.note}" for one in asked if one.note]
    notes += dict.fromkeys(remark for one in asked for remark in one.remarks)
    notes += [
        *unused_seeds(specs),
        *refuse_dropped_arguments(specs),
        *unused_parameters(specs, project),
        *refuse_braces_in_values(specs),
    ]
    notes += bool_parameters_as_text(specs)
    notes += [*unused_checkpoints(specs), *ignored_directives(specs)]
    start, left, continuations, told = _choose_runs(asked, views, home, environ, how)
    notes += told
    start, held, inherited = _order_dependencies(specs, start, views, home, environ)
    notes += inherited
    left += [SubmitResult(one.run.spec.name, "held", "new", one.reason) for one in held]
    packed = bool(start) and (how.pack is not None or how.shape in packs.PACK_LAYOUTS)
    failed_nodes = NodeExclusions(views, project, cluster, environ)
    if not packed:
        start, avoided = failed_nodes.avoided_by_each(start)
        notes += avoided
    requeue = {step.name: step.requeue for step in project.steps.values()}
    facts = read_cluster(environ, "settings") if len(start) > 1 and not cluster.is_local else UNKNOWN
    smoked = {one.run.spec.name for one in asked if one.smoke or how.smoke}
    if smoked and not how.runs_smoke_locally(cluster) and start:
        start, under_way = add_smoke_runs(start, views, project, cluster, environ, smoked)
        left += under_way
    first = [run for run in start if run.spec.smoke] if packed else start
    submissions = plan_submissions(
        first,
        project,
        cluster,
        shape="job" if packed else how.shape,
        requeue=requeue,
        at_once=how.at_once,
        largest_array=facts.max_array_size or DEFAULT_MAX_ARRAY,
    )
    if packed:
        rest = [run for run in start if not run.spec.smoke]
        again_by_slurm = all(requeue.get(run.spec.step_kind, True) for run in rest)
        planned = _plan_pack(rest, project, cluster, how.pack or PackOptions(), how.shape, again_by_slurm)
        planned, avoided = failed_nodes.avoided_by_all(planned)
        submissions.append(planned)
        notes += avoided
    elif any(run.spec.search for run in start):
        notes.append("[search] stops runs of packs only, and none of these: --shape pack, or --pilots K")
    notes += dict.fromkeys(note for planned in submissions for note in planned.resolved.notes)
    notes += check_containers(submissions, cluster)
    if how.snapshot and project.snapshot and submissions:
        notes += _missing_file_notes(submissions, project, environ)
    if submissions and not cluster.is_local:
        # Not for a pack on this machine, which should start at once.
        from shoal.doctor import check_submissions, refuse_impossible

        if not how.force:
            facts = read_cluster(environ, "nodes", known=facts)
            refuse_impossible([planned.resolved for planned in submissions], facts)
        seen = [packs.pack_share(planned, project, cluster) for planned in submissions]
        notes += check_submissions(seen, str(project.root), force=how.force)
    return SubmissionPlan(submissions, left, views, notes, continuations, facts)


def _missing_file_notes(
    submissions: Sequence[PlannedSubmission], project: Project, environ: Mapping[str, str]
) -> list[str]:
    """Files of the project that the runs may want to read and will not find."""
    if project.toml is None and not is_in_git(project.root, environ):
        return []
    specs = [run.spec for planned in submissions for run in planned.runs]
    paths = find_missing_files(
        project.root, environ, project.link, (word for spec in specs for word in _command_words(spec))
    )
    return [unseen_note(paths)] if paths else []


def _command_words(spec: RunSpec) -> list[str]:
    return [*spec.command, *spec.args, *spec.env.values(), *(str(value) for value in spec.params.values())]


def _choose_runs(
    asked: Sequence[RequestedRun],
    views: Mapping[str, RunView],
    home: str,
    environ: Mapping[str, str],
    how: SubmitOptions,
) -> tuple[list[PlannedRun], list[SubmitResult], list[CheckpointDecision], list[str]]:
    """Which runs start and which are left alone; from which checkpoints those that start continue; and remarks."""
    start: list[PlannedRun] = []
    left: list[SubmitResult] = []
    continuations: list[CheckpointDecision] = []
    notes: list[str] = []
    reader, sources, secrets = RunReader(home), ResumeDetector(), redaction.secret_values(environ)
    for one in asked:
        redaction.refuse_leaks(one.run.spec, secrets)
        view = views[one.run.spec.name]
        kept = reader.spec(view.name)
        decision = _decide_run(one, kept, view, how.again or one.again)
        if not decision.start:
            left.append(
                SubmitResult(view.name, "left alone", view.state, decision.reason, view.job_id, view.output_dir)
            )
            continue
        wish = how.resume if one.resume is None else one.resume
        run, found = decide.choose_checkpoint(home, one, kept, view, decision.revision, wish, sources)
        start.append(run)
        if found is not None:
            continuations.append(found)
        elif view.state in ENDED_STATES and (one.by_name or wish):
            notes.append(decide.without_checkpoint(run.spec))
    notes += decide.checkpoint_notes(continuations)
    told = {one.name for one in continuations if not one.known}
    notes += _resume_notes(run.spec for run in start if run.spec.name not in told)
    return start, left, continuations, notes


def _resume_notes(specs: Iterable[RunSpec]) -> list[str]:
    """Remarks on steps whose programs may not continue from their checkpoints, each step once."""
    first = {spec.step_kind: spec for spec in specs if spec.checkpoint is not None and not spec.smoke}
    found = [None if spec.resumes else unknown_resume_note(spec) for spec in first.values()]
    return [note for note in (*found, *map(empty_argument_note, first.values())) if note]


def add_smoke_runs(
    start: Sequence[PlannedRun],
    views: dict[str, RunView],
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
    smoked: set[str] | None = None,
) -> tuple[list[PlannedRun], list[SubmitResult]]:
    """The runs (those named in `smoked`, or all) behind their smoke runs, whose views are added. One that is under way
    already is waited for; any other is done anew, because the code may be another by now."""
    home = str(project.home)
    runs = with_smoke_runs(start, project, cluster, smoked)
    views.update(observe(home, [run.spec.name for run in runs if run.spec.smoke], environ=environ).views)
    reader, found, left = RunReader(home), [], []
    for run in runs:
        view = views[run.spec.name]
        if not run.spec.smoke:
            found.append(run)
            continue
        decision = decide_start(run.spec, reader.spec(view.name), view, again=view.state not in ACTIVE_STATES)
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
    home: str,
    environ: Mapping[str, str],
) -> tuple[list[PlannedRun], list[BlockedRun], list[str]]:
    """Stages in their order, and from where those start whose parents are done; costs nothing without stages."""
    parents = parents_of(specs)
    if not parents:
        return start, [], []
    check_dependencies(specs, run_names(home))
    others = observe(home, sorted(parents - set(views)), environ=environ).views
    placed, held = order_runs(start, {name: view.state for name, view in {**views, **others}.items()})
    notes: dict[str, str] = {}
    for run in placed:
        # A parent that is done will write no checkpoint any more: better to know now than after a night in the queue.
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


def _plan_pack(
    start: Sequence[PlannedRun], project: Project, cluster: Cluster, options: PackOptions, shape: str, requeue: bool
) -> PlannedSubmission:
    """One queue for all of them, ordered by what earlier attempts took."""
    earlier = past_durations(str(project.home), [run.spec.name for run in start])
    shape = "pilots" if options.pilots is not None or shape == "pilots" else "pack"
    return packs.plan_pack_submission(start, project, cluster, options, earlier, shape=shape, requeue=requeue)


def _decide_run(one: RequestedRun, kept: RunSpec | None, view: RunView, again: bool) -> StartDecision:
    if one.run.resume_in is not None and kept is not None:
        if view.state == "done":
            raise InputError(
                f"{view.name} is done already (attempt {view.attempt}): there is nothing to resume",
                hint="submit its file with --again to start it over",
            )
        decision = decide_start(one.run.spec, kept, view, again=False, by_name=True)
        if not decision.start:
            raise InputError(f"{view.name} is {decision.reason}", hint=f"shoal cancel {view.name}")
        return decision
    return decide_start(one.run.spec, kept, view, again=again, by_name=one.by_name)
