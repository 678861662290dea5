"""A bar chart as SVG text: no library, readable by every browser."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_ROW, _LEFT, _WIDTH = 28, 150, 480


def bars(title: str, labels: Sequence[str], values: Sequence[float]) -> str:
    """One horizontal bar per value, with the value written behind it."""
    height = 50 + _ROW * len(labels)
    top = max([*values, 1e-12])
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 90}" height="{height}"'
        ' font-family="sans-serif" font-size="13">',
        f'<title>{escape(title)}</title><text x="10" y="24" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (label, value) in enumerate(zip(labels, values, strict=True)):
        y = 40 + _ROW * number
        wide = max(1.0, _WIDTH * value / top)
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>')
        lines.append(f'<rect x="{_LEFT}" y="{y}" width="{wide:.1f}" height="{_ROW - 8}" fill="#2a6f97"/>')
        lines.append(f'<text x="{_LEFT + wide + 6:.1f}" y="{y + 15}">{value:.3g}</text>')
    return "\n".join([*lines, "</svg>", ""])
