"""A timeline as text for a terminal and as SVG for everything else. Pure."""

from __future__ import annotations

from html import escape

from shoal.views.timeline import Timeline, TimelineBar, has_several_hosts

_STATE_COLOURS = {"done": ("#2f6f9f", "#5b9bc7"), "running": ("#3a8f5c", "#3a8f5c"), "stopped": ("#b58a2f", "#b58a2f")}
_FAILED_COLOURS = ("#b23a3a", "#b23a3a")
_AXIS_STEPS_S = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400)
#: Sizes of the picture, for whoever draws it.
ROW_HEIGHT, LEFT_MARGIN, WIDTH, TOP_MARGIN = 26, 110, 820, 46


def timeline_text(timeline: Timeline, width: int) -> list[str]:
    """A line for each lane: # and = change from run to run, x where one failed, dots where nothing ran."""
    lanes = timeline.lanes
    short = not has_several_hosts(lanes)
    labels = [lane.rpartition(":")[2] if short else lane for lane in lanes]
    wide = max((len(label) for label in labels), default=0)
    room = max(10, width - wide - 12)
    lines = []
    for lane, label in zip(lanes, labels, strict=True):
        bars = [bar for bar in timeline.bars if bar.lane == lane]
        busy = min(1.0, sum((bar.end - bar.start) * bar.share for bar in bars) / max(1e-9, timeline.makespan_s))
        lines.append(f"{label:<{wide}} |{_lane_cells(timeline, bars, room)}| {busy:4.0%}")
    return lines


def _lane_cells(timeline: Timeline, bars: list[TimelineBar], room: int) -> str:
    cells = ["."] * room
    scale = room / max(1e-9, timeline.makespan_s)
    for number, bar in enumerate(bars):
        first = min(room - 1, int((bar.start - timeline.begin) * scale))
        last = min(room, max(first + 1, round((bar.end - timeline.begin) * scale)))
        cells[first:last] = ["#="[number % 2]] * (last - first)
        if bar.state not in ("done", "running"):
            cells[last - 1] = "x"
    return "".join(cells)


def timeline_svg(timeline: Timeline, title: str) -> str:
    """Lanes against time with idle time hatched; each bar carries its run's name as a tooltip."""
    lanes = timeline.lanes
    height = TOP_MARGIN + ROW_HEIGHT * len(lanes) + 40
    scale = WIDTH / max(1e-9, timeline.makespan_s)
    text = escape(timeline_title(timeline, title))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT_MARGIN + WIDTH + 30} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<defs><pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#f1efe9"/><line y2="6" stroke="#cfc9bb" stroke-width="3"/></pattern></defs>',
        f'<rect width="100%" height="100%" fill="#ffffff"/><text x="12" y="24" font-size="14">{text}</text>',
    ]
    for row, lane in enumerate(lanes):
        y = TOP_MARGIN + ROW_HEIGHT * row
        parts.append(f'<text x="{LEFT_MARGIN - 8}" y="{y + 15}" text-anchor="end">{escape(lane)}</text>')
        parts.append(f'<rect x="{LEFT_MARGIN}" y="{y}" width="{WIDTH}" height="{ROW_HEIGHT - 6}" fill="url(#idle)"/>')
        bars = [bar for bar in timeline.bars if bar.lane == lane]
        parts += [_svg_bar(bar, number, y, timeline.begin, scale) for number, bar in enumerate(bars)]
    parts += _svg_axis(timeline, TOP_MARGIN + ROW_HEIGHT * len(lanes) + 6, scale)
    return "\n".join([*parts, "</svg>", ""])


def timeline_title(timeline: Timeline, title: str) -> str:
    lanes = len(timeline.lanes)
    idle = timeline.idle_s / max(1e-9, lanes * timeline.makespan_s)
    on = f"{lanes} {timeline.lane_word}{'' if lanes == 1 else 's'}"
    return f"{title}: {timeline.makespan_s:.1f} s on {on}, {idle:.1%} idle"


def bar_colour(bar: TimelineBar, number: int) -> str:
    """Neighbours on a lane differ."""
    return _STATE_COLOURS.get(bar.state, _FAILED_COLOURS)[number % 2]


def bar_label(bar: TimelineBar) -> str:
    """The end of the run's name, which is what differs."""
    return bar.run.rpartition("/")[2].rpartition("_")[2]


def axis_step(timeline: Timeline) -> float:
    """Seconds between two marks: a round number, and at most twelve of them up to a day."""
    return next((step for step in _AXIS_STEPS_S if timeline.makespan_s / step <= 12), 7 * 86400.0)


def tick_label(number: int, step: float) -> str:
    """What stands at a mark of the axis, all in one unit."""
    unit, size = next(((u, s) for u, s in (("d", 86400), ("h", 3600), ("min", 60)) if step % s == 0), ("s", 1))
    return f"{number * step / size:g} {unit}"


def _svg_bar(bar: TimelineBar, number: int, y: float, begin: float, scale: float) -> str:
    colour = bar_colour(bar, number)
    x, wide = LEFT_MARGIN + (bar.start - begin) * scale, max(0.8, (bar.end - bar.start) * scale)
    tip = escape(f"{bar.run}, attempt {bar.attempt}: {bar.state}, {bar.end - bar.start:.2f} s")
    opacity = "" if bar.share >= 1 else f' opacity="{max(0.35, bar.share):.2f}"'
    label = ""
    word = bar_label(bar)
    if wide > 7 * len(word) + 6:
        label = f'<text x="{x + 4:.1f}" y="{y + 14}" fill="#ffffff" font-size="10">{escape(word)}</text>'
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{ROW_HEIGHT - 6}" fill="{colour}" stroke="#ffffff" '
        f'stroke-width="0.6"{opacity}><title>{tip}</title></rect>{label}'
    )


def _svg_axis(timeline: Timeline, y: float, scale: float) -> list[str]:
    step = axis_step(timeline)
    marks = []
    for number in range(int(timeline.makespan_s / step) + 1):
        x = LEFT_MARGIN + number * step * scale
        marks.append(f'<line x1="{x:.1f}" y1="{y - 6}" x2="{x:.1f}" y2="{y}" stroke="#777777"/>')
        words = tick_label(number, step)
        marks.append(f'<text x="{x:.1f}" y="{y + 13}" text-anchor="middle" fill="#555555">{words}</text>')
    return marks
