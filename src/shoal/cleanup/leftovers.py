"""What ended runs left and no run needs: failed attempts, old logs, checkpoints, snapshots, objects, staged data.

Only runs that have certainly ended are considered; a run whose state is unknown counts as active. Protected are the
files that an active run writes, reads or was started from, and the newest checkpoint of every run.

A code snapshot stays while a run that executes it may still start; its .json and .diff, which describe the code, always
stay. Objects, the pickled functions and arguments of calls, stay until all runs that name them have completed: one that
failed needs them when it is tried again. Also listed are temporary files of writers that were killed, and staged data
on this machine's scratch that was not used lately: these are copies, staged again when a job needs them.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.job import VariableNotSet, cache, expand_path
from shoal.kernel import TEMP_MARK, checkpoints, is_shared, layout, list_names
from shoal.model import FINAL_STATES, RunSpec
from shoal.observe import ClaimRecord, DamagedRecord, RunReader, RunView, Submission, run_files
from shoal.units import format_duration

ITEM_KINDS = ("script", "attempt", "checkpoint", "log", "snapshot", "object", "scratch", "temporary")


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
                claim = run_files.read_checked(
                    os.path.join(folder, layout.submit_file(generation, "claim")), ClaimRecord
                )
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
    """Paths that an active run uses, and every checkpoint that any run was started from."""
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
    """Output folders of earlier attempts: all of them once the run completed, else those without a checkpoint."""
    current = run.view.output_dir or (run.outputs[0] if run.outputs else None)
    for folder in run.outputs:
        if folder == current or not os.path.isdir(folder) or os.path.islink(folder):
            continue
        pattern = _pattern(run)
        empty = pattern is None or checkpoints.newest_checkpoint(folder, pattern) is None
        if run.view.state == "completed" or (empty and pattern is not None):
            why = "which completed" if run.view.state == "completed" else "without a checkpoint"
            yield CleanupItem(folder, "attempt", f"an earlier attempt of {run.view.name}, {why}", disk_size(folder))


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


_MAX_WRITE_S = 86400.0


def stale_snapshots(home: str, views: Mapping[str, RunView], *, older_than_s: float, now_s: float) -> list[CleanupItem]:
    """Snapshots that were last used some time ago, and by runs that have all surely ended."""
    folder = layout.snapshots_dir(home, is_shared(home))  # in a shared project: this user's own
    names = [name for name in sorted(list_names(folder)) if os.path.isdir(os.path.join(folder, name))]
    wanted = set(_used_snapshots(home, views)) if names else set()
    found = []
    for name in names:
        path = os.path.join(folder, name)
        age_s = now_s - os.stat(path).st_mtime
        if name in wanted or age_s < older_than_s:
            continue
        what = "half of a snapshot" if ".tmp-" in name else "code that no active run executes"
        found.append(CleanupItem(path, "snapshot", f"{what}, last used {format_duration(age_s)} ago", disk_size(path)))
    return found


def _used_snapshots(home: str, views: Mapping[str, RunView]) -> Iterator[str]:
    """Names of the snapshots that a run may still be started in; a record that cannot be read keeps all of them."""
    root = layout.snapshots_dir(home, is_shared(home))
    for token in list_names(layout.submissions_dir(home)):
        try:
            path = os.path.join(layout.submission_dir(home, token), "submission.json")
            submission = run_files.read_checked(path, Submission)
        except DamagedRecord:
            yield from list_names(root)
            continue
        if submission is None or submission.code is None:
            continue
        if any(name not in views or views[name].state not in FINAL_STATES for name in submission.runs):
            yield os.path.relpath(submission.code, root).split(os.sep)[0]


def unused_objects(home: str, views: Mapping[str, RunView], *, older_than_s: float, now_s: float) -> list[CleanupItem]:
    """Pickles and records of calls that only completed runs name, or none, and that were last stored some time ago."""
    paths = sorted(glob.glob(os.path.join(glob.escape(layout.objects_dir(home)), "*", "*")))
    wanted = _used_objects(home, views) if paths else None
    found: list[CleanupItem] = []
    if wanted is None:
        return found
    for path in paths:
        age_s = now_s - os.stat(path).st_mtime
        digest, is_whole = os.path.splitext(os.path.basename(path))[0], TEMP_MARK not in path
        if is_whole and digest not in wanted and age_s >= older_than_s:
            reason = f"a call or argument that no run needs, last submitted {format_duration(age_s)} ago"
            found.append(CleanupItem(path, "object", reason, disk_size(path)))
    return found


def _used_objects(home: str, views: Mapping[str, RunView]) -> frozenset[str] | None:
    """Digests that a run names which has not completed; None if a record cannot be read, which might name any."""
    reader, wanted = RunReader(home), set[str]()
    for name, view in views.items():
        try:
            spec = reader.spec(name) if view.state != "completed" else None
            if spec is None or not spec.function:
                continue
            wanted.update(word.partition("=")[2] for word in spec.args)
            record = Path(spec.command[-1])
            wanted.add(record.stem)
            if record.is_file():
                wanted.add(json.loads(record.read_bytes()).get("function", ""))
        except (DamagedRecord, OSError, ValueError):
            return None
    return frozenset(wanted)


def temporary_files(home: str, *, now_s: float) -> list[CleanupItem]:
    """Temporary files of records that nobody finished. A write takes seconds: after a day its writer is gone."""
    found = []
    for folder, below, names in os.walk(home):
        below[:] = [name for name in below if name != "snapshots"]  # those are the user's files
        for name in names:
            if TEMP_MARK not in name:
                continue
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):  # it has just been finished
                age_s = now_s - os.stat(path).st_mtime
                if age_s > _MAX_WRITE_S:
                    reason = f"a file that was never finished, {format_duration(age_s)} old"
                    found.append(CleanupItem(path, "temporary", reason, disk_size(path)))
    return found


def unused_staged_data(bases: Iterable[str | None], *, older_than_s: float, now_s: float) -> list[CleanupItem]:
    """Data sets on node-local disk of this machine that nobody holds; other nodes tidy up when they need the room."""
    found: dict[str, CleanupItem] = {}
    for base in map(_expand_base, bases):
        for name in ("shoal-data", f"shoal-data-{os.getuid()}"):
            root = cache.CacheRoot(os.path.join(base or "", name))
            if not base or not os.path.isdir(root.folder("objects")) or os.stat(root.path).st_uid != os.getuid():
                continue
            for entry in cache.list_datasets(root):
                age_s = now_s - float(entry["used_at"])
                if not entry["busy"] and age_s >= older_than_s:
                    path = root.folder("objects", str(entry["id"]))
                    reason = f"a staged copy, last used {format_duration(age_s)} ago"
                    found[path] = CleanupItem(path, "scratch", reason, int(entry["bytes"]))
    return list(found.values())


def _expand_base(base: str | None) -> str | None:
    try:
        return expand_path(base, os.environ) if base else None
    except VariableNotSet:
        return None


def move_staged_data(path: str, dest: str) -> bool:
    """Take a staged data set out of the cache, unless somebody uses or copies it at this moment."""
    root, name = cache.CacheRoot(os.path.dirname(os.path.dirname(path))), os.path.basename(path)
    use, copy = cache.FileLock(root.folder("use", name)), cache.FileLock(root.folder("locks", name))
    try:
        if not (use.take(True) and copy.take(True)):
            return False
        os.rename(path, dest)
        return True
    finally:
        copy.close()
        use.close()
