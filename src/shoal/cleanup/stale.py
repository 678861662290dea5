"""Snapshots of code that no run needs any more, temporary files of writers that were killed, and staged data on this
machine's scratch that nobody has used lately.

A snapshot stays for as long as a run that executes it may still start. Its .json and .diff, which say what the code
was, always stay. Staged data are copies: what goes is staged again when a job asks for it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping

from shoal.cleanup.leftovers import CleanupItem, disk_size
from shoal.job import VariableNotSet, cache, expand_path
from shoal.kernel import TEMP_MARK, is_shared, layout, list_names
from shoal.model import FINAL_STATES
from shoal.observe import DamagedRecord, RunView, Submission, records
from shoal.units import format_duration

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
        what = "half of a snapshot" if ".tmp-" in name else "code that no live run executes"
        found.append(CleanupItem(path, "snapshot", f"{what}, last used {format_duration(age_s)} ago", disk_size(path)))
    return found


def _used_snapshots(home: str, views: Mapping[str, RunView]) -> Iterator[str]:
    """Names of the snapshots that a run may still be started in; a record that cannot be read keeps all of them."""
    root = layout.snapshots_dir(home, is_shared(home))
    for token in list_names(layout.submissions_dir(home)):
        try:
            path = os.path.join(layout.submission_dir(home, token), "submission.json")
            submission = records.read_checked(path, Submission)
        except DamagedRecord:
            yield from list_names(root)
            continue
        if submission is None or submission.code is None:
            continue
        if any(name not in views or views[name].state not in FINAL_STATES for name in submission.runs):
            yield os.path.relpath(submission.code, root).split(os.sep)[0]


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


def move_staged_data(path: str, goal: str) -> bool:
    """Take a staged data set out of the cache, unless somebody uses or copies it at this moment."""
    root, name = cache.CacheRoot(os.path.dirname(os.path.dirname(path))), os.path.basename(path)
    use, copy = cache.FileLock(root.folder("use", name)), cache.FileLock(root.folder("locks", name))
    try:
        if not (use.take(True) and copy.take(True)):
            return False
        os.rename(path, goal)
        return True
    finally:
        copy.close()
        use.close()
