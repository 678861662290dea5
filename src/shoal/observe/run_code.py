"""Which code a run executed, and what its step says today: what views need beside the records of runs.

The code of a run is a word that is equal for equal code: of a function the digest that its identity rests on, of all
others the digest of the project's code in the snapshot of its submission (actions/snapshot.py says which files count).
It is empty where no snapshot was taken.
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal.kernel import layout, read_json
from shoal.model import RunSpec
from shoal.observe.run_files import ClaimRecord, DamagedRecord, RunReader, read_checked
from shoal.observe.run_state import RunView
from shoal.units import shorten_list

_SHOWN = 8
#: In a shared project each user has a directory of snapshots.
_SNAPSHOT = re.compile(r"/snapshots/(?:(\d{1,10})/)?([0-9a-f]{16})(?=/)")


class RunCode(NamedTuple):
    """A run beside others of its step: which code it executed, and when it was submitted."""

    name: str
    step: str
    code: str
    submitted: float


def read_code(reader: RunReader, view: RunView, spec: RunSpec | None) -> str:
    """The code of the newest attempt; empty before the first, and where that is not known."""
    if spec is None or not view.attempt:
        return ""
    if spec.function:
        return str(spec.function.get("code", ""))[:_SHOWN]
    path = os.path.join(layout.run_dir(reader.home, view.name), layout.submit_file(view.generation, "claim"))
    try:
        claim = read_checked(path, ClaimRecord)
        sent = reader.submission(claim.token).submission if claim is not None else None
    except DamagedRecord:
        return ""
    return _snapshot_code(reader.home, sent.code) if sent is not None and sent.code else ""


@functools.lru_cache(maxsize=1000)
def _snapshot_code(home: str, root: str) -> str:
    """`root` is the project's in the snapshot, maybe of another user or under another name of the state directory; the
    snapshot's record is beside it. A snapshot never changes."""
    found = list(_SNAPSHOT.finditer(root + "/"))
    if not found:
        return ""
    owner, tree = found[-1].groups()
    try:
        record = read_json(os.path.join(home, "snapshots", owner or "", f"{tree}.json")) or {}
    except (OSError, ValueError):
        record = {}
    return str(record.get("code") or tree)[:_SHOWN]


def other_code_notes(runs: Iterable[RunCode]) -> list[str]:
    """A sentence if runs of one step and experiment stand beside each other that different code made."""
    groups: dict[tuple[str, str], list[RunCode]] = {}
    for run in runs:
        if run.code:
            groups.setdefault((run.name.partition("/")[0], run.step), []).append(run)
    others: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for (experiment, _), members in groups.items():
        newest = max(members, key=lambda run: run.submitted).code
        others[experiment] += sum(run.code != newest for run in members)
        totals[experiment] += len(members)
    named = [f"{others[name]} of {totals[name]} runs of {name}" for name in totals if others[name]]
    if not named:
        return []
    which = " ".join(name for name in totals if others[name])
    verb = "was" if sum(others.values()) == 1 else "were"
    command = f"shoal status {which} --all --columns run,state,code" if len(named) <= 3 else "--columns run,state,code"
    return [f"{shorten_list(named, 3)} {verb} made with other code than the newest ({command})"]


def declared_metrics(root: str, step: str) -> tuple[str, ...]:
    """`metrics` of a step as shoal.toml says now: a name that is added later is found in logs of finished runs too."""
    path = os.path.join(root, "shoal.toml")
    try:
        changed_ns = os.stat(path).st_mtime_ns
    except OSError:
        return ()
    return _metrics_by_step(path, changed_ns).get(step, ())


@functools.lru_cache(maxsize=8)
def _metrics_by_step(path: str, changed_ns: int) -> dict[str, tuple[str, ...]]:
    try:
        text = Path(path).read_bytes()
        steps = msgspec.toml.decode(text).get("steps") if b"metrics" in text else None
    except (OSError, ValueError):
        return {}  # commands that need the settings say what is wrong with the file
    if not isinstance(steps, dict):
        return {}
    found = {name: one.get("metrics") for name, one in steps.items() if isinstance(one, dict)}
    return {
        name: tuple(word.strip() for word in words if isinstance(word, str) and word.strip())
        for name, words in found.items()
        if isinstance(words, list)
    }
