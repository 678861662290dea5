"""Timelines as pictures: SVG and PNG show the same lanes and bars; CSV and JSON hold the same numbers."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageColor

from project import Project, assert_clear_error, project_here
from shoal.observe.records import AssignedResources, RequestedResources
from shoal.views.png import timeline_png
from shoal.views.report.history import AttemptHistory
from shoal.views.report.shapes import layout_breakdown
from shoal.views.timeline import Timeline, TimelineBar
from shoal.views.timeline_drawing import LEFT_MARGIN, TOP_MARGIN, WIDTH, axis_step, bar_colour, tick_label, timeline_svg

#: Two lanes of 100 s: the first is busy for 60 s with a run that failed, the second all the time.
BARS = [TimelineBar("n:0", "e/r_a", 1, 0.0, 60.0, "failed"), TimelineBar("n:1", "e/r_b", 1, 0.0, 100.0, "done")]
TIMELINE = Timeline(BARS, 0.0, 100.0)


def test_a_png_has_a_bar_where_something_ran_and_hatching_where_nothing_did() -> None:
    image = Image.open(io.BytesIO(timeline_png(TIMELINE, "two lanes"))).convert("RGB")

    def colour_at(lane: int, seconds: float) -> object:
        return image.getpixel((round((LEFT_MARGIN + seconds * WIDTH / 100) * 2), (TOP_MARGIN + 26 * lane + 17) * 2))

    assert colour_at(0, 50) == ImageColor.getrgb(bar_colour(BARS[0], 0))
    assert colour_at(1, 90) == ImageColor.getrgb(bar_colour(BARS[1], 0))
    hatched = {colour_at(0, seconds / 10) for seconds in range(700, 950)}
    assert hatched <= {ImageColor.getrgb("#f1efe9"), ImageColor.getrgb("#cfc9bb")}
    assert "20.0% idle" in timeline_svg(TIMELINE, "two lanes")


@pytest.mark.parametrize(("length", "marks"), [(5.1, "0 s, 0.5 s"), (90, "0 s, 10 s"), (3000, "0 min, 5 min")])
def test_the_axis_has_round_numbers_in_one_unit(length: float, marks: str) -> None:
    step = axis_step(Timeline([], 0.0, length))
    assert f"{tick_label(0, step)}, {tick_label(1, step)}" == marks
    assert length / step <= 12


def test_a_pack_and_a_report_draw_what_was_measured_and_tell_it_in_numbers(tmp_path: Path) -> None:
    project = project_here(tmp_path)
    files = ("--svg", "a.svg", "--png", "a.png", "--csv", "a.csv")
    meet = "wait=marks/pack_train.train_k2"  # the first is still there when the second begins, whenever it is claimed
    words = ("--slots", 2, "--set", "k=1:3:1", "--", sys.executable, "-S", "train.py", "{k}", meet)
    done = project.shoal("pack", *files, "--json", *words)
    rows = list(csv.DictReader((project.root / "a.csv").open()))
    assert [row["state"] for row in rows] == ["done"] * 3
    for row, run in zip(rows, done.json["runs"], strict=True):
        assert row["name"] == run["name"] and float(row["duration_s"]) == run["duration_s"]
    assert Image.open(project.root / "a.png").format == "PNG"
    ran, *others = project.shoal("report", "pack_train", "--json").json["shapes"]
    took = sum(run["duration_s"] for run in done.json["runs"])
    assert ran["name"] == "as it ran" and ran["gpus"] == 2
    assert took - 0.1 <= ran["used"] * 3600 <= took + 30, "from the start record on, a moment before the program"
    assert {"job each", "array", "pack of 2"} <= {shape["name"] for shape in others}
    assert "as it ran" in project.shoal("report", "pack_train").out
    for form in ("svg", "png"):
        project.shoal("report", "pack_train", f"--{form}", f"b.{form}")
    assert (project.root / "b.svg").read_text().count("<title>") == 3
    assert Image.open(project.root / "b.png").format == "PNG"


def test_without_pillow_a_png_is_one_sentence_before_anything_runs(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("blocked/PIL/__init__.py", "raise ImportError('not here')\n")
    project.env.update(SHOAL_ON="local", PYTHONPATH=str(project.root / "blocked"))
    words = ("--slots", 2, "--png", "a.png", "--set", "k=1:2:1", "--", sys.executable, "-S", "train.py", "{k}")
    assert_clear_error(project.shoal("pack", *words, code=2), 2, "Pillow")
    assert not project.home.exists()


def test_what_was_held_is_counted_for_each_job_of_a_pack_by_itself() -> None:
    """Between two jobs nothing is held: a follow-up, or the same again on another day. Runs that were done twice are
    compared once.
    """

    def packed(run: str, job: str, slot: int, begin: float, end: float) -> AttemptHistory:
        held = AssignedResources(slot=slot, gpus=[str(slot)], share=1.0, cpus=0, engine=job)
        asked = RequestedResources(nodes=1, gpus=1)
        return AttemptHistory(run, 1, "n1", None, begin, end, "done", True, asked, None, None, held=held, job=job)

    day = 86_400.0
    tries = [packed("a", "1", 0, 0, 10), packed("b", "1", 1, 0, 6), packed("a", "2", 0, day, day + 10)]
    ran, each, *_ = layout_breakdown(tries)
    assert (ran.entries, ran.gpus, each.entries) == (2, 2, 2)
    assert (ran.used * 3600, ran.idle * 3600) == pytest.approx((26, 4))
    pilots = [packed("a", "1_0", 0, 0, 10), packed("b", "1_1", 0, 1, 7)]  # Slurm calls the GPU of each of them 0
    assert (layout_breakdown(pilots)[0].gpus, layout_breakdown(pilots)[0].idle) == (2, 0)
