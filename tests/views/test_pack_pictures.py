"""Timelines as pictures: PNG, PDF and SVG show the same lanes and bars; CSV and JSON hold the same numbers."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest
from PIL import Image, ImageColor

from project import Project, assert_clear_error, project_here
from shoal.kernel import Grant
from shoal.observe import AllocationView
from shoal.observe.run_files import AssignedResources, RequestedResources
from shoal.views.report.accounting import AttemptHistory
from shoal.views.report.allocation_costs import AllocationRow
from shoal.views.report.breakdowns import layout_breakdown, layout_rows
from shoal.views.report.costs import Holding, divide
from shoal.views.timeline import Timeline, TimelineBar, make_timeline, text_lines
from shoal.views.timeline_picture import TOP, WIDTH, Format, axis_step_s, colour_of, left_of, mark_words, picture

FORMS: tuple[Format, ...] = ("png", "pdf", "svg")

#: Two lanes of 100 s: the first is busy for 60 s with a run that failed, the second all the time.
BARS = [TimelineBar("n:0", "e/r_a", 1, 0.0, 60.0, "failed"), TimelineBar("n:1", "e/r_b", 1, 0.0, 100.0, "completed")]
TIMELINE = make_timeline(BARS)


def test_a_png_has_a_bar_where_something_ran_and_hatching_where_nothing_did() -> None:
    image = Image.open(io.BytesIO(picture(TIMELINE, "two lanes", "png"))).convert("RGB")

    def colour_at(lane: int, seconds: float) -> tuple[int, int, int]:
        found = image.getpixel((round((left_of(TIMELINE) + seconds * WIDTH / 100) * 2), (TOP + 26 * lane + 17) * 2))
        assert isinstance(found, tuple)
        red, green, blue = found
        return red, green, blue

    assert colour_at(0, 50) == ImageColor.getrgb(colour_of(BARS[0], 0))
    assert colour_at(1, 90) == ImageColor.getrgb(colour_of(BARS[1], 0))
    hatched = {colour_at(0, seconds / 10) for seconds in range(700, 950)}
    assert {ImageColor.getrgb("#f1efe9"), ImageColor.getrgb("#cfc9bb")} <= hatched
    assert min(map(min, hatched)) >= 0xBB, "nothing but hatching"


@pytest.mark.slow
def test_a_pdf_and_an_svg_hold_the_same_bars_and_the_same_records_give_the_same_file() -> None:
    pdf = picture(TIMELINE, "two lanes", "pdf")
    assert pdf.startswith(b"%PDF-") and pdf.rstrip().endswith(b"%%EOF")
    svg = picture(TIMELINE, "two lanes", "svg").decode()
    titles = [element.text for element in xml.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["e/r_a, attempt 1: failed, 60.00 s", "e/r_b, attempt 1: completed, 100.00 s"]
    assert "two lanes: 100.0 s on 2 slots, 20.0% idle" in svg, "text stays text"
    for form in FORMS:
        assert picture(TIMELINE, "two lanes", form) == picture(TIMELINE, "two lanes", form)


@pytest.mark.slow
def test_names_in_a_picture_are_no_formulas_and_no_markup(recwarn: pytest.WarningsRecorder) -> None:
    odd = make_timeline([bar._replace(lane=f"$x_{at}^", run="e/r_<b>&$\\frac$") for at, bar in enumerate(BARS)])
    for form in FORMS:
        assert picture(odd, "漢 $a_{$ <i> [bold]", form)
    svg = xml.fromstring(picture(odd, "漢 $a_{$ <i> [bold]", "svg"))
    words = [element.text or "" for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"$x_0^", "$x_1^"} <= set(words) and any(word.startswith("漢 $a_{$ <i> [bold]: ") for word in words)
    assert not recwarn.list


def test_nothing_ran_and_a_moment_are_drawn_too() -> None:
    for timeline in (make_timeline([]), make_timeline([BARS[0]._replace(end=0.0)])):
        for form in FORMS:
            assert picture(timeline, "none", form)


def test_a_pack_and_a_report_print_lanes_as_the_same_text() -> None:
    bars = [
        *BARS,
        TimelineBar("n:0", "e/r_c", 1, 70.0, 80.0, "stopped"),
        TimelineBar("n:0", "e/r_d", 1, 80.0, 90.0, "running"),
    ]
    first, second, axis = text_lines(make_timeline(bars), 44)
    assert first == "n:0 |#############x..==###..|  80% occupied"
    assert second == "n:1 |#######################|  100% occupied"
    assert axis.startswith("     ") and len(axis) == len(first.partition("|  ")[0])


@pytest.mark.parametrize(("length", "marks"), [(5.1, "0 s, 0.5 s"), (90, "0 s, 10 s"), (3000, "0 min, 5 min")])
def test_the_axis_has_round_numbers_in_one_unit(length: float, marks: str) -> None:
    step = axis_step_s(Timeline([], 0.0, length))
    assert f"{mark_words(0, step)}, {mark_words(1, step)}" == marks
    assert length / step <= 12


@pytest.mark.slow
def test_a_pack_and_a_report_draw_what_was_measured_and_tell_it_in_numbers(tmp_path: Path) -> None:
    project = project_here(tmp_path)
    files = ("--svg", "a.svg", "--png", "a.png", "--pdf", "a.pdf", "--csv", "a.csv")
    meet = "wait=marks/pack_train.train_k2"  # the first is still there when the second begins, whenever it is claimed
    words = ("--slots", 2, "--set", "k=1:3:1", "--", sys.executable, "-S", "train.py", "{k}", meet)
    done = project.shoal("pack", *files, "--json", *words)
    rows = list(csv.DictReader((project.root / "a.csv").open()))
    assert [row["state"] for row in rows] == ["completed"] * 3
    for row, run in zip(rows, done.json["runs"], strict=True):
        assert row["name"] == run["name"] and float(row["duration_s"]) == run["duration_s"]
    assert Image.open(project.root / "a.png").format == "PNG"
    ran, *others = project.shoal("report", "pack_train", "--json").json["layouts"]
    took = sum(run["duration_s"] for run in done.json["runs"])
    assert ran["name"] == "as it ran" and ran["gpus"] == 2
    assert took - 0.1 <= ran["runs"] * 3600 <= took + 30, "from the start record on, a moment before the program"
    assert {"job per run", "array", "pack of 2"} <= {layout["name"] for layout in others}
    assert "as it ran" in project.shoal("report", "pack_train").out
    for form in FORMS:
        project.shoal("report", "pack_train", f"--{form}", f"b.{form}")
    assert (project.root / "b.svg").read_text().count("<title>") == 3
    assert Image.open(project.root / "b.png").format == "PNG"
    assert all((project.root / name).read_bytes().startswith(b"%PDF-") for name in ("a.pdf", "b.pdf"))


@pytest.mark.parametrize("form", FORMS)
def test_without_matplotlib_a_picture_is_one_sentence_before_anything_runs(form: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("blocked/matplotlib/__init__.py", "raise ImportError('not here')\n")
    project.env.update(SHOAL_ON="local", PYTHONPATH=str(project.root / "blocked"))
    words = ("--slots", 2, f"--{form}", "a", "--set", "k=1:2:1", "--", sys.executable, "-S", "train.py", "{k}")
    refused = project.shoal("pack", *words, code=2)
    assert_clear_error(refused, 2, "matplotlib is not installed")
    assert "hint: pip install 'shoal[plots]'" in refused.err
    assert not project.home.exists()


def test_what_was_allocated_is_counted_for_each_job_of_a_pack_by_itself() -> None:
    """Between two jobs nothing is allocated: a follow-up, or the same again on another day. Runs that were done twice
    are compared once. GPUs are those that Slurm granted, used or not.
    """

    def packed(run: str, job: str, slot: int, begin: float, end: float) -> AttemptHistory:
        held = AssignedResources(slot=slot, gpus=[str(slot)], share=1.0, cpus=0, engine=job)
        asked = RequestedResources(nodes=1, gpus=1)
        return AttemptHistory(run, 1, "n1", None, begin, end, "completed", True, asked, None, None, held=held, job=job)

    def allocation(gpus: int, start: float, end: float, *attempts: AttemptHistory) -> AllocationRow:
        runs = tuple(one.run for one in attempts)
        view = AllocationView("k", "1", 0, "c", "pack", runs, Grant(gpus=gpus), start, end, "job")
        held = [Holding(one.run, one.attempt, one.begin, one.end, 1.0) for one in attempts]
        return AllocationRow(
            view, list(attempts), divide(start, end, gpus, None, held), divide(start, end, 1, None, held)
        )

    day = 86_400.0
    first = allocation(2, 0, 12, packed("a", "1", 0, 0, 10), packed("b", "1", 1, 0, 6))
    ran, each, *_ = layout_breakdown([first, allocation(2, day, day + 10, packed("a", "2", 0, day, day + 10))])
    assert (ran.jobs, ran.gpus, each.jobs) == (2, 2, 2)
    assert (ran.runs * 3600, ran.overhead * 3600) == pytest.approx((26, 44 - 26))
    pilots = [allocation(1, 0, 10, packed("a", "1_0", 0, 0, 10)), allocation(1, 1, 7, packed("b", "1_1", 0, 1, 7))]
    assert (layout_breakdown(pilots)[0].gpus, layout_breakdown(pilots)[0].overhead) == (2, 0)
    measured, *estimates = layout_rows(layout_breakdown([first]))
    assert "~" not in "".join(measured) and all(row[-1].startswith("~") and "free" in row[-1] for row in estimates)
