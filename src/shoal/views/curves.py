"""Curves of many runs, small enough to draw and honest about what was left out; means over seeds.

    reader = CurveReader(home)
    found = reader.read(views, ["val_loss"])          # what is new since the last call is added
    xs, ys = found.runs[view.name]["val_loss"].points("step")

A curve keeps the lowest and the highest value of each stretch of its points, and where a value was no number. It never
holds more than about a thousand points, however long a run writes: when there are too many, stretches become twice as
long. Rows come from the readers of kernel/progress.py.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from shoal.kernel import MetricRow, NewMetrics, RunOutput, find_metric_files, metric_row, metric_sources
from shoal.observe import RunView, find_output

#: What a curve can be drawn over.
AXES = ("step", "epoch", "hours", "time")
MAX_POINTS = 1000
_MAX_STRETCHES = 320
_MAX_SOURCE_BYTES = 64 << 20
#: Processor seconds for one look at many runs; the others follow at the next one.
_MAX_LOOK_S = 1.0
#: Curves that are kept between looks, all together; each takes up to 60 KB.
_MAX_KEPT_CURVES = 1200
_GRID = 300
#: Points that wait to be taken in.
_MAX_FRESH = 4096
_NAN = math.nan
#: Lines of metrics.jsonl that are decoded at once.
_BLOCK_LINES = 1000


class Curve:
    """One metric of one run. `count` values were added, NaN included; each stretch stands for `stretch` of them."""

    __slots__ = ("_columns", "_fresh", "_means", "count", "stretch")

    def __init__(self) -> None:
        self.count, self.stretch = 0, 1
        #: Of the points that are kept: their place among all, step, epoch, time and value.
        self._columns = tuple(array("d") for _ in range(5))
        #: Of each stretch: step, epoch and time of its last finite value, sum of its finite values, and their number.
        self._means: list[list[float]] = []
        self._fresh: list[tuple[float, float, float, float]] = []

    def add(self, step: float, epoch: float | None, t: float | None, value: float) -> None:
        self._fresh.append((step, _NAN if epoch is None else epoch, _NAN if t is None else t, value))
        if len(self._fresh) >= _MAX_FRESH:
            self._fold()

    def _fold(self) -> None:
        """Take the fresh points in, a stretch at a time."""
        first, self.count = self.count, self.count + len(self._fresh)
        while (self.count - 1) // self.stretch >= _MAX_STRETCHES:
            self.stretch *= 2
            self._means = [_join(self._means[at : at + 2]) for at in range(0, len(self._means), 2)]
        at = 0
        while at < len(self._fresh):
            size = self.stretch - (first + at) % self.stretch
            part = self._fresh[at : at + size]
            values = [point[3] for point in part]
            finite = [value for value in values if value - value == 0.0]
            kept = {values.index(min(finite)), values.index(max(finite))} if finite else set()
            if len(finite) < len(values):
                kept.add(next(index for index, value in enumerate(values) if value - value != 0.0))
            if at + size >= len(self._fresh):
                kept.add(len(part) - 1)
            for index in sorted(kept):
                self._keep(first + at + index, *part[index])
            self._add_mean((first + at) // self.stretch, part, finite)
            at += size
        self._fresh = []
        if len(self._columns[0]) > MAX_POINTS:
            self._thin()

    def _keep(self, *point: float) -> None:
        for column, number in zip(self._columns, point, strict=True):
            column.append(number)

    def _add_mean(self, stretch: int, part: list[tuple[float, float, float, float]], finite: list[float]) -> None:
        if stretch >= len(self._means):
            self._means.append([*part[0][:3], 0.0, 0])
        if finite:
            last = next(point for point in reversed(part) if point[3] - point[3] == 0.0)
            before = self._means[-1]
            self._means[-1] = [*last[:3], before[3] + math.fsum(finite), before[4] + len(finite)]

    def _thin(self) -> None:
        """Keep of each stretch its lowest and highest value and the first that is no number; the last point stays."""
        place, value = self._columns[0], self._columns[4]
        kept: list[int] = []
        stretch, low, high, nan = -1.0, -1, -1, -1
        for index in range(len(place)):
            if place[index] // self.stretch != stretch:
                kept += sorted({one for one in (low, high, nan) if one >= 0})
                stretch, low, high, nan = place[index] // self.stretch, -1, -1, -1
            if value[index] - value[index] != 0.0:
                nan = index if nan < 0 else nan
            else:
                low = index if low < 0 or value[index] < value[low] else low
                high = index if high < 0 or value[index] > value[high] else high
        kept += sorted({one for one in (low, high, nan, len(place) - 1) if one >= 0})
        self._columns = tuple(array("d", (column[index] for index in kept)) for column in self._columns)

    def points(
        self, axis: str = "step", began: float | None = None, max_points: int = MAX_POINTS
    ) -> tuple[list[float], list[float | None]]:
        """x and y of what is drawn; y is None where the value was no number. Points without such an x are left out,
        so both are empty where the run does not tell it. `hours` count from `began`, else from the first point."""
        self._fold()
        xs = self._axis(axis, began, *self._columns[1:4])
        values = (value if value - value == 0.0 else None for value in self._columns[4])
        pairs = [(x, value) for x, value in zip(xs, values, strict=True) if x == x]
        pairs = _thin_pairs(pairs, max_points)
        return [x for x, _ in pairs], [y for _, y in pairs]

    def means(self, axis: str = "step", began: float | None = None) -> tuple[list[float], list[float]]:
        """The mean of each stretch at its last x, sorted by x: of a short curve, every finite value itself."""
        self._fold()
        xs = self._axis(axis, began, *(array("d", (mean[at] for mean in self._means)) for at in range(3)))
        found = {x: mean[3] / mean[4] for x, mean in zip(xs, self._means, strict=True) if x == x and mean[4]}
        return sorted(found), [found[x] for x in sorted(found)]

    def _axis(
        self, axis: str, began: float | None, steps: array[float], epochs: array[float], times: array[float]
    ) -> Iterable[float]:
        if axis == "hours":
            start = began if began is not None else next((t for t in times if t == t), 0.0)
            return [(t - start) / 3600 for t in times]
        return {"step": steps, "epoch": epochs, "time": times}[axis]


def _join(means: Sequence[list[float]]) -> list[float]:
    last = next((mean for mean in reversed(means) if mean[4]), means[-1])
    return [*last[:3], sum(mean[3] for mean in means), sum(mean[4] for mean in means)]


def _thin_pairs(pairs: list[tuple[float, float | None]], most: int) -> list[tuple[float, float | None]]:
    """At most so many, again with the extremes and the gaps."""
    if len(pairs) <= most:
        return pairs
    size = -(-3 * len(pairs) // max(3, most - 1))
    kept: list[tuple[float, float | None]] = []
    for at in range(0, len(pairs), size):
        part = range(at, min(at + size, len(pairs)))
        finite = [index for index in part if pairs[index][1] is not None]
        gap = next((index for index in part if pairs[index][1] is None), None)
        chosen = {gap} if gap is not None else set()
        if finite:
            chosen |= {min(finite, key=lambda i: pairs[i][1] or 0.0), max(finite, key=lambda i: pairs[i][1] or 0.0)}
        kept += [pairs[index] for index in sorted(chosen)]
    return kept if kept[-1] == pairs[-1] else [*kept, pairs[-1]]


class MeanCurve(NamedTuple):
    """Over seeds, at each x: the mean, the standard deviation of a sample (None below two seeds) and how many seeds
    reach there."""

    x: list[float]
    mean: list[float]
    std: list[float | None]
    size: list[int]


def mean_curve(lines: Sequence[tuple[Sequence[float], Sequence[float]]]) -> MeanCurve:
    """The mean over curves with sorted x. Between its points a curve is a straight line; before its first and after its
    last point it does not count, so that a run that ended early does not go on as a constant."""
    lines = [(xs, ys) for xs, ys in lines if xs]
    grid = sorted({x for xs, _ in lines for x in xs})
    if len(grid) > _GRID:
        grid = [grid[round(at * (len(grid) - 1) / (_GRID - 1))] for at in range(_GRID)]
    found = MeanCurve([], [], [], [])
    for x in grid:
        values = [y for xs, ys in lines if (y := _value_at(xs, ys, x)) is not None]
        if values:
            found.x.append(x)
            found.mean.append(statistics.fmean(values))
            found.std.append(statistics.stdev(values) if len(values) > 1 else None)
            found.size.append(len(values))
    return found


def _value_at(xs: Sequence[float], ys: Sequence[float], x: float) -> float | None:
    if not xs[0] <= x <= xs[-1]:
        return None
    at = bisect_left(xs, x)
    if xs[at] == x:
        return ys[at]
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    return ys[at - 1] + share * (ys[at] - ys[at - 1])


class CurvesLook(NamedTuple):
    """Run -> metric -> curve. `versions`: run -> a number that grows when the run has new points. `unread`: runs that
    have not been read, because the look took too long."""

    runs: Mapping[str, Mapping[str, Curve]]
    versions: Mapping[str, int]
    unread: int


class _RunCurves:
    """The curves of one run: those of metrics.jsonl are read on, those of other files anew when a file has changed."""

    def __init__(self, output: RunOutput, names: Collection[str] | None) -> None:
        self.output, self.names, self.version = output, None if names is None else frozenset(names), 0
        self._records = NewMetrics(output.folder)
        self._own: dict[str, Curve] = {}
        self._others: dict[str, Curve] = {}
        self._rows = 0
        self._signature: object = None
        #: Of an ended run: what its directory was like when it was read.
        self.state: object = None

    def has(self, names: Collection[str] | None) -> bool:
        return self.names is None or (names is not None and self.names.issuperset(names))

    @property
    def curves(self) -> dict[str, Curve]:
        return {**self._others, **self._own}

    def read_on(self, is_over: bool) -> None:
        before = (self._rows, self._signature)
        self._read_others()
        while records := self._records.read(is_over):
            if self._records.is_anew:
                self._own, self._rows = {}, 0
            self._rows = self._add(self._own, (metric_row(record) for record in records), self._rows)
        self.version += (self._rows, self._signature) != before

    def _read_others(self) -> None:
        found = [path for paths in find_metric_files(self.output.folder) for path in paths]
        signature = [_size_and_time(path) for path in (*found, *self.output.logs)]
        if signature == self._signature:
            return
        self._signature, self._others = signature, {}
        for rows in metric_sources(self.output, _MAX_SOURCE_BYTES, summaries=False):
            fresh: dict[str, Curve] = {}
            self._add(fresh, rows, 0)
            self._others.update(fresh)

    def _add(self, curves: dict[str, Curve], rows: Iterable[MetricRow], number: int) -> int:
        for row in rows:
            step = row.step if row.step is not None else row.epoch if row.epoch is not None else float(number)
            number += 1
            for name in row.values if self.names is None else self.names & row.values.keys():
                curve = curves.get(name)
                if curve is None:
                    curve = curves[name] = Curve()
                curve.add(step, row.epoch, row.t, row.values[name])
        return number


def _size_and_time(path: str) -> tuple[str, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return path, -1, -1
    return path, found.st_size, found.st_mtime_ns


def _directory_state(folder: str) -> object:
    """Changes when somebody writes to the directory of an ended run, as a tracker that synchronizes later."""
    return [_size_and_time(path) for path in (folder, os.path.join(folder, "metrics.jsonl"))]


class CurveReader:
    """Curves of one project's runs, kept between looks; the ones that were used longest ago are forgotten first. Not
    for several threads at once."""

    def __init__(self, home: str, *, max_look_s: float = _MAX_LOOK_S) -> None:
        self._home, self._max_look_s = home, max_look_s
        self._known: dict[tuple[str, int, str | None], _RunCurves] = {}
        self._version = 0

    def read(
        self, views: Sequence[RunView], names: Collection[str] | None, cpu_clock: Callable[[], float] = time.thread_time
    ) -> CurvesLook:
        """These metrics of these runs, or all. A run without an output directory, or without them, has no curve."""
        begin, unread = cpu_clock(), 0
        runs: dict[str, dict[str, Curve]] = {}
        versions: dict[str, int] = {}
        for view in views:
            if view.output_dir is None or not view.attempt:
                continue
            key = (view.name, view.attempt, view.output_dir)
            known = self._known.pop(key, None)
            state = None if view.state == "running" else _directory_state(view.output_dir)
            is_changed = known is not None and known.state is not None and known.state != state
            if known is None or is_changed or not known.has(names):
                if cpu_clock() - begin > self._max_look_s:
                    unread += 1
                    if known is not None:
                        self._known[key] = known
                    continue
                more = {*names, *((known.names if known else None) or ())} if names is not None else None
                known = _RunCurves(find_output(self._home, view), more)
            self._known[key] = known  # the newest last
            if known.state is None or state is None:
                before = known.version
                known.read_on(state is not None)
                self._version += known.version != before
                known.version = self._version if known.version != before else before
                known.state = state
            runs[view.name] = {name: curve for name, curve in known.curves.items() if names is None or name in names}
            versions[view.name] = known.version
        self._forget({view.name for view in views})
        return CurvesLook(runs, versions, unread)

    def _forget(self, keep: Collection[str]) -> None:
        size = sum(len(one.curves) for one in self._known.values())
        for key in [key for key in self._known if key[0] not in keep]:
            if size <= _MAX_KEPT_CURVES:
                return
            size -= len(self._known.pop(key).curves)
