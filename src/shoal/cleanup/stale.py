"""Snapshots of code that no run needs any more, temporary files of writers that were killed, and staged data on this
machine's scratch that nobody has used lately.

A snapshot stays for as long as a run that executes it may still start. Its .json and .diff, which say what the code
was, always stay. Staged data are copies: what goes is staged again when a job asks for it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping

from shoal.cleanup.leftovers import SURELY_ENDED, Item, size_of
from shoal.job import NotSet, cache, expand
from shoal.kernel import TEMP_MARK, is_shared, layout, names_in
from shoal.observe import DamagedRecord, RunView, Submission, records
from shoal.units import format_duration

_WRITTEN_S = 86400.0


def stale_snapshots(home: str, views: Mapping[str, RunView], *, older_than_s: float, now_s: float) -> list[Item]:
    """Snapshots that were last used some time ago, and by runs that have all surely ended."""
    folder = layout.snapshots_dir(home, is_shared(home))  # in a shared project: this user's own
    names = [name for name in sorted(names_in(folder)) if os.path.isdir(os.path.join(folder, name))]
    wanted = set(_used(home, views)) if names else set()
    found = []
    for name in names:
        path = os.path.join(folder, name)
        age_s = now_s - os.stat(path).st_mtime
        if name in wanted or age_s < older_than_s:
            continue
        what = "half of a snapshot" if ".tmp-" in name else "code that no live run executes"
        found.append(Item(path, "snapshot", f"{what}, last used {format_duration(age_s)} ago", size_of(path)))
    return found


def _used(home: str, views: Mapping[str, RunView]) -> Iterator[str]:
    """Names of the snapshots that a run may still be started in; a record that cannot be read keeps all of them."""
    root = layout.snapshots_dir(home, is_shared(home))
    for token in names_in(layout.submissions_dir(home)):
        try:
            path = os.path.join(layout.submission_dir(home, token), "submission.json")
            submission = records.read(path, Submission)
        except DamagedRecord:
            yield from names_in(root)
            continue
        if submission is None or submission.code is None:
            continue
        if any(name not in views or views[name].state not in SURELY_ENDED for name in submission.runs):
            yield os.path.relpath(submission.code, root).split(os.sep)[0]


def half_written(home: str, *, now_s: float) -> list[Item]:
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
                if age_s > _WRITTEN_S:
                    reason = f"a file that was never finished, {format_duration(age_s)} old"
                    found.append(Item(path, "temporary", reason, size_of(path)))
    return found


def unused_scratch(bases: Iterable[str | None], *, older_than_s: float, now_s: float) -> list[Item]:
    """Data sets on node-local disk of this machine that nobody holds; other nodes tidy up when they need the room."""
    found: dict[str, Item] = {}
    for base in map(_expanded, bases):
        for name in ("shoal-data", f"shoal-data-{os.getuid()}"):
            root = cache.Root(os.path.join(base or "", name))
            if not base or not os.path.isdir(root.folder("objects")) or os.stat(root.path).st_uid != os.getuid():
                continue
            for entry in cache.contents(root):
                age_s = now_s - float(entry["used_at"])
                if not entry["busy"] and age_s >= older_than_s:
                    path = root.folder("objects", str(entry["id"]))
                    reason = f"a staged copy, last used {format_duration(age_s)} ago"
                    found[path] = Item(path, "scratch", reason, int(entry["bytes"]))
    return list(found.values())


def _expanded(base: str | None) -> str | None:
    try:
        return expand(base, os.environ) if base else None
    except NotSet:
        return None


def set_aside(path: str, goal: str) -> bool:
    """Take a staged data set out of the cache, unless somebody uses or copies it at this moment."""
    root, name = cache.Root(os.path.dirname(os.path.dirname(path))), os.path.basename(path)
    use, copy = cache.Lock(root.folder("use", name)), cache.Lock(root.folder("locks", name))
    try:
        if not (use.take(True) and copy.take(True)):
            return False
        os.rename(path, goal)
        return True
    finally:
        copy.close()
        use.close()
