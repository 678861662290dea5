"""The full-screen view of `shoal watch` (extra `tui`): a list, a detail with tabs, a filter, and two actions.

app.py    the application
panes.py  the list of runs, and what the tabs show about one run
table.py  the columns of the list
"""

from __future__ import annotations

from shoal.observe import ObserveRuns, observe
from shoal.views.status import StatusFilter
from shoal.views.table_choice import TableChoice


def run_app(
    home: str,
    wanted: StatusFilter,
    *,
    everything: bool = False,
    choice: TableChoice | None = None,
    observe_runs: ObserveRuns = observe,
) -> int:
    """Run it until the person quits. Needs a terminal; the caller has checked."""
    from shoal.views.tui.app import WatchApp

    WatchApp(home, wanted, everything=everything, choice=choice, observe_runs=observe_runs).run(mouse=True)
    return 0
