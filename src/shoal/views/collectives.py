"""Who waited for whom when a collective operation of several ranks timed out: a dead rank, a missing one, ranks that
are out of step, or the network. Read from what NCCL's watchdog prints in the logs of the ranks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from shoal.kernel import names_in
from shoal.observe import RunView
from shoal.units import listed
from shoal.views.faults import logs_of
from shoal.views.tail import last_text

_TIMEOUT = re.compile(
    r"\[(?:PG [^]]*)?Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout: \w+\(SeqNum=(?P<number>\d+), "
    r"OpType=(?P<operation>\w+).*?Timeout\(ms\)=(?P<limit_ms>\d+)"
)


class Wait(NamedTuple):
    """A rank that waited for others in its collective operation `number` until the limit was over."""

    rank: int
    number: int
    operation: str
    limit_s: float


class Stall(NamedTuple):
    """What became of the ranks. `absent` ones did not wait: they were somewhere else, hung, or were killed."""

    waits: list[Wait]
    absent: list[int]

    @property
    def is_in_step(self) -> bool:
        return len({(wait.number, wait.operation) for wait in self.waits}) == 1


def read_stall(view: RunView) -> Stall | None:
    """The ranks that waited, by the first time-out that each of them reports; None if none did."""
    waits: dict[int, Wait] = {}
    for path in logs_of(view):
        for line in last_text(path, 2000, 1 << 19):
            for match in _TIMEOUT.finditer(line):
                rank = int(match["rank"])
                limit_s = int(match["limit_ms"]) / 1000
                waits.setdefault(rank, Wait(rank, int(match["number"]), match["operation"], limit_s))
    if not waits:
        return None
    world = _world(view) or max(waits) + 1
    return Stall([waits[rank] for rank in sorted(waits)], [rank for rank in range(world) if rank not in waits])


def explain_stall(stall: Stall) -> list[str]:
    """Sentences: who waited in what, and what that says about the others."""
    first = min(stall.waits, key=lambda wait: wait.number)
    limit = f"{first.limit_s:.0f} s"
    if stall.absent:
        return [
            f"{_ranks([wait.rank for wait in stall.waits])} waited {limit} in {first.operation} number {first.number}",
            f"{_ranks(stall.absent)} did not join: dead, hung, or busy with something that the others do not do",
        ]
    if stall.is_in_step:
        return [
            f"all {len(stall.waits)} ranks waited {limit} in {first.operation} number {first.number}: none is dead or"
            " behind, so the network or a GPU between them stood still"
        ]
    last = max(stall.waits, key=lambda wait: wait.number)
    return [
        f"the ranks are out of step: rank {first.rank} waited in {first.operation} number {first.number}, rank"
        f" {last.rank} in {last.operation} number {last.number}",
        f"rank {first.rank} has done less: uneven batches, or code that only some ranks run",
    ]


def remedies(view: RunView, stall: Stall | None, start_again: str) -> list[str]:
    """Commands that lead on: the log of the rank in question, or another node where the network is in doubt."""
    if stall is None or (stall.is_in_step and not stall.absent):
        return [
            f"shoal retry {view.name} --exclude-nodes   # NCCL_DEBUG=INFO in its environment shows which link is used"
        ]
    rank = stall.absent[0] if stall.absent else min(stall.waits, key=lambda wait: wait.number).rank
    has_log = any(f"rank-{rank}." in os.path.basename(path) for path in logs_of(view))
    where = f"shoal logs {view.name} --rank {rank}" if has_log or rank == 0 else f"shoal logs {view.name} -n 0"
    return [f"{where}   # what rank {rank} did last", f"{start_again}   # once it is fixed"]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {listed(map(str, ranks), 8)}"


def _world(view: RunView) -> int | None:
    """How many ranks the launch started, as they noted it."""
    folder = os.path.join(view.log_dir or "", f"attempt-{view.attempt}.launch")
    for name in names_in(folder):
        if re.fullmatch(r"rank-\d+\.json", name):
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as file:  # noqa: PTH123
                    return int(json.load(file)["world_size"])
            except (OSError, ValueError, KeyError):
                continue
    return None
