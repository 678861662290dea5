"""Who waited for whom when a collective operation of several ranks timed out: a dead rank, a missing one, ranks that
are out of step, or the network. Read from what NCCL's watchdog prints in the logs of the ranks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from shoal.kernel import list_names
from shoal.observe import RunView
from shoal.units import shorten_list
from shoal.views.faults import failure_logs
from shoal.views.tail import last_text

_COLLECTIVE_TIMEOUT = re.compile(
    r"\[(?:PG [^]]*)?Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout: \w+\(SeqNum=(?P<number>\d+), "
    r"OpType=(?P<operation>\w+).*?Timeout\(ms\)=(?P<limit_ms>\d+)"
)


class RankWait(NamedTuple):
    """A rank that waited for others in its collective operation `number` until the limit was over."""

    rank: int
    number: int
    operation: str
    limit_s: float


class CollectiveStall(NamedTuple):
    """What became of the ranks. `absent` ones did not wait: they were somewhere else, hung, or were killed."""

    waits: list[RankWait]
    absent: list[int]

    @property
    def is_same_operation(self) -> bool:
        return len({(wait.number, wait.operation) for wait in self.waits}) == 1


def read_stall(view: RunView) -> CollectiveStall | None:
    """The ranks that waited, by the first time-out that each of them reports; None if none did."""
    waits: dict[int, RankWait] = {}
    for path in failure_logs(view):
        for line in last_text(path, 2000, 1 << 19):
            for match in _COLLECTIVE_TIMEOUT.finditer(line):
                rank = int(match["rank"])
                limit_s = int(match["limit_ms"]) / 1000
                waits.setdefault(rank, RankWait(rank, int(match["number"]), match["operation"], limit_s))
    if not waits:
        return None
    world = _world_size(view) or max(waits) + 1
    return CollectiveStall(
        [waits[rank] for rank in sorted(waits)], [rank for rank in range(world) if rank not in waits]
    )


def explain_stall(stall: CollectiveStall) -> list[str]:
    """Sentences: who waited in what, and what that says about the others."""
    first = min(stall.waits, key=lambda wait: wait.number)
    limit = f"{first.limit_s:.0f} s"
    if stall.absent:
        return [
            f"{_format_ranks([wait.rank for wait in stall.waits])} waited {limit} "
            f"in {first.operation} number {first.number}",
            f"{_format_ranks(stall.absent)} did not join: dead, hung, or busy with something that the others do not do",
        ]
    if stall.is_same_operation:
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


def stall_remedies(view: RunView, stall: CollectiveStall | None, start_again: str) -> list[str]:
    """Commands that lead on: the log of the rank in question, or another node where the network is in doubt."""
    if stall is None or (stall.is_same_operation and not stall.absent):
        return [
            f"shoal retry {view.name} --exclude-nodes   # NCCL_DEBUG=INFO in its environment shows which link is used"
        ]
    rank = stall.absent[0] if stall.absent else min(stall.waits, key=lambda wait: wait.number).rank
    has_log = any(f"rank-{rank}." in os.path.basename(path) for path in failure_logs(view))
    where = f"shoal logs {view.name} --rank {rank}" if has_log or rank == 0 else f"shoal logs {view.name} -n 0"
    return [f"{where}   # what rank {rank} did last", f"{start_again}   # once it is fixed"]


def _format_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {shorten_list(map(str, ranks), 8)}"


def _world_size(view: RunView) -> int | None:
    """How many ranks the launch started, as they noted it."""
    folder = os.path.join(view.log_dir or "", f"attempt-{view.attempt}.launch")
    for name in list_names(folder):
        if re.fullmatch(r"rank-\d+\.json", name):
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as file:  # noqa: PTH123
                    return int(json.load(file)["world_size"])
            except (OSError, ValueError, KeyError):
                continue
    return None
