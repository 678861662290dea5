"""Runs in a notebook: the HTML of a run and of several, and a live view that needs no extra package."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.model import ENDED_STATES, FAILED_STATES, RUN_STATES

if TYPE_CHECKING:
    from shoal.functions.run_handle import Run, Runs

_COLOURS = {"completed": "#2a7d2a", "running": "#1f5fbf", "failed": "#b22222"}
_MAX_ROWS = 60
_LOG_LINES = 5
_LEFT = 'style="text-align:left"'


def run_html(run: Run) -> str:
    """A run: name, state, reason, parameters, output directory, and the last lines of its log if it failed."""
    view = run.refresh().view
    rows = [("state", _badge(view.state)), ("reason", _text(view.reason or ""))]
    rows += [
        (_text(name), _text(value)) for name, value in [*run.params.items(), ("seed", run.seed)] if value is not None
    ]
    if view.output_dir:
        path = _text(view.output_dir)
        rows.append(("output", f'<a href="file://{path}">{path}</a>'))
    table = "".join(
        f"<tr><td>{name}</td><td style='text-align:left'>{value}</td></tr>" for name, value in rows if value
    )
    log = run.logs(tail=_LOG_LINES) if view.state in FAILED_STATES else ""
    more = f"<pre>{_text(log)}</pre>" if log else ""
    return f"<div><b>{_text(run.name)}</b><table>{table}</table>{more}</div>"


def runs_html(runs: Runs) -> str:
    """Several runs: how many are in each state, and a row for each."""
    runs.refresh()
    shown = runs[:_MAX_ROWS]
    names = list(dict.fromkeys(name for run in shown for name in run.params))
    head = "".join(f"<th>{_text(name)}</th>" for name in ["run", "state", *names, "seed", "reason"])
    body = "".join(
        "<tr>"
        + f"<td {_LEFT}>{_text(run.name)}</td><td>{_badge(run.state)}</td>"
        + "".join(f"<td>{_text(run.params.get(name, ''))}</td>" for name in names)
        + f"<td>{'' if run.seed is None else run.seed}</td><td {_LEFT}>{_text(run.view.reason or '')}</td>"
        + "</tr>"
        for run in shown
    )
    left = f"<p>and {len(runs) - _MAX_ROWS} more</p>" if len(runs) > _MAX_ROWS else ""
    return f"<div><p>{_counts_html(runs)}</p><table><tr>{head}</tr>{body}</table>{left}</div>"


def _counts_html(runs: Runs) -> str:
    return " · ".join(f"{count} {_badge(state)}" for state, count in count_states(runs).items())


def count_states(runs: Iterable[Run]) -> dict[str, int]:
    """How many runs are in each state, in the order of the states."""
    found: dict[str, int] = {}
    for run in runs:
        found[run.state] = found.get(run.state, 0) + 1
    return {state: found[state] for state in RUN_STATES if state in found}


def _badge(state: str) -> str:
    colour = _COLOURS.get("failed" if state in FAILED_STATES else state, "#555")
    return f'<span style="color:{colour}">{_text(state)}</span>'


def _text(value: Any) -> str:
    return html.escape(str(value))


def progress(runs: Iterable[Run], timeout: float | None = None) -> Runs:
    """Show how many runs have ended until all have: in a notebook as a line that is updated in its place, elsewhere on
    standard error if that is a terminal. Returns the runs; the one function of the API that shows something."""
    from shoal.functions.run_handle import Runs, as_completed

    found = Runs(runs)
    line = _ProgressLine()
    begin = time.monotonic()
    found.refresh()
    line.show(found, begin)
    for run in as_completed(found, timeout):
        if run.state not in ENDED_STATES:
            run.refresh()
        line.show(found, begin)
    line.close()
    return found


class _ProgressLine:
    """A line that is rewritten: a display of IPython, or the last line of a terminal."""

    def __init__(self) -> None:
        self._display = _ipython_display()
        self._is_terminal = self._display is None and sys.stderr.isatty()

    def show(self, runs: Runs, begin: float) -> None:
        ended = sum(run.state in ENDED_STATES for run in runs)
        elapsed = f"{time.monotonic() - begin:.0f} s"
        if self._display is not None:
            bar = f'<progress value="{ended}" max="{len(runs)}"></progress>'
            text = f"{bar} {ended}/{len(runs)} · {_counts_html(runs)} · {elapsed}"
            self._display.update({"text/html": text, "text/plain": f"{ended}/{len(runs)} {elapsed}"}, raw=True)
        elif self._is_terminal:
            counts = ", ".join(f"{count} {state}" for state, count in count_states(runs).items())
            sys.stderr.write(f"\r\x1b[K{ended}/{len(runs)} {counts} {elapsed}")
            sys.stderr.flush()

    def close(self) -> None:
        if self._is_terminal:
            sys.stderr.write("\n")


def _ipython_display() -> Any:
    """The handle of a new display, or None outside of a notebook."""
    if "IPython" not in sys.modules:
        return None
    shell = import_module("IPython").get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)
