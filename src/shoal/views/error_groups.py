"""`shoal logs --errors`: each error once for all runs that have it, with the lines that show it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from shoal.kernel import (
    KIND_OF_STATE,
    KIND_TEXTS,
    SELF_EXPLAINING_KINDS,
    Cause,
    clean_log_line,
    error_signature,
    find_cause,
    is_consequence,
    last_line,
    layout,
)
from shoal.model import FAILED_STATES
from shoal.observe import RunView, observe
from shoal.units import plural, shorten_list
from shoal.views.log_files import BLOCK, collapse_carriage_returns, last_text, rank_logs, read_slice
from shoal.views.logs import slurm_files
from shoal.views.render import print_json, safe_line, state_word
from shoal.views.terminal import Screen, strip_control_sequences

_WINDOW_LINES = 30
#: Of a log in which nothing looks like an error.
LAST_LINES = 12
_MAX_SUMMARIES = 3
#: Of a log whose cause is further up.
_MAX_LAST_LINES_RUNS = 3
#: How far back a traceback is looked for where the last lines tell nothing, and how much of it is kept.
_MAX_SEARCH_BYTES = 2 << 20
_MAX_TRACEBACK = 200
_TRACEBACK_START = re.compile(r"Traceback \(most recent call last\)")


class LogError(NamedTuple):
    """One failed run: why, and the lines of its log that show it, and its last ones. Without a `cause` only these."""

    run: str
    state: str
    attempt: int
    cause: Cause | None
    path: str | None
    window: list[str]
    verdict: str | None = None

    @property
    def kind(self) -> str:
        return self.cause.kind if self.cause is not None else KIND_OF_STATE.get(self.state, self.state)

    @property
    def log_line(self) -> str | None:
        """The one line of the log to show, where there is room for one."""
        return self.cause.line if self.cause is not None else last_line(self.window) or None

    @property
    def line(self) -> str:
        """The error in the log's words, else how the run ended and the last line that it printed."""
        if self.cause is not None:
            return self.cause.line
        how, last = self.verdict or "", last_line(self.window)
        if last and last not in how:
            how = f"{how}; last line: {last}" if how else f"last line: {last}"
        return clean_log_line(how or "no reason known")


def group_errors(home: str, names: Sequence[str]) -> list[list[LogError]]:
    """The failed ones among these runs, grouped by equal errors (numbers and paths may differ), largest group first."""
    views = observe(home, names).views.values()
    groups: dict[str, list[LogError]] = {}
    for view in views:
        if view.state in FAILED_STATES:
            fault = find_error(home, view)
            groups.setdefault(f"{fault.kind} {error_signature(fault.line)}", []).append(fault)
    return sorted(groups.values(), key=len, reverse=True)


def find_error(home: str, view: RunView) -> LogError:
    """Why the run's newest attempt failed, as far as its logs tell: its own, then those of its ranks and replicas; of a
    job that ended before the run began, what Slurm printed."""
    ended = LogError(view.name, view.state, view.attempt, None, None, [], view.reason)
    for path in failure_logs(view) if view.started is not None else slurm_files(home, view.name):
        lines = last_text(path, 200)
        cause = find_cause(lines, view.exit_code)
        if cause is None and view.exit_code == 1:  # that of an exception
            above = _last_traceback(path)
            cause = find_cause([*above, *lines], 1) if above else None
            lines = [*above, *lines] if cause is not None else lines
        if cause is not None and (ended.cause is None or not is_consequence(cause)):
            begin = max(
                (at for at in range(cause.at) if _TRACEBACK_START.search(lines[at])), default=max(0, cause.at - 5)
            )
            window = lines[max(begin, cause.at - _WINDOW_LINES) : cause.at + 4] + _last_lines(lines[cause.at + 4 :])
            ended = ended._replace(cause=cause, path=path, window=window)
            if not is_consequence(cause):
                return ended  # else a rank whose log comes later may have failed by itself
        elif ended.path is None and lines:
            ended = ended._replace(path=path, window=lines[-LAST_LINES:])
    return ended


def _last_traceback(path: str) -> list[str]:
    """The last traceback of a log and what follows it, where a program prints more than is read after it failed."""
    try:
        data, _, _ = read_slice(path, -_MAX_SEARCH_BYTES, _MAX_SEARCH_BYTES)
    except OSError:
        return []
    at = data.rfind(b"Traceback (most recent call last)")
    if at < 0:
        return []
    text = collapse_carriage_returns(data[data.rfind(b"\n", 0, at) + 1 :][:BLOCK].replace(b"\0", b"")).decode(
        "utf-8", "replace"
    )
    return text.split("\n")[:_MAX_TRACEBACK]


def _last_lines(lines: Sequence[str]) -> list[str]:
    """The last lines behind those that show a cause: what a program says last is shown, whatever was found before."""
    printed = [line for line in lines if line.strip()]
    return [*(["[...]"] if len(printed) > _MAX_LAST_LINES_RUNS else []), *printed[-_MAX_LAST_LINES_RUNS:]]


def failure_logs(view: RunView) -> list[str]:
    """Where to look, in this order: what the run itself printed, then its ranks and replicas, the last attempt of each
    first."""
    if not view.log_dir or not view.attempt:
        return []
    own, *errors = layout.log_files(view.log_dir, view.attempt)
    found = rank_logs(view.log_dir, view.attempt)
    others = (path for part in found for path in part.attempts[::-1] if path not in (own, *errors))
    return [*errors, own, *others]


def error_sentence(view: RunView, fault: LogError) -> str:
    """One line about a failed run: "exit code 1: KeyError: 'lr'", or without an error the last line that it printed."""
    if fault.cause is None:
        return fault.line
    word = "" if fault.kind in SELF_EXPLAINING_KINDS else KIND_TEXTS[fault.kind]
    error_text = f"{word} ({fault.line})" if word and word.lower() not in fault.line.lower() else fault.line
    if view.reason and error_text in view.reason:
        return view.reason  # it has been told already
    return f"{view.reason}: {error_text}" if view.reason else error_text


def failure_summary(home: str, view: RunView, *, lines: int = 0) -> list[str]:
    """A failed run for somebody who followed it: one sentence, up to so many lines of its log, and the next command."""
    fault = find_error(home, view)
    shown = [f"    {strip_control_sequences(line, colour=False)}" for line in fault.window[-lines:]] if lines else []
    return [
        f"{view.name} {view.state}: {safe_line(error_sentence(view, fault))}",
        *shown,
        f"hint: shoal why {view.name}",
    ]


def failure_summaries(home: str, views: Sequence[RunView], *, lines: int = LAST_LINES) -> list[str]:
    """The same for several runs, of which the first few are shown."""
    bad = [view for view in views if view.state in FAILED_STATES]
    summaries = [line for view in bad[:_MAX_SUMMARIES] for line in failure_summary(home, view, lines=lines)]
    left = len(bad) - _MAX_SUMMARIES
    return [*summaries, f"{plural(left, 'more run')} failed; shoal logs --errors shows why"] if left > 0 else summaries


def show_errors(groups: Sequence[Sequence[LogError]], screen: Screen, *, as_json: bool, quiet: bool) -> int:
    if as_json:
        print_json({"errors": [error_document(group) for group in groups]})
        return 0
    if quiet:
        print("\n".join(fault.run for group in groups for fault in group))
        return 0
    if not groups:
        print("no run has failed")
    for number, group in enumerate(groups):
        first = group[0]
        if number:
            print()
        title = f"{plural(len(group), 'run')}: {KIND_TEXTS.get(first.kind, first.state)}"
        print(screen.paint(title, "1"))
        print(f"  {state_word(first.state)}  {safe_line(first.line)}")
        print(f"  as in {first.run}, attempt {first.attempt}" + (f": {safe_line(first.path)}" if first.path else ""))
        for line in first.window:
            print(f"    {strip_control_sequences(line, colour=False)}"[: screen.width if screen.tty else None])
        others = [fault.run for fault in group[1:]]
        if others:
            print(f"  also {shorten_list(others, 6 if screen.tty else len(others))}")
    return 0


def error_document(group: Sequence[LogError]) -> dict[str, Any]:
    first = group[0]
    return {
        "kind": first.kind,
        "message": first.line,
        "count": len(group),
        "runs": [fault.run for fault in group],
        "example": {"run": first.run, "attempt": first.attempt, "path": first.path, "lines": first.window},
    }
