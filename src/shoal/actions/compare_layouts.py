"""`shoal plan`: what `submit` would do with files or a command, and what it costs; `--layouts`: the same runs in every
layout.

Jobs, GPUs and time limits are read off the submissions that `submit` makes with the same flags (`lay_out_runs`); hours
and makespans are estimated from durations. Start times come from one `sbatch --test-only` for each different request.
Nothing is submitted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.actions.cancel import removed_runs
from shoal.actions.prepare import (
    SubmissionPlan,
    SubmitOptions,
    SubmitTarget,
    lay_out_runs,
    prepare_submission,
    runs_to_start,
)
from shoal.actions.submit import cluster_of_scripts, submit_target
from shoal.batch import parse_flags
from shoal.clusters import UNKNOWN, ClusterFacts, check_with_sbatch, read_cluster
from shoal.describe import Cluster, PlannedRun, Project, RequestedRun, SweepNames, SweepOptions, read_scripts
from shoal.errors import InputError, RefusedError
from shoal.model import Request, RunSpec
from shoal.observe import RunView, past_durations
from shoal.plan import (
    ARRAY,
    JOB_PER_RUN,
    LayoutComparison,
    LayoutCost,
    PackJob,
    PackOptions,
    PlannedSubmission,
    assume_durations,
    build_queue,
    choose_best,
    compare_layouts,
    fill_gpu_shares,
    job_count,
    layout_widths,
    longest_first,
    max_cost,
    packs,
    simulate,
    split_over_nodes,
    with_start_times,
)

_TIMEOUT_S = 20.0


class PlanReport(NamedTuple):
    """What `submit` would do: the runs that were asked for, where they would go, and what is to be sent. `removed` are
    active runs that their sweep no longer describes; `expected` is None where nothing would be sent."""

    asked: list[RequestedRun]
    project: Project
    cluster: Cluster
    plan: SubmissionPlan
    removed: list[RunView]
    expected: ExpectedCost | None


def plan_scripts(
    paths: Sequence[Path],
    project: Project,
    environ: Mapping[str, str],
    *,
    sweep: SweepOptions | None,
    options: SubmitOptions,
    on: str | None,
) -> PlanReport:
    """What `submit_scripts` would do with the same arguments. Changes nothing."""
    asked, grown, target = _read_and_choose(paths, project, environ, sweep, on)
    cluster = target.cluster
    plan = prepare_submission(asked, target, options)
    removed = removed_runs(target.home, grown, [one.run.spec.name for one in asked], environ)
    expected = expected_cost(plan, asked, project, cluster, environ)
    return PlanReport(list(asked), project, cluster, plan, removed, expected)


def compare_script_layouts(
    paths: Sequence[Path],
    project: Project,
    environ: Mapping[str, str],
    *,
    sweep: SweepOptions | None,
    on: str | None,
    startup_s: float,
    rerun: bool,
) -> LayoutComparison:
    """What the runs that `submit_scripts` would start cost in each layout."""
    asked, _, target = _read_and_choose(paths, project, environ, sweep, on)
    return compare_layouts_of(asked, project, target.cluster, environ, startup_s=startup_s, rerun=rerun)


def _read_and_choose(
    paths: Sequence[Path], project: Project, environ: Mapping[str, str], sweep: SweepOptions | None, on: str | None
) -> tuple[list[RequestedRun], list[SweepNames], SubmitTarget]:
    """The runs, and where they would go. Slurm is asked only when every file could be read."""
    asked, grown = read_scripts(paths, project, environ, sweep)
    target = submit_target(project, on, environ)
    return asked, grown, target._replace(cluster=cluster_of_scripts(asked, project, target.cluster, environ, on))


def compare_layouts_of(
    asked: Sequence[RequestedRun],
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
    *,
    startup_s: float = 0.0,
    rerun: bool = False,
) -> LayoutComparison:
    """Compare what every layout would cost for the runs that `submit` would start."""
    if any(one.run.spec.in_place for one in asked):
        raise InputError("--layouts does not compare batch scripts, which cannot be packed", hint="remove --layouts")
    runs = runs_to_start(asked, SubmitTarget(project, cluster, environ), SubmitOptions(rerun=rerun))
    if not runs:
        hint = "use --rerun to compare layouts for completed runs" if asked else "shoal plan FILE"
        raise InputError("no run to submit, so no layouts to compare", hint=hint)
    earlier = past_durations(str(project.home), [run.spec.name for run in runs])
    jobs, assumptions, of_slots = _expected_jobs(runs, asked, str(project.home))
    facts = UNKNOWN if cluster.is_local else read_cluster(environ, "nodes", "settings")
    max_gpus = None if of_slots else _gpus_of_cluster(runs, project, cluster, facts)
    comparison = compare_layouts(
        jobs,
        assumptions,
        startup_s=startup_s,
        widths=layout_widths(jobs, None if of_slots else cluster.gpus_per_node, max_gpus),
        max_gpus=max_gpus,
        one_by_one=cluster.is_local,
    )._replace(of_slots=of_slots)
    layouts: list[LayoutCost] = []
    left_out: list[str] = []
    requests: dict[str, list[PlannedSubmission]] = {}
    for layout in comparison.layouts:
        options = _submit_options(layout, cluster.gpus_per_node, of_slots)
        try:
            planned = lay_out_runs(runs, project, cluster, options, earlier, facts.max_array_size)
            _refuse_impossible(planned, facts)
        except (InputError, RefusedError) as error:
            left_out.append(f"{layout.name}: {error.message}")
            continue
        requests[layout.name] = planned
        layouts.append(_with_request(layout, planned, layout_flags(layout, cluster.gpus_per_node, of_slots)))
    if not layouts:
        raise InputError(f"no layout can be submitted: {left_out[0]}", hint="shoal plan FILE   # shows the request")
    comparison = choose_best(comparison._replace(layouts=layouts, left_out=tuple(left_out)))
    return comparison if cluster.is_local else with_start_times(comparison, _expected_starts(requests, environ))


class ExpectedCost(NamedTuple):
    """What runs are expected to take, from durations of earlier ones (`source`). `makespan_s` counts from the first
    start, if `gpus_at_once` are free; `start_s` is in how many seconds Slurm would start the first job."""

    gpu_hours: float
    makespan_s: float
    gpus_at_once: int
    source: str
    start_s: float | None = None


def expected_cost(
    plan: SubmissionPlan,
    asked: Sequence[RequestedRun],
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
) -> ExpectedCost | None:
    """Of the runs of a plan; None if no earlier attempt of these runs tells, or some of them wait for others."""
    runs = [run for planned in plan.submissions for run in planned.runs]
    if (
        not runs
        or any(run.needs or run.spec.smoke for run in runs)
        or any(one.max_parallel for one in plan.submissions)
    ):
        return None
    specs = _with_others(runs, asked)
    measured = past_durations(str(project.home), [spec.name for spec in specs])
    if not measured or any((request.nodes or 1) > 1 for _, request in _requests(specs)):
        return None
    queue = build_queue(_requests(specs), PackOptions(), measured)
    jobs = [job for job in queue.jobs if job.place < len(runs)]
    start_s = None if cluster.is_local else expected_start(plan.submissions[0].resolved.argv(), environ)
    first = plan.submissions[0]
    if first.pack is not None:
        return None if cluster.is_local else _expected_pack(first, jobs, queue.source)._replace(start_s=start_s)
    max_gpus = plan.facts.total_gpus(first.resolved.get("partition")) or None
    known = fill_gpu_shares(jobs, 1, 1)
    found = compare_layouts(known, [], widths=[], max_gpus=max_gpus, one_by_one=cluster.is_local).layouts[0]
    has_gpus = any(one.request.gpus for one in plan.submissions)
    hours, at_once = (found.allocated, found.gpus_at_once) if has_gpus else (0.0, 0)
    return ExpectedCost(hours, found.makespan_s, at_once, queue.source, start_s)


def _expected_pack(planned: PlannedSubmission, jobs: Sequence[PackJob], source: str) -> ExpectedCost:
    assert planned.pack is not None  # noqa: S101 (a fact of the caller, not input)
    allocations = (planned.request.nodes or 1) * job_count(planned)
    slots, gpus = packs.slot_count(planned.pack) * allocations, (planned.request.gpus or 0) * allocations
    played = simulate(longest_first(fill_gpu_shares(jobs, slots, gpus)), slots=slots, gpus=gpus)
    return ExpectedCost(gpus * played.makespan / 3600, played.makespan, gpus, source)


def _with_others(runs: Sequence[PlannedRun], asked: Sequence[RequestedRun]) -> list[RunSpec]:
    """The runs, and behind them the others of the requested runs."""
    specs = [run.spec for run in runs]
    names = {spec.name for spec in specs}
    return specs + [one.run.spec for one in asked if one.run.spec.name not in names]


def _requests(specs: Sequence[RunSpec]) -> list[tuple[RunSpec, Request]]:
    return [(spec, parse_flags(spec.flags, nodes=spec.request.nodes).request.over(spec.request)) for spec in specs]


def _expected_jobs(
    runs: Sequence[PlannedRun], asked: Sequence[RequestedRun], home: str
) -> tuple[list[PackJob], list[str], bool]:
    """The runs with durations, what was assumed for them, and whether they count by slot: a run that requests no GPU
    counts by the slot that it takes. Others of the requested runs, which completed, tell how long these may take."""
    specs = _with_others(runs, asked)
    requests = _requests(specs)
    plan = build_queue(requests, PackOptions(), past_durations(home, [spec.name for spec in specs]))
    jobs = [job for job in plan.jobs if job.place < len(runs)]
    try:
        known, assumptions = assume_durations(fill_gpu_shares(jobs, 1, 1), plan.source)
    except ValueError as error:
        raise InputError(str(error), hint='set cost = "depth" in the sweep file, or time in its [request]') from None
    if any(request.gpus for _, request in requests[: len(runs)]):
        return known, assumptions, False
    known = fill_gpu_shares([job._replace(gpu_parts=-1) for job in known], 1, 1)
    return known, [*assumptions, "runs request no GPU: hours and GPUs are slots"], True


def _gpus_of_cluster(runs: Sequence[PlannedRun], project: Project, cluster: Cluster, facts: ClusterFacts) -> int | None:
    """The GPUs that jobs of these runs could have, as sinfo says; None if it did not answer."""
    if not facts.node_kinds:
        return None
    [planned, *_] = lay_out_runs(runs[:1], project, cluster, SubmitOptions(layout="job"), {})
    return facts.total_gpus(planned.resolved.get("partition")) or None


def _refuse_impossible(planned: Sequence[PlannedSubmission], facts: ClusterFacts) -> None:
    from shoal.doctor import refuse_impossible  # here: on this machine no check is needed

    refuse_impossible([one.resolved for one in planned], facts)


def _submit_options(layout: LayoutCost, per_node: int | None, of_slots: bool) -> SubmitOptions:
    """What `layout_flags` spell."""
    if layout.name in (JOB_PER_RUN, ARRAY):
        return SubmitOptions(layout="job" if layout.name == JOB_PER_RUN else "array")
    if layout.name.endswith("pilots"):
        return SubmitOptions(pack=PackOptions(pilots=layout.jobs))
    if of_slots:
        return SubmitOptions(layout="pack", pack=PackOptions(slots=layout.gpus))
    nodes, gpus = split_over_nodes(layout.gpus, per_node)
    return SubmitOptions(layout="pack", pack=PackOptions(nodes=nodes if nodes > 1 else None, gpus=gpus))


def layout_flags(layout: LayoutCost, per_node: int | None, of_slots: bool) -> str:
    """The flags of `shoal submit` for this layout."""
    if layout.name in (JOB_PER_RUN, ARRAY):
        return f"--layout {layout.name.partition(' ')[0]}"
    if layout.name.endswith("pilots"):
        return f"--pilots {layout.jobs}"
    if of_slots:
        return f"--layout pack --slots {layout.gpus}"
    nodes, gpus = split_over_nodes(layout.gpus, per_node)
    return f"--layout pack --gpus {gpus}" if nodes == 1 else f"--layout pack --nodes {nodes} --gpus {gpus}"


def _with_request(layout: LayoutCost, planned: Sequence[PlannedSubmission], flags: str) -> LayoutCost:
    """The layout with what these submissions ask of Slurm."""
    limits = [one.request.time_limit_s for one in planned]
    known = [limit for limit in limits if limit is not None]
    has_limits = len(known) == len(limits)
    widths = [(one.request.nodes or 1) * (one.request.gpus or 0) for one in planned]
    return layout._replace(
        jobs=sum(map(job_count, planned)),
        gpus=max(widths) or layout.gpus,
        nodes=max(one.request.nodes or 1 for one in planned),
        time_limit_s=max(known) if has_limits else None,
        requested=max_cost(planned).gpu_hours if has_limits and max(widths) else None,
        max_follow_ups=max(max_cost([one]).max_follow_ups for one in planned),
        flags=flags,
    )


def _expected_starts(
    requests: Mapping[str, Sequence[PlannedSubmission]], environ: Mapping[str, str]
) -> dict[str, float]:
    """Layout -> seconds until its first job would start; a layout that Slurm does not answer for is left out."""
    found: dict[str, float] = {}
    asked: dict[tuple[str, ...], float | None] = {}
    for name, planned in requests.items():
        argv = tuple(planned[0].resolved.argv())
        if argv not in asked:
            asked[argv] = expected_start(argv, environ)
        seconds = asked[argv]
        if seconds is not None:
            found[name] = seconds
    return found


def expected_start(
    argv: Sequence[str], environ: Mapping[str, str], clock: Callable[[], float] = time.time
) -> float | None:
    """Seconds until Slurm would start a job with these options; None if it does not say."""
    start = check_with_sbatch(argv, environ, timeout_s=_TIMEOUT_S).start
    return None if start is None else max(0.0, start - clock())
