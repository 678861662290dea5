"""The list of runs, and the tabs about one run: log, errors, metrics, script, events.

The list draws only the lines on the screen, so that it responds at once with 5,000 runs. The tabs are text only, and
read the ends of files.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from shoal.kernel import read_metrics, read_series
from shoal.model import ACTIVE_STATES, ATTENTION_STATES, FAILED_STATES
from shoal.observe import DamagedRecord, RunReader, RunSummary, RunView, find_output, usage
from shoal.units import format_duration
from shoal.views.details import RunDetails, run_events
from shoal.views.error_groups import find_error
from shoal.views.log_files import first_nonempty, last_text, rank_logs
from shoal.views.render import cell_width, fit_cell, fit_cell_end, safe_line, state_code, state_word, text_bar
from shoal.views.results import format_mean
from shoal.views.run_groups import RunGroup, count_states, group_runs
from shoal.views.run_table import (
    best_value,
    format_number,
    format_param,
    group_table,
    last_value,
    short_param_names,
)
from shoal.views.seed_groups import best_group
from shoal.views.status import StatusReport
from shoal.views.terminal import strip_control_sequences
from shoal.views.tui.table import ListColumns

TABS = ("log", "errors", "metrics", "script", "events")
#: Of the column with the state.
STATE_WIDTH = 11
_SPARK = "▁▂▃▄▅▆▇█"


def tab_text(
    tab: str,
    home: str,
    view: RunView,
    details: RunDetails,
    width: int = 60,
    part: int = 0,
    metric: str | None = None,
) -> list[str]:
    """The lines of one tab, harmless for a terminal. `part` counts the ranks and replicas of the log; `metric` is the
    curve that comes first."""
    if tab == "log":
        lines = _log_tab(view, part)
    elif tab == "metrics":
        lines = _metrics_tab(home, view, details, width, metric)
    else:
        lines = {"errors": _errors_tab, "script": _script_tab, "events": _events_tab}[tab](home, view, details, width)
    return [strip_control_sequences(line.expandtabs(4), colour=False) for line in lines]


def _log_tab(view: RunView, turn: int) -> list[str]:
    if not view.log_dir or not view.attempt:
        return ["it has not started yet"]
    found = rank_logs(view.log_dir, view.attempt)
    place = (first_nonempty(found) + turn) % len(found)
    head = [f"--- {found[place].label}, {place + 1} of {len(found)}; l shows the next ---"] if len(found) > 1 else []
    return [*head, *(last_text(found[place].attempts[-1], 400) or ["nothing was printed yet"])]


def _errors_tab(home: str, view: RunView, details: RunDetails, width: int) -> list[str]:
    fault = find_error(home, view)
    return [fault.line, "", *fault.window] if fault.window else [view.reason or "no error was found in its log"]


def _metrics_tab(home: str, view: RunView, details: RunDetails, width: int, metric: str | None) -> list[str]:
    lines = []
    sample = usage.read_usage(home, view.name, view.attempt) if view.attempt else None
    if details.progress is not None:
        part = details.progress.fraction
        lines.append(f"progress {details.progress.words}" + (f" {text_bar(part, 20)}" if part is not None else ""))
    for node in sample.nodes if sample else ():
        lines += _node_use(node, node.host or view.node or "here", width)
    output = find_output(home, view) if view.output_dir else None
    series = read_series(output) if output else {}
    for name, points in sorted(series.items(), key=lambda curve: curve[0] != metric):
        values = [value for _, value in points]
        lines.append(f"{safe_line(name)[:14]:<14} {sparkline(values, width - 30)} {values[-1]:.4g}")
    if output and view.state == "completed":
        lines += [f"{safe_line(name)} {value:.5g}" for name, value in read_metrics(output).items()]
    return lines or ["no data"]


def _node_use(node: usage.NodeUsage, host: str, width: int) -> list[str]:
    """Numbers first, then little bars over time: processors, memory and every GPU of one node."""
    lines = [f"{host}: {node.peak_memory_mb:.0f} MB at most, {node.cpu_s:.0f} CPU seconds"]
    for gpu in node.gpus:
        lines.append(
            f"GPU {gpu.mean_percent:.0f}% {text_bar(gpu.mean_percent / 100)} {gpu.peak_memory_mb:.0f} MB  {gpu.name}"
        )
    if node.gpu_idle_for_s >= usage.MAX_IDLE_S:
        lines.append(f"GPU      idle for {format_duration(node.gpu_idle_for_s)}")
    if not node.gpus:
        lines.append(f"GPU      no data{f' ({node.gpu_problem})' if node.gpu_problem else ''}")
    for name, at, form in (("CPUs", 1, ".1f"), ("memory", 2, ".0f"), ("GPU %", 3, ".0f")):
        values = [value for point in node.points if (value := point[at]) is not None]
        if values:
            lines.append(f"{name:<8} {sparkline(values, width - 20)} {values[-1]:{form}}")
    return lines


def _script_tab(home: str, view: RunView, details: RunDetails, width: int) -> list[str]:
    reader = RunReader(home)
    try:
        spec = reader.spec(view.name)
        script = reader.script_file(view.name)
    except DamagedRecord as damage:
        return [str(damage)]
    lines = [f"output {view.output_dir or '-'}", f"log    {view.log_dir or '-'}"]
    if spec is not None:
        lines += [f"command {' '.join([*spec.command, *spec.args])}"]
        lines += [f"{key} = {value}" for key, value in {**spec.params, **spec.env}.items()]
    return [*lines, "", *last_text(script, 0)] if script else lines


def _events_tab(home: str, view: RunView, details: RunDetails, width: int) -> list[str]:
    return [
        f"{time.strftime('%m-%d %H:%M:%S', time.localtime(one['t']))}  {one['what']}"
        for one in run_events(home, view.name)
    ]


def detail_title(view: RunView, details: RunDetails, now: float) -> str:
    parts = [view.state, view.reason or (details.progress.words if details.progress else "")]
    if view.started is not None:
        parts.append(format_duration(max(0.0, (view.ended or now) - view.started)))
    if view.job_id:
        parts.append(f"job {view.job_id}")
    return safe_line("  ".join(part for part in parts if part))


def sparkline(values: list[float], width: int) -> str:
    """The last values as little bars; the number itself stands beside it."""
    shown = values[-max(8, width) :]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    scale = 7 / (high - low) if high > low else 0.0
    return "".join(_SPARK[int((value - low) * scale)] for value in shown)


def curve_line(name: str, points: Sequence[Sequence[float]], width: int) -> str:
    """The whole course of a metric in one line, the last value behind it; nothing if there is no course."""
    if len(points) < 2:
        return ""
    label = fit_cell(safe_line(name), min(16, cell_width(safe_line(name))))
    last = f"{points[-1][1]:.4g}"
    room = min(len(points), max(8, width - cell_width(label) - len(last) - 2))
    values = [points[(at + 1) * len(points) // room - 1][1] for at in range(room)]
    return f"{label} {sparkline(values, room)} {last}"


#: SGR code of the plain table -> rich's name for the same theme colour.
_COLOURS = {"32": "green", "36": "cyan", "33": "yellow", "35": "magenta", "31": "red", "0": "default"}
_SHORT_STATES = {
    "running": "run",
    "pending": "pend",
    "failed": "fail",
    "cancelled": "canc",
    "timeout": "time",
    "stopped": "stop",
    "preempted": "prem",
}


def _rank(state: str) -> tuple[bool, ...]:
    """Which of its states a family shows: the one that needs a person most."""
    return (
        state not in FAILED_STATES,
        state not in ATTENTION_STATES,
        state != "running",
        state not in ACTIVE_STATES,
        state != "completed",
    )


class RunLine(NamedTuple):
    """One line: a run, or a family with its tally. `depth` is 1 inside an unfolded family."""

    key: str
    text: str
    state: str
    word: str
    views: list[RunView]
    depth: int = 0


def list_lines(
    views: Sequence[RunView], unfolded: frozenset[str], report: StatusReport | None = None, *, fold: bool = True
) -> list[RunLine]:
    """The lines for these runs; families are folded unless their key is in `unfolded`. `report` has the numbers that
    stand beside the state. Pure."""
    lines = []
    for row in group_runs(views) if fold else views:
        if isinstance(row, RunGroup):
            counts = count_states(row.views)
            words = " ".join(f"{count} {_SHORT_STATES.get(state, state)}" for state, count in counts.items())
            worst = min(counts, key=_rank)
            is_open = row.key in unfolded
            lines.append(RunLine(row.key, f"{'-' if is_open else '+'} {row.key}", worst, words, row.views))
            if is_open:
                lines += [_run_line(view, 1, report) for view in row.views]
        else:
            lines.append(_run_line(row, 0, report))
    return lines


def _run_line(view: RunView, depth: int, report: StatusReport | None) -> RunLine:
    """The state, and beside it progress while it runs and the last value of the metric."""
    words = [state_word(view.state)]
    summary = report.summaries.get(view.name) if report is not None else None
    if summary is not None and report is not None:
        fraction = summary.progress.fraction if summary.progress is not None else None
        words += [f"{int(100 * fraction)}%"] if fraction is not None and view.state == "running" else []
        value = last_value(summary, report.metric)
        words += [format_number(value)] if value is not None else []
    return RunLine(view.name, "  " * depth + view.name, view.state, " ".join(words), [view], depth)


def seed_group_lines(views: Sequence[RunView], report: StatusReport, sort: str | None) -> list[RunLine]:
    """A line for each setting: its parameters, and the metric as mean over seeds; `*` marks the best. Pure."""
    table, metric = group_table(views, report.summaries, report.metric, sort), report.metric
    by_name = {view.name: view for view in views}
    best = best_group(table.groups, metric)
    short = short_param_names(table.params)
    lines = []
    for group in table.groups:
        members = [by_name[run.name] for run in group.runs]
        found = group.metrics.get(metric.name) if metric is not None else None
        word = f"{format_mean(found)} {found.size if found else 0}/{len(members)}{' *' if group is best else ''}"
        params = " ".join(f"{short[name]}={format_param(group.params.get(name))}" for name in table.params)
        worst = min(count_states(members), key=_rank)
        lines.append(RunLine(group.name, params or group.name, worst, word, members))
    return lines


def seed_group_text(line: RunLine, report: StatusReport, width: int) -> list[str]:
    """What a setting's runs have reached, seed by seed."""
    name = report.metric.name if report.metric is not None else "no metrics"
    lines = [f"{safe_line(line.key)}   {safe_line(name)}", ""]
    for view in line.views:
        summary = report.summaries.get(view.name, RunSummary())
        seed = "-" if summary.seed is None else str(summary.seed)
        last, best = last_value(summary, report.metric), best_value(summary, report.metric)
        best_text = f"  best {format_number(best)}" if best is not None else ""
        lines.append(f"seed {seed:<4} {state_word(view.state):<12} {format_number(last):>9}{best_text}")
    return lines


class RunList(ScrollView, can_focus=True):
    """Moves with j, k, arrows, page keys, home and end; tells which line is under the cursor."""

    BINDINGS = [  # noqa: RUF012 (textual's own form)
        Binding("down,j", "move(1)", "next", show=False),
        Binding("up,k", "move(-1)", "previous", show=False),
        Binding("pagedown", "move(15)", show=False),
        Binding("pageup", "move(-15)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
    ]
    cursor = reactive(0, init=False)

    class Moved(Message):
        """The cursor is on another line, or that line has changed."""

        def __init__(self, line: RunLine | None) -> None:
            super().__init__()
            self.line = line

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.lines: list[RunLine] = []
        self.table: ListColumns | None = None

    @property
    def current(self) -> RunLine | None:
        return self.lines[self.cursor] if 0 <= self.cursor < len(self.lines) else None

    def put(self, lines: Sequence[RunLine], table: ListColumns | None = None) -> None:
        """Show these lines, runs with the cells of `table`; the cursor stays on the run it was on, wherever that is
        now."""
        self.table = table
        key = self.current.key if self.current else None
        self.lines = list(lines)
        self.virtual_size = Size(self.size.width, len(self.lines))
        place = next(
            (at for at, line in enumerate(self.lines) if line.key == key), min(self.cursor, len(self.lines) - 1)
        )
        self.cursor = max(0, place)
        self.refresh()
        self.post_message(self.Moved(self.current))

    def action_move(self, step: int) -> None:
        if self.lines:
            self.cursor = max(0, min(len(self.lines) - 1, self.cursor + step))

    def watch_cursor(self) -> None:
        self.scroll_to_region(Region(0, self.cursor, 1, 1), animate=False, immediate=True)
        self.refresh()
        self.post_message(self.Moved(self.current))

    def render_line(self, y: int) -> Strip:
        at = y + self.scroll_offset.y
        width = self.size.width
        if at >= len(self.lines):
            return Strip.blank(width)
        line = self.lines[at]
        word = line.word
        room = min(max(10, len(word)), max(10, width // 2 + 3))
        if self.table is not None and len(line.views) == 1:
            word = fit_cell(state_word(line.state), STATE_WIDTH) + self.table.cells(line.views[0])
            room = STATE_WIDTH + self.table.width
        is_key = line.text.endswith(line.key)
        lead = line.text[: len(line.text) - len(line.key)] if is_key else ""
        shown = line.key if is_key else line.text
        name = lead + fit_cell_end(safe_line(shown), max(6, width - room - 2 - len(lead)))
        here = at == self.cursor
        base = Style(reverse=here and self.has_focus, bold=here)
        colour = base + Style(color=_COLOURS[state_code(line.state)])
        mark = ">" if here else " "
        return Strip(
            [Segment(f"{mark}{name} ", base), Segment(fit_cell(safe_line(word), room), colour)]
        ).adjust_cell_length(width)
