"""What the ledger says against what was promised and told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from itertools import combinations
from pathlib import Path

from chaos.launchers import Said
from chaos.people import Look
from chaos.plan import FREEZES, KILLS, STOPS, Plan
from chaos.world import LEASE_S, Hit
from ledger import Execution, Ledger
from project import ENDED

#: A process that was stopped and is continued may run so long until it learns that it was replaced.
THAW_S = 1.0
#: An end and a kill -9 in the same second: nobody can have written the end down.
KILLED_AT_END_S = 1.0
#: A controller that comes back without a job has the job's processes killed, on each node when that reports.
REPLAY_S = 10.0
#: The last renewal may be as old as this when a process is frozen.
BEAT_S = LEASE_S * 20 / 90
#: A state is read, then printed: marks so shortly after a look prove nothing.
SLACK_S = 0.3


@dataclass
class Counts:
    """One row of the table; all but the last three must be 0."""

    runs: int = 0
    lost: int = 0
    twice: int = 0
    overlap_s: float = 0.0
    wrong_state: int = 0
    wrong_code: int = 0
    over_while_running: int = 0
    left_files: int = 0
    crashed_commands: int = 0
    thaw_s: float = 0.0
    killed_at_end: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        for part in fields(self):
            if part.name in ("injected", "notes"):
                continue
            setattr(self, part.name, round(getattr(self, part.name) + getattr(other, part.name), 2))
        self.injected.update(other.injected)
        self.notes += other.notes

    @property
    def is_clean(self) -> bool:
        return not any(getattr(self, name) for name in BROKEN)


BROKEN = (
    "lost", "twice", "overlap_s", "wrong_state", "wrong_code", "over_while_running", "left_files", "crashed_commands",
)  # fmt: skip


def judge(
    plan: Plan, ledger: Ledger, looks: list[Look], said: dict[str, Said], hits: list[Hit], state_dir: Path
) -> Counts:
    counts = Counts(runs=len(plan.runs))
    for run, work in plan.runs.items():
        executions = ledger.executions(run)
        _judge_ends(counts, run, work.exit_code, executions, said.get(run, Said("new", None)), hits)
        overlap, thaw = overlaps(executions)
        counts.overlap_s += overlap
        counts.thaw_s += thaw
        if overlap:
            counts.notes.append(f"{run}: {overlap:.1f} s of user code beside itself, {len(executions)} executions")
        _judge_looks(counts, run, executions, looks)
    left = sorted(path for path in state_dir.rglob("*") if ".tmp" in path.name)
    counts.left_files = len(left)
    counts.notes += [f"left over: {path.relative_to(state_dir)}" for path in left[:5]]
    return counts


def _judge_ends(
    counts: Counts, run: str, expected: int, executions: list[Execution], said: Said, hits: list[Hit]
) -> None:
    ends = [one for one in executions if one.exit_code is not None]
    if not ends:
        counts.lost += 1
        counts.notes.append(f"{run}: never came to its end ({len(executions)} executions), told {said.state}")
        return
    if expected == 0:
        excused = sum(_killed_at_end(one, hits) for one in ends[:-1])
        counts.killed_at_end += excused
        counts.twice += len(ends) - 1 - excused
        if len(ends) > 1:
            counts.notes.append(f"{run}: {len(ends)} times to the end, {excused} of them killed before the record")
    if said.state != ("completed" if expected == 0 else "failed"):
        counts.wrong_state += 1
        counts.notes.append(f"{run}: told {said.state}, its program ended with {ends[-1].exit_code}")
    elif said.exit_code != expected:
        counts.wrong_code += 1
        counts.notes.append(f"{run}: told exit code {said.exit_code} instead of {expected}")


def _killed_at_end(one: Execution, hits: list[Hit]) -> bool:
    """Whether what would have recorded its end had no second for that: killed, or frozen until the lease was over.

    What is done to a frozen process shows when it is thawed: the end of its program may come in that moment.
    """
    end, family = one.marks[-1], {one.pid, *one.parents}
    freezes = [hit for hit in hits if hit.kind in FREEZES and hit.pids & family]
    frozen = [hit for hit in freezes if hit.at - 1 <= end <= hit.until + THAW_S]
    if any(hit.until - hit.at > LEASE_S - BEAT_S for hit in frozen):
        return True
    free = max((hit.until for hit in frozen), default=end)
    for hit in hits:
        if hit.kind == "replay controller" and -1 <= end - hit.at <= REPLAY_S:
            return True
        shows = max([hit.at, *(freeze.until for freeze in freezes if freeze.at <= hit.at <= freeze.until)])
        kills = hit.kind in KILLS and bool(hit.pids & family)
        stops = hit.kind in STOPS and bool(frozen)
        if (kills or stops) and end - KILLED_AT_END_S <= shows <= free + KILLED_AT_END_S:
            return True
    return False


def _judge_looks(counts: Counts, run: str, executions: list[Execution], looks: list[Look]) -> None:
    """An end that is told while a process, begun before the look, runs on after it; once for each process."""
    for one in executions:
        lies = [
            (look.said[run].state, span)
            for look in looks
            if run in look.said and look.said[run].state in ENDED and one.marks[0] < look.began
            for span in [_runs_on(one, look.ended + SLACK_S)]
            if span
        ]
        if lies:
            counts.over_while_running += 1
            counts.notes.append(f"{run}: told {lies[0][0]} while process {one.pid} ran on for {lies[0][1]:.1f} s")


def _runs_on(one: Execution, since: float) -> float:
    """How long it ran after this time; a process that was stopped then has a moment to learn that it is over."""
    total = 0.0
    for begin, end in one.running():
        if begin > since and end - begin <= THAW_S:
            continue
        total += max(0.0, end - max(begin, since))
    return total


def overlaps(executions: list[Execution]) -> tuple[float, float]:
    """Seconds in which two or more processes of a run were running; those right after a thaw apart."""
    plain: list[tuple[float, float]] = []
    thawed: list[tuple[float, float]] = []
    for one, other in combinations(executions, 2):
        for first in one.running():
            for second in other.running():
                both = (max(first[0], second[0]), min(first[1], second[1]))
                resumed = _is_thaw(one, first) or _is_thaw(other, second)
                (thawed if resumed else plain).append(both)
    return _length(plain), _length(thawed)


def _is_thaw(one: Execution, span: tuple[float, float]) -> bool:
    return span[0] != one.marks[0] and span[1] - span[0] <= THAW_S


def _length(spans: list[tuple[float, float]]) -> float:
    """Length of all that these spans cover."""
    total, reached = 0.0, 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return round(total, 2)
