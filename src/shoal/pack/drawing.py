"""A timeline as text for a terminal and as SVG for everything else. Pure."""

from __future__ import annotations

from html import escape

from shoal.pack.timeline import Bar, Timeline, several_hosts

_COLOURS = {"done": ("#2f6f9f", "#5b9bc7"), "running": ("#3a8f5c", "#3a8f5c"), "stopped": ("#b58a2f", "#b58a2f")}
_BAD = ("#b23a3a", "#b23a3a")
_ROW, _LEFT, _WIDTH, _TOP = 26, 110, 820, 46


def as_text(timeline: Timeline, width: int) -> list[str]:
    """A line for each lane: # and = change from run to run, x where one failed, dots where nothing ran."""
    lanes = timeline.lanes
    short = not several_hosts(lanes)
    labels = [lane.rpartition(":")[2] if short else lane for lane in lanes]
    wide = max((len(label) for label in labels), default=0)
    room = max(10, width - wide - 12)
    lines = []
    for lane, label in zip(lanes, labels, strict=True):
        bars = [bar for bar in timeline.bars if bar.lane == lane]
        busy = min(1.0, sum((bar.end - bar.start) * bar.share for bar in bars) / max(1e-9, timeline.makespan_s))
        lines.append(f"{label:<{wide}} |{_cells(timeline, bars, room)}| {busy:4.0%}")
    return lines


def _cells(timeline: Timeline, bars: list[Bar], room: int) -> str:
    cells = ["."] * room
    scale = room / max(1e-9, timeline.makespan_s)
    for number, bar in enumerate(bars):
        first = min(room - 1, int((bar.start - timeline.begin) * scale))
        last = min(room, max(first + 1, round((bar.end - timeline.begin) * scale)))
        cells[first:last] = ["#="[number % 2]] * (last - first)
        if bar.state not in ("done", "running"):
            cells[last - 1] = "x"
    return "".join(cells)


def as_svg(timeline: Timeline, title: str) -> str:
    """Lanes against time with idle time hatched; each bar carries its run's name as a tooltip."""
    lanes = timeline.lanes
    height = _TOP + _ROW * len(lanes) + 40
    scale = _WIDTH / max(1e-9, timeline.makespan_s)
    idle = timeline.idle_s / max(1e-9, len(lanes) * timeline.makespan_s)
    text = f"{escape(title)}: {timeline.makespan_s:.1f} s on {len(lanes)} slots, {idle:.1%} idle"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 30} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<defs><pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#f1efe9"/><line y2="6" stroke="#cfc9bb" stroke-width="3"/></pattern></defs>',
        f'<rect width="100%" height="100%" fill="#ffffff"/><text x="12" y="24" font-size="14">{text}</text>',
    ]
    for row, lane in enumerate(lanes):
        y = _TOP + _ROW * row
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(lane)}</text>')
        parts.append(f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH}" height="{_ROW - 6}" fill="url(#idle)"/>')
        bars = [bar for bar in timeline.bars if bar.lane == lane]
        parts += [_bar(bar, number, y, timeline.begin, scale) for number, bar in enumerate(bars)]
    parts += _axis(timeline, _TOP + _ROW * len(lanes) + 6, scale)
    return "\n".join([*parts, "</svg>", ""])


def _bar(bar: Bar, number: int, y: float, begin: float, scale: float) -> str:
    colour = _COLOURS.get(bar.state, _BAD)[number % 2]
    x, wide = _LEFT + (bar.start - begin) * scale, max(0.8, (bar.end - bar.start) * scale)
    tip = escape(f"{bar.run}, attempt {bar.attempt}: {bar.state}, {bar.end - bar.start:.2f} s")
    opacity = "" if bar.share >= 1 else f' opacity="{max(0.35, bar.share):.2f}"'
    label = ""
    word = bar.run.rpartition("/")[2].rpartition("_")[2]
    if wide > 7 * len(word) + 6:
        label = f'<text x="{x + 4:.1f}" y="{y + 14}" fill="#ffffff" font-size="10">{escape(word)}</text>'
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{_ROW - 6}" fill="{colour}" stroke="#ffffff" '
        f'stroke-width="0.6"{opacity}><title>{tip}</title></rect>{label}'
    )


def _axis(timeline: Timeline, y: float, scale: float) -> list[str]:
    step = next((s for s in (0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600) if timeline.makespan_s / s <= 12), 7200)
    marks = []
    for number in range(int(timeline.makespan_s / step) + 1):
        x = _LEFT + number * step * scale
        marks.append(f'<line x1="{x:.1f}" y1="{y - 6}" x2="{x:.1f}" y2="{y}" stroke="#777777"/>')
        marks.append(f'<text x="{x:.1f}" y="{y + 13}" text-anchor="middle" fill="#555555">{number * step:g} s</text>')
    return marks
