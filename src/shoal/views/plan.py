"""`shoal plan`: what would be submitted, with the scripts; with --layouts, the cost of each layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from shoal.actions import ExpectedCost, PlanReport
from shoal.describe import Project, with_training_step
from shoal.model import Request, RunSpec
from shoal.plan import (
    ESTIMATED_FIELDS,
    LayoutComparison,
    PlannedSubmission,
    max_cost,
    submission_script,
    unsent_script,
)
from shoal.units import format_duration, format_hours, format_slurm_time, plural
from shoal.views.render import print_json, print_table


def show_plan(report: PlanReport, *, as_json: bool, quiet: bool, scripts: bool, of_command: bool = False) -> None:
    """`of_command`: the runs come from a command line, and so can be described by one."""
    asked, project, cluster, plan, gone, expected = report
    if as_json:
        print_json(plan_document(report, of_command=of_command))
        return
    starting = [run.spec.name for planned in plan.submissions for run in planned.runs]
    if quiet:
        print("\n".join(starting))
        return
    where = "this machine" if cluster.is_local else f"cluster {cluster.name}"
    jobs = plural(len(plan.submissions), "job")
    print(f"{plural(len(asked), 'run')} asked for; {len(starting):,} to submit as {jobs} on {where}")
    resumed = {
        one.name: f"resume from {with_training_step(one.checkpoint)}" for one in plan.continuations if one.resumes
    }
    rows = [
        (
            run.spec.name,
            planned.layout,
            _request_text(planned.request),
            planned.resolved.get("partition") or "-",
            resumed.get(run.spec.name, "submit"),
        )
        for planned in plan.submissions
        for run in planned.runs
    ]
    rows += [(left.name, "-", "-", "-", left.reason) for left in plan.left_alone]
    rows += [(view.name, "-", "-", "-", f"{view.state}, no longer described; --prune cancels it") for view in gone]
    print_table(("RUN", "LAYOUT", "REQUEST", "PARTITION", "WHAT"), rows, widest=4)
    if cost := cost_sentence(plan.submissions, here=cluster.is_local):
        print(cost)
    if expected is not None:
        print(_expected_sentence(expected))
    for note in plan.notes:
        print(f"note: {note}")
    for planned in plan.submissions if scripts else ():
        print(f"\n{_script_text(planned, project, of_command)}", end="")


def plan_document(report: PlanReport, *, of_command: bool = False) -> dict[str, Any]:
    asked, project, cluster, plan, gone, expected = report
    requests = {run.spec.name: planned.request for planned in plan.submissions for run in planned.runs}
    left = {result.name: result.reason for result in plan.left_alone}
    resumed = {one.name: one.checkpoint for one in plan.continuations if one.resumes}
    cost = max_cost(plan.submissions, one_by_one=cluster.is_local)
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
                "layout": planned.layout,
                "runs": [run.spec.name for run in planned.runs],
                "options": planned.resolved.argv(),
                "request": _request_document(planned.request),
                "gpu_hours": own.gpu_hours,
                "max_follow_ups": own.max_follow_ups,
                "follow_up_gpu_hours": own.follow_up_gpu_hours,
                "script": _script_text(planned, project, of_command),
            }
            for planned in plan.submissions
            for own in [max_cost([planned])]
        ],
        "makespan_s": cost.makespan_s,
        "makespan_with_follow_ups_s": cost.makespan_with_follow_ups_s,
        "gpus_at_once": cost.gpus_at_once,
        "notes": plan.notes,
        "expected": expected._asdict() if expected else None,
        "removed": [{"name": view.name, "state": view.state} for view in gone],
    }


def cost_sentence(submissions: Sequence[PlannedSubmission], *, here: bool) -> str:
    """What they cost at most, as far as time limits tell; "" if they tell nothing."""
    cost = max_cost(submissions, one_by_one=here)
    words = _at_most(cost.gpu_hours, cost.makespan_s, " from the first start to the last end")
    free = 0 if here else cost.gpus_at_once
    if words and cost.makespan_s and free:
        words += f", if {plural(free, 'GPU')} {'is' if free == 1 else 'are'} free"
    if words and cost.max_follow_ups:
        hours = cost.gpu_hours + cost.follow_up_gpu_hours
        followed = plural(cost.max_follow_ups, "follow-up job")
        words += f"; {_at_most(hours, cost.makespan_with_follow_ups_s)} with up to {followed}"
    return words


def _expected_sentence(expected: ExpectedCost) -> str:
    hours = f"~{format_hours(expected.gpu_hours)} GPU-hours and " if expected.gpu_hours else ""
    free = expected.gpus_at_once
    words = f"expected: {hours}~{format_duration(expected.makespan_s)} from the first start to the last end"
    words += f", if {plural(free, 'GPU')} {'is' if free == 1 else 'are'} free" if free else ""
    words += f"; starts in ~{format_duration(expected.start_s)}" if expected.start_s is not None else ""
    return f"{words} (durations from {expected.source})"


def _at_most(hours: float, span: float | None, from_to: str = "") -> str:
    words = [f"{format_hours(hours)} GPU-hours"] if hours else []
    words += [f"{format_duration(span)}{from_to}"] if span else []
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


def _script_text(planned: PlannedSubmission, project: Project, of_command: bool) -> str:
    spec = planned.runs[0].spec
    if spec.script or (of_command and planned.pack is None and spec.launch == "process"):
        return unsent_script(planned)
    folder, agent = str(project.home / "submissions" / "TOKEN"), str(project.home / "agent" / "agent.pyz")
    return submission_script(planned, folder, agent, str(project.root), "TOKEN", saved=False)


_LAYOUT_HEADER = (
    "LAYOUT", "JOBS", "GPUS", "TIME LIMIT", "REQUESTED", "ALLOCATED", "RUNS", "OVERHEAD", "MAKESPAN", "STARTS IN",
)  # fmt: skip


def show_layouts(comparison: LayoutComparison, submit_line: Callable[[str], str], *, as_json: bool) -> None:
    """`submit_line` makes the command that submits these runs, from the flags of a layout."""
    if as_json:
        print_json(layouts_document(comparison, submit_line))
        return
    rows = [
        (
            layout.name,
            str(layout.jobs),
            str(layout.gpus),
            "-" if layout.time_limit_s is None else format_slurm_time(layout.time_limit_s),
            "-" if layout.requested is None else format_hours(layout.requested),
            f"~{format_hours(layout.allocated)}",
            f"~{format_hours(layout.runs)}",
            f"~{format_hours(layout.overhead)}",
            f"~{format_duration(int(layout.makespan_s))}",
            "-" if layout.start_s is None else f"~{format_duration(int(layout.start_s))}",
        )
        for layout in comparison.layouts
    ]
    print_table(_LAYOUT_HEADER, rows)
    print(f"hours are {'slot' if comparison.of_slots else 'GPU'}-hours; ~ is an estimate")
    for text in (*comparison.assumptions, *_layout_conditions(comparison)):
        print(f"assumes: {text}")
    for text in comparison.left_out:
        print(f"left out: {text}")
    for what, name in (("time", comparison.fastest), ("cost", comparison.cheapest)):
        layout = next(layout for layout in comparison.layouts if layout.name == name)
        print(f"for {what}: {name}   # {submit_line(layout.flags)}")
    if comparison.full and comparison.fastest.endswith("pilots"):
        print("the cluster is full: each pilot starts when there is room for it")


def _layout_conditions(comparison: LayoutComparison) -> list[str]:
    """What the estimates rest on that no duration tells: free GPUs, and no follow-up jobs."""
    noun = "slot" if comparison.of_slots else "GPU"
    at_once: dict[int, list[str]] = {}
    for layout in comparison.layouts:
        at_once.setdefault(layout.gpus_at_once, []).append(layout.name)
    found = [
        f"{plural(gpus, noun)} {'is' if gpus == 1 else 'are'} free for {', '.join(names)}"
        for gpus, names in sorted(at_once.items())
    ]
    following = [layout for layout in comparison.layouts if layout.max_follow_ups]
    if following:
        most = max(layout.max_follow_ups for layout in following)
        names = ", ".join(layout.name for layout in following)
        found.append(f"no follow-up jobs; up to {most} may come, each with the same request: {names}")
    return found


def layouts_document(comparison: LayoutComparison, submit_line: Callable[[str], str]) -> dict[str, Any]:
    layouts = [
        {
            **layout._asdict(),
            "allocated": layout.allocated,
            "finish_s": layout.finish_s,
            "command": submit_line(layout.flags),
        }
        for layout in comparison.layouts
    ]
    return {
        "runs": comparison.run_count,
        "layouts": layouts,
        "estimates": ESTIMATED_FIELDS,
        "unit": "slot-hours" if comparison.of_slots else "GPU-hours",
        "assumptions": [*comparison.assumptions, *_layout_conditions(comparison)],
        "left_out": comparison.left_out,
        "best": {"time": comparison.fastest, "cost": comparison.cheapest},
        "full": comparison.full,
    }
