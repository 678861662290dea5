"""The columns of the list of runs: those of `status`, as many as fit beside the names.

Widths come from the first runs of the list; cells are made when a line is drawn, so that a long list costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal.describe import ColumnSetting
from shoal.observe import RunSummary, RunView
from shoal.views.columns import ColumnInput, ColumnSource, StatusColumn, choose_columns
from shoal.views.details import RunDetails
from shoal.views.render import cell_width, fit_cell, safe_line
from shoal.views.run_table import best_run
from shoal.views.status import StatusReport

#: What the title and the tabs beside the list tell, or the colour of a line.
_BESIDE = frozenset({"run", "state", "reason", "job", "node", "log", "output", "attempt", "time"})
_SAMPLE = 300
_MIN_NAME = 24
_MAX_CELL = 14


class ListColumns(NamedTuple):
    """The columns that fit, each with its width; `best` is the run that is marked."""

    report: StatusReport
    columns: tuple[StatusColumn, ...] = ()
    widths: tuple[int, ...] = ()
    best: str | None = None

    @property
    def width(self) -> int:
        return sum(self.widths) + 2 * len(self.widths)

    @property
    def header(self) -> str:
        headers = (column.header for column in self.columns)
        return "".join(
            f"  {fit_cell(safe_line(text), width)}" for text, width in zip(headers, self.widths, strict=True)
        )

    def cells(self, view: RunView) -> str:
        """The cells of a run as one text of `width` characters."""
        cells = zip(self.columns, self.widths, strict=True)
        return "".join(f"  {fit_cell(self._cell(column, view), width)}" for column, width in cells)

    def _cell(self, column: StatusColumn, view: RunView) -> str:
        report = self.report
        details = report.details.get(view.name, RunDetails())
        summary = report.summaries.get(view.name, RunSummary())
        text = column.text(ColumnInput(view, details, report.now, True, summary, report.metric, True))
        return safe_line(text + (" *" if column.name == "last" and view.name == self.best else ""))


def list_columns(
    views: Sequence[RunView], report: StatusReport, settings: Sequence[ColumnSetting], width: int
) -> ListColumns:
    """The columns that fit a list of this width; the least telling ones go first, and those without a value."""
    wanted = choose_columns(settings, ColumnSource(report.summaries, report.metric))
    best = best_run(report.summaries, report.metric)
    table = ListColumns(report, best=best)
    kept: list[tuple[StatusColumn, int]] = []
    for column in wanted:
        cells = [table._cell(column, view) for view in views[:_SAMPLE]] if column.name not in _BESIDE else []
        if any(cell not in ("-", "") for cell in cells):
            widest = max(cell_width(cell) for cell in (safe_line(column.header), *cells))
            kept.append((column, min(widest, _MAX_CELL)))
    while kept and sum(size + 2 for _, size in kept) > width - _MIN_NAME:
        kept.remove(max(kept, key=lambda one: one[0].gives_way))
    return table._replace(columns=tuple(one for one, _ in kept), widths=tuple(size for _, size in kept))
