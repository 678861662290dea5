"""`shoal plan`: what would be submitted, with the scripts; with --shapes, the cost of each layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.describe import Cluster, Project, RequestedRun, with_training_step
from shoal.model import Request, RunSpec
from shoal.observe import RunView
from shoal.plan import (
    ARRAY,
    JOB_PER_RUN,
    LayoutComparison,
    LayoutCost,
    PlannedSubmission,
    max_gpu_hours,
    max_makespan_s,
    split_over_nodes,
    submission_script,
)
from shoal.submit import SubmissionPlan
from shoal.units import format_duration, format_hours, plural
from shoal.views.render import print_json, print_table


def show_plan(
    order: SubmissionPlan,
    asked: Sequence[RequestedRun],
    project: Project,
    cluster: Cluster,
    *,
    gone: Sequence[RunView] = (),
    as_json: bool,
    quiet: bool,
    scripts: bool,
) -> None:
    if as_json:
        removed = [{"name": view.name, "state": view.state} for view in gone]
        print_json({**plan_document(order, asked, project, cluster), "removed": removed})
        return
    starting = [run.spec.name for planned in order.submissions for run in planned.runs]
    if quiet:
        print("\n".join(starting))
        return
    where = "this machine" if cluster.is_local else f"cluster {cluster.name}"
    jobs = plural(len(order.submissions), "job")
    print(f"{plural(len(asked), 'run')} asked for; {len(starting):,} to submit as {jobs} on {where}")
    resumed = {
        one.name: f"resume from {with_training_step(one.checkpoint)}" for one in order.continuations if one.resumes
    }
    rows = [
        (
            run.spec.name,
            planned.shape,
            _request_text(planned.request),
            planned.resolved.get("partition") or "-",
            resumed.get(run.spec.name, "submit"),
        )
        for planned in order.submissions
        for run in planned.runs
    ]
    rows += [(left.name, "-", "-", "-", left.reason) for left in order.left_alone]
    rows += [(view.name, "-", "-", "-", f"{view.state}, no longer described; --prune cancels it") for view in gone]
    print_table(("RUN", "SHAPE", "REQUEST", "PARTITION", "WHAT"), rows, widest=4)
    if cost := cost_sentence(order.submissions, here=cluster.is_local):
        print(cost)
    for note in order.notes:
        print(f"note: {note}")
    for planned in order.submissions if scripts else ():
        print(f"\n{_script_text(planned, project)}", end="")


def plan_document(
    order: SubmissionPlan,
    asked: Sequence[RequestedRun],
    project: Project,
    cluster: Cluster,
) -> dict[str, Any]:
    requests = {run.spec.name: planned.request for planned in order.submissions for run in planned.runs}
    left = {result.name: result.reason for result in order.left_alone}
    resumed = {one.name: one.checkpoint for one in order.continuations if one.resumes}
    return {
        "cluster": cluster.name,
        "runs": [
            {
                **_run_document(one.run.spec, requests.get(one.run.spec.name)),
                "left_alone": left.get(one.run.spec.name),
                "resume_from": resumed.get(one.run.spec.name),
            }
            for one in asked
        ],
        "submissions": [
            {
                "shape": planned.shape,
                "runs": [run.spec.name for run in planned.runs],
                "options": planned.resolved.argv(),
                "request": _request_document(planned.request),
                "gpu_hours": max_gpu_hours(planned),
                "script": _script_text(planned, project),
            }
            for planned in order.submissions
        ],
        "makespan_s": max_makespan_s(order.submissions, one_by_one=cluster.is_local),
        "notes": order.notes,
    }


def cost_sentence(submissions: Sequence[PlannedSubmission], *, here: bool) -> str:
    """What they cost at most, as far as time limits tell; "" if they tell nothing."""
    hours = sum(map(max_gpu_hours, submissions))
    span = max_makespan_s(submissions, one_by_one=here)
    words = [f"{format_hours(hours)} GPU-hours"] if hours else []
    words += [f"{format_duration(span)} from the first start to the last end"] if span else []
    return f"at most {' and '.join(words)}" if words else ""


def _run_document(spec: RunSpec, request: Request | None) -> dict[str, Any]:
    return {
        "name": spec.name,
        "experiment": spec.experiment,
        "step": spec.step,
        "step_kind": spec.step_kind,
        "seed": spec.seed,
        "params": spec.params,
        "request": _request_document(request or spec.request),
        "command": spec.command,
        "args": spec.args,
        "env": spec.env,
        "container": spec.container.record() or None,
        "start_from": spec.start_from,
        "parents": spec.parents,
        "digest": spec.digest,
        "title": spec.title,
    }


def _request_document(request: Request) -> dict[str, Any]:
    values = msgspec.structs.asdict(request)
    return {**values, "memory_mb": request.memory_mb, "time_limit_s": request.time_limit_s}


def _request_text(request: Request) -> str:
    parts = [plural(request.nodes or 1, "node")]
    if request.gpus:
        parts.append(f"{request.gpus} {request.gpu_type}" if request.gpu_type else plural(request.gpus, "GPU"))
    parts += [plural(request.cpus, "CPU")] if request.cpus else []
    parts += [word for word in (request.memory, request.time) if word]
    return " ".join(parts)


def _script_text(planned: PlannedSubmission, project: Project) -> str:
    folder = str(project.home / "submissions" / "TOKEN")
    return submission_script(planned, folder, str(project.home / "agent" / "agent.pyz"), str(project.root), "TOKEN")


_LAYOUT_HEADER = ("SHAPE", "JOBS", "GPUS", "TIME LIMIT", "ASKED GPU-H", "USED", "IDLE", "MAKESPAN", "STARTS IN")


def show_layouts(comparison: LayoutComparison, runs: int, *, as_json: bool, per_node: int | None = None) -> None:
    """`per_node`: the GPUs of a node, where the cluster's profile says so."""
    if as_json:
        print_json(layouts_document(comparison, runs))
        return
    rows = [
        (
            shape.name,
            str(shape.entries),
            str(shape.gpus),
            format_duration(int(shape.time_limit_s)),
            format_hours(shape.requested),
            format_hours(shape.used),
            format_hours(shape.idle),
            format_duration(int(shape.makespan_s)),
            "-" if shape.start_s is None else format_duration(int(shape.start_s)),
        )
        for shape in comparison.shapes
    ]
    print_table(_LAYOUT_HEADER, rows)
    for text in comparison.assumptions:
        print(f"assumes: {text}")
    for what, name in (("time", comparison.fastest), ("cost", comparison.cheapest)):
        shape = next(shape for shape in comparison.shapes if shape.name == name)
        print(f"for {what}: {name}   # shoal submit FILE {layout_flags(shape, per_node, comparison.of_slots)}")
    if comparison.full and comparison.fastest.endswith("pilots"):
        print("the cluster is full: each pilot starts when there is room for it")


def layout_flags(shape: LayoutCost, per_node: int | None, of_slots: bool) -> str:
    """What asks for a shape."""
    if shape.name in (JOB_PER_RUN, ARRAY):
        return f"--shape {shape.name.partition(' ')[0]}"
    if shape.name.endswith("pilots"):
        return f"--pilots {shape.entries}"
    if of_slots:
        return f"--shape pack --slots {shape.gpus}"
    nodes, gpus = split_over_nodes(shape.gpus, per_node)
    return f"--shape pack --gpus {gpus}" if nodes == 1 else f"--shape pack --nodes {nodes} --gpus {gpus}"


def layouts_document(comparison: LayoutComparison, runs: int) -> dict[str, Any]:
    shapes = [{**shape._asdict(), "finish_s": shape.finish_s} for shape in comparison.shapes]
    return {
        "runs": runs,
        "shapes": shapes,
        "assumptions": comparison.assumptions,
        "best": {"time": comparison.fastest, "cost": comparison.cheapest},
        "full": comparison.full,
    }
