"""Keep or switch: measure a running job, ask what another request would do, and put that one beside it as a trial.

The trial is a run of its own (agent/trial.py), so that the two never write in one folder. It takes the run over by
itself, from inside its job, when it is healthy; nothing waits here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal.agent import checkpoints
from shoal.agent import progress as agent_progress
from shoal.agent.progress import Progress
from shoal.backends.choose import named_cluster
from shoal.backends.slurm.flags import parse_flags
from shoal.config.cluster import Cluster
from shoal.config.project import Project
from shoal.doctor.switching import Advice, Alternative, Running, advise, batch_notes, totals
from shoal.errors import InputError
from shoal.model import LIVE, Request, RunSpec
from shoal.names import check_length
from shoal.observe import observe
from shoal.plan.describe import Asked
from shoal.plan.submissions import PlannedRun
from shoal.store.fold import RunView
from shoal.store.listing import run_names
from shoal.store.reading import Reader
from shoal.store.records import Submission
from shoal.submit.carrying import carry_out
from shoal.submit.orders import Order, Result, prepare
from shoal.submit.starts import expected_start
from shoal.units import format_memory, format_slurm_time, parse_memory_mb

#: Earlier runs whose duration tells the speed of another number of GPUs.
_MOST_EARLIER = 200


class Wish(NamedTuple):
    """What the other job asks for, and what is known about it. `after_step` counts the steps that it does itself."""

    gpus: int
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
    asked: Asked
    order: Order
    cluster: Cluster
    trial_state: str


def compare(name: str, wish: Wish, project: Project, environ: Mapping[str, str], now: float) -> Comparison:
    """Measure and ask; changes nothing. InputError when there is nothing to compare."""
    home = str(project.home)
    view = observe(home, [name], environ=environ).views[name]
    spec, submission = _running(home, view)
    cluster = named_cluster(project, submission.cluster)
    old_gpus = max(1, view.gpus or 0)
    nodes = wish.nodes or 1
    if nodes * wish.gpus == old_gpus and not wish.flags and wish.time is None:
        raise InputError(
            f"{name} has {old_gpus} GPU{'s' if old_gpus > 1 else ''} already", hint=f"--gpus {old_gpus * 2}"
        )
    seen = _progress(view, spec, wish.progress)
    asked, state = _trial(home, spec, view, submission, wish, nodes, cluster, environ)
    order = prepare([asked], project, cluster, environ)
    resolved = order.submissions[0].resolved if order.submissions else None
    request = resolved.request if resolved else asked.run.spec.request
    running = _measured(view, spec, seen, old_gpus, now)
    efficiency, source = _efficiency(home, spec, view, running, nodes * wish.gpus, wish.efficiency, environ)
    other = Alternative(
        gpus=nodes * wish.gpus,
        efficiency=efficiency,
        efficiency_from=source,
        wait_s=expected_start(resolved.argv(), environ) if resolved else None,
        time_limit_s=request.time_limit_s,
    )
    told = advise(running, other)
    words = [*spec.command, *spec.args]
    notes = [*told.notes, *batch_notes(words, nodes * wish.gpus / old_gpus), *_launch_note(spec, wish.gpus)]
    told = msgspec.structs.replace(told, notes=notes)
    return Comparison(view, asked.run.spec.name, request, seen, told, asked, order, cluster, state)


def apply(found: Comparison, project: Project, environ: Mapping[str, str]) -> list[Result]:
    """Submit the trial, once; one that is under way already is left alone."""
    if found.progress.source == "as you say":
        raise InputError(
            f"nothing would tell when {found.trial} is healthy, because its steps cannot be seen",
            hint="let the program write lines such as 300/1000 to $SHOAL_PROGRESS",
        )
    return carry_out(found.order, project, found.cluster, environ, follow=False)


def _running(home: str, view: RunView) -> tuple[RunSpec, Submission]:
    files = Reader(home).run(view.name)
    spec, submission = Reader(home).spec(view.name), files.origin.submission if files.origin else None
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
    return spec, submission


def _progress(view: RunView, spec: RunSpec, told: str | None) -> Progress:
    words = [*spec.command, *spec.args]
    steps, epochs = totals(words)
    logs = [os.path.join(view.log_dir or "", f"attempt-{view.attempt}.{stream}") for stream in ("out", "err")]
    seen = agent_progress.read(view.output_dir or "", logs, steps, epochs)
    if told is not None:
        found = agent_progress.parse(told, plain=True)
        if found is None or not found[2]:
            raise InputError(f"{told!r} is no progress", hint="--progress 300/1000, or --progress 30%")
        moment = seen.t if seen is not None else os.stat(view.output_dir or ".").st_mtime
        return Progress(found[0], found[1], found[2], "as you say", told, moment)
    if seen is None or not seen.fraction:
        what = f"only {seen.text!r} in its {seen.source}" if seen is not None else "nothing in its log or folder"
        raise InputError(
            f"how far {view.name} is cannot be seen: {what}",
            hint=f"shoal switch {view.name} --gpus N --progress 300/1000   # or let it write $SHOAL_PROGRESS",
        )
    return seen


def _measured(view: RunView, spec: RunSpec, seen: Progress, gpus: int, now: float) -> Running:
    started = view.started or now
    since = 0.0
    if view.resume_from and seen.total:
        step = checkpoints.step_of(view.resume_from) or 0
        since = step / seen.total if step <= (seen.step or 0) else 0.0
    newest = checkpoints.newest(view.output_dir or "", spec.checkpoint) if spec.checkpoint else None
    moment = now if seen.source == "as you say" else min(now, seen.t)
    return Running(
        gpus=gpus,
        fraction=seen.fraction or 0.0,
        since=since,
        measured_s=max(1.0, moment - started),
        age_s=max(0.0, now - moment),
        checkpoint_age_s=None if newest is None else max(0.0, now - os.stat(newest).st_mtime),
        time_left_s=None if view.time_limit_s is None else max(0.0, started + view.time_limit_s - now),
    )


def _trial(
    home: str,
    spec: RunSpec,
    view: RunView,
    submission: Submission,
    wish: Wish,
    nodes: int,
    cluster: Cluster,
    environ: Mapping[str, str],
) -> tuple[Asked, str]:
    """The trial as a run to submit, and the state of one that exists already."""
    label = f"{nodes}x{wish.gpus}gpus" if nodes > 1 else f"{wish.gpus}gpus"
    check_length(spec.experiment, f"{spec.stem}_{label}")
    name = f"{spec.experiment}/{spec.stem}_{label}"
    state = observe(home, [name], environ=environ).views[name].state
    kept = Reader(home).run(view.name)
    revision = kept.claim.revision if kept.claim else spec.revision
    changed = msgspec.structs.replace(
        spec,
        stem=f"{spec.stem}_{label}",
        title=None,
        sweep=None,
        flags=[*spec.flags, *_flags(spec, submission, wish, nodes, cluster), *wish.flags],
        trial={"of": view.name, "revision": revision, "after_step": wish.after_step},
    )
    return Asked(PlannedRun(changed), again=state not in LIVE), state


def _flags(spec: RunSpec, submission: Submission, wish: Wish, nodes: int, cluster: Cluster) -> list[str]:
    """sbatch flags that win over those of the run; CPUs and memory that it asked for grow with its GPUs."""
    said = parse_flags(spec.flags, nodes=spec.request.nodes).request.over(spec.request)
    kind = f"{said.gpu_type}:" if said.gpu_type else ""
    found = [f"--nodes={nodes}", f"--gpus-per-node={kind}{wish.gpus}"]
    before = submission.asked.gpus if submission.asked else 0
    if before:
        if said.cpus is not None:
            cpus = said.cpus * wish.gpus // before
            found.append(f"--cpus-per-task={max(1, min(cpus, cluster.cpus_per_node or cpus))}")
        if said.memory_mb is not None:
            size_mb = said.memory_mb * wish.gpus // before
            most_mb = parse_memory_mb(cluster.memory_per_node) if cluster.memory_per_node else size_mb
            found.append(f"--mem={format_memory(max(1, min(size_mb, most_mb)))}")
    if wish.time is not None:
        found.append(f"--time={format_slurm_time(Request(time=wish.time).time_limit_s or 0)}")
    return found


def _efficiency(
    home: str,
    spec: RunSpec,
    view: RunView,
    running: Running,
    gpus: int,
    given: float | None,
    environ: Mapping[str, str],
) -> tuple[float, str]:
    """As given; or from how long runs of the same step took on that many GPUs; or assumed."""
    if given is not None:
        return given, "given"
    reader = Reader(home)
    siblings = [one for one in run_names(home) if one.partition("/")[0] == spec.experiment and one != view.name]
    durations, names = [], []
    for one in siblings[-_MOST_EARLIER:]:
        end = reader.run(one).end
        submission = reader.submission(end.token).submission if end is not None else None
        asked = submission.asked if submission else None
        if end is None or not end.success or end.stopped_by or asked is None or asked.gpus * asked.nodes != gpus:
            continue
        other = reader.spec(one)
        if other is not None and other.step_kind == spec.step_kind and not other.smoke and end.attempt == 1:
            durations.append(end.duration_s)
            names.append(one)
    if not durations:
        return Alternative(gpus=gpus).efficiency, "assumed"
    duration_s = sorted(durations)[len(durations) // 2]
    speedup = 1.0 / (max(1.0, duration_s) * running.rate)
    return speedup / (gpus / running.gpus), f"measured: {names[-1]} took {duration_s / 3600:.3g} h on {gpus} GPUs"


def _launch_note(spec: RunSpec, gpus: int) -> list[str]:
    if spec.launch != "process" or gpus < 2:
        return []
    return [f"launch is process: the program itself must use all {gpus} GPUs (as Lightning does), or set launch"]
