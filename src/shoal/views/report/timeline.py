"""Attempts laid over the GPUs that they held, as a Gantt chart needs it: one lane per GPU, gaps are idle. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from shoal.units import natural_sort_key
from shoal.views import timeline as drawn
from shoal.views.report.history import AttemptHistory


class AttemptBar(NamedTuple):
    """One attempt on one lane."""

    lane: str
    run: str
    attempt: int
    start: float
    end: float
    state: str


class GpuLane(NamedTuple):
    name: str
    bars: list[AttemptBar]
    busy: float


def attempt_lanes(tries: Sequence[AttemptHistory]) -> list[GpuLane]:
    """One lane per GPU of a host (per place, where no GPU was asked for), filled in order of time.

    Slurm does not tell which of a host's GPUs a run had, so the lowest ones that are free are taken; GPUs of further
    nodes of a run are lanes of their own.
    """
    free: dict[str, list[float]] = {}
    found: dict[str, list[AttemptBar]] = {}
    for one in sorted(tries, key=lambda one: (one.begin, one.run)):
        for node in range(one.asked.nodes):
            host = _host_name(one, node)
            ends = free.setdefault(host, [])
            for _ in range(max(1, one.asked.gpus)):
                at = next((place for place, end in enumerate(ends) if end <= one.begin + 1e-3), None)
                if at is None:
                    ends.append(0.0)
                    at = len(ends) - 1
                ends[at] = one.end
                name = f"{host}:{at}"
                found.setdefault(name, []).append(AttemptBar(name, one.run, one.attempt, one.begin, one.end, one.state))
    begin, end = time_span(tries)
    length = max(1e-9, end - begin)
    return [
        GpuLane(name, bars, min(1.0, sum(bar.end - bar.start for bar in bars) / length))
        for name, bars in sorted(found.items(), key=lambda item: natural_sort_key(item[0]))
    ]


def _host_name(one: AttemptHistory, node: int) -> str:
    """The name of a run's n-th node: as it told itself, else by its place behind the first."""
    told = [use.host for use in one.use.nodes if use.host] if one.use else []
    if node == 0:
        return told[0] if told else one.host
    return told[node] if len(set(told)) == one.asked.nodes else f"{one.host}+{node}"


def lanes_timeline(lanes: Sequence[GpuLane]) -> drawn.Timeline:
    """The same as it is drawn."""
    bars = [drawn.TimelineBar(*bar) for lane in lanes for bar in lane.bars]
    return drawn.Timeline(bars, min((b.start for b in bars), default=0.0), max((b.end for b in bars), default=0.0))


def time_span(tries: Sequence[AttemptHistory]) -> tuple[float, float]:
    """From the first start to the last end."""
    return (min(one.begin for one in tries), max(one.end for one in tries)) if tries else (0.0, 0.0)


def lane_text(lane: GpuLane, begin: float, end: float, width: int) -> str:
    """A lane as text: letters that change from bar to bar, x where it ended badly, dots where nothing ran."""
    cells = ["."] * width
    length = max(1e-9, end - begin)
    for number, bar in enumerate(lane.bars):
        first = int((bar.start - begin) / length * width)
        last = max(first + 1, round((bar.end - begin) / length * width))
        letter = "#="[number % 2]
        for at in range(first, min(last, width)):
            cells[at] = letter
        if bar.state not in ("done", "running", "stopped"):
            cells[min(last, width) - 1] = "x"
    return "".join(cells)


def axis_ticks(begin: float, end: float, count: int) -> list[str]:
    """Moments for an axis, as fine as its length asks for; the first says the day."""
    length = end - begin
    form = "%H:%M:%S" if length < 7200 else "%H:%M" if length < 72000 else "%m-%d %H:%M"
    moments = [time.localtime(begin + length * at / (count - 1)) for at in range(count)]
    day = "" if form.startswith("%m") else "%m-%d "
    return [time.strftime(day + form, moments[0]), *(time.strftime(form, moment) for moment in moments[1:])]
