"""A report as one HTML file: inline style and SVG, no script, no network; for screens, bright or dark, and paper."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape

from shoal.units import format_duration, listed
from shoal.views.columns import iso
from shoal.views.report import nodes, shapes, timeline
from shoal.views.report.account import Hours
from shoal.views.report.gather import Report, hours_words
from shoal.views.report.staged import HEADER, rows, staged
from shoal.views.report.style import STYLE
from shoal.views.report.text import left_metrics, results_table, stopped_rows

_MAX_RUNS = 2000
_WIDTH, _LANE, _LEFT = 920, 18, 150


def page(report: Report) -> str:
    sections = [
        ("Hours", _hours(report)),
        ("Next time", _advice(report)),
        ("Efficiency", _efficiency(report)),
        ("GPUs over time" if report.gpu.held else "Runs over time", gantt(report)),
        ("Nodes", _nodes(report)),
        ("The same runs in other shapes, by their measured lengths", _shapes(report)),
        ("Data", _data(report)),
        ("Failures by cause", _failures(report)),
        ("Stopped by search", _stopped(report)),
        (
            "Results",
            _table(*results_table(report)) + "".join(f"<p>{escape(line)}</p>" for line in left_metrics(report)),
        ),
        ("Runs", _runs(report)),
    ]
    body = "".join(f"<section><h2>{title}</h2>{part}</section>" for title, part in sections if part)
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.now))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(report.title)} - report</title><style>{STYLE}</style></head><body><main>"
        f"<header><h1>{escape(report.title)}</h1><p class=sub>{_headline(report)}</p></header>{body}"
        f"<footer>made by shoal on {made}; state of {iso(report.now)}</footer></main></body></html>\n"
    )


def _headline(report: Report) -> str:
    chips = " ".join(
        f'<span class="chip {escape(state)}">{count:,} {escape(state)}</span>' for state, count in report.counts.items()
    )
    facts = []
    if report.retried:
        facts.append(f"{report.retried:,} tried more than once")
    if report.makespan_s is not None:
        facts.append(f"{format_duration(report.makespan_s)} from first submission to last end")
    if report.wait is not None:
        facts.append(f"queue wait {format_duration(report.wait.median_s)} in the median")
    return f"{chips}<br>{escape(' · '.join(facts))}"


def _hours(report: Report) -> str:
    cards = []
    for name, hours in (("GPU-hours", report.gpu), ("CPU-hours", report.cpu)):
        if not hours.held:
            continue
        words = hours_words(hours)
        no_data = "no data"
        parts = [("requested", words["requested"]), ("held", words["held"])]
        parts += [(key, words[key] if hours.sampled else no_data) for key in ("used", "idle")]
        parts.append(("lost", words["lost"]))
        numbers = "".join(f"<div><b>{value}</b><span>{label}</span></div>" for label, value in parts)
        some = 0 < hours.sampled < 0.995 * hours.held
        note = f", sampled in {hours.sampled / hours.held:.0%} of them" if some else ""
        cards.append(f"<div class=card><h3>{name}{note}</h3><div class=numbers>{numbers}</div>{_stripe(hours)}</div>")
    legend = (
        "<p class=legend><i class=done></i>useful <i class=lost></i>lost to failures <i class=idle></i>idle "
        "<i class=unseen></i>no data</p>"
    )
    return f"<div class=cards>{''.join(cards)}</div>{legend}" if cards else ""


def _stripe(hours: Hours) -> str:
    """What became of the hours that were held: useful, lost, without data, and idle to its end."""
    left, parts = 0.0, []
    for kind, part in (("done", hours.useful), ("lost", hours.lost), ("unseen", hours.unseen)):
        wide = 100 * part / hours.held
        parts.append(f'<rect x="{left:.2f}" width="{wide:.2f}" height="4" class=s-{kind} />')
        left += wide
    return (
        '<svg class=stripe viewBox="0 0 100 4" preserveAspectRatio="none" role="img" '
        f'aria-label="{hours.useful / hours.held:.0%} useful">'
        f'<rect width="100" height="4" class=s-idle />{"".join(parts)}</svg>'
    )


def _advice(report: Report) -> str:
    items = "".join(
        f"<li>{escape(one.sentence)}" + (f" <code>{escape(one.flag)}</code>" if one.flag else "") + "</li>"
        for one in report.advice
    )
    return f"<ul class=advice>{items}</ul>" if items else ""


def _efficiency(report: Report) -> str:
    rows = []
    for one in report.spreads:
        most = max(one.bins)
        bars = "".join(
            f'<rect x="{at * 10 + 0.5}" y="{24 - 24 * count / most:.1f}" width="9" height="{24 * count / most:.1f}" />'
            for at, count in enumerate(one.bins)
        )
        histogram = f'<svg class=histogram viewBox="0 0 100 24" role="img" aria-label="{one.bins}">{bars}</svg>'
        rows.append(
            f"<tr><th>{escape(one.name)}</th><td>{one.low:.0%}</td><td><b>{one.middle:.0%}</b></td>"
            f"<td>{one.high:.0%}</td><td>{histogram}</td><td>{one.attempts:,}</td></tr>"
        )
    if not rows:
        return ""
    note = "" if any(one.name == "gpu" for one in report.spreads) else "<p class=sub>GPU: no data</p>"
    titles = ("of what was asked for", "least", "median", "most", "0 to 100 %", "attempts")
    head = "".join(f"<th>{title}</th>" for title in titles)
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>{note}"


def gantt(report: Report) -> str:
    """The timeline as SVG: a lane per GPU, a bar per attempt with its name as a tooltip."""
    if not report.lanes:
        return ""
    begin, end = timeline.span(report.tries)
    length = max(1e-9, end - begin)
    room = _WIDTH - _LEFT - 60
    height = len(report.lanes) * _LANE + 24
    parts = []
    for row, lane in enumerate(report.lanes):
        top = row * _LANE
        parts.append(f'<text x="{_LEFT - 8}" y="{top + 13}" class=lane>{escape(lane.name[-22:])}</text>')
        parts.append(f'<rect x="{_LEFT}" y="{top + 2}" width="{room}" height="{_LANE - 4}" class=track />')
        for bar in lane.bars:
            left = _LEFT + room * (bar.start - begin) / length
            wide = max(1.0, room * (bar.end - bar.start) / length - 0.5)
            title = f"{bar.run} (attempt {bar.attempt}) {bar.state}, {format_duration(bar.end - bar.start)}"
            parts.append(
                f'<rect x="{left:.1f}" y="{top + 2}" width="{wide:.1f}" height="{_LANE - 4}" rx="2" '
                f'class="bar s-{escape(bar.state)}"><title>{escape(title)}</title></rect>'
            )
        parts.append(f'<text x="{_WIDTH - 52}" y="{top + 13}" class=busy>{lane.busy:.0%}</text>')
    for at, tick in enumerate(timeline.ticks(begin, end, 5)):
        x = _LEFT + room * at / 4
        anchor = "start" if at == 0 else "end" if at == 4 else "middle"
        parts.append(f'<text x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}" class=axis>{tick}</text>')
    return f'<svg class=gantt viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="timeline">{"".join(parts)}</svg>'


def _nodes(report: Report) -> str:
    found = nodes.rows(nodes.nodes(report.tries))
    return _table(nodes.HEADER, found) if len(found) > 1 else ""


def _shapes(report: Report) -> str:
    found = shapes.rows(shapes.shapes(report.tries))
    return _table(shapes.header(report.tries), found) if found else ""


def _stopped(report: Report) -> str:
    return _table(["run", "stopped"], stopped_rows(report))


def _data(report: Report) -> str:
    found = rows(staged(report.tries))
    return _table(HEADER, found) if found else ""


def _failures(report: Report) -> str:
    rows = [[one.cause, str(one.times), f"{one.gpu_hours:.2f}", listed(one.runs, 4)] for one in report.failures]
    return _table(["cause", "times", "GPU-hours", "runs"], rows)


def _runs(report: Report) -> str:
    rows = []
    for history in report.histories[:_MAX_RUNS]:
        view = history.view
        lasted = sum(one.hours for one in history.tries) * 3600
        cells = [escape(view.name), f'<span class="chip {escape(view.state)}">{escape(view.state)}</span>']
        cells += [escape(view.cause or ""), str(view.attempt or "-"), escape(view.node or "-")]
        cells += [format_duration(lasted) if lasted else "-"]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{title}</th>" for title in ("run", "state", "why", "tries", "node", "time"))
    left = len(report.histories) - _MAX_RUNS
    more = f"<p>{left:,} more runs are not listed; shoal status --all --tasks lists them</p>" if left > 0 else ""
    table = f"<table class=runs><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return table + more if rows else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    head = "".join(f"<th>{escape(title.lower())}</th>" for title in header)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else ""
