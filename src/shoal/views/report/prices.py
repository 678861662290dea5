"""What allocations cost in money, where a profile has a `price`. Pure.

The price of an allocation is that of its allocated GPU-hours, CPU-hours and GB-hours of memory, or of Slurm's billing
units. Runs pay by what was allocated to them, so amounts add up as hours do. Currencies are never added to each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from shoal.describe import PriceTable
from shoal.units import plural
from shoal.views.report.allocation_costs import AllocationRow
from shoal.views.report.costs import Costs

Amounts = dict[str, float]


class Payment(NamedTuple):
    """What one attempt pays of one allocation (`allocation` is its key). Attempt 0: the run did not begin there."""

    allocation: str
    run: str
    attempt: int
    currency: str
    amount: float


def payments(rows: Sequence[AllocationRow], prices: Mapping[str, PriceTable]) -> list[Payment]:
    """Of every attempt in an allocation whose profile has a price."""
    found = []
    for row in rows:
        price = prices.get(row.view.cluster)
        if price is None or not price.currency:
            continue
        shared = row.view.duration_s / 3600 * _price_of_shared_hour(row, price)
        for (run, attempt), part in _parts(row).items():
            gpu = row.gpu.by_attempt.get((run, attempt), Costs()).allocated / 3600
            cpu = row.cpu.by_attempt.get((run, attempt), Costs()).allocated / 3600
            amount = gpu * price.gpu + cpu * price.cpu + part * shared
            found.append(Payment(row.view.key, run, attempt, price.currency, amount))
    return found


def _price_of_shared_hour(row: AllocationRow, price: PriceTable) -> float:
    """Of what belongs to the whole allocation: its memory, or its billing units."""
    memory_gb = (row.view.grant.memory_mb or 0) / 1024
    return memory_gb * price.memory_gb + (row.view.grant.billing or 0) * price.billing


def _parts(row: AllocationRow) -> dict[tuple[str, int], float]:
    """How attempts divide an allocation: by its GPUs if it has some, else by CPUs, else equally."""
    costs = row.gpu if row.gpu.whole.allocated else row.cpu
    whole, attempts = costs.whole.allocated, {**row.cpu.by_attempt, **row.gpu.by_attempt}
    if not whole:
        return {key: 1 / len(attempts) for key in attempts}
    return {key: costs.by_attempt.get(key, Costs()).allocated / whole for key in attempts}


def total(paid: Sequence[Payment], runs: Collection[str] | None = None, allocation: str | None = None) -> Amounts:
    """Currency -> amount, of all, of some runs, or of one allocation."""
    found: Amounts = {}
    for one in paid:
        if (runs is None or one.run in runs) and allocation in (None, one.allocation):
            found[one.currency] = found.get(one.currency, 0.0) + one.amount
    return found


def unpriced_notes(rows: Sequence[AllocationRow], prices: Mapping[str, PriceTable]) -> list[str]:
    """What a price is set for and is not known of some jobs, so that the cost is too low; and jobs without a price."""
    memory = billing = without = 0
    for row in rows:
        price = prices.get(row.view.cluster)
        without += price is None or not price.currency
        if price is not None:
            memory += bool(price.memory_gb) and row.view.grant.memory_mb is None
            billing += bool(price.billing) and row.view.grant.billing is None
    found = [f"cost without the memory of {plural(memory, 'job')}: Slurm did not tell it"] if memory else []
    found += [f"cost without {plural(billing, 'job')}: Slurm did not tell its billing units"] if billing else []
    has_price = len(rows) > without
    return found + (
        [f"cost without {plural(without, 'job')} on profiles without a price"] if has_price and without else []
    )


def format_amounts(amounts: Mapping[str, float]) -> str:
    return " + ".join(f"{amount:,.2f} {currency}" for currency, amount in sorted(amounts.items()))


def rounded(amounts: Mapping[str, float]) -> Amounts:
    return {currency: round(amount, 6) for currency, amount in sorted(amounts.items())}
