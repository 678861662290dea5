"""What runs are set to and have reached: parameters, seed, progress, metrics and GPU use, for tables of many runs.

A thousand runs cannot be read anew for each table. What was read of a run is kept in `.shoal/cache/`, one file per
experiment; of an ended run it is read again only when its records or its output directory have changed. One look takes
only so long: runs that have not been read by then show what was known, and are the first of the next look.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec

from shoal.kernel import (
    MetricRange,
    MetricSummary,
    Progress,
    layout,
    read_progress,
    summarize_metrics,
)
from shoal.model import RunSpec
from shoal.names import stem_without_seed
from shoal.observe import usage
from shoal.observe.cache_file import read_cache, write_cache
from shoal.observe.run_code import declared_metrics, read_code
from shoal.observe.run_files import DamagedRecord, RunReader
from shoal.observe.run_progress import run_output
from shoal.observe.run_state import RunView
from shoal.observe.settled_runs import OUTPUT_AGE_S

#: Processor seconds that one look spends on reading runs, and seconds in all where files come slowly.
_MAX_LOOK_S = 2.0
_MAX_WAIT_S = 20.0
#: A running run whose own files have not changed is read again after so long: trackers write to directories of theirs.
_MAX_AGE_S = 10.0
#: How often a process that stays writes the cache.
_SAVE_EVERY_S = 30.0


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """`metric` is the one that the run's sweep file names, with its mode; `is_trial` a smoke or replacement run.
    `code` is the word of run_code.py. `declared` are metrics that shoal.toml of `root` names for the step now.
    `gpu_percent` is the newest sample of a running run and the mean of an ended one. `key` says of which state of the
    run all this was read, at time `t`."""

    step: str = ""
    seed: int | None = None
    params: dict[str, Any] = {}
    derived: list[str] = []
    metric: dict[str, str] = {}
    is_trial: bool = False
    script: str = ""
    number: int | None = None
    work: str = ""
    starts: tuple[str, str] = ("", "")
    code: str = ""
    root: str = ""
    step_kind: str = ""
    declared: tuple[str, ...] = ()
    progress: Progress | None = None
    metrics: dict[str, MetricRange] = {}
    gpu_percent: float | None = None
    jsonl: dict[str, MetricRange] = {}
    inode: int = 0
    offset: int = 0
    key: str = ""
    t: float = 0.0


_NOTHING = RunSummary()


class _KeptSummaries(msgspec.Struct, frozen=True):
    runs: dict[str, RunSummary]
    schema: int = 2


class SummaryLook(NamedTuple):
    """`unread`: how many runs have not been read yet, because the look took too long."""

    runs: Mapping[str, RunSummary]
    unread: int


class RunSummaries:
    """Summaries of one project's runs; a view that stays open keeps one of these."""

    def __init__(self, home: str, *, max_look_s: float = _MAX_LOOK_S) -> None:
        self._home, self._max_look_s = home, max_look_s
        self._known: dict[str, dict[str, RunSummary]] = {}
        self._saved_at = float("-inf")
        self._unsaved: set[str] = set()

    def read(
        self,
        views: Sequence[RunView],
        clock: Callable[[], float] = time.time,
        unchecked: AbstractSet[str] = frozenset(),
    ) -> SummaryLook:
        """The summary of each run, as new as the time for one look allows. Of `unchecked` ones what was read when their
        output was complete has to do."""
        begin, begin_cpu = time.monotonic(), time.thread_time()
        due: list[tuple[float, RunView, str]] = []
        found: dict[str, RunSummary] = {}
        experiment, runs = "", dict[str, RunSummary]()
        for view in views:
            if not view.name.startswith(experiment) or not experiment:
                experiment = f"{view.experiment}/"
                runs = self._of(view.experiment)
            known = runs.get(view.name)
            is_unchecked = view.name in unchecked and (known is None or known.declared == _declared_now(known))
            if known is not None and is_unchecked and known.t > (view.ended or 0.0) + OUTPUT_AGE_S:
                found[view.name] = known
                continue
            key = _state_key(view)
            is_old = known is not None and view.state == "running" and not 0 <= clock() - known.t < _MAX_AGE_S
            if known is None or known.key != key or is_old or known.declared != _declared_now(known):
                due.append((known.t if known is not None else 0.0, view, key))
            elif is_unchecked:
                known = runs[view.name] = msgspec.structs.replace(known, t=clock())
                self._unsaved.add(view.experiment)
            found[view.name] = known or _NOTHING
        reader, unread = RunReader(self._home), 0
        for t, view, key in sorted(due, key=lambda one: one[0]):
            if time.thread_time() - begin_cpu > self._max_look_s or time.monotonic() - begin > _MAX_WAIT_S:
                unread += t == 0.0
                continue
            known = self._of(view.experiment).get(view.name)
            summary = msgspec.structs.replace(_read_summary(self._home, reader, view, known), key=key, t=clock())
            self._of(view.experiment)[view.name] = found[view.name] = summary
            if view.state != "running" or known is None:
                self._unsaved.add(view.experiment)
        self._save()
        return SummaryLook(found, unread)

    def _of(self, experiment: str) -> dict[str, RunSummary]:
        if experiment not in self._known:
            kept = read_cache(self._home, "summaries", experiment, _KeptSummaries)
            self._known[experiment] = dict(kept.runs) if kept is not None and kept.schema == 2 else {}
        return self._known[experiment]

    def _save(self) -> None:
        if not self._unsaved or time.monotonic() - self._saved_at < _SAVE_EVERY_S:
            return
        for experiment in self._unsaved:
            write_cache(self._home, "summaries", experiment, _KeptSummaries(self._known[experiment]))
        self._unsaved, self._saved_at = set(), time.monotonic()


def _declared_now(known: RunSummary) -> tuple[str, ...]:
    return declared_metrics(known.root, known.step_kind) if known.root else ()


def _state_key(view: RunView) -> str:
    """Changes when something else could be read: the run's state, its output directory, metrics that it appended, and
    while it runs what it prints and its progress."""
    parts: list[object] = [view.generation, view.claims, view.attempt, view.state, view.ended]
    paths = [view.output_dir, os.path.join(view.output_dir, "metrics.jsonl")] if view.output_dir else []
    if view.state == "running" and view.output_dir and view.log_dir:
        paths += [os.path.join(view.output_dir, "progress"), layout.log_file(view.log_dir, view.attempt)]
    for path in paths:
        with contextlib.suppress(OSError):
            found = os.stat(path)
            parts += [found.st_mtime_ns, found.st_size]
    return " ".join(map(str, parts))


def _read_summary(home: str, reader: RunReader, view: RunView, known: RunSummary | None) -> RunSummary:
    try:
        spec = reader.spec(view.name)
    except DamagedRecord:
        spec = None
    described = _of_spec(spec, read_code(reader, view, spec)) if spec is not None else RunSummary()
    if not view.output_dir or not view.attempt:
        return described
    output = run_output(view, spec)
    same_attempt = (
        known is not None
        and known.declared == described.declared
        and known.key.split(" ")[:3] == _state_key(view).split(" ")[:3]
    )
    before = MetricSummary({}, known.jsonl, known.inode, known.offset) if known is not None and same_attempt else None
    found = summarize_metrics(output, before)
    sample = usage.read_usage(home, view.name, view.attempt)
    percent = None if sample is None else sample.gpu_percent if view.state == "running" else sample.mean_gpu_percent
    return msgspec.structs.replace(
        described,
        progress=read_progress(output),
        metrics=found.metrics,
        jsonl=found.jsonl if view.state == "running" else {},
        inode=found.inode if view.state == "running" else 0,
        offset=found.offset if view.state == "running" else 0,
        gpu_percent=percent,
    )


def _of_spec(spec: RunSpec, code: str) -> RunSummary:
    work = hashlib.sha256(spec.work().encode()).hexdigest()[:16] if spec.sweep is None else ""
    return RunSummary(
        step=spec.step,
        seed=spec.seed,
        params=spec.all_params,
        derived=spec.derived,
        metric=spec.metric,
        is_trial=bool(spec.smoke or spec.replacement),
        script=f"{spec.experiment}/{spec.sweep or stem_without_seed(spec.stem)}",
        number=spec.number,
        work=work,
        starts=spec.starts(),
        code=code,
        root=spec.cwd,
        step_kind=spec.step_kind,
        declared=declared_metrics(spec.cwd, spec.step_kind),
    )
