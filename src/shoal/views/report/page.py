"""A report as one HTML file: inline style and SVG, no script, no network; for screens, bright or dark, and paper."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from html import escape

from shoal.redaction import redact_page, secret_values
from shoal.units import format_duration, shorten_list
from shoal.views.columns import iso_time
from shoal.views.figures import MetricCurves, curves_svg
from shoal.views.report import breakdowns
from shoal.views.report.breakdowns import DATASET_HEADER, dataset_breakdown, dataset_rows
from shoal.views.report.costs import Costs
from shoal.views.report.gather import HOUR_WORDS, PART_WORDS, CostReport, hours_sentence
from shoal.views.report.prices import format_amounts
from shoal.views.report.search import search_page
from shoal.views.report.text import results_table, stopped_rows, wait_sentences
from shoal.views.timeline import Timeline, clock_marks, share_rows, use_text

_MAX_RUN_ROWS = 2000
_WIDTH, _LANE_HEIGHT, _LEFT = 920, 18, 150


STYLE = """
:root{--ink:#1b2430;--soft:#5d6b7e;--paper:#fff;--card:#f6f8fa;--line:#e3e8ee;--completed:#00805d;--running:#0067a3;
--wait:#8a6500;--bad:#c04f00;--odd:#8d4888;--off:#64707e}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#9aa7b8;--paper:#0f1318;--card:#171c23;
--line:#28303a;--completed:#2bc79b;--running:#56b4e9;--wait:#e6b422;--bad:#ff8a3d;--odd:#d79bd0;--off:#8a97a8;
color-scheme:dark}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:980px;margin:0 auto;padding:32px 24px 64px}
h1{margin:0 0 8px;font-size:28px;letter-spacing:-.02em}h2{margin:36px 0 12px;font-size:17px}
h3{margin:0 0 8px;font-size:13px;color:var(--soft);font-weight:600}
.sub,footer{color:var(--soft)}footer{margin-top:48px;font-size:13px}
.chip{display:inline-block;padding:1px 9px;border-radius:10px;white-space:nowrap;margin-bottom:3px;
font-size:.87em;border:1px solid currentColor;color:var(--bad)}
.chip.completed{color:var(--completed)}.chip.running{color:var(--running)}
.chip.pending,.chip.waiting{color:var(--wait)}
.chip.unknown,.chip.blocked{color:var(--odd)}.chip.cancelled,.chip.stopped,.chip.new{color:var(--off)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(300px,100%),1fr));gap:16px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px}
.numbers{display:grid;grid-template-columns:repeat(5,auto);gap:8px;justify-content:space-between}
.numbers b{display:block;font-size:clamp(16px,4.4vw,20px);font-variant-numeric:tabular-nums}
.numbers span{color:var(--soft);font-size:.8em}
.stripe{width:100%;height:8px;margin-top:14px;border-radius:4px}.legend{font-size:13px;color:var(--soft)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin:0 5px 0 12px;background:var(--completed)}
.legend i.lost{background:var(--bad)}.legend i.idle{background:var(--line)}.legend i:first-child{margin-left:0}
.legend i.unseen{background:var(--off);opacity:.5}.s-unseen{fill:var(--off);opacity:.5}
section{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.93em;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:6px 12px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
thead th,tr:first-child>th{color:var(--soft);font-weight:600;font-size:.93em}
td{overflow-wrap:anywhere}.runs td{white-space:nowrap}.runs td:nth-child(3){white-space:normal;min-width:160px}
code{background:var(--card);border:1px solid var(--line);border-radius:5px;padding:1px 6px;font-size:.87em}
.advice{padding-left:18px}.advice li{margin:6px 0}
svg{display:block}.gantt{width:100%}.gantt text{font:11px system-ui,sans-serif;fill:var(--soft)}
.lane{text-anchor:end}.track{fill:var(--card)}.bar{fill:var(--bad)}.histogram{width:110px;height:26px}
.histogram rect{fill:var(--running)}
.curves{width:100%;max-width:760px}.curves text{font:11px system-ui,sans-serif;fill:var(--soft)}
.axis{fill:none;stroke:var(--line)}.curvekey{list-style:none;padding:0;margin:4px 0 18px;display:flex;flex-wrap:wrap;
gap:2px 18px;font-size:13px}.curvekey li{overflow-wrap:anywhere}
.key{display:inline-block;width:24px;height:8px;margin-right:6px}
.s-completed{fill:var(--completed)}.s-running{fill:var(--running)}.s-lost,.s-failed{fill:var(--bad)}.s-idle{fill:var(--line)}
.s-cancelled,.s-stopped{fill:var(--off)}
@media print{body{font-size:11px}main{max-width:none;padding:0 2px}h2{margin-top:22px}
section{break-inside:avoid-page;overflow:visible}
section:last-of-type{break-inside:auto}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
""".replace("\n", "")


def report_page(report: CostReport, curves: Sequence[MetricCurves] = ()) -> str:
    """The whole file; `curves` are drawn before the results."""
    sections = [
        ("Hours", _hours(report)),
        ("Next time", _advice(report)),
        ("Efficiency", _efficiency(report)),
        ("GPUs over time" if report.gpu.allocated else "Runs over time", gantt(report.timeline)),
        ("Nodes", _nodes(report)),
        ("The same runs in other layouts, by their measured lengths", _layouts(report)),
        ("Data", _data(report)),
        ("Failures by reason", _failures(report)),
        ("Stopped early", _stopped(report)),
        ("Search", "".join(search_page(one, report.metrics) for one in report.searches)),
        ("Curves", "".join(map(curves_svg, curves))),
        ("Results", _table(*results_table(report))),
        ("Runs", _runs(report)),
    ]
    body = "".join(f"<section><h2>{title}</h2>{part}</section>" for title, part in sections if part)
    body = redact_page(body, secret_values(os.environ))
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.now))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(report.title)} - report</title><style>{STYLE}</style></head><body><main>"
        f"<header><h1>{escape(report.title)}</h1><p class=sub>{_headline(report)}</p></header>{body}"
        f"<footer>made by shoal on {made}; state of {iso_time(report.now)}</footer></main></body></html>\n"
    )


def _headline(report: CostReport) -> str:
    chips = " ".join(
        f'<span class="chip {escape(state)}">{count:,} {escape(state)}</span>' for state, count in report.counts.items()
    )
    facts = []
    if report.retried:
        facts.append(f"{report.retried:,} retried")
    if report.makespan_s is not None:
        facts.append(f"{format_duration(report.makespan_s)} from first submission to last end")
    if report.wait is not None:
        facts.append(f"queue wait {format_duration(report.wait.median_s)} in the median")
    facts += wait_sentences(report)
    return f"{chips}<br>{escape(' · '.join(facts))}"


def _hours(report: CostReport) -> str:
    cards = []
    for name, hours in (("GPU-hours", report.gpu), ("CPU-hours", report.cpu)):
        if not hours.allocated:
            continue
        words = hours_sentence(hours)
        numbers = "".join(f"<div><b>{words[key]}</b><span>{label}</span></div>" for key, label in HOUR_WORDS.items())
        parts = ", ".join(f"{label} {words[key]}" for key, label in PART_WORDS.items() if getattr(hours, key) > 0)
        cards.append(
            f"<div class=card><h3>{name}</h3><div class=numbers>{numbers}</div>{_hours_bar(hours)}"
            f"<p>allocated = {parts}</p></div>"
        )
    legend = "<p class=legend><i class=completed></i>busy <i class=idle></i>idle <i class=unseen></i>not measured</p>"
    cost = f"<p>cost {escape(format_amounts(report.cost))}</p>" if report.cost else ""
    return f"<div class=cards>{''.join(cards)}</div>{legend}{cost}" if cards else ""


def _hours_bar(hours: Costs) -> str:
    """What became of the hours that were allocated: busy, not measured, and idle to its end."""
    left, parts = 0.0, []
    for kind, part in (("completed", hours.busy), ("unseen", hours.not_measured)):
        wide = 100 * part / hours.allocated
        parts.append(f'<rect x="{left:.2f}" width="{wide:.2f}" height="4" class=s-{kind} />')
        left += wide
    return (
        '<svg class=stripe viewBox="0 0 100 4" preserveAspectRatio="none" role="img" '
        f'aria-label="{hours.busy / hours.allocated:.0%} busy">'
        f'<rect width="100" height="4" class=s-idle />{"".join(parts)}</svg>'
    )


def _advice(report: CostReport) -> str:
    items = "".join(
        f"<li>{escape(one.sentence)}"
        + (f" <code>{escape(line)}</code>" if (line := one.line or one.flag) else "")
        + (f" in {escape(one.place)}" if one.place else "")
        + "</li>"
        for one in report.advice
    )
    return f"<ul class=advice>{items}</ul>" if items else ""


def _efficiency(report: CostReport) -> str:
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


def gantt(timeline: Timeline) -> str:
    """The timeline as SVG in the colours of the page: a lane per GPU, a bar per attempt with its name as a tooltip."""
    by_lane = timeline.by_lane()
    if not by_lane:
        return ""
    length = max(1e-9, timeline.makespan_s)
    room = _WIDTH - _LEFT - 60
    height = len(by_lane) * _LANE_HEIGHT + 24
    parts = []
    for row, (lane, bars) in enumerate(by_lane.items()):
        top = row * _LANE_HEIGHT
        parts.append(f'<text x="{_LEFT - 8}" y="{top + 13}" class=lane>{escape(lane[-22:])}</text>')
        parts.append(f'<rect x="{_LEFT}" y="{top + 2}" width="{room}" height="{_LANE_HEIGHT - 4}" class=track />')
        for bar, part in zip(bars, share_rows(bars), strict=True):
            left = _LEFT + room * (bar.start - timeline.begin) / length
            high = (_LANE_HEIGHT - 4) * bar.share
            wide = max(1.0, room * (bar.end - bar.start) / length - 0.5)
            title = f"{bar.run} (attempt {bar.attempt}) {bar.state}, {format_duration(bar.end - bar.start)}"
            parts.append(
                f'<rect x="{left:.1f}" y="{top + 2 + part * high:g}" width="{wide:.1f}" height="{high:g}" rx="2" '
                f'class="bar s-{escape(bar.state)}"><title>{escape(title)}</title></rect>'
            )
        occupied = f"<title>{use_text(timeline, bars)}</title>{timeline.occupied_fraction(bars):.0%}"
        parts.append(f'<text x="{_WIDTH - 52}" y="{top + 13}" class=occupied>{occupied}</text>')
    for at, mark in enumerate(clock_marks(timeline, 5)):
        x = _LEFT + room * at / 4
        anchor = "start" if at == 0 else "end" if at == 4 else "middle"
        parts.append(f'<text x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}" class=axis>{mark}</text>')
    picture = (
        f'<svg class=gantt viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="timeline">{"".join(parts)}</svg>'
    )
    return f"{picture}<p class=legend>right: part of the time in which a run had the GPU or slot</p>"


def _nodes(report: CostReport) -> str:
    found = breakdowns.node_rows(breakdowns.node_breakdown(report.attempts))
    return _table(breakdowns.NODE_HEADER, found) if len(found) > 1 else ""


def _layouts(report: CostReport) -> str:
    found = breakdowns.layout_rows(breakdowns.layout_breakdown(report.allocations))
    return _table(breakdowns.layout_header(report.attempts), found) if found else ""


def _stopped(report: CostReport) -> str:
    return _table(["run", "stopped"], stopped_rows(report))


def _data(report: CostReport) -> str:
    found = dataset_rows(dataset_breakdown(report.attempts))
    return _table(DATASET_HEADER, found) if found else ""


def _failures(report: CostReport) -> str:
    rows = [[one.reason, str(one.times), f"{one.gpu_hours:.2f}", shorten_list(one.runs, 4)] for one in report.failures]
    return _table(["reason", "times", "GPU-hours", "runs"], rows)


def _runs(report: CostReport) -> str:
    rows = []
    for history in report.histories[:_MAX_RUN_ROWS]:
        view = history.view
        lasted = sum(one.hours for one in history.attempts) * 3600
        cells = [escape(view.name), f'<span class="chip {escape(view.state)}">{escape(view.state)}</span>']
        cells += [escape(view.reason or ""), str(view.attempt or "-"), escape(view.node or "-")]
        cells += [format_duration(lasted) if lasted else "-"]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{title}</th>" for title in ("run", "state", "reason", "attempts", "node", "time"))
    left = len(report.histories) - _MAX_RUN_ROWS
    more = f"<p>{left:,} more runs are not listed; shoal status --all --tasks lists them</p>" if left > 0 else ""
    table = f"<table class=runs><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return table + more if rows else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    head = "".join(f"<th>{escape(title.lower())}</th>" for title in header)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else ""
