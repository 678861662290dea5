"""A timeline as a PNG, for slides and chats that take no SVG: the same lanes, bars and axis as drawing.py draws."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from shoal.errors import InputError
from shoal.views.timeline import Bar, Timeline
from shoal.views.timeline_drawing import LEFT, ROW, TOP, WIDTH, axis_step, colour_of, headline, label_of, mark_words

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

#: Drawn in twice the size, so that text stays sharp on today's screens.
_SCALE = 2
_IDLE, _HATCH, _GREY, _BLACK = "#f1efe9", "#cfc9bb", "#555555", "#000000"


def need_pillow() -> None:
    """An InputError with the command that installs what is missing; better before the work than after it."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise InputError(
            "a PNG needs Pillow, which is not installed", hint="pip install 'shoal[png]'   # or --svg", place="--png"
        ) from None


def as_png(timeline: Timeline, title: str) -> bytes:
    """The picture's bytes."""
    need_pillow()
    from PIL import Image, ImageDraw, ImageFont

    lanes = timeline.lanes
    size = (LEFT + WIDTH + 30) * _SCALE, (TOP + ROW * len(lanes) + 40) * _SCALE
    image = Image.new("RGB", size, "#ffffff")
    draw = ImageDraw.Draw(image)
    small, large = (ImageFont.load_default(points * _SCALE) for points in (11, 14))
    draw.text((12 * _SCALE, 10 * _SCALE), headline(timeline, title), fill=_BLACK, font=large)
    for row, lane in enumerate(lanes):
        top = TOP + ROW * row
        draw.text(((LEFT - 8) * _SCALE, (top + 10) * _SCALE), lane, fill=_BLACK, font=small, anchor="rm")
        _hatch(draw, top)
        for number, bar in enumerate(bar for bar in timeline.bars if bar.lane == lane):
            _bar(draw, timeline, bar, number, top, small)
    step, bottom = axis_step(timeline), TOP + ROW * len(lanes) + 6
    for number in range(int(timeline.makespan_s / step) + 1):
        x = _x(timeline, timeline.begin + number * step)
        draw.line([(x, (bottom - 6) * _SCALE), (x, bottom * _SCALE)], fill=_GREY, width=_SCALE)
        draw.text((x, (bottom + 8) * _SCALE), mark_words(number, step), fill=_GREY, font=small, anchor="mm")
    found = io.BytesIO()
    image.save(found, "PNG")
    return found.getvalue()


def _hatch(draw: ImageDraw, top: int) -> None:
    """Idle time: whatever no bar covers."""
    height, right = ROW - 6, LEFT + WIDTH
    draw.rectangle(_box(LEFT, top, right, top + height), fill=_IDLE)
    for x in range(LEFT + height, right, 8):
        draw.line([(x * _SCALE, top * _SCALE), ((x - height) * _SCALE, (top + height) * _SCALE)], fill=_HATCH, width=3)


def _bar(draw: ImageDraw, timeline: Timeline, bar: Bar, number: int, top: int, font: object) -> None:
    left, right = _x(timeline, bar.start), _x(timeline, bar.end)
    box = [left, top * _SCALE, max(left + 1, right), (top + ROW - 6) * _SCALE]
    draw.rectangle(box, fill=colour_of(bar, number), outline="#ffffff")
    word = label_of(bar)
    if right - left > (7 * len(word) + 6) * _SCALE:
        where = (left + 4 * _SCALE, (top + 10) * _SCALE)
        draw.text(where, word, fill="#ffffff", font=font, anchor="lm")  # type: ignore[arg-type]


def _x(timeline: Timeline, moment: float) -> float:
    return (LEFT + (moment - timeline.begin) * WIDTH / max(1e-9, timeline.makespan_s)) * _SCALE


def _box(left: float, top: float, right: float, bottom: float) -> list[float]:
    return [left * _SCALE, top * _SCALE, right * _SCALE, bottom * _SCALE]
