"""The timeline as a picture for papers and slides: PNG, PDF or SVG, drawn by matplotlib (`pip install 'shoal[plots]'`).

Lanes against time, idle time hatched. The bars of an SVG carry the run's name as a tooltip.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any, Literal

from shoal.errors import InputError
from shoal.views.timeline import Timeline, TimelineBar

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Format = Literal["png", "pdf", "svg"]

_COLOURS = {"completed": ("#2f6f9f", "#5b9bc7"), "running": ("#3a8f5c", "#3a8f5c"), "stopped": ("#b58a2f", "#b58a2f")}
_BAD = ("#b23a3a", "#b23a3a")
_IDLE, _HATCH, _GREY = "#f1efe9", "#cfc9bb", "#555555"
_STEPS_S = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400)
#: Sizes in pixels of a screen with 100 dots per inch; a PNG has twice as many, so that text stays sharp.
WIDTH, ROW, TOP, _BOTTOM, _RIGHT, _MIN_LEFT = 820, 26, 46, 40, 30, 110
_DOTS_PER_INCH = 100
#: Names are no formulas ($), the same records give the same file, and text stays text that can be searched and edited.
_STYLE: dict[Any, Any] = {
    "text.parse_math": False,
    "svg.hashsalt": "shoal",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.size": 8.5,
    "hatch.linewidth": 1.5,
}
_SVG = "http://www.w3.org/2000/svg"


def need_matplotlib(flag: str) -> None:
    """An InputError with the command that installs what is missing; better before the work than after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(
            "cannot draw the timeline: matplotlib is not installed", hint="pip install 'shoal[plots]'", place=flag
        ) from None


def picture(timeline: Timeline, title: str, form: Format) -> bytes:
    """The file's bytes."""
    need_matplotlib(f"--{form}")
    import matplotlib
    from matplotlib.figure import Figure

    by_lane = timeline.by_lane()
    left, height = left_of(timeline), TOP + ROW * len(by_lane) + _BOTTOM
    width = left + WIDTH + _RIGHT
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # A box in place of a letter is no reason to complain.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(width / _DOTS_PER_INCH, height / _DOTS_PER_INCH), dpi=_DOTS_PER_INCH)
        figure.text(12 / width, 1 - 24 / height, headline(timeline, title), fontsize=10)
        area = (left / width, _BOTTOM / height, WIDTH / width, ROW * len(by_lane) / height)
        axes = figure.add_axes(area, frameon=False)
        axes.set_xlim(0, max(1e-9, timeline.makespan_s))
        axes.set_ylim(ROW * max(1, len(by_lane)), 0)
        tips: dict[str, str] = {}
        for row, bars in enumerate(by_lane.values()):
            _draw_lane(axes, timeline, bars, ROW * row, tips)
        axes.set_yticks([ROW * row + (ROW - 6) / 2 for row in range(len(by_lane))], list(by_lane))
        step_s = axis_step_s(timeline)
        marks = range(int(timeline.makespan_s / step_s) + 1)
        axes.set_xticks([mark * step_s for mark in marks], [mark_words(mark, step_s) for mark in marks], color=_GREY)
        axes.tick_params(axis="y", length=0)
        file = io.BytesIO()
        stamp = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[form]
        figure.savefig(file, format=form, dpi=2 * _DOTS_PER_INCH, metadata=stamp)
    return _with_tips(file.getvalue(), tips) if form == "svg" else file.getvalue()


def left_of(timeline: Timeline) -> int:
    """Pixels left of the lanes, for their names."""
    return max(_MIN_LEFT, 16 + 8 * max((len(lane) for lane in timeline.lanes), default=0))


def headline(timeline: Timeline, title: str) -> str:
    lanes = len(timeline.lanes)
    idle = timeline.idle_s / max(1e-9, lanes * timeline.makespan_s)
    on = f"{lanes} {timeline.lane_word}{'' if lanes == 1 else 's'}"
    return f"{title}: {timeline.makespan_s:.1f} s on {on}, {idle:.1%} idle"


def colour_of(bar: TimelineBar, number: int) -> str:
    """Neighbours on a lane differ."""
    return _COLOURS.get(bar.state, _BAD)[number % 2]


def axis_step_s(timeline: Timeline) -> float:
    """Seconds between two marks: a round number, and at most twelve of them up to a day."""
    return next((step for step in _STEPS_S if timeline.makespan_s / step <= 12), 7 * 86400.0)


def mark_words(number: int, step_s: float) -> str:
    """What stands at a mark of the axis, all in one unit."""
    unit, size = next(((u, s) for u, s in (("d", 86400), ("h", 3600), ("min", 60)) if step_s % s == 0), ("s", 1))
    return f"{number * step_s / size:g} {unit}"


def _draw_lane(axes: Axes, timeline: Timeline, bars: list[TimelineBar], top: float, tips: dict[str, str]) -> None:
    from matplotlib.patches import Rectangle

    length_s, height = max(1e-9, timeline.makespan_s), ROW - 6
    idle = Rectangle((0, top), length_s, height, facecolor=_IDLE, edgecolor=_HATCH, hatch="////", linewidth=0)
    axes.add_artist(idle)
    for number, bar in enumerate(bars):
        at, width = bar.start - timeline.begin, max(bar.end - bar.start, length_s / WIDTH)
        colour, key = colour_of(bar, number), f"bar{len(tips)}"
        shape = Rectangle((at, top), width, height, facecolor=colour, edgecolor="#ffffff", linewidth=0.4, gid=key)
        shape.set_alpha(None if bar.share >= 1 else max(0.35, bar.share))
        axes.add_artist(shape)
        tips[key] = f"{bar.run}, attempt {bar.attempt}: {bar.state}, {bar.end - bar.start:.2f} s"
        label = bar.run.rpartition("/")[2].rpartition("_")[2]  # the end of a name is what differs
        if width / length_s * WIDTH > 7 * len(label) + 6:
            axes.text(at + 4 * length_s / WIDTH, top + height / 2, label, color="#ffffff", va="center", fontsize=7)


def _with_tips(svg: bytes, tips: dict[str, str]) -> bytes:
    """What matplotlib cannot write: a <title> for each bar, which browsers show under the pointer."""
    from xml.etree import ElementTree as xml

    xml.register_namespace("", _SVG)
    xml.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = xml.fromstring(svg)  # noqa: S314 (our own text)
    for group in root.iter(f"{{{_SVG}}}g"):
        tip = tips.get(group.get("id", ""))
        if tip is not None:
            title = xml.Element(f"{{{_SVG}}}title")
            title.text = tip
            group.insert(0, title)
    return bytes(xml.tostring(root, encoding="utf-8", xml_declaration=True))
