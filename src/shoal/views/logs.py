"""`shoal logs`: the end of a file without reading the file; several runs or ranks with prefixes.

In a pipe bytes stay bytes (only progress bars are collapsed, unless --raw); on a terminal the control sequences of a
log have no effect.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO, Literal, NamedTuple

from shoal.errors import InputError
from shoal.kernel import layout, list_names
from shoal.observe import RunReader, Start, run_files
from shoal.views.log_files import (
    BLOCK,
    CarriageReturnFilter,
    RankSelection,
    has_bytes,
    needs_label,
    rank_logs,
    real_log,
    seek_last_lines,
    select_ranks,
)
from shoal.views.render import print_json, safe_line
from shoal.views.terminal import ControlSequenceFilter, Screen

_MAX_JSON_BYTES = 16 << 20


class LogSource(NamedTuple):
    """The files to show, and the attempt that wrote them (0: not started).

    `label` names a part of the run, such as "replica 1". `outdated`: the run was submitted again since, and that
    submission has not started. `adopted`: of a job that shoal did not start; without paths nothing tells where it
    prints.
    """

    run: str
    attempt: int
    paths: list[str]
    outdated: bool = False
    label: str = ""
    pick: RankSelection = RankSelection()
    adopted: bool = False


class LogChoice(NamedTuple):
    """Which logs of a run: a rank or replica (a number, or "all"), an attempt (None: the newest; `every`: all of them),
    or with `slurm` what Slurm and the cluster's set-up lines printed. Without `strict`, parts that are not there may
    still come."""

    replica: int | Literal["all"] | None = None
    rank: int | Literal["all"] | None = None
    attempt: int | None = None
    every: bool = False
    slurm: bool = False
    strict: bool = True


class FoundLogs(NamedTuple):
    """Log files, and the state directory of their runs."""

    home: str
    sources: list[LogSource]


class LogText(NamedTuple):
    """The end of a log file, from the byte `offset` on."""

    path: str
    offset: int
    text: str


class RunLogs(NamedTuple):
    """What the newest or the chosen attempt of a run printed (attempt 0: it has not started)."""

    run: str
    attempt: int
    logs: list[LogText]


class LogFormat(NamedTuple):
    """How to print: `raw` bytes as they are, whether a terminal reads them, and whether it wants the log's colours."""

    lines: int = 200
    raw: bool = False
    tty: bool = False
    colour: bool = True


def format_for(screen: Screen, *, lines: int, raw: bool = False) -> LogFormat:
    return LogFormat(lines, raw, screen.tty and not raw, screen.colour)


def find_log_sources(home: str, names: Sequence[str], choice: LogChoice | None = None) -> FoundLogs:
    """The chosen log files of runs; InputError where one of the chosen parts is not there."""
    choice = choice or LogChoice()
    pick = RankSelection(choice.replica, choice.rank)
    sources: list[LogSource] = []
    for name in names:
        if choice.slurm or (choice.every and pick == RankSelection()):
            sources.append(find_logs(home, name, slurm=choice.slurm, every=choice.every))
        else:
            sources += find_rank_logs(
                home, name, pick, attempt=choice.attempt, every=choice.every, strict=choice.strict
            )
    return FoundLogs(home, sources)


def find_logs(
    home: str,
    run: str,
    *,
    attempt: int | None = None,
    slurm: bool = False,
    every: bool = False,
) -> LogSource:
    """The log files of a run; InputError when that attempt never was. `every` takes all attempts, oldest first."""
    names = layout.parse_names(list_names(layout.run_dir(home, run)))
    number = names.attempt if attempt is None else attempt
    if slurm:
        return LogSource(run, number, slurm_files(home, run))
    if attempt is not None and not names.has_attempt(attempt, "start"):
        known = ", ".join(map(str, names.attempts.get("start", []))) or "none"
        raise InputError(f"{run} has no attempt {attempt}; it has {known}", hint=f"shoal logs {run}")
    paths = []
    start = None
    for one in names.attempts.get("start", []) if every else [number]:
        start = run_files.read_start(layout.run_dir(home, run), one)
        if start is not None:
            paths += _own_logs(start, one)
    outdated = start is not None and start.generation < names.generation
    is_adopted = start is not None and start.adopted
    return LogSource(run, number if start is not None else 0, paths, outdated, adopted=is_adopted)


def _own_logs(start: Start, attempt: int) -> list[str]:
    """What an attempt itself printed. Of an adopted job that is a link, where it is known to what."""
    found = layout.log_files(start.log_dir, attempt)
    return [path for path in found if os.path.islink(path)] if start.adopted else found


def find_rank_logs(
    home: str,
    run: str,
    pick: RankSelection,
    *,
    attempt: int | None = None,
    every: bool = False,
    strict: bool = True,
) -> list[LogSource]:
    """The picked ranks and replicas of a run, a source for each. Nothing picked: rank 0, and that of every replica.

    Without `strict` those that are not there may still come; else that is an InputError. `every` takes all attempts.
    """
    whole = find_logs(home, run, attempt=attempt)._replace(pick=pick)
    if not whole.paths or whole.adopted:
        if pick == RankSelection() or not whole.adopted or not strict:
            return [whole]
        raise InputError(f"{run} is an adopted job: the logs of its ranks are not known", hint=f"shoal logs {run}")
    found = rank_logs(os.path.dirname(whole.paths[0]), whole.attempt)
    wanted = select_ranks(found, pick)
    if not wanted and strict:
        there = ", ".join(part.label for part in found)
        hint = f"shoal logs {run} --rank all"
        raise InputError(f"attempt {whole.attempt} of {run} has no such part; it has {there}", hint=hint)
    return [
        whole._replace(
            paths=part.attempts if every else part.attempts[-1:], label=part.label if needs_label(part, pick) else ""
        )
        for part in wanted
    ] or [whole._replace(paths=[])]


def show_logs(sources: Sequence[LogSource], form: LogFormat, out: BinaryIO | None = None) -> int:
    """Print the last lines. A run that has not started is told so on standard error, and is no error."""
    out = out or sys.stdout.buffer
    several = len({source.run for source in sources}) > 1
    headed = not several and sum(len(source.paths) for source in sources if not source.label) > 1
    for source in sources:
        if source.adopted and not source.paths:
            sys.stderr.write(f"nothing tells where {source.run} prints: Slurm names no file for its output\n")
        elif not source.paths:
            sys.stderr.write(f"{source.run} has not started yet; shoal logs {source.run} -f waits for it\n")
        for path in source.paths:
            if headed and source.adopted and not has_bytes(path):
                continue  # mostly errors that did not happen
            if headed and not source.label:
                out.write(f"==> {safe_line(os.path.basename(real_log(path)))} <==\n".encode())
            try:
                _copy_tail(path, form, prefix_of(source, several), out)
            except FileNotFoundError:
                sys.stderr.write(f"{real_log(path)} is not there (yet)\n")
            except PermissionError:
                raise _unreadable(path) from None
    out.flush()
    return 0


def _unreadable(path: str) -> InputError:
    where = real_log(path)
    return InputError(f"cannot read the log {where}: permission denied", hint=f"ls -l {shlex.quote(where)}")


def show_logs_json(sources: Sequence[LogSource], lines: int) -> int:
    print_json(logs_document(read_logs(sources, lines)))
    return 0


def logs_document(read: Sequence[RunLogs]) -> dict[str, Any]:
    found = [{**one._asdict(), "logs": [log._asdict() for log in one.logs]} for one in read]
    return {**found[0], "runs": found} if len(found) == 1 else {"runs": found}


def read_logs(sources: Sequence[LogSource], lines: int) -> list[RunLogs]:
    """The last lines of the files (0: all), at most 16 MiB of each; a run once."""
    by_run: dict[str, RunLogs] = {}
    for source in sources:
        by_run.setdefault(source.run, RunLogs(source.run, source.attempt, [])).logs.extend(_log_texts(source, lines))
    return list(by_run.values())


def _log_texts(source: LogSource, lines: int) -> list[LogText]:
    parts = []
    for path in source.paths:
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                start = seek_last_lines(file, lines, _MAX_JSON_BYTES)
                text = file.read(_MAX_JSON_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            start, text = 0, ""
        except PermissionError:
            raise _unreadable(path) from None
        parts.append(LogText(path, start, text))
    return parts


def open_pager(paths: Sequence[str]) -> int:
    """Hand the files to the person's pager, at their end; it reads only what it shows."""
    import subprocess

    words = shlex.split(os.environ.get("PAGER") or "less")
    extra = ["-R", "+G"] if os.path.basename(words[0]) == "less" else []
    try:
        return subprocess.run([*words, *extra, "--", *paths], check=False).returncode
    except OSError as error:
        raise InputError(f"cannot start the pager {words[0]}: {error.strerror}", hint="export PAGER=less") from None


def _copy_tail(path: str, form: LogFormat, prefix: bytes, out: BinaryIO) -> None:
    bars = None if form.raw else CarriageReturnFilter()
    sieve = ControlSequenceFilter(form.colour) if form.tty else None
    with open(path, "rb") as file:  # noqa: PTH123
        seek_last_lines(file, form.lines)
        last = b"\n"
        while block := file.read(BLOCK):
            data = bars.feed(block) if bars else block
            last = _print_block(data, prefix, sieve, out) or last
        if bars and (rest := bars.flush()):
            last = _print_block(rest, prefix, sieve, out) or last
        if sieve:
            out.write(sieve.flush())
        if (form.tty or prefix) and not last.endswith(b"\n"):
            out.write(b"\n")


def _print_block(data: bytes, prefix: bytes, sieve: ControlSequenceFilter | None, out: BinaryIO) -> bytes:
    if sieve:
        data = sieve.feed(data)
    out.write(prefix_lines(data, prefix) if prefix else data)
    return data[-1:]


def prefix_of(source: LogSource, several: bool) -> bytes:
    """The run where there are several, the rank or replica where its others are shown too; else nothing."""
    words = " ".join(word for word in (source.run if several else "", source.label) if word)
    return f"{words} | ".encode() if words else b""


def prefix_lines(data: bytes, prefix: bytes) -> bytes:
    lines = data.split(b"\n")
    tail = lines.pop()
    return b"".join(prefix + line + b"\n" for line in lines) + (prefix + tail if tail else b"")


def slurm_files(home: str, run: str) -> list[str]:
    """What Slurm and the cluster's set-up lines printed about the newest submission of a run."""
    claim = RunReader(home).newest_claim(run)
    if claim is None:
        return []
    folder = layout.submission_dir(home, claim.token)
    tail = f"_{claim.index}.out"
    names = sorted(name for name in list_names(folder) if name.startswith("slurm-"))
    return [os.path.join(folder, name) for name in names if "_" not in name or name.endswith(tail)]
