"""Which files of an attempt hold the output of which rank and replica, by the names that job/launch gives them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from shoal.kernel import layout, list_names
from shoal.views.tail import has_bytes

_LOG_FILE_NAME = re.compile(
    r"(?:replica-(?P<replica>\d+)(?:\.start-(?P<start>\d+))?\.try-(?P<attempt>\d+)\.?)?"
    r"(?:rank-(?P<rank>\d+)(?:\.restart-(?P<restart>\d+))?)?\.?out\Z"
)
RankNumber = int | Literal["all"] | None


class RankSelection(NamedTuple):
    """What to show of several ranks or replicas: a number, all, or None: rank 0 of every replica there is."""

    replica: RankNumber = None
    rank: RankNumber = None


class RankLog(NamedTuple):
    """The output of one rank. `tries`: its files, oldest first; what was started again has several."""

    replica: int | None
    rank: int
    tries: list[str]

    @property
    def label(self) -> str:
        words = [] if self.replica is None else [f"replica {self.replica}"]
        if self.replica is None or self.rank:
            words.append(f"rank {self.rank}")
        return " ".join(words)


def rank_logs(log_dir: str, attempt: int) -> list[RankLog]:
    """Every rank of an attempt, by replica and rank. Rank 0 without a replica is what the run itself printed."""
    folder = os.path.join(log_dir, f"attempt-{attempt}.launch")
    found: dict[tuple[int, int], list[tuple[int, int, int, str]]] = {}
    for name in list_names(folder):
        match = _LOG_FILE_NAME.match(name)
        if match:
            start, again, restart = (int(match[key] or 1) for key in ("start", "attempt", "restart"))
            place = (int(match["replica"]) if match["replica"] else -1, int(match["rank"] or 0))
            found.setdefault(place, []).append((start, again, restart, os.path.join(folder, name)))
    found.setdefault((-1, 0), []).append((0, 0, 0, layout.log_file(log_dir, attempt)))
    return [
        RankLog(None if replica < 0 else replica, rank, [path for *_, path in sorted(tries)])
        for (replica, rank), tries in sorted(found.items())
    ]


def first_nonempty(found: Sequence[RankLog]) -> int:
    """The place of the one to show first: the run's own log, or where that is empty the first that printed something.

    Beside replicas the run itself may have nothing to say.
    """
    return next((place for place, part in enumerate(found) if has_bytes(part.tries[-1])), 0)


def needs_label(part: RankLog, pick: RankSelection) -> bool:
    """Whether its lines must say whose they are, because others are shown beside it."""
    return "all" in pick or (pick == RankSelection() and part.replica is not None)


def select_ranks(found: Iterable[RankLog], pick: RankSelection) -> list[RankLog]:
    return [
        part
        for part in found
        if (pick.replica in (None, "all") or part.replica == pick.replica)
        and (pick.rank == "all" or part.rank == (pick.rank or 0))
    ]
