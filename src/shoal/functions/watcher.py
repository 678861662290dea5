"""Wait for runs: one thread for all runs that any caller waits for, which looks at their directories.

A look costs one stat for each run, and a read for one whose directory has changed. Looks are 0.1 s apart, 0.25 s when
nothing has happened for a minute, and further apart (up to 2 s) where many runs or a slow disk would make looking take
more than 2 % of the time. An attempt that succeeded is known from its end record alone. Everything else (a failure,
which may be followed by another attempt, a job that Slurm killed) is decided as in `shoal status`, with Slurm's answer
that all watchers share.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from shoal.kernel import layout
from shoal.model import ENDED_STATES
from shoal.observe import QueueCache, RunReader, RunView, observe

_MIN_PAUSE_S, _QUIET_PAUSE_S, _MAX_PAUSE_S = 0.1, 0.25, 2.0
_QUIET_AFTER_S = 60.0
_PAUSE_PER_LOOK = 50
#: A directory may change again within this time without a new time stamp: file systems count in ticks.
_TICK_S = 0.1
#: How often runs are observed whose directories do not change: their job may have been killed.
_OBSERVE_S = 10.0

Listener = Callable[[RunView], None]


class RunKey(NamedTuple):
    home: str
    name: str


class Watcher:
    """Runs that are waited for, and who is told when each has ended. Its thread ends when nothing is waited for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._waiting: dict[RunKey, list[Listener]] = {}
        self._thread: threading.Thread | None = None
        self._pid = 0

    def tell(self, home: str, name: str, listener: Listener) -> None:
        """Call `listener` once, from the thread of the watcher, when the run has ended."""
        with self._lock:
            if self._pid != os.getpid():  # forked: the thread stayed behind
                self._waiting, self._thread, self._pid = {}, None, os.getpid()
            self._waiting.setdefault(RunKey(home, name), []).append(listener)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="shoal-watcher", daemon=True)
                self._thread.start()
        self._wake.set()

    def forget(self, home: str, name: str, listener: Listener) -> None:
        """Nobody waits for this any more."""
        with self._lock:
            found = self._waiting.get(RunKey(home, name), [])
            if listener in found:
                found.remove(listener)
            if not found:
                self._waiting.pop(RunKey(home, name), None)

    def _watch(self) -> None:
        seen: dict[RunKey, int] = {}
        observed, last_change = self._clock() - _OBSERVE_S, self._clock()
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                keys = list(self._waiting)
            began = self._clock()
            changed = [key for key in keys if _has_changed(key, seen)]
            look_s = self._clock() - began
            due = self._clock() - observed >= _OBSERVE_S
            if due:
                observed = self._clock()
            ended = self._look(changed, keys if due else [])
            if ended or changed:
                last_change = self._clock()
            if self._wake.wait(pause_after(look_s, self._clock() - last_change)):
                self._wake.clear()
                last_change = self._clock()

    def _look(self, changed: list[RunKey], all_keys: list[RunKey]) -> bool:
        """Tell of runs that have ended; True if one has."""
        ended: dict[RunKey, RunView] = {}
        doubtful: dict[str, set[str]] = {}
        for key in changed:
            files = RunReader(key.home).run(key.name)
            if files.end is not None or files.cancelled:
                doubtful.setdefault(key.home, set()).add(key.name)
        for key in all_keys:
            doubtful.setdefault(key.home, set()).add(key.name)
        for home, names in doubtful.items():
            ended.update(ended_runs(home, names))
        with self._lock:
            due = [(one, view) for key, view in ended.items() for one in self._waiting.pop(key, [])]
        for one, view in due:
            one(view)
        return bool(due)


def pause_after(look_s: float, quiet_s: float) -> float:
    """How long to wait after a look that took `look_s`, when nothing has changed for `quiet_s`."""
    least_s = _MIN_PAUSE_S if quiet_s < _QUIET_AFTER_S else _QUIET_PAUSE_S
    return min(max(least_s, _PAUSE_PER_LOOK * look_s), _MAX_PAUSE_S)


def ended_runs(home: str, names: Iterable[str]) -> dict[RunKey, RunView]:
    """Those that have ended. Slurm is asked only about runs whose own records do not say that they completed."""
    found: dict[RunKey, RunView] = {}
    cache = QueueCache(home)
    views = observe(home, sorted(names), environ=os.environ, ask=cache).views
    for name, view in views.items():
        # New again: its pack ended before its turn, or Slurm refused it; nothing more happens by itself.
        if view.state in ENDED_STATES or view.state == "new":
            found[RunKey(home, name)] = view
    return found


def _has_changed(key: RunKey, seen: dict[RunKey, int]) -> bool:
    try:
        stamp = os.stat(layout.run_dir(key.home, key.name)).st_mtime_ns
    except OSError:
        return False
    if seen.get(key) == stamp:
        return False
    if abs(time.time_ns() - stamp) > _TICK_S * 1e9:
        seen[key] = stamp
    return True


WATCHER = Watcher()
