"""A timeline as a PNG, for slides and chats that take no SVG: the same lanes, bars and axis as drawing.py draws."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from shoal.errors import InputError
from shoal.views.timeline import Timeline, TimelineBar
from shoal.views.timeline_drawing import (
    LEFT_MARGIN,
    ROW_HEIGHT,
    TOP_MARGIN,
    WIDTH,
    axis_step,
    bar_colour,
    bar_label,
    tick_label,
    timeline_title,
)

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

#: Drawn in twice the size, so that text stays sharp on today's screens.
_PNG_SCALE = 2
_IDLE, _HATCH, _GREY, _BLACK = "#f1efe9", "#cfc9bb", "#555555", "#000000"


def require_pillow() -> None:
    """An InputError with the command that installs what is missing; better before the work than after it."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise InputError(
            "a PNG needs Pillow, which is not installed", hint="pip install 'shoal[png]'   # or --svg", place="--png"
        ) from None


def timeline_png(timeline: Timeline, title: str) -> bytes:
    """The picture's bytes."""
    require_pillow()
    from PIL import Image, ImageDraw, ImageFont

    lanes = timeline.lanes
    size = (LEFT_MARGIN + WIDTH + 30) * _PNG_SCALE, (TOP_MARGIN + ROW_HEIGHT * len(lanes) + 40) * _PNG_SCALE
    image = Image.new("RGB", size, "#ffffff")
    draw = ImageDraw.Draw(image)
    small, large = (ImageFont.load_default(points * _PNG_SCALE) for points in (11, 14))
    draw.text((12 * _PNG_SCALE, 10 * _PNG_SCALE), timeline_title(timeline, title), fill=_BLACK, font=large)
    for row, lane in enumerate(lanes):
        top = TOP_MARGIN + ROW_HEIGHT * row
        draw.text(((LEFT_MARGIN - 8) * _PNG_SCALE, (top + 10) * _PNG_SCALE), lane, fill=_BLACK, font=small, anchor="rm")
        _hatch_idle(draw, top)
        for number, bar in enumerate(bar for bar in timeline.bars if bar.lane == lane):
            _png_bar(draw, timeline, bar, number, top, small)
    step, bottom = axis_step(timeline), TOP_MARGIN + ROW_HEIGHT * len(lanes) + 6
    for number in range(int(timeline.makespan_s / step) + 1):
        x = _png_x(timeline, timeline.begin + number * step)
        draw.line([(x, (bottom - 6) * _PNG_SCALE), (x, bottom * _PNG_SCALE)], fill=_GREY, width=_PNG_SCALE)
        draw.text((x, (bottom + 8) * _PNG_SCALE), tick_label(number, step), fill=_GREY, font=small, anchor="mm")
    found = io.BytesIO()
    image.save(found, "PNG")
    return found.getvalue()


def _hatch_idle(draw: ImageDraw, top: int) -> None:
    """Idle time: whatever no bar covers."""
    height, right = ROW_HEIGHT - 6, LEFT_MARGIN + WIDTH
    draw.rectangle(_png_box(LEFT_MARGIN, top, right, top + height), fill=_IDLE)
    for x in range(LEFT_MARGIN + height, right, 8):
        draw.line(
            [(x * _PNG_SCALE, top * _PNG_SCALE), ((x - height) * _PNG_SCALE, (top + height) * _PNG_SCALE)],
            fill=_HATCH,
            width=3,
        )


def _png_bar(draw: ImageDraw, timeline: Timeline, bar: TimelineBar, number: int, top: int, font: object) -> None:
    left, right = _png_x(timeline, bar.start), _png_x(timeline, bar.end)
    box = [left, top * _PNG_SCALE, max(left + 1, right), (top + ROW_HEIGHT - 6) * _PNG_SCALE]
    draw.rectangle(box, fill=bar_colour(bar, number), outline="#ffffff")
    word = bar_label(bar)
    if right - left > (7 * len(word) + 6) * _PNG_SCALE:
        where = (left + 4 * _PNG_SCALE, (top + 10) * _PNG_SCALE)
        draw.text(where, word, fill="#ffffff", font=font, anchor="lm")  # type: ignore[arg-type]


def _png_x(timeline: Timeline, moment: float) -> float:
    return (LEFT_MARGIN + (moment - timeline.begin) * WIDTH / max(1e-9, timeline.makespan_s)) * _PNG_SCALE


def _png_box(left: float, top: float, right: float, bottom: float) -> list[float]:
    return [left * _PNG_SCALE, top * _PNG_SCALE, right * _PNG_SCALE, bottom * _PNG_SCALE]
