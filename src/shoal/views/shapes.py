"""`shoal plan --shapes`: what each shape asks for, uses and leaves idle."""

from __future__ import annotations

from typing import Any

from shoal.plan import ARRAY, EACH, Comparison, ShapeCost, over_nodes
from shoal.units import format_duration, hours_words
from shoal.views.render import print_json, print_table

_HEADER = ("SHAPE", "JOBS", "GPUS", "TIME LIMIT", "ASKED GPU-H", "USED", "IDLE", "MAKESPAN", "STARTS IN")


def show(comparison: Comparison, runs: int, *, as_json: bool, per_node: int | None = None) -> None:
    """`per_node`: the GPUs of a node, where the cluster's profile says so."""
    if as_json:
        print_json(document(comparison, runs))
        return
    rows = [
        (
            shape.name,
            str(shape.entries),
            str(shape.gpus),
            format_duration(int(shape.time_limit_s)),
            hours_words(shape.requested),
            hours_words(shape.used),
            hours_words(shape.idle),
            format_duration(int(shape.makespan_s)),
            "-" if shape.start_s is None else format_duration(int(shape.start_s)),
        )
        for shape in comparison.shapes
    ]
    print_table(_HEADER, rows)
    for text in comparison.assumptions:
        print(f"assumes: {text}")
    for what, name in (("time", comparison.fastest), ("cost", comparison.cheapest)):
        shape = next(shape for shape in comparison.shapes if shape.name == name)
        print(f"for {what}: {name}   # shoal submit FILE {flags_of(shape, per_node, comparison.of_slots)}")
    if comparison.full and comparison.fastest.endswith("pilots"):
        print("the cluster is full: each pilot starts when there is room for it")


def flags_of(shape: ShapeCost, per_node: int | None, of_slots: bool) -> str:
    """What asks for a shape."""
    if shape.name in (EACH, ARRAY):
        return f"--shape {shape.name.partition(' ')[0]}"
    if shape.name.endswith("pilots"):
        return f"--pilots {shape.entries}"
    if of_slots:
        return f"--shape pack --slots {shape.gpus}"
    nodes, gpus = over_nodes(shape.gpus, per_node)
    return f"--shape pack --gpus {gpus}" if nodes == 1 else f"--shape pack --nodes {nodes} --gpus {gpus}"


def document(comparison: Comparison, runs: int) -> dict[str, Any]:
    shapes = [{**shape._asdict(), "finish_s": shape.finish_s} for shape in comparison.shapes]
    return {
        "runs": runs,
        "shapes": shapes,
        "assumptions": comparison.assumptions,
        "best": {"time": comparison.fastest, "cost": comparison.cheapest},
        "full": comparison.full,
    }
