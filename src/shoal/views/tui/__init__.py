"""The full-screen view of `shoal watch` (extra `tui`): a list, a detail with tabs, a filter, and two actions.

app.py    the application
panes.py  the list of runs, and what the tabs show about one run
"""

from __future__ import annotations

from shoal.views.status import StatusFilter


def run_app(home: str, wanted: StatusFilter, *, everything: bool = False) -> int:
    """Run it until the person quits. Needs a terminal; the caller has checked."""
    from shoal.views.tui.app import WatchApp

    WatchApp(home, wanted, everything=everything).run(mouse=True)
    return 0
