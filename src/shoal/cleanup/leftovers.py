"""What runs have left behind and nobody needs: attempts that came to nothing, old logs, checkpoints beyond the newest.

Only runs that have surely ended are looked at. What a live run writes, reads or was started from is protected, and so
is the newest checkpoint of every run. A run whose state is not known counts as live.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shoal.kernel import checkpoints, layout, list_names
from shoal.model import FINAL_STATES, RunSpec
from shoal.observe import ClaimRecord, DamagedRecord, RunReader, RunView, records

ITEM_KINDS = ("script", "attempt", "checkpoint", "log", "snapshot", "scratch", "temporary")


class CleanupItem(NamedTuple):
    """Something that can go, why, and how large it is."""

    path: str
    kind: str
    reason: str
    size: int


class RunDirectories(NamedTuple):
    """One run with its output and log folders, the newest first."""

    view: RunView
    spec: RunSpec | None
    outputs: tuple[str, ...]
    logs: tuple[str, ...]


def read_run_directories(home: str, views: Mapping[str, RunView]) -> list[RunDirectories]:
    """The folders of all runs, from their claims; a run with a damaged claim is left out and so never touched."""
    reader = RunReader(home)
    found = []
    for name, view in views.items():
        folder = layout.run_dir(home, name)
        outputs: dict[str, None] = {}
        logs: dict[str, None] = {}
        try:
            for generation in reversed(layout.parse_names(list_names(folder)).submits.get("claim", [])):
                claim = records.read_checked(os.path.join(folder, layout.submit_file(generation, "claim")), ClaimRecord)
                if claim is not None:
                    outputs[claim.output_dir] = None
                    logs[claim.log_dir] = None
            found.append(RunDirectories(view, reader.spec(name), tuple(outputs), tuple(logs)))
        except (DamagedRecord, OSError):
            continue
    return found


def find_leftovers(
    runs: Sequence[RunDirectories], *, keep: int, older_than_s: float, now_s: float, kinds: Iterable[str] = ITEM_KINDS
) -> list[CleanupItem]:
    """Everything that can go, by run. `keep` checkpoints of each run stay; logs younger than `older_than_s` stay."""
    wanted = set(kinds)
    protected = _protected(runs)
    found: dict[str, CleanupItem] = {}
    for run in runs:
        if run.view.state not in FINAL_STATES:
            continue
        dead = list(_old_attempts(run)) if "attempt" in wanted else []
        kept = list(_old_checkpoints(run, keep, [item.path for item in dead])) if "checkpoint" in wanted else []
        old = list(_old_logs(run, older_than_s, now_s)) if "log" in wanted else []
        for item in (*dead, *kept, *old):
            inside_other = any(_inside(item.path, other) for other in found if other != item.path)
            if item.path not in found and not inside_other and not _overlaps(item.path, protected):
                found[item.path] = item
    return list(found.values())


def _protected(runs: Sequence[RunDirectories]) -> set[str]:
    """Paths that a live run uses, and every checkpoint that any run was started from."""
    found: set[str] = set()
    for run in runs:
        if run.spec is not None and run.spec.start_from:
            found.add(os.path.normpath(run.spec.start_from))
        if run.view.state not in FINAL_STATES:
            found |= {os.path.normpath(path) for path in (*run.outputs, *run.logs)}
            if run.view.resume_from:
                found.add(os.path.normpath(run.view.resume_from))
    return found


def _overlaps(path: str, protected: Iterable[str]) -> bool:
    path = os.path.normpath(path)
    return any(_inside(path, other) or _inside(other, path) for other in protected)


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _pattern(run: RunDirectories) -> str | None:
    return run.spec.checkpoint if run.spec is not None else None


def _old_attempts(run: RunDirectories) -> Iterator[CleanupItem]:
    """Output folders of earlier tries: all of them once the run is done, else those without a checkpoint."""
    current = run.view.output_dir or (run.outputs[0] if run.outputs else None)
    for folder in run.outputs:
        if folder == current or not os.path.isdir(folder) or os.path.islink(folder):
            continue
        pattern = _pattern(run)
        empty = pattern is None or checkpoints.newest_checkpoint(folder, pattern) is None
        if run.view.state == "done" or (empty and pattern is not None):
            why = "which is done" if run.view.state == "done" else "without a checkpoint"
            yield CleanupItem(folder, "attempt", f"an earlier try of {run.view.name}, {why}", disk_size(folder))


def _old_checkpoints(run: RunDirectories, keep: int, gone: Sequence[str]) -> Iterator[CleanupItem]:
    pattern = _pattern(run)
    if pattern is None:
        return
    found: list[str] = []
    for folder in run.outputs:  # newest first
        if folder not in gone and os.path.isdir(folder):
            found += [path for path in checkpoints.list_newest_first(folder, pattern) if not os.path.islink(path)]
    found.sort(key=lambda path: not checkpoints.is_complete(path))
    for path in found[max(1, keep) :]:
        yield CleanupItem(
            path, "checkpoint", f"not among the {max(1, keep)} newest of {run.view.name}", disk_size(path)
        )


def _old_logs(run: RunDirectories, older_than_s: float, now_s: float) -> Iterator[CleanupItem]:
    """Logs of attempts before the last one, once they are old."""
    for folder in run.logs:
        logs = sorted(glob.glob(os.path.join(glob.escape(folder), "attempt-*.*")))
        # A replacement that took its run over goes on writing to its first log, which a link gives the new number.
        linked = {os.path.realpath(path) for path in logs if os.path.islink(path)}
        for path in logs:
            number = os.path.basename(path).split("-")[1].split(".")[0]
            if not number.isdigit() or int(number) >= run.view.attempt or os.path.islink(path):
                continue
            if os.path.realpath(path) in linked:
                continue
            if now_s - os.path.getmtime(path) >= older_than_s:
                yield CleanupItem(
                    path, "log", f"attempt {number} of {run.view.attempt} of {run.view.name}", disk_size(path)
                )


def disk_size(path: str) -> int:
    """Bytes of a file, or of all files below a folder; links are not followed."""
    if not os.path.isdir(path) or os.path.islink(path):
        try:
            return os.lstat(path).st_size
        except OSError:
            return 0
    total = 0
    for root, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total
