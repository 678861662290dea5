"""Costs by allocation: what was allocated, divided into parts that add up, and laid on runs. Pure.

    allocated = runs + staging + set-up + idle slots + tail          of each allocation
    allocated = sum over runs of (own + overhead)                    of each allocation, experiment and project
    allocated = busy + idle + not measured                           as far as samples tell

set-up:      from the start of the allocation to the first attempt in it, or all of it if no attempt began
staging:     while an attempt waited for its data
idle slots:  GPUs that no attempt held, between the first begin and the last end
tail:        after the last attempt
overhead:    a run's part of set-up, idle slots and tail, in proportion to what it held
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Holding(NamedTuple):
    """What one attempt held of an allocation. `amount` counts GPUs (or CPUs); a shared GPU counts for its share.

    `busy_s` and `idle_s` are measured, in resource-seconds; `wasted_s` is wall time whose work was lost.
    """

    run: str
    attempt: int
    begin: float
    end: float
    amount: float
    staging_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0
    wasted_s: float = 0.0


class Costs(NamedTuple):
    """Resource-seconds. The first five parts add up to `allocated`, and so do the next three."""

    requested: float = 0.0
    allocated: float = 0.0
    runs: float = 0.0
    staging: float = 0.0
    set_up: float = 0.0
    idle_slots: float = 0.0
    tail: float = 0.0
    busy: float = 0.0
    idle: float = 0.0
    not_measured: float = 0.0
    wasted: float = 0.0

    def __add__(self, other: object) -> Costs:
        if not isinstance(other, Costs):
            return NotImplemented
        return Costs(*(a + b for a, b in zip(self, other, strict=True)))

    def scaled(self, factor: float) -> Costs:
        return Costs(*(value * factor for value in self))

    @property
    def overhead(self) -> float:
        return self.set_up + self.idle_slots + self.tail

    def in_hours(self) -> Costs:
        return self.scaled(1 / 3600)


class AllocationCosts(NamedTuple):
    """`whole` is the allocation's; `by_attempt` lays all of it on (run, attempt), or (run, 0) if no run began."""

    whole: Costs
    by_attempt: Mapping[tuple[str, int], Costs]

    @property
    def by_run(self) -> Mapping[str, Costs]:
        found: dict[str, Costs] = {}
        for (run, _), one in self.by_attempt.items():
            found[run] = found.get(run, Costs()) + one
        return found


def divide(
    start: float,
    end: float,
    amount: float,
    time_limit_s: float | None,
    holdings: Sequence[Holding],
    runs: Sequence[str] = (),
    resizes: Sequence[tuple[float, float]] = (),
) -> AllocationCosts:
    """The costs of an allocation of `amount` GPUs, from `start` to `end`. `resizes` are (from when, how many).

    `runs` are those that it was for: they pay in equal parts if none of them began. An attempt cannot hold more than
    the allocation has, nor longer than it lasted: clocks of nodes differ, and what is too much is cut.
    """
    end = max(start, end)
    size = _Size(amount, resizes)
    allocated = size.between(start, end)
    requested = max(allocated, amount * (time_limit_s or 0.0))
    clipped = _clipped(holdings, start, end, size)
    if not clipped:
        whole = Costs(requested=requested, allocated=allocated, set_up=allocated, not_measured=allocated)
        return AllocationCosts(whole, {(run, 0): whole.scaled(1 / len(runs)) for run in runs})
    first, last = min(one.begin for one in clipped), max(one.end for one in clipped)
    held = sum(_held(one) for one in clipped)
    set_up, tail = size.between(start, first), size.between(last, end)
    overhead = Costs(set_up=set_up, idle_slots=max(0.0, allocated - held - set_up - tail), tail=tail)
    by_attempt: dict[tuple[str, int], Costs] = {}
    for one in clipped:
        own = _own_costs(one)
        part = _held(one) / held if held else 1 / len(clipped)
        share = overhead.scaled(part)
        unseen = share.overhead
        paid = own + share + Costs(requested=requested * part, allocated=_held(one) + unseen, not_measured=unseen)
        key = (one.run, one.attempt)
        by_attempt[key] = by_attempt.get(key, Costs()) + paid
    return AllocationCosts(sum(by_attempt.values(), Costs()), by_attempt)


def _held(one: Holding) -> float:
    return one.amount * (one.end - one.begin)


def _own_costs(one: Holding) -> Costs:
    held = _held(one)
    staging = min(held, one.amount * max(0.0, one.staging_s))
    busy = min(held, max(0.0, one.busy_s))
    idle = min(held - busy, max(0.0, one.idle_s))
    wasted = min(held, one.amount * max(0.0, one.wasted_s))
    return Costs(
        runs=held - staging, staging=staging, busy=busy, idle=idle, not_measured=held - busy - idle, wasted=wasted
    )


class _Size(NamedTuple):
    """How much an allocation has: `amount`, and from each moment of `resizes` on another one."""

    amount: float
    resizes: Sequence[tuple[float, float]]

    def between(self, begin: float, end: float) -> float:
        """Resource-seconds."""
        total, amount = 0.0, self.amount
        for t, next_amount in sorted(self.resizes):
            total += amount * max(0.0, min(t, end) - begin)
            begin, amount = max(begin, t), next_amount
        return total + amount * max(0.0, end - begin)

    @property
    def most(self) -> float:
        return max(self.amount, *(amount for _, amount in self.resizes)) if self.resizes else self.amount


def _clipped(holdings: Sequence[Holding], start: float, end: float, size: _Size) -> list[Holding]:
    """Within the allocation, and together no more than it has."""
    inside = [
        one._replace(begin=min(max(one.begin, start), end), end=max(min(max(one.begin, start), end), min(one.end, end)))
        for one in holdings
    ]
    inside = [one._replace(amount=min(one.amount, size.most)) for one in inside]
    held, room = sum(_held(one) for one in inside), _room(inside, size)
    factor = room / held if held > room else 1.0
    return [one._replace(amount=one.amount * factor) for one in inside]


def _room(inside: Sequence[Holding], size: _Size) -> float:
    if not inside:
        return 0.0
    return size.between(min(one.begin for one in inside), max(one.end for one in inside))
