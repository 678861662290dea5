"""Runs that have ended, kept from look to look: one is read again only when it has changed.

What can change an ended run is a new file in its directory: a claim, an attempt, a verdict, a cancellation. Whoever
writes one also sets the time of the experiment's directory (kernel/files.py:create_in_run_dir), and that of new and
removed runs changes it by itself. So the views of ended runs are kept, in memory and in `.shoal/cache/`, one file per
user and experiment, with the time of change of the experiment's directory and of their own. While the first is the
same, no run of the experiment is looked at; else those are read whose own directory has changed.

A person, or another version of shoal, may write without a sign. So each look checks the directories of some
runs and reads a few whether or not they changed; if one contradicts what was kept, nothing kept is trusted in this
look. Nobody locks anything: each user replaces files of their own, which can be deleted at any time.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from shoal.kernel import layout
from shoal.observe.cache_file import read_dated_cache, write_cache
from shoal.observe.run_files import RunFiles
from shoal.observe.run_state import RunView, is_lease_live
from shoal.observe.state_dir import run_stems

#: A directory that changed less than this before it was read may change again with the same time of change: times of
#: some file systems are whole seconds, and the clock of a file server may differ.
_MIN_AGE_S = 10.0
#: What a run wrote to its output directory may become visible so long after its end: nodes and servers have caches.
OUTPUT_AGE_S = 600.0
#: In each look: directories that are checked, and of these runs that are read, although nothing says that they changed.
_CHECKS_PER_LOOK = 50
_READS_PER_LOOK = 5
_SAVE_EVERY_S = 30.0
_SCHEMA = 2
#: Runs of a pack that stopped for these reasons may still be continued by a job that their directory does not show.
_CONTINUED_STOPS = ("walltime", "probe", "lost", "handover")

#: When a directory was last changed, and which it is.
_Stamp = tuple[int, int]


class _StoredView(RunView, frozen=True, omit_defaults=True):
    """Half as large, and read twice as fast."""


class _KeptRun(msgspec.Struct, frozen=True, array_like=True):
    stamp: _Stamp
    view: RunView


class _KeptViews(msgspec.Struct, frozen=True):
    """`stamp` is that of the experiment's directory, read before the directories of all `runs` were seen as their own
    stamps say; `stems` are its runs then. `schema` is raised when the same files give another view."""

    runs: dict[str, _KeptRun]
    stamp: _Stamp | None = None
    stems: list[str] | None = None
    schema: int = 1


class Recalled(NamedTuple):
    """`views` are known without reading. `unchecked` are those whose directories were not looked at this time, and that
    ended so long ago that their output is complete."""

    views: dict[str, RunView]
    unchecked: frozenset[str]


class _Experiment:
    """What is known of the runs of one experiment. `names` are all its runs, as they were at `listed`."""

    def __init__(self) -> None:
        self.runs: dict[str, _KeptRun] = {}
        self.stamp: _Stamp | None = None
        self.names: list[str] = []
        self.listed: _Stamp | None = None


class SettledRuns:
    """Ended runs of one project. `stays`: the process looks again and again."""

    def __init__(self, home: str, *, stays: bool = False, min_age_s: float = _MIN_AGE_S) -> None:
        self.stays = stays
        self._home, self._min_age_s = home, min_age_s
        self._experiments: dict[str, _Experiment] = {}
        self._stamps: dict[str, _Stamp] = {}
        self._unsaved: set[str] = set()
        self._saved_at = float("-inf")
        self._is_wrong = False
        #: When the directories were looked at: what is read afterwards may take longer than they have to be unchanged.
        self._looked_at = 0.0

    def names(self) -> list[str]:
        """Every run of the project; an experiment is listed again when its directory has changed."""
        names: list[str] = []
        self._looked_at = time.time()
        root = layout.runs_dir(self._home)
        for experiment in run_stems(root):
            folder = os.path.join(root, experiment)
            known, stamp = self._of(experiment), _stamp_of(folder)
            if stamp is None or known.listed != stamp:
                known.names = [f"{experiment}/{stem}" for stem in run_stems(folder)]
                known.listed = stamp if stamp is not None and self._is_old(stamp) else None
                if len(known.runs) > len(known.names) or not known.runs.keys() <= set(known.names):
                    listed = set(known.names)
                    known.runs = {name: run for name, run in known.runs.items() if name in listed}
                    self._unsaved.add(experiment)
            names += known.names
        return names

    def knows_most_of(self, names: Sequence[str]) -> bool:
        """Whether a look at these runs has little to read."""
        return 2 * sum(1 for name in names if name in self._of(name.partition("/")[0]).runs) >= len(names)

    def recall(self, names: Sequence[str]) -> Recalled:
        """The views of ended runs that have not changed since they were kept."""
        self._stamps, self._is_wrong, self._looked_at = {}, False, time.time()
        root = layout.runs_dir(self._home)
        stamps = {one: _stamp_of(os.path.join(root, one)) for one in {name.partition("/")[0] for name in names}}
        recalled = self._recall(names, stamps, trusting=True)
        if recalled is None:
            recalled = self._recall(names, stamps, trusting=False) or Recalled({}, frozenset())
        return recalled

    def _recall(self, names: Sequence[str], stamps: dict[str, _Stamp | None], trusting: bool) -> Recalled | None:
        """None if a run of an experiment that seemed unchanged has changed."""
        checked, read = _chosen(len(names))
        seen_ns = int((time.time() - OUTPUT_AGE_S) * 1e9)
        views: dict[str, RunView] = {}
        unchecked: set[str] = set()
        seen: dict[str, int] = {}
        prefix, experiment, is_same, known = "/", "", False, _Experiment()
        for at, name in enumerate(names):
            if not name.startswith(prefix):
                experiment = name.partition("/")[0]
                prefix, known = f"{experiment}/", self._of(experiment)
                is_same = trusting and known.stamp is not None and known.stamp == stamps[experiment]
                seen.setdefault(experiment, 0)
            kept = known.runs.get(name)
            if is_same and kept is not None and at not in checked:
                views[name] = kept.view
                if kept.stamp[0] < seen_ns:
                    unchecked.add(name)
                continue
            stamp = _stamp_of(layout.run_dir(self._home, name))
            if stamp is not None:
                self._stamps[name] = stamp
            if kept is None:
                continue
            if stamp != kept.stamp:
                if is_same:
                    return None
                del known.runs[name]  # at once: the look that is to read it may fail, and the next one must read it
                self._unsaved.add(experiment)
                continue
            seen[experiment] += 1
            if at not in read:
                views[name] = kept.view
        for experiment, count in seen.items():
            self._note_checked(experiment, stamps[experiment], count)
        return Recalled(views, frozenset(unchecked))

    def _note_checked(self, experiment: str, stamp: _Stamp | None, count: int) -> None:
        """All runs that are kept of an experiment were looked at after its directory had this stamp."""
        known = self._of(experiment)
        if count == len(known.runs) and stamp is not None and stamp != known.stamp and self._is_old(stamp):
            known.stamp = stamp
            self._unsaved.add(experiment)

    def keep(self, files: RunFiles, view: RunView) -> None:
        """Remember a run that was read after `recall`, if it has ended for good."""
        experiment = self._of(view.experiment)
        known, stamp = experiment.runs.get(view.name), self._stamps.get(view.name)
        settled = stamp is not None and is_settled(files)
        if known is not None and stamp == known.stamp and (not settled or known.view != view):
            self._is_wrong = True
        if stamp is not None and settled and self._is_old(stamp):
            if known is None or known.stamp != stamp or known.view != view:
                experiment.runs[view.name] = _KeptRun(stamp, view)
                self._unsaved.add(view.experiment)
        elif known is not None:
            del experiment.runs[view.name]
            self._unsaved.add(view.experiment)

    def drop_if_wrong(self) -> bool:
        """Whether a run that was read contradicts what was kept of it; then nothing of it is trusted any more."""
        if self._is_wrong:
            self._unsaved.update(self._experiments)
            self._experiments = {experiment: _Experiment() for experiment in self._experiments}
        return self._is_wrong

    def save(self) -> None:
        """Only for the next look: a directory that we may not write in, or a full disk, costs time and nothing else."""
        if not self._unsaved or time.monotonic() - self._saved_at < _SAVE_EVERY_S:
            return
        for experiment in self._unsaved:
            known = self._experiments[experiment]
            runs = {
                name: _KeptRun(run.stamp, msgspec.convert(run.view, _StoredView, from_attributes=True))
                for name, run in known.runs.items()
            }
            stems = [name.partition("/")[2] for name in known.names] if known.listed == known.stamp else None
            write_cache(self._home, "views", experiment, _KeptViews(runs, known.stamp, stems, _SCHEMA))
        self._unsaved, self._saved_at = set(), time.monotonic()

    def _of(self, experiment: str) -> _Experiment:
        known = self._experiments.get(experiment)
        if known is None:
            known = self._experiments[experiment] = _Experiment()
            dated = read_dated_cache(self._home, "views", experiment, _KeptViews)
            if dated is not None and dated[0].schema == _SCHEMA:
                # The clock of the file server against itself, should ours have been ahead of it.
                kept, max_ns = dated[0], dated[1] - self._min_age_s * 1e9
                known.runs = {name: run for name, run in kept.runs.items() if run.stamp[0] < max_ns}
                if kept.stamp is not None and kept.stamp[0] < max_ns:
                    known.stamp = kept.stamp
                    if kept.stems is not None:
                        known.names, known.listed = [f"{experiment}/{stem}" for stem in kept.stems], kept.stamp
        return known

    def _is_old(self, stamp: _Stamp) -> bool:
        return self._looked_at - stamp[0] / 1e9 > self._min_age_s


def is_settled(files: RunFiles) -> bool:
    """Whether only a new file in its directory can change what the run is shown as, whatever Slurm says."""
    end, names = files.end, files.names
    if files.damage is not None or end is None or names.may_run(names.attempt) or files.owes or is_lease_live(files):
        return False
    if end.generation != names.generation or end.attempt != names.attempt:
        return False
    if files.claim is None:
        return end.success
    submission = files.origin.submission if files.origin is not None else None
    if submission is None or files.origin is None or files.origin.outcome is None or files.is_adopted:
        return False
    if end.success or end.next is not None:
        return False
    if submission.layout is not None and end.stopped_by in _CONTINUED_STOPS:
        return False
    return submission.backend != "slurm" or files.verdict is not None


def _stamp_of(folder: str) -> _Stamp | None:
    """It is opened: NFS then asks the server, and stat alone does not."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        return found.st_ctime_ns, found.st_ino
    finally:
        os.close(fd)


def _chosen(count: int) -> tuple[frozenset[int], frozenset[int]]:
    """Places in a list of so many runs that are checked in this look, and those of them that are read."""
    checked = random.sample(range(count), min(count, _CHECKS_PER_LOOK))
    return frozenset(checked), frozenset(checked[:_READS_PER_LOOK])
