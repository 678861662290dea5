"""`shoal logs`: read the end of a file without reading the file; follow it while the run lives. Bytes stay bytes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from shoal.agent import layout
from shoal.agent.files import names_in
from shoal.errors import InputError
from shoal.model import LIVE
from shoal.observe import observe
from shoal.store import records
from shoal.store.records import Claim, Start
from shoal.views.render import print_json

_BLOCK = 1 << 16
#: Files are looked at often, Slurm is asked seldom: ten people following must not be a load on the controller.
_LOOK_EVERY_S = 0.3
_ASK_EVERY_S = 15.0


class Source(NamedTuple):
    """The files to show, and the attempt that wrote them (0: not started)."""

    run: str
    attempt: int
    paths: list[str]
    err: bool


def find(home: str, run: str, *, attempt: int | None = None, err: bool = False, slurm: bool = False) -> Source:
    """The log files of a run; InputError when that attempt never was."""
    names = layout.parse_names(names_in(layout.run_dir(home, run)))
    number = names.attempt if attempt is None else attempt
    if slurm:
        return Source(run, number, _slurm_files(home, run), err)
    if attempt is not None and not names.has_attempt(attempt, "start"):
        known = ", ".join(map(str, names.attempts.get("start", []))) or "none"
        raise InputError(f"{run} has no attempt {attempt}; it has {known}", hint=f"shoal logs {run}")
    start = records.read(os.path.join(layout.run_dir(home, run), layout.attempt_file(number, "start")), Start)
    if start is None:
        return Source(run, 0, [], err)
    return Source(run, number, [os.path.join(start.log_dir, f"attempt-{number}.{'err' if err else 'out'}")], err)


def show(source: Source, lines: int) -> int:
    """Print the last lines. A run that has not started is told so on standard error, and is no error."""
    if not source.paths:
        sys.stderr.write(f"{source.run} has not started yet; shoal logs {source.run} -f waits for it\n")
    for path in source.paths:
        _copy_tail(path, lines, sys.stdout.buffer)
    return 0


def show_json(source: Source, lines: int) -> int:
    parts = []
    for path in source.paths:
        with open(path, "rb") as file:  # noqa: PTH123
            _seek_last_lines(file, lines)
            parts.append({"path": path, "text": file.read(16 << 20).decode("utf-8", "replace")})
    print_json({"run": source.run, "attempt": source.attempt, "logs": parts})
    return 0


def follow(
    home: str,
    source: Source,
    lines: int,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Print the last lines and then whatever comes, over attempts, until the run is no longer live.

    Ctrl-C ends the following, never the run. Returns 0 if the run is done, 4 if it ended otherwise.
    """
    told, asked_at, offsets = "", float("-inf"), dict.fromkeys(source.paths, -lines - 1)
    state = "unknown"
    try:
        while True:
            if clock() - asked_at >= _ASK_EVERY_S or _has_ended(home, source.run):
                state, asked_at = observe(home, [source.run]).views[source.run].state, clock()
            ended = state not in LIVE
            newest = find(home, source.run, err=source.err)
            for path in newest.paths:
                offsets[path] = _copy_new(path, offsets.get(path, 0))
            if ended:
                break
            if state != told and not newest.paths:
                sys.stderr.write(f"{source.run} is {state}\n")
                told = state
            sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        sys.stderr.write(f"\nstopped following; {source.run} goes on\n")
        return 130
    sys.stderr.write(f"{source.run} is {state}\n")
    return 0 if state == "done" else 4


def _has_ended(home: str, run: str) -> bool:
    names = layout.parse_names(names_in(layout.run_dir(home, run)))
    return names.has_attempt(names.attempt, "end")


def _copy_new(path: str, offset: int) -> int:
    """Print what stands behind `offset`; a negative one means the last -offset - 1 lines. Returns the new offset."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            if offset < 0:
                _seek_last_lines(file, -offset - 1)
            else:
                file.seek(offset)
            while block := file.read(_BLOCK):
                sys.stdout.buffer.write(block)
            sys.stdout.flush()
            return file.tell()
    except FileNotFoundError:
        return offset


def _copy_tail(path: str, lines: int, out: BinaryIO) -> None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            _seek_last_lines(file, lines)
            while block := file.read(_BLOCK):
                out.write(block)
        out.flush()
    except FileNotFoundError:
        sys.stderr.write(f"{path} is not there (yet)\n")


def _seek_last_lines(file: BinaryIO, lines: int) -> None:
    """Place the file at the beginning of its last lines, reading backwards; 0 means all of it."""
    end = position = file.seek(0, os.SEEK_END)
    while position > 0 and lines > 0:
        start = max(0, position - _BLOCK)
        file.seek(start)
        block = file.read(position - start)
        # The line break at the very end closes the last line and begins none.
        at = len(block) - 1 if position == end and block.endswith(b"\n") else len(block)
        while lines > 0 and (at := block.rfind(b"\n", 0, at)) >= 0:
            lines -= 1
            if lines == 0:
                file.seek(start + at + 1)
                return
        position = start
    file.seek(0)


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
