"""`shoal plan --shapes`: what each shape asks for, uses and leaves idle."""

from __future__ import annotations

from typing import Any

from shoal.plan import ARRAY, JOB_PER_RUN, LayoutComparison, LayoutCost, split_over_nodes
from shoal.units import format_duration, format_hours
from shoal.views.render import print_json, print_table

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
