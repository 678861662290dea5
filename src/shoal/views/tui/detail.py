"""What the right half shows about a run: log, errors, metrics, script, events. Text only; reads the ends of files."""

from __future__ import annotations

import time

from shoal.kernel import read_metrics, read_series
from shoal.observe import DamagedRecord, RunReader, RunView, find_output
from shoal.units import format_duration
from shoal.views import usage
from shoal.views.details import RunDetails
from shoal.views.events import run_events
from shoal.views.faults import find_error
from shoal.views.log_parts import first_nonempty, rank_logs
from shoal.views.render import safe_line, text_bar
from shoal.views.tail import last_text
from shoal.views.terminal_text import strip_control_sequences

TABS = ("log", "errors", "metrics", "script", "events")
_SPARK = "▁▂▃▄▅▆▇█"


def tab_text(tab: str, home: str, view: RunView, details: RunDetails, width: int = 60, part: int = 0) -> list[str]:
    """The lines of one tab, harmless for a terminal. `part` counts the ranks and replicas of the log."""
    if tab == "log":
        lines = _log_tab(view, part)
    else:
        lines = {"errors": _errors_tab, "metrics": _metrics_tab, "script": _script_tab, "events": _events_tab}[tab](
            home, view, details, width
        )
    return [strip_control_sequences(line.expandtabs(4), colour=False) for line in lines]


def _log_tab(view: RunView, turn: int) -> list[str]:
    if not view.log_dir or not view.attempt:
        return ["it has not started yet"]
    found = rank_logs(view.log_dir, view.attempt)
    place = (first_nonempty(found) + turn) % len(found)
    head = [f"--- {found[place].label}, {place + 1} of {len(found)}; l shows the next ---"] if len(found) > 1 else []
    return [*head, *(last_text(found[place].tries[-1], 400) or ["nothing was printed yet"])]


def _errors_tab(home: str, view: RunView, details: RunDetails, width: int) -> list[str]:
    fault = find_error(home, view)
    return [fault.line, "", *fault.window] if fault.window else [view.cause or "no error was found in its log"]


def _metrics_tab(home: str, view: RunView, details: RunDetails, width: int) -> list[str]:
    lines = []
    sample = usage.read_usage(home, view.name, view.attempt) if view.attempt else None
    if details.progress is not None:
        part = details.progress.fraction
        lines.append(f"progress {details.progress.words}" + (f" {text_bar(part, 20)}" if part is not None else ""))
    for node in sample.nodes if sample else ():
        lines += _node_use(node, node.host or view.node or "here", width)
    output = find_output(home, view) if view.output_dir else None
    for name, points in read_series(output).items() if output else ():
        values = [value for _, value in points]
        lines.append(f"{safe_line(name)[:14]:<14} {sparkline(values, width - 30)} {values[-1]:.4g}")
    if output and view.state == "done":
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
    parts = [view.state, view.cause or (details.progress.words if details.progress else "")]
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
