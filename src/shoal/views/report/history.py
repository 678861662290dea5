"""Everything that a run's folder remembers: each attempt, what it asked for, how long it held that, how it ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from shoal.kernel import layout, list_names
from shoal.model import SUCCESSFUL_STATES, RunSpec
from shoal.observe import (
    AssignedResources,
    ClaimRecord,
    DamagedRecord,
    End,
    RequestedResources,
    RunReader,
    RunView,
    records,
)
from shoal.views import usage
from shoal.views.usage import AttemptUsage


class AttemptHistory(NamedTuple):
    """One attempt. `end` is when it ended, or was last known to live; `kept`: its work was not lost.

    `share` is its part of each GPU, when it shared them with other runs of a pack; `held` is what it had there, and
    `job` the allocation: a Slurm job, or what one command ran on this machine.
    """

    run: str
    attempt: int
    host: str
    submitted: float | None
    begin: float
    end: float
    state: str
    kept: bool
    asked: RequestedResources
    time_limit_s: int | None
    use: AttemptUsage | None
    resumed: bool = False
    data: Sequence[dict[str, Any]] = ()
    share: float = 1.0
    held: AssignedResources | None = None
    job: str = ""

    @property
    def gpus(self) -> float:
        held = self.asked.nodes * self.asked.gpus * self.share
        return int(held) if held == int(held) else held

    @property
    def hours(self) -> float:
        return max(0.0, self.end - self.begin) / 3600


class RunHistory(NamedTuple):
    view: RunView
    spec: RunSpec | None
    tries: list[AttemptHistory]


def read_history(home: str, view: RunView, reader: RunReader, now: float) -> RunHistory:
    """All attempts of one run, oldest first; what is damaged is left out."""
    folder = layout.run_dir(home, view.name)
    names = layout.parse_names(list_names(folder))
    try:
        spec = reader.spec(view.name)
    except DamagedRecord:
        spec = None
    tries: list[AttemptHistory] = []
    for number in names.attempts.get("start", []):
        try:
            found = _read_attempt(home, folder, names, view, reader, number, now)
        except DamagedRecord:
            continue
        if found is not None:
            tries.append(found)
    return RunHistory(view, spec, _with_kept(tries))


def _read_attempt(
    home: str, folder: str, names: layout.RunNames, view: RunView, reader: RunReader, number: int, now: float
) -> AttemptHistory | None:
    start = records.read_start(folder, number)
    if start is None:
        return None
    end = records.read_end(folder, names, number)
    claim = records.read_checked(os.path.join(folder, layout.submit_file(start.generation, "claim")), ClaimRecord)
    submission = reader.submission(claim.token).submission if claim else None
    is_last = number == names.attempt
    if end is not None:
        until, state = end.ended, "done" if end.success else (view.state if is_last else _end_state(end))
    else:
        until, state = now, "running"
    first = not any(other < number for other in names.attempts.get("start", []))
    asked = (submission.asked if submission else None) or RequestedResources()
    limit, held = submission.time_limit_s if submission else None, start.held
    if held is not None:
        # One of many in a pack: it held its slot, and the time limit was everybody's.
        asked, limit = (
            RequestedResources(nodes=1, gpus=len(held.gpus), cpus=held.cpus or None, partition=asked.partition),
            None,
        )
    return AttemptHistory(
        view.name,
        number,
        (held.host if held else None) or start.node or start.host,
        claim.t if claim and (first or start.resume_from is not None) else None,
        start.t,
        max(start.t, until),
        state,
        state == "done",
        asked,
        limit,
        usage.read_usage(home, view.name, number),
        start.resume_from is not None,
        end.data if end is not None else (),
        held.share if held is not None and 0 < held.share < 1 else 1.0,
        held,
        start.job_id or start.token,
    )


def _end_state(end: End) -> str:
    if end.oom:
        return "oom"
    return {"cancelled": "cancelled", "search": "stopped"}.get(end.stopped_by or "", "failed")


def _with_kept(tries: list[AttemptHistory]) -> list[AttemptHistory]:
    """An attempt's work is kept if it succeeded or still runs, or if the next one went on from its checkpoint."""
    found: list[AttemptHistory] = []
    for one in reversed(tries):
        went_on = bool(found) and found[-1].resumed and found[-1].kept
        found.append(one._replace(kept=one.state in SUCCESSFUL_STATES | {"running"} or went_on))
    return found[::-1]
