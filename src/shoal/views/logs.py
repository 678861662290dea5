"""`shoal logs`: the end of a file without reading the file; several runs or ranks with prefixes.

In a pipe bytes stay bytes (only progress bars are collapsed, unless --raw); on a terminal the control sequences of a
log have no effect.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

from shoal.errors import InputError
from shoal.kernel import layout, list_names
from shoal.observe import RunReader, run_files
from shoal.views.log_files import (
    BLOCK,
    CarriageReturnFilter,
    RankSelection,
    needs_label,
    rank_logs,
    seek_last_lines,
    select_ranks,
)
from shoal.views.render import print_json, safe_line
from shoal.views.terminal import ControlSequenceFilter, Screen

_MAX_JSON_BYTES = 16 << 20


class LogSource(NamedTuple):
    """The files to show, and the attempt that wrote them (0: not started).

    `label` names a part of the run, such as "replica 1". `outdated`: the run was submitted again since, and that
    submission has not started.
    """

    run: str
    attempt: int
    paths: list[str]
    outdated: bool = False
    label: str = ""
    pick: RankSelection = RankSelection()


class LogFormat(NamedTuple):
    """How to print: `raw` bytes as they are, whether a terminal reads them, and whether it wants the log's colours."""

    lines: int = 200
    raw: bool = False
    tty: bool = False
    colour: bool = True


def format_for(screen: Screen, *, lines: int, raw: bool = False) -> LogFormat:
    return LogFormat(lines, raw, screen.tty and not raw, screen.colour)


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
            paths.append(layout.log_file(start.log_dir, one))
    outdated = start is not None and start.generation < names.generation
    return LogSource(run, number if paths else 0, paths, outdated)


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

    Without `strict` those that are not there may still come; else that is an InputError. `every` takes all tries.
    """
    whole = find_logs(home, run, attempt=attempt)._replace(pick=pick)
    if not whole.paths:
        return [whole]
    found = rank_logs(os.path.dirname(whole.paths[0]), whole.attempt)
    wanted = select_ranks(found, pick)
    if not wanted and strict:
        there = ", ".join(part.label for part in found)
        hint = f"shoal logs {run} --rank all"
        raise InputError(f"attempt {whole.attempt} of {run} has no such part; it has {there}", hint=hint)
    return [
        whole._replace(
            paths=part.tries if every else part.tries[-1:], label=part.label if needs_label(part, pick) else ""
        )
        for part in wanted
    ] or [whole._replace(paths=[])]


def show_logs(sources: Sequence[LogSource], form: LogFormat, out: BinaryIO | None = None) -> int:
    """Print the last lines. A run that has not started is told so on standard error, and is no error."""
    out = out or sys.stdout.buffer
    several = len({source.run for source in sources}) > 1
    headed = not several and sum(len(source.paths) for source in sources if not source.label) > 1
    for source in sources:
        if not source.paths:
            sys.stderr.write(f"{source.run} has not started yet; shoal logs {source.run} -f waits for it\n")
        for path in source.paths:
            if headed and not source.label:
                out.write(f"==> {safe_line(os.path.basename(path))} <==\n".encode())
            try:
                _copy_tail(path, form, prefix_of(source, several), out)
            except FileNotFoundError:
                sys.stderr.write(f"{path} is not there (yet)\n")
    out.flush()
    return 0


def show_logs_json(sources: Sequence[LogSource], lines: int) -> int:
    by_run: dict[str, dict[str, Any]] = {}
    for source in sources:
        one = by_run.setdefault(source.run, {"run": source.run, "attempt": source.attempt, "logs": []})
        one["logs"] += _log_texts(source, lines)
    found = list(by_run.values())
    print_json({**found[0], "runs": found} if len(found) == 1 else {"runs": found})
    return 0


def _log_texts(source: LogSource, lines: int) -> list[dict[str, Any]]:
    parts = []
    for path in source.paths:
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                start = seek_last_lines(file, lines, _MAX_JSON_BYTES)
                text = file.read(_MAX_JSON_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            start, text = 0, ""
        parts.append({"path": path, "offset": start, "text": text})
    return parts


def open_pager(paths: Sequence[str]) -> int:
    """Hand the files to the person's pager, at their end; it reads only what it shows."""
    import shlex
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
