"""Keep or switch: measure a running job, ask what another request would do, and put that one beside it as a trial.

The trial is a run of its own (job/trial.py), so that the two never write in one folder. It takes the run over by
itself, from inside its job, when it is healthy; nothing waits here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal.batch import parse_flags
from shoal.describe import Cluster, PlannedRun, Project, RequestedRun
from shoal.doctor import Advice, Alternative, advise, batch_notes, size_ratio
from shoal.errors import InputError, RefusedError
from shoal.kernel import Progress
from shoal.model import ACTIVE_STATES, Request, RunSpec
from shoal.names import check_length
from shoal.observe import RequestedResources as Requested
from shoal.observe import RunFiles, RunReader, RunView, Submission, command_words, observe
from shoal.plan import named_cluster
from shoal.submit import standing
from shoal.submit.carrying import execute_plan
from shoal.submit.orders import SubmissionPlan, SubmitResult, prepare_submission
from shoal.submit.speed import TOLD, efficiency, measured, progress_of
from shoal.submit.starts import expected_start
from shoal.units import format_memory, format_slurm_time, parse_memory_mb, plural


class Wish(NamedTuple):
    """What the other job asks for, and what is known about it. `after_step` counts the steps that it does itself."""

    gpus: int | None = None
    nodes: int | None = None
    time: str | None = None
    flags: Sequence[str] = ()
    efficiency: float | None = None
    progress: str | None = None
    after_step: int = 1


class Comparison(NamedTuple):
    """A running run, the trial that would replace it, and the advice."""

    view: RunView
    trial: str
    request: Request
    progress: Progress
    advice: Advice
    asked: RequestedRun
    order: SubmissionPlan
    cluster: Cluster
    trial_state: str


def compare(name: str, wish: Wish, project: Project, environ: Mapping[str, str], now: float) -> Comparison:
    """Measure and ask; changes nothing. InputError when there is nothing to compare."""
    home = str(project.home)
    view = observe(home, [name], environ=environ).views[name]
    reader = RunReader(home)
    files = reader.run(name)
    spec, submission = _running(reader, view, files)
    cluster = named_cluster(project, submission.cluster)
    had = submission.asked or Requested()
    wish = _complete(name, wish, had)
    gpus, nodes = wish.gpus or 0, wish.nodes or 1
    seen = progress_of(view, spec, wish.progress)
    asked, state = _trial(home, spec, files, submission, wish, nodes, cluster, environ)
    order = _prepared(asked, wish, project, cluster, environ)
    resolved = order.submissions[0].resolved if order.submissions else None
    request = resolved.request if resolved else asked.run.spec.request
    running = msgspec.structs.replace(measured(view, spec, seen, now), nodes=had.nodes)
    share, source = efficiency(home, name, spec, running, (nodes, gpus), wish.efficiency, environ)
    other = Alternative(
        gpus=nodes * gpus,
        nodes=nodes,
        efficiency=share,
        efficiency_from=source,
        wait_s=expected_start(resolved.argv(), environ) if resolved else None,
        time_limit_s=request.time_limit_s,
    )
    told = advise(running, other)
    batch = batch_notes(command_words(spec), size_ratio(running, other), "GPU" if gpus else "node")
    notes = [*told.notes, *batch, *_launch_note(spec, gpus)]
    told = msgspec.structs.replace(told, notes=notes)
    return Comparison(view, asked.run.spec.name, request, seen, told, asked, order, cluster, state)


def _complete(name: str, wish: Wish, had: Requested) -> Wish:
    """What the new job asks for, all of it: per node as many GPUs as now, where nothing else is said."""
    if wish.gpus and not had.gpus:
        raise InputError(
            f"{name} runs without GPUs: its speed on {wish.gpus} GPUs cannot be told from its speed now",
            hint=f"shoal switch {name} --nodes {had.nodes * 2}",
        )
    gpus, nodes = wish.gpus or had.gpus, wish.nodes or (1 if wish.gpus else had.nodes)
    if (nodes, gpus) == (had.nodes, had.gpus) and not wish.flags and wish.time is None:
        size = plural(nodes * gpus, "GPU") if gpus else plural(nodes, "node")
        more = f"--gpus {nodes * gpus * 2}" if gpus else f"--nodes {nodes * 2}"
        raise InputError(f"{name} has {size} already", hint=f"shoal switch {name} {more}")
    return wish._replace(gpus=gpus, nodes=nodes)


def _prepared(
    asked: RequestedRun, wish: Wish, project: Project, cluster: Cluster, environ: Mapping[str, str]
) -> SubmissionPlan:
    """The order for the trial. What is refused is explained with a switch that would not be."""
    try:
        return prepare_submission([asked], project, cluster, environ)
    except RefusedError as error:
        if error.hint and "--gpus" not in error.hint and all(word.startswith("--") for word in error.hint.split()):
            of = asked.run.spec.trial["of"]
            size = f"--gpus {wish.gpus}" if wish.gpus else f"--nodes {wish.nodes}"
            error.hint = f"shoal switch {of} {size} -- {' '.join([*wish.flags, error.hint])}"
        raise


def apply(
    found: Comparison, wish: Wish, project: Project, environ: Mapping[str, str], request_id: str | None = None
) -> list[SubmitResult]:
    """Submit the trial, once; one that is under way already is left alone."""
    if found.progress.source == TOLD:
        raise InputError(
            f"nothing would tell when {found.trial} is healthy, because its steps cannot be seen",
            hint="let the program write lines such as 300/1000 to $SHOAL_PROGRESS",
        )
    given = standing.find_order(str(project.home), "switch", [found.trial], wish, request_id, environ)
    if given.submitted or given.is_done:
        standing.finish_order(str(project.home), given)
        return given.results()
    return execute_plan(found.order, project, found.cluster, environ, follow=False, given=given)


def _running(reader: RunReader, view: RunView, files: RunFiles) -> tuple[RunSpec, Submission]:
    """What runs, with the flags that its job was asked for with, and that job's submission."""
    spec, submission = reader.spec(view.name), files.origin.submission if files.origin else None
    if view.state != "running" or spec is None or submission is None:
        hints = {
            "pending": f"shoal cancel {view.name}   # then submit it with the other request",
            "new": f"shoal status {view.experiment}",
        }
        again = f"shoal resume {view.name} -- --gpus-per-node=8"
        raise InputError(f"{view.name} is {view.state}, and not running", hint=hints.get(view.state, again))
    if submission.backend != "slurm":
        raise InputError(
            f"{view.name} runs on this machine, where there is nothing to switch to",
            hint=f"shoal cancel {view.name}   # then shoal submit FILE --on CLUSTER",
        )
    if submission.shape is not None:
        raise InputError(
            f"{view.name} is one of the runs of a pack, which share an allocation", hint=f"shoal why {view.name}"
        )
    if spec.trial or spec.smoke:
        raise InputError(f"{view.name} is a trial or a smoke run itself", hint=f"shoal status {view.experiment}")
    return msgspec.structs.replace(spec, flags=reader.flags(spec)), submission


def _trial(
    home: str,
    spec: RunSpec,
    files: RunFiles,
    submission: Submission,
    wish: Wish,
    nodes: int,
    cluster: Cluster,
    environ: Mapping[str, str],
) -> tuple[RequestedRun, str]:
    """The trial as a run to submit, and the state of one that exists already."""
    label = f"{nodes}x{wish.gpus}gpus" if nodes > 1 else f"{wish.gpus}gpus"
    if not wish.gpus:
        label = f"{nodes}nodes"
    check_length(spec.experiment, f"{spec.stem}_{label}")
    name = f"{spec.experiment}/{spec.stem}_{label}"
    state = observe(home, [name], environ=environ).views[name].state
    revision = files.claim.revision if files.claim else spec.revision
    changed = msgspec.structs.replace(
        spec,
        stem=f"{spec.stem}_{label}",
        title=None,
        sweep=None,
        flags=[*spec.flags, *_flags(spec, submission, wish, nodes, cluster), *wish.flags],
        trial={"of": spec.name, "revision": revision, "after_step": wish.after_step},
    )
    return RequestedRun(PlannedRun(changed), again=state not in ACTIVE_STATES), state


def _flags(spec: RunSpec, submission: Submission, wish: Wish, nodes: int, cluster: Cluster) -> list[str]:
    """sbatch flags that win over those of the run; CPUs and memory that it asked for grow with its GPUs."""
    said = parse_flags(spec.flags, nodes=spec.request.nodes).request.over(spec.request)
    kind = f"{said.gpu_type}:" if said.gpu_type else ""
    gpus = wish.gpus or 0
    found = [f"--nodes={nodes}", *([f"--gpus-per-node={kind}{gpus}"] if gpus else [])]
    before = submission.asked.gpus if submission.asked else 0
    if before:
        if said.cpus is not None:
            cpus = said.cpus * gpus // before
            found.append(f"--cpus-per-task={max(1, min(cpus, cluster.cpus_per_node or cpus))}")
        if said.memory_mb is not None:
            size_mb = said.memory_mb * gpus // before
            most_mb = parse_memory_mb(cluster.memory_per_node) if cluster.memory_per_node else size_mb
            found.append(f"--mem={format_memory(max(1, min(size_mb, most_mb)))}")
    if wish.time is not None:
        found.append(f"--time={format_slurm_time(Request(time=wish.time).time_limit_s or 0)}")
    return found


def _launch_note(spec: RunSpec, gpus: int) -> list[str]:
    if spec.launch != "process" or gpus < 2:
        return []
    return [f"launch is process: the program itself must use all {gpus} GPUs (as Lightning does), or set launch"]
