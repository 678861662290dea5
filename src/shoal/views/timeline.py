"""The timeline: which attempt ran where and when. A lane for each GPU or slot, bars for attempts; gaps are idle time.

One record for every view: `shoal pack` and `shoal report` print it as text, the page of a report shows it, and
timeline_picture.py draws it for papers and slides. A run that still runs is a bar that ends now.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from shoal.kernel import layout, list_names
from shoal.model import FAILED_STATES
from shoal.observe import AssignedResources, DamagedRecord, run_files
from shoal.units import natural_sort_key
from shoal.views.render import fit_cell, safe_line
from shoal.views.report.accounting import AttemptHistory

_MAX_LABEL = 28


class TimelineBar(NamedTuple):
    """One attempt on one lane. `share` is its part of the lane: below 1 others may run beside it. `busy` is the mean
    utilisation of its GPUs, from 0 to 1; None: not measured."""

    lane: str
    run: str
    attempt: int
    start: float
    end: float
    state: str
    share: float = 1.0
    busy: float | None = None


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

    def by_lane(self) -> dict[str, list[TimelineBar]]:
        found: dict[str, list[TimelineBar]] = {lane: [] for lane in self.lanes}
        for bar in self.bars:
            found[bar.lane].append(bar)
        return found

    def occupied_fraction(self, bars: Iterable[TimelineBar]) -> float:
        """The part of the whole time that the bars of one lane cover."""
        return min(1.0, sum((bar.end - bar.start) * bar.share for bar in bars) / max(1e-9, self.makespan_s))

    def busy_fraction(self, bars: Sequence[TimelineBar]) -> float | None:
        """The measured utilisation of one lane over the whole time; None if none of its bars was measured."""
        known = [(bar.end - bar.start) * bar.share * bar.busy for bar in bars if bar.busy is not None]
        return min(1.0, sum(known) / max(1e-9, self.makespan_s)) if known else None

    def since(self, t: float) -> Timeline:
        """What began at that time or later."""
        return make_timeline(bar for bar in self.bars if bar.start >= t)

    def record(self) -> dict[str, Any]:
        return {
            "timeline": [{key: value for key, value in bar._asdict().items() if key != "busy"} for bar in self.bars],
            "makespan_s": round(self.makespan_s, 3),
            "busy_s": round(self.busy_s, 3),
            "idle_s": round(self.idle_s, 3),
            "lanes": self.lanes,
        }


def make_timeline(bars: Iterable[TimelineBar]) -> Timeline:
    """From the first start to the last end."""
    ordered = sorted(bars, key=lambda bar: (bar.start, bar.run))
    begin = min((bar.start for bar in ordered), default=0.0)
    return Timeline(ordered, begin, max((bar.end for bar in ordered), default=0.0))


def pack_timeline(home: str, names: Iterable[str], now: float) -> Timeline:
    """The attempts of these runs that held a slot of a pack, on the lanes that they held."""
    return make_timeline([bar for name in names for bar in _pack_bars(home, name, now)])


def _pack_bars(home: str, name: str, now: float) -> list[TimelineBar]:
    folder = layout.run_dir(home, name)
    numbers = layout.parse_names(list_names(folder))
    bars: list[TimelineBar] = []
    for number in numbers.attempts.get("start", []):
        try:
            start = run_files.read_start(folder, number)
            end = run_files.read_end(folder, numbers, number)
        except DamagedRecord:
            continue
        if start is None or start.held is None:
            continue
        state = "running" if end is None else ("completed" if end.success else "failed")
        if end is not None and end.stopped_by:
            state = "stopped"
        begin, last = (end.began, end.ended) if end is not None else (start.t, now)
        held = start.held
        share = held.share if held.gpus and held.share < 1 else 1.0
        lanes = held_lanes(held.host or start.node or start.host, held)
        bars += [TimelineBar(lane, name, number, begin, max(begin, last), state, share) for lane in lanes]
    return bars


def held_lanes(host: str, held: AssignedResources) -> list[str]:
    """The GPUs that a run of a pack held, or its slot."""
    return [f"{host}:gpu{gpu}" for gpu in held.gpus] or [f"{host}:{held.slot}"]


def attempts_timeline(attempts: Sequence[AttemptHistory]) -> Timeline:
    """One lane per GPU of a host (per place, where no GPU was asked for), filled in order of time.

    Slurm does not tell which of a host's GPUs a run had, so the lowest ones that are free are taken; GPUs of further
    nodes of a run are lanes of their own. A GPU of a pack is one lane, however many runs shared it.
    """
    ends_of: dict[str, list[float]] = {}
    lane_of: dict[tuple[str, str], int] = {}
    last_ends: dict[tuple[str, str], float] = {}
    for attempt in attempts:
        for key in _pack_places(attempt):
            last_ends[key] = max(last_ends.get(key, 0.0), attempt.end)
    bars: list[TimelineBar] = []
    for attempt in sorted(attempts, key=lambda attempt: (attempt.begin, attempt.run)):
        use = attempt.use.mean_gpu_percent if attempt.use else None
        busy = None if use is None else use / 100
        about = (attempt.run, attempt.attempt, attempt.begin, attempt.end, attempt.state, attempt.share, busy)
        for key in _pack_places(attempt):
            if key not in lane_of:
                lane_of[key] = _take_lane(ends_of.setdefault(attempt.host, []), attempt.begin, last_ends[key])
            bars.append(TimelineBar(f"{attempt.host}:{lane_of[key]}", *about))
        for node in range(attempt.asked.nodes if attempt.held is None else 0):
            host = _host(attempt, node)
            for _ in range(max(1, attempt.asked.gpus)):
                lane = _take_lane(ends_of.setdefault(host, []), attempt.begin, attempt.end)
                bars.append(TimelineBar(f"{host}:{lane}", *about))
    return make_timeline(bars)


def _pack_places(attempt: AttemptHistory) -> list[tuple[str, str]]:
    """GPUs, or the slot, that a run of a pack held; (job, name), as jobs may give the same name to different GPUs."""
    if attempt.held is None:
        return []
    return [(attempt.allocation or attempt.job, lane) for lane in held_lanes(attempt.host, attempt.held)]


def _take_lane(ends: list[float], begin: float, end: float) -> int:
    """The lowest lane that is free, which is then taken until `end`."""
    at = next((place for place, last in enumerate(ends) if last <= begin + 1e-3), len(ends))
    ends[at:] = [end, *ends[at + 1 :]]
    return at


def _host(attempt: AttemptHistory, node: int) -> str:
    """The name of a run's n-th node: as it reports itself, else by its place behind the first."""
    hosts = [use.host for use in attempt.use.nodes if use.host] if attempt.use else []
    if node == 0:
        return hosts[0] if hosts else attempt.host
    return hosts[node] if len(set(hosts)) == attempt.asked.nodes else f"{attempt.host}+{node}"


def text_lines(timeline: Timeline, width: int, max_lanes: int | None = None) -> list[str]:
    """A line for each lane: # and = change from attempt to attempt, x where one failed, dots where nothing ran.
    Below them the time of day at both ends."""
    by_lane = timeline.by_lane()
    label_width = min(_MAX_LABEL, max((len(lane) for lane in by_lane), default=0))
    uses = {lane: use_text(timeline, bars) for lane, bars in by_lane.items()}
    room = max(20, min(100, width - label_width - 5 - max(map(len, ["100% occupied", *uses.values()]))))
    lines = [
        f"{fit_cell(safe_line(lane), label_width)} |{_cells(timeline, bars, room)}|  {uses[lane]}"
        for lane, bars in list(by_lane.items())[:max_lanes]
    ]
    if max_lanes is not None and len(by_lane) > max_lanes:
        lines.append(f"and {len(by_lane) - max_lanes} more; --html shows them all")
    first, last = clock_marks(timeline, 2)
    return [*lines, f"{' ' * label_width}  {first}{last.rjust(room - len(first))}"]


def share_rows(bars: Sequence[TimelineBar]) -> list[int]:
    """For each bar of a lane, which of the parts of it that are as high as its share it takes: the first free one."""
    ends: list[float] = []
    return [_take_lane(ends, bar.start, bar.end) % max(1, round(1 / bar.share)) for bar in bars]


def use_text(timeline: Timeline, bars: Sequence[TimelineBar]) -> str:
    """How much of the time a run had the lane, and where it was measured how busy that was."""
    busy = timeline.busy_fraction(bars)
    return f"{timeline.occupied_fraction(bars):.0%} occupied" + ("" if busy is None else f", {busy:.0%} busy")


def _cells(timeline: Timeline, bars: Sequence[TimelineBar], room: int) -> str:
    cells = ["."] * room
    scale = room / max(1e-9, timeline.makespan_s)
    for number, bar in enumerate(bars):
        first = min(room - 1, int((bar.start - timeline.begin) * scale))
        last = min(room, max(first + 1, round((bar.end - timeline.begin) * scale)))
        cells[first:last] = ["#="[number % 2]] * (last - first)
        if bar.state in FAILED_STATES:
            cells[last - 1] = "x"
    return "".join(cells)


def clock_marks(timeline: Timeline, count: int) -> list[str]:
    """Times of day for an axis, as fine as its length asks for; the first says the day."""
    length = timeline.makespan_s
    form = "%H:%M:%S" if length < 7200 else "%H:%M" if length < 72000 else "%m-%d %H:%M"
    moments = [time.localtime(timeline.begin + length * at / (count - 1)) for at in range(count)]
    day = "" if form.startswith("%m") else "%m-%d "
    return [time.strftime(day + form, moments[0]), *(time.strftime(form, moment) for moment in moments[1:])]
