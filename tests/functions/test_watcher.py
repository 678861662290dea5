"""How often the watcher looks."""

from __future__ import annotations

from shoal.functions.watcher import pause_after


def test_looks_are_close_together_where_they_cost_little_and_apart_where_they_cost_much() -> None:
    assert pause_after(look_s=0.00001, quiet_s=59) == 0.1
    assert pause_after(look_s=0.00001, quiet_s=86_400) == 0.25, "a result of a day's run is seen as soon"
    assert pause_after(look_s=0.01, quiet_s=1) == 0.5, "2 % of the time"
    assert pause_after(look_s=3, quiet_s=1) == 2
