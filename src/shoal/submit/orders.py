"""Everything between "these runs are asked for" and "this is what became of them", for Slurm and for this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal import secrecy
from shoal.agent import stages
from shoal.backends.slurm.facts import largest_array
from shoal.config.cluster import LOCAL, Cluster
from shoal.config.project import Project
from shoal.errors import InputError, SchedulerError
from shoal.model import LIVE, RunSpec
from shoal.observe import observe
from shoal.pack.earlier import earlier_durations
from shoal.pack.options import PackOptions
from shoal.plan import packs
from shoal.plan.containers import check_containers
from shoal.plan.describe import Asked, refuse_doubles, with_step
from shoal.plan.seeds import unread_seeds
from shoal.plan.stages import Held, arrange, check_graph, parents_of
from shoal.plan.submissions import LARGEST_ARRAY, PlannedRun, PlannedSubmission, lay_out
from shoal.store import writing
from shoal.store.fold import RunView
from shoal.store.listing import run_names
from shoal.store.reading import Reader
from shoal.submit.avoiding import avoid_failed_nodes
from shoal.submit.budget import Gate, admit_everywhere, open_gate, park
from shoal.submit.decide import Decision, decide
from shoal.submit.here import run_here
from shoal.submit.pack_here import EngineHere
from shoal.submit.smoke import gated
from shoal.submit.snapshot import Code, take
from shoal.submit.transaction import Claimed, Started, claim_runs, send


class Result(NamedTuple):
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


class Order(NamedTuple):
    """Runs that were asked for, checked and laid out: what `plan` shows, and what `submit` carries out."""

    submissions: list[PlannedSubmission]
    left_alone: list[Result]
    views: dict[str, RunView]
    notes: list[str]


class How(NamedTuple):
    """How runs are submitted: their shape, whether done ones start over, how many may run at once, whether the doctor
    may be overruled, whether jobs get the code as it is now, and where a smoke run goes first ("there", as a job, or
    "here")."""

    shape: str = "auto"
    again: bool = False
    at_once: int | None = None
    pack: PackOptions | None = None
    force: bool = False
    snapshot: bool = True
    smoke: str | None = None

    def smokes_here(self, cluster: Cluster) -> bool:
        return self.smoke == "here" and not cluster.is_local


DEFAULT = How()


def prepare(
    asked: Sequence[Asked], project: Project, cluster: Cluster, environ: Mapping[str, str], how: How = DEFAULT
) -> Order:
    """Decide what each run needs and lay the ones to start over jobs. Reads everything, changes nothing.

    With `how.smoke`, a short run of each kind stands before them, unless this machine runs it first. What the doctor
    refuses is a RefusedError; with `how.force` it is a note.
    """
    refuse_doubles(asked)
    home = str(project.home)
    names = [one.run.spec.name for one in asked]
    views = observe(home, names, environ=environ).views
    reader = Reader(home)
    secrets = secrecy.secret_values(environ)
    start: list[PlannedRun] = []
    left: list[Result] = []
    notes = [f"{one.run.spec.name} {one.note}" for one in asked if one.note]
    notes += unread_seeds(one.run.spec for one in asked)
    for one in asked:
        secrecy.refuse_leaks(one.run.spec, secrets)
        view = views[one.run.spec.name]
        decision = _decide(one, reader, view, how.again or one.again)
        if decision.start:
            spec = msgspec.structs.replace(one.run.spec, revision=decision.revision)
            start.append(one.run._replace(spec=spec))
        else:
            left.append(Result(view.name, "left alone", view.state, decision.reason, view.job_id, view.output_dir))
    start, held, inherited = _arrange([one.run.spec for one in asked], start, views, home, environ)
    notes += inherited
    left += [Result(one.run.spec.name, "held", "new", one.reason) for one in held]
    start, avoided = avoid_failed_nodes(start, views, project, cluster, environ)
    notes += avoided
    requeue = {step.name: step.requeue for step in project.steps.values()}
    most = largest_array(environ) if len(start) > 1 and not cluster.is_local else None
    packed = bool(start) and (how.pack is not None or how.shape in packs.SHAPES)
    if how.smoke and not how.smokes_here(cluster) and start:
        start, under_way = _with_smoke(start, views, project, cluster, environ)
        left += under_way
    first = [run for run in start if run.spec.smoke] if packed else start
    submissions = lay_out(
        first,
        project,
        cluster,
        shape="job" if packed else how.shape,
        requeue=requeue,
        at_once=how.at_once,
        largest_array=most or LARGEST_ARRAY,
    )
    if packed:
        rest = [run for run in start if not run.spec.smoke]
        again_by_slurm = all(requeue.get(run.spec.step_kind, True) for run in rest)
        submissions.append(_pack(rest, project, cluster, how.pack or PackOptions(), how.shape, again_by_slurm))
    elif any(run.spec.search for run in start):
        notes.append("[search] stops runs of packs only, and none of these: --shape pack, or --pilots K")
    notes += dict.fromkeys(note for planned in submissions for note in planned.resolved.notes)
    notes += check_containers(submissions, cluster)
    if submissions and not cluster.is_local:
        from shoal.doctor.before import check_before  # not for a pack on this machine, which should start at once
        from shoal.doctor.request import refuse_impossible

        if not how.force:
            refuse_impossible([planned.resolved for planned in submissions], environ)
        notes += check_before(submissions, str(project.root), force=how.force)
    return Order(submissions, left, views, notes)


def _with_smoke(
    start: Sequence[PlannedRun],
    views: dict[str, RunView],
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
) -> tuple[list[PlannedRun], list[Result]]:
    """The runs behind their smoke runs, whose views are added. One that is under way already is waited for; any other
    is done anew, because the code may be another by now."""
    home = str(project.home)
    runs = gated(start, project, cluster)
    views.update(observe(home, [run.spec.name for run in runs if run.spec.smoke], environ=environ).views)
    reader, found, left = Reader(home), [], []
    for run in runs:
        view = views[run.spec.name]
        if not run.spec.smoke:
            found.append(run)
            continue
        decision = decide(run.spec, reader.spec(view.name), view, again=view.state not in LIVE)
        if decision.start:
            found.append(run._replace(spec=msgspec.structs.replace(run.spec, revision=decision.revision)))
        else:
            left.append(Result(view.name, "left alone", view.state, decision.reason, view.job_id, view.output_dir))
    return found, left


def smoke_here(
    order: Order, project: Project, environ: Mapping[str, str], *, tell: Callable[[Result], None], follow: bool
) -> list[Result]:
    """The smoke runs of what an order starts, on this machine and now; the runs themselves are held if one fails."""
    here = Cluster(name=LOCAL)
    starting = [run for planned in order.submissions for run in planned.runs]
    smokes, left = _with_smoke(starting, order.views, project, here, environ)
    smokes = [run for run in smokes if run.spec.smoke]
    results = carry_out(
        Order(lay_out(smokes, project, here), left, order.views, []), project, here, environ, follow=follow, tell=tell
    )
    bad = [result.name for result in results if result.state != "done"]
    for run in starting if bad else ():
        results.append(Result(run.spec.name, "held", "new", f"{bad[0]} did not end well"))
        tell(results[-1])
    return results


def _arrange(
    specs: Sequence[RunSpec],
    start: list[PlannedRun],
    views: Mapping[str, RunView],
    home: str,
    environ: Mapping[str, str],
) -> tuple[list[PlannedRun], list[Held], list[str]]:
    """Stages in their order, and from where those start whose parents are done; costs nothing without stages."""
    parents = parents_of(specs)
    if not parents:
        return start, [], []
    check_graph(specs, run_names(home))
    others = observe(home, sorted(parents - set(views)), environ=environ).views
    placed, held = arrange(start, {name: view.state for name, view in {**views, **others}.items()})
    notes: dict[str, str] = {}
    for run in placed:
        # A parent that is done will write no checkpoint any more: better to know now than after a night in the queue.
        if run.spec.start_parent and run.spec.start_parent not in run.needs:
            found = stages.inherit(home, {"start_parent": run.spec.start_parent})
            if "cannot_start" in found:
                raise InputError(
                    f"{run.spec.name} cannot start: {found['cannot_start']}",
                    hint=f"shoal logs {run.spec.start_parent}   # what did it save?",
                )
            checkpoint = str(found["start_from"])
            notes.setdefault(checkpoint, f"{run.spec.name} starts from {with_step(checkpoint)}")
    return placed, held, list(notes.values())


def _pack(
    start: Sequence[PlannedRun], project: Project, cluster: Cluster, options: PackOptions, shape: str, requeue: bool
) -> PlannedSubmission:
    """One queue for all of them, ordered by what earlier attempts took."""
    earlier = earlier_durations(str(project.home), [run.spec.name for run in start])
    shape = "pilots" if options.pilots is not None or shape == "pilots" else "pack"
    return packs.lay_out_pack(start, project, cluster, options, earlier, shape=shape, requeue=requeue)


def _decide(one: Asked, reader: Reader, view: RunView, again: bool) -> Decision:
    kept = reader.spec(one.run.spec.name)
    if one.run.resume_in is not None and kept is not None:
        if view.state == "done":
            raise InputError(
                f"{view.name} is done already (attempt {view.attempt}): there is nothing to resume",
                hint="submit its file with --again to start it over",
            )
        decision = decide(one.run.spec, kept, view, again=False, by_name=True)
        if not decision.start:
            raise InputError(f"{view.name} is {decision.reason}", hint=f"shoal cancel {view.name}")
        return decision
    return decide(one.run.spec, kept, view, again=again, by_name=one.by_name)


def carry_out(
    order: Order,
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
    *,
    follow: bool = True,
    tell: Callable[[Result], None] = lambda result: None,
    clock: Callable[[], float] = time.time,
    snapshot: bool = True,
) -> list[Result]:
    """Submit, or run here, everything in the order; `tell` hears of each run as soon as its fate is known."""
    results: list[Result] = []

    def note(result: Result) -> None:
        results.append(result)
        tell(result)

    for left in order.left_alone:
        note(left)
    home = str(project.home)
    if not cluster.is_local:
        admit_everywhere(home)
    wants_code = snapshot and project.snapshot and order.submissions and not cluster.is_local
    code = take(project.root, Path(writing.open_home(project.home)), environ) if wants_code else None
    gate = None
    if order.submissions and not cluster.is_local:
        gate = open_gate(home, cluster, order.submissions, environ)
    now, later = (order.submissions, []) if gate is None else gate.split(order.submissions)
    try:
        _send_all(now, order, project, cluster, environ, note, results, follow, clock, code)
        for planned in later:
            claimed = claim_runs(
                planned, order.views, project, backend="slurm", environ=environ, clock=clock(), code=code
            )
            if gate is not None and claimed.indices:
                park(claimed, project, environ, gate.queue)
            note(_parked(claimed, gate))
    finally:
        if gate is not None:
            gate.close()
    return results


def _send_all(
    submissions: Sequence[PlannedSubmission],
    order: Order,
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
    note: Callable[[Result], None],
    results: list[Result],
    follow: bool,
    clock: Callable[[], float],
    code: Code | None,
) -> None:
    before: str | None = None
    home = str(project.home)
    for planned in submissions:
        waits = stages.dependency(home, planned.needs)
        if waits.problem is not None or (cluster.is_local and not waits.done):
            for run in planned.runs:
                note(Result(run.spec.name, "held", "new", waits.problem or "what it builds on is not done"))
            continue
        if cluster.is_local and planned.pack is not None:
            for result in _pack_here(planned, order, project, environ, follow, clock()):
                note(result)
            continue
        backend = "local" if cluster.is_local else "slurm"
        claimed = claim_runs(planned, order.views, project, backend=backend, environ=environ, clock=clock(), code=code)
        for result in _not_won(claimed):
            note(result)
        if not claimed.indices:
            continue
        if cluster.is_local:
            note(_here(claimed, project, environ, follow))
            if results[-1].exit_code in (130, 143):
                break
        else:
            # A limit on how many run at once holds over all arrays together: the next one waits for the last.
            after = before if planned.at_once else None
            for started in send(claimed, project, environ, after=after):
                note(_of_slurm(started))
                before = (started.job_id or "").partition("_")[0] or before
            _stop_if_silent(results, order)


def _parked(claimed: Claimed, gate: Gate | None) -> Result:
    name = claimed.planned.runs[0].spec.name
    if gate is None or not claimed.indices:
        return Result(name, "left alone", "queued", "another command has just claimed it")
    budget = ", ".join(f"{number} {kind}" for kind, number in gate.most.items())
    return Result(name, "waits", "queued", gate.closed or f"no room under {budget}", None, claimed.outputs[name])


def _here(claimed: Claimed, project: Project, environ: Mapping[str, str], follow: bool) -> Result:
    name = claimed.planned.runs[0].spec.name
    code = run_here(claimed, project, environ, follow=follow)
    view = observe(str(project.home), [name], environ=environ).views[name]
    exit_code = _exit_code(view) if view.exit_code is not None else code
    if view.state == "cancelled":
        exit_code = 130
    return Result(name, "ran", view.state, view.cause or "", None, view.output_dir, exit_code)


def _not_won(claimed: Claimed) -> list[Result]:
    won = set(claimed.indices)
    lost = [run.spec.name for index, run in enumerate(claimed.planned.runs) if index not in won]
    return [Result(name, "left alone", "queued", "another command has just claimed it") for name in lost]


def _pack_here(
    planned: PlannedSubmission, order: Order, project: Project, environ: Mapping[str, str], follow: bool, clock: float
) -> list[Result]:
    """The engine begins with the first runs while the last ones are still being claimed."""
    with EngineHere(project, environ, follow=follow) as engine:
        claimed = claim_runs(
            planned, order.views, project, backend="local", environ=environ, clock=clock, opened=engine.begin
        )
        code = engine.wait()
    names = [planned.runs[index].spec.name for index in claimed.indices]
    views = observe(str(project.home), names, environ=environ).views
    interrupted = code if code > 128 else None
    return _not_won(claimed) + [
        Result(name, "ran", view.state, view.cause or "", None, view.output_dir, interrupted or _exit_code(view))
        for name, view in views.items()
    ]


def _exit_code(view: RunView) -> int | None:
    """A result check may find good what the program called a failure."""
    return 0 if view.state == "done" else view.exit_code


def _of_slurm(started: Started) -> Result:
    did = {"pending": "submitted", "unknown": "unclear", "new": "refused"}[started.state]
    return Result(started.name, did, started.state, started.message, started.job_id, started.output_dir)


def _stop_if_silent(results: Sequence[Result], order: Order) -> None:
    """A controller that does not answer will not answer the next hundred either; what was done stays done."""
    last = results[-1]
    if last.did == "unclear":
        raise SchedulerError(
            f"Slurm's answer to the submission of {last.name} is not known: {last.reason}",
            hint="shoal status   # finds the job by its name, or says that there is none; nothing is submitted twice",
        )
    if last.did == "refused":
        down = "connect failure" in last.reason or "cannot run" in last.reason or "configuration source" in last.reason
        if down:
            raise SchedulerError(
                f"Slurm cannot be reached: {last.reason}", hint="scontrol ping   # is the controller up?"
            )
        raise InputError(
            f"Slurm refused {last.name}: {last.reason}", hint="shoal plan FILE   # shows the exact request"
        )
