"""`shoal logs -f`: what runs print, as they print it, over attempts, until they end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence

from shoal.kernel import layout, list_names
from shoal.model import ACTIVE_STATES, FAILED_STATES, SUCCESSFUL_STATES
from shoal.observe import observe
from shoal.submit import observe_and_follow_up
from shoal.units import shorten_list
from shoal.views.faults import failure_summary
from shoal.views.logs import LogFormat, LogSource, find_rank_logs, prefix_lines, prefix_of
from shoal.views.polling import QueueCache
from shoal.views.tail import BLOCK, CarriageReturnFilter, seek_last_lines
from shoal.views.terminal_text import ControlSequenceFilter

#: Files are looked at often; Slurm through the answer that all watchers share.
_READ_INTERVAL_S = 0.3
_STATE_INTERVAL_S = 5.0


def follow_output(
    home: str,
    sources: Sequence[LogSource],
    form: LogFormat,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Print the last lines and then whatever comes, over attempts, until none of the runs is live.

    Ctrl-C ends the following, never a run. Returns 0 if all ended as they were meant to, else 4.
    """
    pipes = _LogFollower(sources, form)
    states = dict.fromkeys(pipes.runs, "unknown")
    told: dict[str, str] = {}
    asked_at, ask = float("-inf"), QueueCache(home)
    try:
        while True:
            open_runs = [run for run, state in states.items() if state in ACTIVE_STATES]
            if clock() - asked_at >= _STATE_INTERVAL_S or any(_is_finished(home, run) for run in open_runs):
                views = observe_and_follow_up(home, open_runs, ask=ask)[0].views
                states.update({run: view.state for run, view in views.items()})
                asked_at = clock()
            for run, first in pipes.runs.items():
                newest = find_rank_logs(home, run, first.pick, strict=False)
                started = bool(newest[0].paths) and not (newest[0].outdated and states[run] in ACTIVE_STATES)
                if started:
                    pipes.copy(newest)
                if run in open_runs and told.get(run) != states[run] and not started and states[run] in ACTIVE_STATES:
                    sys.stderr.write(f"{run} is {states[run]}\n")
                    told[run] = states[run]
            if not any(state in ACTIVE_STATES for state in states.values()):
                break
            sleep(_READ_INTERVAL_S)
    except KeyboardInterrupt:
        go = "goes" if len(states) == 1 else "go"
        sys.stderr.write(f"\nstopped following; {shorten_list(states, 3)} {go} on\n")
        return 130
    pipes.finish()
    ended = observe(home, list(states), ask=ask).views
    for run, state in states.items():
        lines = failure_summary(home, ended[run]) if state in FAILED_STATES else [f"{run} is {state}"]
        sys.stderr.write("".join(f"{line}\n" for line in lines))
    return 0 if SUCCESSFUL_STATES.issuperset(states.values()) else 4


class _LogFollower:
    """One pipe for each source. Ranks and replicas join when they begin to write; then they have labels."""

    def __init__(self, sources: Sequence[LogSource], form: LogFormat) -> None:
        self.runs = {source.run: source for source in reversed(sources)}
        self._form = form
        # What the run wrote before it was submitted again is not followed, and must not appear beside what is.
        fresh = [one._replace(paths=[]) if one.outdated else one for one in sources]
        self._pipes = {self._key(one): self._pipe(one) for one in fresh}

    def copy(self, sources: Iterable[LogSource]) -> None:
        for source in sources:
            key = self._key(source)
            if key not in self._pipes:
                self._pipes[key] = self._pipe(source._replace(paths=[]))
            self._pipes[key].copy(source.paths)

    def finish(self) -> None:
        for pipe in self._pipes.values():
            pipe.finish()

    def _key(self, source: LogSource) -> tuple[str, str]:
        return source.run, source.label

    def _pipe(self, source: LogSource) -> _FollowedFile:
        return _FollowedFile(source, self._form, prefix_of(source, len(self.runs) > 1))


class _FollowedFile:
    """Copies what one source writes to our output: as it comes, or in whole lines with a prefix if it has one."""

    def __init__(self, source: LogSource, form: LogFormat, prefix: bytes) -> None:
        self.form, self._prefix = form, prefix
        self._offsets: dict[str, int] = dict.fromkeys(source.paths, -1)
        self._bars = CarriageReturnFilter() if prefix and not form.raw else None
        self._sieve = ControlSequenceFilter(form.colour) if form.tty else None

    def copy(self, paths: Sequence[str]) -> None:
        """What came since the last time; also of the file before, which may have grown until these began."""
        for path in dict.fromkeys([*list(self._offsets)[-1:], *paths]):
            try:
                with open(path, "rb") as file:  # noqa: PTH123
                    offset = self._offsets.get(path, 0)
                    if offset < 0:
                        seek_last_lines(file, self.form.lines)
                    else:
                        file.seek(offset)
                    while block := file.read(BLOCK):
                        self._write(block)
                    sys.stdout.flush()
                    self._offsets[path] = file.tell()
            except FileNotFoundError:
                continue

    def finish(self) -> None:
        rest = self._bars.flush() if self._bars else b""
        self._emit(rest + b"\n" if rest else b"")
        if self._sieve:
            sys.stdout.buffer.write(self._sieve.flush())
        sys.stdout.flush()

    def _write(self, block: bytes) -> None:
        self._emit(self._bars.feed(block) if self._bars else block)

    def _emit(self, data: bytes) -> None:
        if not data:
            return
        if self._sieve:
            data = self._sieve.feed(data)
        sys.stdout.buffer.write(prefix_lines(data, self._prefix) if self._prefix else data)


def _is_finished(home: str, run: str) -> bool:
    names = layout.parse_names(list_names(layout.run_dir(home, run)))
    return names.has_attempt(names.attempt, "end")
