"""Follow runs to their end, for `shoal watch` and `shoal logs -f`: redrawn on a terminal, one line per change off it.

With --json it prints JSON lines. Slurm is asked through the answer that all watchers share (observe/queue_cache.py);
the run directories are read more often, because that costs the controller nothing. `shoal logs -f` prints what runs
write, over all attempts. Ctrl-C ends the watching, never a run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from shoal.actions import SubmitResult
from shoal.kernel import layout, list_names
from shoal.model import ACTIVE_STATES, ENDED_STATES, FAILED_STATES, SUCCESSFUL_STATES, state_verb
from shoal.observe import ObserveRuns, QueueCache, RunView, observe
from shoal.units import shorten_list
from shoal.views import logs, status
from shoal.views.columns import iso_time
from shoal.views.details import progress_of
from shoal.views.error_groups import error_sentence, failure_summaries, failure_summary, find_error
from shoal.views.log_files import BLOCK, CarriageReturnFilter, seek_last_lines
from shoal.views.logs import LogFormat, LogSource, find_rank_logs, prefix_lines, prefix_of
from shoal.views.render import safe_line, visible_width
from shoal.views.status import StatusFilter, StatusReport
from shoal.views.table_choice import TableChoice
from shoal.views.terminal import ControlSequenceFilter, Screen, can_redraw, detect_screen

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
    observe_runs: ObserveRuns = observe,
) -> int:
    """Print the last lines and then whatever comes, over attempts, until none of the runs is active.

    Ctrl-C ends the following, never a run. Returns 0 if all ended as they were meant to, else 4.
    """
    pipes = _LogFollower(sources, form)
    states = dict.fromkeys(pipes.runs, "unknown")
    shown_states: dict[str, str] = {}
    asked_at, ask = float("-inf"), QueueCache(home)
    try:
        while True:
            open_runs = [run for run, state in states.items() if state in ACTIVE_STATES]
            if clock() - asked_at >= _STATE_INTERVAL_S or any(_is_finished(home, run) for run in open_runs):
                views = observe_runs(home, open_runs, ask=ask).views
                states.update({run: view.state for run, view in views.items()})
                asked_at = clock()
            for run, first in pipes.runs.items():
                newest = find_rank_logs(home, run, first.pick, strict=False)
                started = bool(newest[0].paths) and not (newest[0].outdated and states[run] in ACTIVE_STATES)
                if started:
                    pipes.copy(newest)
                if (
                    run in open_runs
                    and shown_states.get(run) != states[run]
                    and not started
                    and states[run] in ACTIVE_STATES
                ):
                    sys.stderr.write(f"{run} is {states[run]}\n")
                    shown_states[run] = states[run]
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
        lines = failure_summary(home, ended[run]) if state in FAILED_STATES else [f"{run} {state_verb(state)}"]
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


#: Seconds between two looks at the files: this at least, and five times what a look costs.
_REFRESH_S = 2.0
_HEARTBEAT_S = 30.0


class ResultPrinter(Protocol):
    quiet: bool
    as_json: bool

    def update(self, view: RunView) -> None: ...


class WatchOptions(NamedTuple):
    """How to watch: in which form, which runs the table shows, whether the exit code tells, whether to ring."""

    as_json: bool = False
    quiet: bool = False
    everything: bool = False
    tasks: bool = False
    choice: TableChoice = TableChoice()
    exit_status: bool = False
    bell: bool = False


def watch_runs(
    home: str,
    wanted: StatusFilter,
    options: WatchOptions,
    screen: Screen,
    *,
    environ: Mapping[str, str] = os.environ,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
    observe_runs: ObserveRuns = observe,
) -> int:
    """Watch until no run is active. Returns 0; 4 with `exit_status` if a run failed or was cancelled. 130: Ctrl-C."""
    ask, memory = QueueCache(home), status.StatusMemory(home)
    output = (
        _TableRedrawer(screen, options)
        if can_redraw(screen, environ) and not options.as_json
        else _LineWriter(screen, options)
    )
    look_s = float(environ.get("SHOAL_LOOK_S") or _REFRESH_S)
    try:
        while True:
            begin = time.monotonic()
            report = status.gather_status(
                home,
                wanted,
                ask=ask,
                clock=clock,
                choice=options.choice,
                memory=memory,
                observe_runs=observe_runs,
            )
            output.tell(report)
            if not any(view.state in ACTIVE_STATES for view in report.views):
                break
            sleep(max(look_s, 5 * (time.monotonic() - begin)))
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped watching; the runs go on\n")
        return 130
    output.end(report)
    if not options.quiet and not options.as_json:
        sys.stderr.write("".join(f"{line}\n" for line in failure_summaries(home, report.views)))
    if options.bell:
        sys.stderr.write("\a")
    bad = any(view.state in ENDED_STATES - SUCCESSFUL_STATES for view in report.views)
    return 4 if options.exit_status and bad else 0


class _LineWriter:
    """One line per change of state: for pipes, logs of CI, and people whose screen is read to them."""

    def __init__(self, screen: Screen, options: WatchOptions) -> None:
        self.screen, self.options = screen, options
        self.seen: dict[str, tuple[str, int, str | None]] = {}
        self.problem: str | None = None
        self.told_at = 0.0

    def tell(self, report: StatusReport) -> None:
        for view in report.views:
            word = (view.state, view.attempt, view.reason if view.state != "running" else self._idle(view, report))
            if self.seen.get(view.name) != word:
                first = view.name not in self.seen
                self.seen[view.name] = word
                if not (first and view.state == "completed" and not self.options.everything):
                    self._change(view, report)
        if report.slurm_problem != self.problem:
            self.problem = report.slurm_problem
            status.warn_about_slurm(report)
        if self.screen.accessible and report.now - self.told_at >= _HEARTBEAT_S and not self.options.as_json:
            self._print(f"{self._when(report.now)} still working: {_state_counts(report)}", report.now)

    def end(self, report: StatusReport) -> None:
        if self.options.as_json:
            document = {"schema": 1, "event": "end", "t": report.now, "counts": report.counts}
            print(json.dumps(document), flush=True)
        elif not self.options.quiet:
            self._print(f"{self._when(report.now)} all ended: {_state_counts(report)}", report.now)

    def _change(self, view: RunView, report: StatusReport) -> None:
        if self.options.as_json:
            details, summary = report.details.get(view.name), report.summaries.get(view.name)
            record = status.run_document(view, details, summary, report.metric)
            print(json.dumps({"schema": 1, "event": "run", "t": report.now, **record}), flush=True)
        elif self.options.quiet:
            self._print(view.name, report.now)
        else:
            why = view.reason or self._idle(view, report)
            reason = f" ({safe_line(why)})" if why else ""
            self._print(f"{self._when(report.now)} {safe_line(view.name)} {view.state}{reason}", report.now)

    @staticmethod
    def _idle(view: RunView, report: StatusReport) -> str | None:
        details = report.details.get(view.name)
        return "its GPUs are idle" if details is not None and details.gpu_idle_s else None

    def _when(self, now: float) -> str:
        return time.strftime("%H:%M:%S", time.localtime(now)) if self.screen.tty else iso_time(now)

    def _print(self, line: str, now: float) -> None:
        self.told_at = now
        print(line, flush=True)


class _TableRedrawer:
    """The table of `status`, drawn over itself; the last frame stays in the terminal, in full."""

    def __init__(self, screen: Screen, options: WatchOptions) -> None:
        self.options = options
        self.drawn = 0

    def tell(self, report: StatusReport) -> None:
        lines = self._lines(report)
        room = max(5, _terminal_height() - 2)
        if len(lines) > room:
            lines = [*lines[: room - 1], f"... {len(lines) - room + 1} more lines; shoal status shows them"]
        self._draw([*lines, "Ctrl-C stops watching; the runs go on"])

    def end(self, report: StatusReport) -> None:
        self._draw(self._lines(report))
        status.warn_about_slurm(report)

    def _lines(self, report: StatusReport) -> list[str]:
        shown = [view for view in report.views if self.options.everything or view.state != "completed"]
        lines = status.status_lines(
            report, shown, detect_screen(), tasks=self.options.tasks, choice=self.options.choice
        )
        return lines + ([f"Slurm does not answer: {safe_line(report.slurm_problem)}"] if report.slurm_problem else [])

    def _draw(self, lines: Sequence[str]) -> None:
        up = f"\x1b[{self.drawn}A\r\x1b[J" if self.drawn else ""
        sys.stdout.write(up + "".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        # A line that is wider than the terminal takes several of its rows.
        width = detect_screen().width
        self.drawn = sum(max(1, -(-visible_width(line) // width)) for line in lines)


def _state_counts(report: StatusReport) -> str:
    return "  ".join(f"{count:,} {state}" for state, count in report.counts.items())


def _terminal_height() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines or 24
    except (OSError, ValueError):
        return 24


def follow_to_end(
    home: str,
    results: Sequence[SubmitResult],
    say: ResultPrinter,
    environ: Mapping[str, str],
    *,
    sleep: Callable[[float], None] = time.sleep,
    observe_runs: ObserveRuns = observe,
) -> int:
    """Wait until none of the runs is active. Returns 0 if all completed, else 4; Ctrl-C is 130 and ends nothing."""
    names = [result.name for result in results]
    if len(names) == 1 and not say.quiet and not say.as_json:
        sources, form = [logs.find_logs(home, names[0])], logs.format_for(detect_screen(), lines=0)
        code = follow_output(home, sources, form, observe_runs=observe_runs)
        say.update(observe(home, names, environ=environ).views[names[0]])
        return code
    seen: dict[str, str] = {}
    ask = QueueCache(home)
    try:
        while True:
            begin = time.monotonic()
            views = observe_runs(home, names, environ=environ, ask=ask).views
            for view in views.values():
                progress = progress_of(home, view)
                word = f"{view.state} {(progress.words if progress else view.reason) or ''}".strip()
                if seen.get(view.name) != word:
                    seen[view.name] = word
                    if not say.quiet and not say.as_json:
                        failed = view.state in FAILED_STATES
                        sentence = f"{view.state} {error_sentence(view, find_error(home, view))}" if failed else word
                        print(f"{time.strftime('%H:%M:%S')} {view.name} {safe_line(sentence)}", flush=True)
            if not any(view.state in ACTIVE_STATES for view in views.values()):
                break
            sleep(max(float(environ.get("SHOAL_LOOK_S") or _REFRESH_S) / 2, 5 * (time.monotonic() - begin)))
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped following; the runs go on\n")
        return 130
    if not say.quiet and not say.as_json:
        sys.stderr.write("".join(f"{line}\n" for line in failure_summaries(home, list(views.values()))))
    for view in views.values():
        say.update(view)
    return 0 if all(view.state == "completed" for view in views.values()) else 4
