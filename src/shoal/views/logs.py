"""`shoal logs`: the end of a file without reading the file; several runs or ranks with prefixes; on, while they live.

In a pipe bytes stay bytes (only progress bars are collapsed, unless --raw); on a terminal nothing in a
log can act on it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO, NamedTuple

from shoal.agent import layout
from shoal.agent.files import names_in
from shoal.errors import InputError
from shoal.model import LIVE
from shoal.observe import observe
from shoal.store import records
from shoal.store.records import Claim, Start
from shoal.views.log_parts import Pick, has_label, parts, picked
from shoal.views.polling import SharedSlurm
from shoal.views.render import plain, print_json
from shoal.views.tail import BLOCK, Collapser, seek_last_lines
from shoal.views.terminal_text import Sieve

#: Files are looked at often; Slurm through the answer that all watchers share.
_LOOK_EVERY_S = 0.3
_ASK_EVERY_S = 5.0
_MOST_JSON = 16 << 20


class Source(NamedTuple):
    """The files to show, and the attempt that wrote them (0: not started).

    `label` names a part of the run, such as "replica 1". `outdated`: the run was submitted again since, and that
    submission has not started.
    """

    run: str
    attempt: int
    paths: list[str]
    err: bool = False
    outdated: bool = False
    label: str = ""
    pick: Pick = Pick()


class Form(NamedTuple):
    """How to print: `raw` bytes as they are, and whether a terminal reads them."""

    lines: int = 200
    raw: bool = False
    tty: bool = False


def find(
    home: str,
    run: str,
    *,
    attempt: int | None = None,
    err: bool = False,
    slurm: bool = False,
    both: bool = False,
    every: bool = False,
) -> Source:
    """The log files of a run; InputError when that attempt never was. `every` takes all attempts, oldest first."""
    names = layout.parse_names(names_in(layout.run_dir(home, run)))
    number = names.attempt if attempt is None else attempt
    if slurm:
        return Source(run, number, _slurm_files(home, run), err)
    if attempt is not None and not names.has_attempt(attempt, "start"):
        known = ", ".join(map(str, names.attempts.get("start", []))) or "none"
        raise InputError(f"{run} has no attempt {attempt}; it has {known}", hint=f"shoal logs {run}")
    streams = ("out", "err") if both else ("err",) if err else ("out",)
    paths = []
    start = None
    for one in names.attempts.get("start", []) if every else [number]:
        start = records.read(os.path.join(layout.run_dir(home, run), layout.attempt_file(one, "start")), Start)
        if start is not None:
            paths += [os.path.join(start.log_dir, f"attempt-{one}.{stream}") for stream in streams]
    outdated = start is not None and start.generation < names.generation
    return Source(run, number if paths else 0, paths, err, outdated)


def find_parts(
    home: str,
    run: str,
    pick: Pick,
    *,
    attempt: int | None = None,
    err: bool = False,
    every: bool = False,
    strict: bool = True,
) -> list[Source]:
    """The picked ranks and replicas of a run, a source for each. Nothing picked: rank 0, and that of every replica.

    Without `strict` those that are not there may still come; else that is an InputError. `every` takes all tries.
    """
    whole = find(home, run, attempt=attempt, err=err)._replace(pick=pick)
    if not whole.paths:
        return [whole]
    found = parts(os.path.dirname(whole.paths[0]), whole.attempt, "err" if err else "out")
    wanted = picked(found, pick)
    if not wanted and strict:
        there = ", ".join(part.label for part in found)
        hint = f"shoal logs {run} --rank all"
        raise InputError(f"attempt {whole.attempt} of {run} has no such part; it has {there}", hint=hint)
    return [
        whole._replace(
            paths=part.tries if every else part.tries[-1:], label=part.label if has_label(part, pick) else ""
        )
        for part in wanted
    ] or [whole._replace(paths=[])]


def show(sources: Sequence[Source], form: Form, out: BinaryIO | None = None) -> int:
    """Print the last lines. A run that has not started is told so on standard error, and is no error."""
    out = out or sys.stdout.buffer
    several = len({source.run for source in sources}) > 1
    headed = not several and sum(len(source.paths) for source in sources if not source.label) > 1
    for source in sources:
        if not source.paths:
            sys.stderr.write(f"{source.run} has not started yet; shoal logs {source.run} -f waits for it\n")
        for path in source.paths:
            if headed and not source.label:
                out.write(f"==> {plain(os.path.basename(path))} <==\n".encode())
            try:
                _copy_tail(path, form, _prefix(source, several), out)
            except FileNotFoundError:
                sys.stderr.write(f"{path} is not there (yet)\n")
    out.flush()
    return 0


def show_json(sources: Sequence[Source], lines: int) -> int:
    by_run: dict[str, dict[str, Any]] = {}
    for source in sources:
        one = by_run.setdefault(source.run, {"run": source.run, "attempt": source.attempt, "logs": []})
        one["logs"] += _texts(source, lines)
    found = list(by_run.values())
    print_json({**found[0], "runs": found} if len(found) == 1 else {"runs": found})
    return 0


def _texts(source: Source, lines: int) -> list[dict[str, Any]]:
    parts = []
    for path in source.paths:
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                start = seek_last_lines(file, lines, _MOST_JSON)
                text = file.read(_MOST_JSON).decode("utf-8", "replace")
        except FileNotFoundError:
            start, text = 0, ""
        parts.append({"path": path, "offset": start, "text": text})
    return parts


def page(paths: Sequence[str]) -> int:
    """Hand the files to the person's pager, at their end; it reads only what it shows."""
    import shlex
    import subprocess

    words = shlex.split(os.environ.get("PAGER") or "less")
    extra = ["-R", "+G"] if os.path.basename(words[0]) == "less" else []
    try:
        return subprocess.run([*words, *extra, "--", *paths], check=False).returncode
    except OSError as error:
        raise InputError(f"cannot start the pager {words[0]}: {error.strerror}", hint="export PAGER=less") from None


def follow(
    home: str,
    source: Source | Sequence[Source],
    lines: int | Form,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Print the last lines and then whatever comes, over attempts, until none of the runs is live.

    Ctrl-C ends the following, never a run. Returns 0 if all are done, 4 if one ended otherwise.
    """
    sources = [source] if isinstance(source, Source) else list(source)
    form = lines if isinstance(lines, Form) else Form(lines, raw=True)
    pipes = _Pipes(sources, form)
    states = dict.fromkeys(pipes.runs, "unknown")
    told: dict[str, str] = {}
    asked_at, ask = float("-inf"), SharedSlurm(home)
    try:
        while True:
            open_runs = [run for run, state in states.items() if state in LIVE]
            if clock() - asked_at >= _ASK_EVERY_S or any(_has_ended(home, run) for run in open_runs):
                views = observe(home, open_runs, ask=ask).views
                states.update({run: view.state for run, view in views.items()})
                asked_at = clock()
            for run, first in pipes.runs.items():
                newest = find_parts(home, run, first.pick, err=first.err, strict=False)
                started = bool(newest[0].paths) and not (newest[0].outdated and states[run] in LIVE)
                if started:
                    pipes.copy(newest)
                if run in open_runs and told.get(run) != states[run] and not started and states[run] in LIVE:
                    sys.stderr.write(f"{run} is {states[run]}\n")
                    told[run] = states[run]
            if not any(state in LIVE for state in states.values()):
                break
            sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        go = "goes" if len(states) == 1 else "go"
        sys.stderr.write(f"\nstopped following; {' and '.join(list(states)[:3])} {go} on\n")
        return 130
    pipes.finish()
    for run, state in states.items():
        sys.stderr.write(f"{run} is {state}\n")
    return 0 if all(state == "done" for state in states.values()) else 4


class _Pipes:
    """One pipe for each source. Ranks and replicas join when they begin to write; then they have labels."""

    def __init__(self, sources: Sequence[Source], form: Form) -> None:
        self.runs = {source.run: source for source in reversed(sources)}
        self._form = form
        # What the run wrote before it was submitted again is not followed, and must not appear beside what is.
        fresh = [one._replace(paths=[]) if one.outdated else one for one in sources]
        self._pipes = {self._key(one): self._pipe(one) for one in fresh}

    def copy(self, sources: Iterable[Source]) -> None:
        for source in sources:
            key = self._key(source)
            if key not in self._pipes:
                self._pipes[key] = self._pipe(source._replace(paths=[]))
            self._pipes[key].copy(source.paths)

    def finish(self) -> None:
        for pipe in self._pipes.values():
            pipe.finish()

    def _key(self, source: Source) -> tuple[str, str]:
        return source.run, source.label

    def _pipe(self, source: Source) -> _Pipe:
        return _Pipe(source, self._form, _prefix(source, len(self.runs) > 1))


class _Pipe:
    """Copies what one source writes to our output: as it comes, or in whole lines with a prefix if it has one."""

    def __init__(self, source: Source, form: Form, prefix: bytes) -> None:
        self.form, self._prefix = form, prefix
        self._offsets: dict[str, int] = dict.fromkeys(source.paths, -1)
        self._bars = Collapser() if prefix and not form.raw else None
        self._sieve = Sieve() if form.tty else None

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
        sys.stdout.buffer.write(_with_prefix(data, self._prefix) if self._prefix else data)


def _has_ended(home: str, run: str) -> bool:
    names = layout.parse_names(names_in(layout.run_dir(home, run)))
    return names.has_attempt(names.attempt, "end")


def _copy_tail(path: str, form: Form, prefix: bytes, out: BinaryIO) -> None:
    bars = None if form.raw else Collapser()
    sieve = Sieve() if form.tty else None
    with open(path, "rb") as file:  # noqa: PTH123
        seek_last_lines(file, form.lines)
        last = b"\n"
        while block := file.read(BLOCK):
            data = bars.feed(block) if bars else block
            last = _print(data, prefix, sieve, out) or last
        if bars and (rest := bars.flush()):
            last = _print(rest, prefix, sieve, out) or last
        if sieve:
            out.write(sieve.flush())
        if (form.tty or prefix) and not last.endswith(b"\n"):
            out.write(b"\n")


def _print(data: bytes, prefix: bytes, sieve: Sieve | None, out: BinaryIO) -> bytes:
    if sieve:
        data = sieve.feed(data)
    out.write(_with_prefix(data, prefix) if prefix else data)
    return data[-1:]


def _prefix(source: Source, several: bool) -> bytes:
    """The run where there are several, the rank or replica where its others are shown too; else nothing."""
    words = " ".join(word for word in (source.run if several else "", source.label) if word)
    return f"{words} | ".encode() if words else b""


def _with_prefix(data: bytes, prefix: bytes) -> bytes:
    lines = data.split(b"\n")
    tail = lines.pop()
    return b"".join(prefix + line + b"\n" for line in lines) + (prefix + tail if tail else b"")


def _slurm_files(home: str, run: str) -> list[str]:
    folder = layout.run_dir(home, run)
    generation = layout.parse_names(names_in(folder)).generation
    claim = records.read(os.path.join(folder, layout.submit_file(generation, "claim")), Claim)
    if claim is None:
        return []
    folder = layout.submission_dir(home, claim.token)
    tail = f"_{claim.index}.out"
    names = sorted(name for name in names_in(folder) if name.startswith("slurm-"))
    return [os.path.join(folder, name) for name in names if "_" not in name or name.endswith(tail)]
