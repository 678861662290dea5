"""`shoal plan --shapes`: what each shape asks for, uses and leaves idle."""

from __future__ import annotations

from typing import Any

from shoal.pack.shapes import Comparison
from shoal.units import format_duration, hours_words
from shoal.views.render import print_json, print_table

_HEADER = ("SHAPE", "JOBS", "GPUS", "TIME LIMIT", "ASKED GPU-H", "USED", "IDLE", "MAKESPAN", "STARTS IN")


def show(comparison: Comparison, runs: int, *, as_json: bool) -> None:
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
    print(f"for time: {comparison.fastest}; for cost: {comparison.cheapest}")
    count, _, kind = comparison.fastest.partition(" ")
    if comparison.full and kind == "pilots":
        print(f"the cluster is full: shoal submit FILE --pilots {count}   # each starts when there is room for it")


def document(comparison: Comparison, runs: int) -> dict[str, Any]:
    shapes = [{**shape._asdict(), "finish_s": shape.finish_s} for shape in comparison.shapes]
    return {
        "runs": runs,
        "shapes": shapes,
        "assumptions": comparison.assumptions,
        "best": {"time": comparison.fastest, "cost": comparison.cheapest},
        "full": comparison.full,
    }
