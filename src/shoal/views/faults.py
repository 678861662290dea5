"""`shoal logs --errors`: what went wrong, once for all runs that died of the same, with the lines that show it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from shoal.kernel import (
    KIND_OF_STATE,
    SELF_EVIDENT,
    WORDS,
    Cause,
    clean,
    find_cause,
    is_consequence,
    last_line,
    layout,
    signature,
)
from shoal.observe import RunView, observe
from shoal.units import listed, plural
from shoal.views.log_parts import parts
from shoal.views.logs import slurm_files
from shoal.views.render import BAD_STATES, plain, print_json, state_word
from shoal.views.screen import Screen
from shoal.views.tail import BLOCK, collapse, last_text, read_slice
from shoal.views.terminal_text import harmless

_WINDOW = 30
#: Of a log in which nothing looks like an error.
LAST_LINES = 12
_MAX_ENDINGS = 3
#: Of a log whose cause is further up.
_MAX_LAST = 3
#: How far back a traceback is looked for where the last lines tell nothing, and how much of it is kept.
_MAX_BACK = 2 << 20
_MAX_TRACEBACK = 200
_BEGINS = re.compile(r"Traceback \(most recent call last\)")


class Fault(NamedTuple):
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
        return clean(how or "no cause known")


def gather(home: str, names: Sequence[str]) -> list[list[Fault]]:
    """The failed ones among these runs, grouped by equal errors (numbers and paths may differ), largest group first."""
    views = observe(home, names).views.values()
    groups: dict[str, list[Fault]] = {}
    for view in views:
        if view.state in BAD_STATES:
            fault = look(home, view)
            groups.setdefault(f"{fault.kind} {signature(fault.line)}", []).append(fault)
    return sorted(groups.values(), key=len, reverse=True)


def look(home: str, view: RunView) -> Fault:
    """Why the run's newest attempt failed, as far as its logs tell: its own, then those of its ranks and replicas; of a
    job that ended before the run began, what Slurm printed."""
    ended = Fault(view.name, view.state, view.attempt, None, None, [], view.cause)
    for path in logs_of(view) if view.started is not None else slurm_files(home, view.name):
        lines = last_text(path, 200)
        cause = find_cause(lines, view.exit_code)
        if cause is None and view.exit_code == 1:  # that of an exception
            above = _last_traceback(path)
            cause = find_cause([*above, *lines], 1) if above else None
            lines = [*above, *lines] if cause is not None else lines
        if cause is not None and (ended.cause is None or not is_consequence(cause)):
            begin = max((at for at in range(cause.at) if _BEGINS.search(lines[at])), default=max(0, cause.at - 5))
            window = lines[max(begin, cause.at - _WINDOW) : cause.at + 4] + _end_of(lines[cause.at + 4 :])
            ended = ended._replace(cause=cause, path=path, window=window)
            if not is_consequence(cause):
                return ended  # else a rank whose log comes later may have failed by itself
        elif ended.path is None and lines:
            ended = ended._replace(path=path, window=lines[-LAST_LINES:])
    return ended


def _last_traceback(path: str) -> list[str]:
    """The last traceback of a log and what follows it, where a program prints more than is read after it failed."""
    try:
        data, _, _ = read_slice(path, -_MAX_BACK, _MAX_BACK)
    except OSError:
        return []
    at = data.rfind(b"Traceback (most recent call last)")
    if at < 0:
        return []
    text = collapse(data[data.rfind(b"\n", 0, at) + 1 :][:BLOCK].replace(b"\0", b"")).decode("utf-8", "replace")
    return text.split("\n")[:_MAX_TRACEBACK]


def _end_of(lines: Sequence[str]) -> list[str]:
    """The last lines behind those that show a cause: what a program says last is shown, whatever was found before."""
    said = [line for line in lines if line.strip()]
    return [*(["[...]"] if len(said) > _MAX_LAST else []), *said[-_MAX_LAST:]]


def logs_of(view: RunView) -> list[str]:
    """Where to look, in this order: what the run itself printed, then its ranks and replicas, the last try of each
    first."""
    if not view.log_dir or not view.attempt:
        return []
    own = layout.log_file(view.log_dir, view.attempt)
    found = parts(view.log_dir, view.attempt)
    return [own, *(path for part in found for path in part.tries[::-1] if path != own)]


def words_of(view: RunView, fault: Fault) -> str:
    """One line about a failed run: "exit code 1: KeyError: 'lr'", or without an error the last line that it printed."""
    if fault.cause is None:
        return fault.line
    word = "" if fault.kind in SELF_EVIDENT else WORDS[fault.kind]
    said = f"{word} ({fault.line})" if word and word.lower() not in fault.line.lower() else fault.line
    if view.cause and said in view.cause:
        return view.cause  # it has been told already
    return f"{view.cause}: {said}" if view.cause else said


def ending(home: str, view: RunView, *, lines: int = 0) -> list[str]:
    """A failed run for somebody who followed it: one sentence, up to so many lines of its log, and the next command."""
    fault = look(home, view)
    shown = [f"    {harmless(line, colour=False)}" for line in fault.window[-lines:]] if lines else []
    return [f"{view.name} {view.state}: {plain(words_of(view, fault))}", *shown, f"hint: shoal why {view.name}"]


def endings(home: str, views: Sequence[RunView], *, lines: int = LAST_LINES) -> list[str]:
    """The same for several runs, of which the first few are shown."""
    bad = [view for view in views if view.state in BAD_STATES]
    told = [line for view in bad[:_MAX_ENDINGS] for line in ending(home, view, lines=lines)]
    left = len(bad) - _MAX_ENDINGS
    return [*told, f"{plural(left, 'more run')} failed; shoal logs --errors shows why"] if left > 0 else told


def show(groups: Sequence[Sequence[Fault]], screen: Screen, *, as_json: bool, quiet: bool) -> int:
    if as_json:
        print_json({"errors": [as_record(group) for group in groups]})
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
        title = f"{plural(len(group), 'run')}: {WORDS.get(first.kind, first.state)}"
        print(screen.paint(title, "1"))
        print(f"  {state_word(first.state)}  {plain(first.line)}")
        print(f"  as in {first.run}, attempt {first.attempt}" + (f": {plain(first.path)}" if first.path else ""))
        for line in first.window:
            print(f"    {harmless(line, colour=False)}"[: screen.width if screen.tty else None])
        others = [fault.run for fault in group[1:]]
        if others:
            print(f"  also {listed(others, 6 if screen.tty else len(others))}")
    return 0


def as_record(group: Sequence[Fault]) -> dict[str, Any]:
    first = group[0]
    return {
        "kind": first.kind,
        "message": first.line,
        "count": len(group),
        "runs": [fault.run for fault in group],
        "example": {"run": first.run, "attempt": first.attempt, "path": first.path, "lines": first.window},
    }
