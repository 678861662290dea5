"""Compare a running job with its replacement, and submit the replacement.

The replacement is a run of its own (job/replacement.py), so that the two never write in one directory. It takes the
run over by itself, from inside its job, when it is healthy; nothing waits here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal.actions import (
    SubmissionPlan,
    SubmitResult,
    SubmitTarget,
    execute_plan,
    expected_start,
    idempotency,
    prepare_submission,
)
from shoal.batch import parse_flags
from shoal.describe import Cluster, PlannedRun, Project, RequestedRun
from shoal.errors import InputError, RefusedError
from shoal.kernel import Progress
from shoal.model import ACTIVE_STATES, Request, RunSpec
from shoal.names import check_length
from shoal.observe import RequestedResources as Requested
from shoal.observe import RunReader, RunView, Submission, command_words, observe
from shoal.plan import named_cluster
from shoal.switch.advice import Replacement, SwitchAdvice, advise, batch_notes, size_ratio
from shoal.switch.measure import GIVEN_BY_USER, efficiency, measure, progress_of
from shoal.units import format_memory, format_slurm_time, parse_memory_mb, plural


class SwitchOptions(NamedTuple):
    """What the replacement asks for, and what is known about it. `gpus` are per node; `after_step` counts the training
    steps that it does itself before it takes over."""

    gpus: int | None = None
    nodes: int | None = None
    time: str | None = None
    flags: Sequence[str] = ()
    efficiency: float | None = None
    progress: str | None = None
    after_step: int = 1


class SwitchComparison(NamedTuple):
    """A running run, the run that would replace it (its name, and its state if it exists already), and the advice."""

    view: RunView
    replacement: str
    replacement_state: str
    request: Request
    progress: Progress
    advice: SwitchAdvice
    plan: SubmissionPlan
    cluster: Cluster


def compare(
    name: str, options: SwitchOptions, project: Project, environ: Mapping[str, str], now: float
) -> SwitchComparison:
    """Measure and ask; changes nothing. InputError when there is nothing to compare."""
    home = str(project.home)
    view = observe(home, [name], environ=environ).views[name]
    spec, submission = _running(RunReader(home), view)
    cluster = named_cluster(project, submission.cluster)
    before = submission.asked or Requested()
    options = _complete(name, options, before)
    gpus, nodes = options.gpus or 0, options.nodes or 1
    progress = progress_of(view, spec, options.progress)
    replacing = _replacement(spec, before, options, cluster)
    state = observe(home, [replacing.name], environ=environ).views[replacing.name].state
    plan = _plan_replacement(
        RequestedRun(PlannedRun(replacing), rerun=state not in ACTIVE_STATES), options, project, cluster, environ
    )
    resolved = plan.submissions[0].resolved if plan.submissions else None
    request = resolved.request if resolved else replacing.request
    running = measure(view, spec, before.nodes, progress, now)
    share, source = efficiency(home, spec, running, (nodes, gpus), options.efficiency, environ, now)
    replacement = Replacement(
        gpus=nodes * gpus,
        nodes=nodes,
        efficiency=share,
        efficiency_from=source,
        wait_s=expected_start(resolved.argv(), environ) if resolved else None,
        time_limit_s=request.time_limit_s,
    )
    advice = advise(running, replacement)
    batch = batch_notes(command_words(spec), size_ratio(running, replacement), "GPU" if gpus else "node")
    advice = msgspec.structs.replace(advice, notes=[*advice.notes, *batch, *_launch_note(spec, gpus)])
    return SwitchComparison(view, replacing.name, state, request, progress, advice, plan, cluster)


def apply(
    comparison: SwitchComparison,
    options: SwitchOptions,
    project: Project,
    environ: Mapping[str, str],
    command_id: str | None = None,
) -> list[SubmitResult]:
    """Submit the replacement, once; one that is under way already is left alone."""
    if comparison.progress.source == GIVEN_BY_USER:
        raise InputError(
            f"cannot detect the progress of {comparison.replacement}, which --apply needs",
            hint="let the program write lines such as 300/1000 to $SHOAL_PROGRESS",
        )
    if options.after_step > 1 and comparison.progress.text.endswith("%"):
        raise InputError(
            f"--after-step {options.after_step} needs training steps, but {comparison.view.name} shows a percentage "
            f"only ({comparison.progress.text} in its {comparison.progress.source})",
            hint="remove --after-step: the replacement then takes over after 1 %",
        )
    home = str(project.home)
    user_command = idempotency.find_command(home, "switch", [comparison.replacement], options, command_id, environ)
    if user_command.submitted or user_command.is_done:
        idempotency.finish_command(home, user_command)
        return user_command.results()
    target = SubmitTarget(project, comparison.cluster, environ)
    return execute_plan(comparison.plan, target, follow=False, user_command=user_command)


def _running(reader: RunReader, view: RunView) -> tuple[RunSpec, Submission]:
    """What runs, as it stands now (its flags and its revision), and its job's submission."""
    files = reader.run(view.name)
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
    if submission.layout is not None:
        raise InputError(
            f"{view.name} is one of the runs of a pack, which share an allocation", hint=f"shoal why {view.name}"
        )
    if spec.adopted and not spec.command:
        raise InputError(
            f"the script of {view.name} is not known, so no replacement can run it", hint="shoal submit SCRIPT"
        )
    if spec.replacement or spec.smoke:
        raise InputError(f"{view.name} is a replacement or a smoke run itself", hint=f"shoal status {view.experiment}")
    revision = files.claim.revision if files.claim else spec.revision
    return msgspec.structs.replace(spec, flags=reader.flags(spec), revision=revision), submission


def _complete(name: str, options: SwitchOptions, before: Requested) -> SwitchOptions:
    """What the replacement asks for, all of it: per node as many GPUs as before, where nothing else is said."""
    if options.gpus and not before.gpus:
        raise InputError(
            f"{name} runs without GPUs: its speed on {options.gpus} GPUs cannot be told from its speed now",
            hint=f"shoal switch {name} --nodes {before.nodes * 2}",
        )
    gpus, nodes = options.gpus or before.gpus, options.nodes or (1 if options.gpus else before.nodes)
    if (nodes, gpus) == (before.nodes, before.gpus) and not options.flags and options.time is None:
        size = plural(nodes * gpus, "GPU") if gpus else plural(nodes, "node")
        more = f"--gpus {nodes * gpus * 2}" if gpus else f"--nodes {nodes * 2}"
        raise InputError(f"{name} has {size} already", hint=f"shoal switch {name} {more}")
    return options._replace(gpus=gpus, nodes=nodes)


def _replacement(spec: RunSpec, before: Requested, options: SwitchOptions, cluster: Cluster) -> RunSpec:
    """The run that would replace this one; its name says what is different."""
    gpus, nodes = options.gpus or 0, options.nodes or 1
    size = f"{nodes}x{gpus}gpus" if nodes > 1 else f"{gpus}gpus"
    stem = f"{spec.stem}_{size if gpus else f'{nodes}nodes'}"
    check_length(spec.experiment, stem)
    return msgspec.structs.replace(
        spec,
        stem=stem,
        title=None,
        sweep=None,
        flags=[*spec.flags, *_flags(spec, before, options, cluster), *options.flags],
        replacement={"of": spec.name, "revision": spec.revision, "after_step": options.after_step},
    )


def _flags(spec: RunSpec, before: Requested, options: SwitchOptions, cluster: Cluster) -> list[str]:
    """sbatch flags that win over those of the run; CPUs and memory that it asked for grow with its GPUs."""
    asked = parse_flags(spec.flags, nodes=spec.request.nodes).request.over(spec.request)
    gpu_type = f"{asked.gpu_type}:" if asked.gpu_type else ""
    gpus = options.gpus or 0
    flags = [f"--nodes={options.nodes or 1}", *([f"--gpus-per-node={gpu_type}{gpus}"] if gpus else [])]
    if before.gpus:
        if asked.cpus is not None:
            cpus = asked.cpus * gpus // before.gpus
            flags.append(f"--cpus-per-task={max(1, min(cpus, cluster.cpus_per_node or cpus))}")
        if asked.memory_mb is not None:
            memory_mb = asked.memory_mb * gpus // before.gpus
            max_mb = parse_memory_mb(cluster.memory_per_node) if cluster.memory_per_node else memory_mb
            flags.append(f"--mem={format_memory(max(1, min(memory_mb, max_mb)))}")
    if options.time is not None:
        flags.append(f"--time={format_slurm_time(Request(time=options.time).time_limit_s or 0)}")
    return flags


def _plan_replacement(
    asked: RequestedRun, options: SwitchOptions, project: Project, cluster: Cluster, environ: Mapping[str, str]
) -> SubmissionPlan:
    """The plan of the replacement. What is refused is explained with a switch that would not be."""
    try:
        return prepare_submission([asked], SubmitTarget(project, cluster, environ))
    except RefusedError as error:
        if error.hint and "--gpus" not in error.hint and all(word.startswith("--") for word in error.hint.split()):
            original = asked.run.spec.replacement["of"]
            size = f"--gpus {options.gpus}" if options.gpus else f"--nodes {options.nodes}"
            error.hint = f"shoal switch {original} {size} -- {' '.join([*options.flags, error.hint])}"
        raise


def _launch_note(spec: RunSpec, gpus: int) -> list[str]:
    if spec.launch != "process" or gpus < 2:
        return []
    return [f"launch is process: the program itself must use all {gpus} GPUs (as Lightning does), or set launch"]
