"""`shoal logs --errors`: what went wrong, once for all runs that died of the same, with the lines that show it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from shoal.observe import observe
from shoal.store.fold import RunView
from shoal.units import plural
from shoal.views.causes import KIND_OF_STATE, WORDS, clean, find_cause, signature
from shoal.views.log_parts import parts
from shoal.views.render import BAD_STATES, plain, print_json, state_word
from shoal.views.screen import Screen
from shoal.views.tail import last_text
from shoal.views.terminal_text import harmless

_WINDOW = 30
_BEGINS = re.compile(r"Traceback \(most recent call last\)")


class Fault(NamedTuple):
    """One failed run: what it died of, and the lines of its log around that."""

    run: str
    state: str
    attempt: int
    kind: str
    line: str
    path: str | None
    window: list[str]


def gather(home: str, names: Sequence[str]) -> list[list[Fault]]:
    """The failed ones among these runs, grouped by equal errors (numbers and paths may differ), largest group first."""
    views = observe(home, names).views.values()
    groups: dict[str, list[Fault]] = {}
    for view in views:
        if view.state in BAD_STATES:
            fault = look(view)
            groups.setdefault(f"{fault.kind} {signature(fault.line)}", []).append(fault)
    return sorted(groups.values(), key=len, reverse=True)


def look(view: RunView) -> Fault:
    for path in _logs(view):
        lines = last_text(path, 400, 1 << 17)
        cause = find_cause(lines)
        if cause is not None:
            begin = max((at for at in range(cause.at) if _BEGINS.search(lines[at])), default=max(0, cause.at - 5))
            window = lines[max(begin, cause.at - _WINDOW) : cause.at + 3]
            return Fault(view.name, view.state, view.attempt, cause.kind, cause.line, path, window)
    kind = KIND_OF_STATE.get(view.state, view.state)
    return Fault(view.name, view.state, view.attempt, kind, clean(view.cause or "no cause known"), None, [])


def _logs(view: RunView) -> list[str]:
    """Where to look, in this order: what the run itself printed, then its replicas, the last try of each first."""
    if not view.log_dir or not view.attempt:
        return []
    own = [os.path.join(view.log_dir, f"attempt-{view.attempt}.{stream}") for stream in ("err", "out")]
    more = [path for stream in ("err", "out") for part in parts(view.log_dir, view.attempt, stream)
            for path in part.tries[::-1] if path not in own]  # fmt: skip
    return own + more


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
            more = f" and {len(others) - 6} more" if len(others) > 6 and screen.tty else ""
            print(f"  also {', '.join(others[:6] if screen.tty else others)}{more}")
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
