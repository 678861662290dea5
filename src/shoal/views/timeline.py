"""What ran where and when, from the records of the runs: a lane for each GPU or slot, gaps are idle time.

Readable at any moment: a run that is still going is a bar that ends now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from shoal.kernel import layout, list_names
from shoal.observe import DamagedRecord, records
from shoal.units import natural_sort_key


class TimelineBar(NamedTuple):
    """One attempt on one lane. `share` is its part of the lane: below 1 others may run beside it."""

    lane: str
    run: str
    attempt: int
    start: float
    end: float
    state: str
    share: float = 1.0


class Timeline(NamedTuple):
    """All attempts of some runs, and what they leave idle. Times are Unix seconds."""

    bars: list[TimelineBar]
    begin: float
    end: float

    @property
    def lanes(self) -> list[str]:
        return sorted({bar.lane for bar in self.bars}, key=natural_sort_key)

    @property
    def lane_word(self) -> str:
        """What a lane is."""
        return "GPU" if all(":gpu" in lane for lane in self.lanes) else "slot"

    @property
    def makespan_s(self) -> float:
        return max(0.0, self.end - self.begin)

    @property
    def busy_s(self) -> float:
        """Lane-seconds in use; shares count for their part."""
        return sum((bar.end - bar.start) * bar.share for bar in self.bars)

    @property
    def idle_s(self) -> float:
        return max(0.0, len(self.lanes) * self.makespan_s - self.busy_s)

    def since(self, t: float) -> Timeline:
        """What began at that time or later."""
        return make_timeline(bar for bar in self.bars if bar.start >= t)

    def record(self) -> dict[str, Any]:
        return {
            "timeline": [bar._asdict() for bar in self.bars],
            "makespan_s": round(self.makespan_s, 3),
            "busy_s": round(self.busy_s, 3),
            "idle_s": round(self.idle_s, 3),
            "lanes": self.lanes,
        }


def read_timeline(home: str, names: Iterable[str], now: float) -> Timeline:
    """The attempts of these runs that held a slot of a pack."""
    return make_timeline([bar for name in names for bar in _run_bars(home, name, now)])


def make_timeline(bars: Iterable[TimelineBar]) -> Timeline:
    """From the first start to the last end."""
    found = sorted(bars, key=lambda bar: (bar.start, bar.run))
    begin = min((bar.start for bar in found), default=0.0)
    return Timeline(found, begin, max((bar.end for bar in found), default=0.0))


def _run_bars(home: str, name: str, now: float) -> list[TimelineBar]:
    folder = layout.run_dir(home, name)
    numbers = layout.parse_names(list_names(folder))
    found: list[TimelineBar] = []
    for number in numbers.attempts.get("start", []):
        try:
            start = records.read_start(folder, number)
            end = records.read_end(folder, numbers, number)
        except DamagedRecord:
            continue
        if start is None or start.held is None:
            continue
        state = "running" if end is None else ("done" if end.success else "failed")
        if end is not None and end.stopped_by:
            state = "stopped"
        begin, last = (end.began, end.ended) if end is not None else (start.t, now)
        held = start.held
        host = held.host or start.node or start.host
        lanes = [f"{host}:gpu{gpu}" for gpu in held.gpus] or [f"{host}:{held.slot}"]
        share = held.share if held.gpus and held.share < 1 else 1.0
        found += [TimelineBar(lane, name, number, begin, max(begin, last), state, share) for lane in lanes]
    return found


def has_several_hosts(lanes: Sequence[str]) -> bool:
    return len({lane.rpartition(":")[0] for lane in lanes}) > 1
