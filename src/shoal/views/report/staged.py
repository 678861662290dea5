"""Data that attempts staged: how much was copied, how much was shared with others on the node, how long they waited."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from shoal.units import format_bytes
from shoal.views.report.history import AttemptHistory

DATASET_HEADER = ("DATA", "TIMES", "COPIED", "SHARED", "MB/S", "LONGEST WAIT", "FROM SOURCE")


class StagedDataset(NamedTuple):
    """One data set over all attempts. `saved_bytes` were on the node already; `waited_s` is the longest start delay."""

    name: str
    source: str
    times: int
    copied_bytes: int
    saved_bytes: int
    mb_per_s: float | None
    waited_s: float | None
    from_source: int


def dataset_breakdown(tries: Iterable[AttemptHistory]) -> list[StagedDataset]:
    """What every attempt's record says about its data, added up by data set."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in tries:
        for record in one.data:
            groups.setdefault((str(record.get("name")), str(record.get("source"))), []).append(record)
    return [_sum_dataset(name, source, records) for (name, source), records in sorted(groups.items())]


def dataset_rows(found: Iterable[StagedDataset]) -> list[list[str]]:
    return [
        [
            one.name,
            str(one.times),
            format_bytes(one.copied_bytes),
            format_bytes(one.saved_bytes),
            "-" if one.mb_per_s is None else f"{one.mb_per_s:,.0f}",
            "-" if one.waited_s is None else f"{one.waited_s:.1f}s",
            str(one.from_source) if one.from_source else "-",
        ]
        for one in found
    ]


def _sum_dataset(name: str, source: str, records: list[dict[str, Any]]) -> StagedDataset:
    copied = sum(int(record.get("copied_bytes") or 0) for record in records)
    local = [record for record in records if record.get("how") != "source"]
    needed = sum(int(record.get("bytes") or 0) - int(record.get("left_at_source_bytes") or 0) for record in local)
    seconds = sum(float(record.get("seconds") or 0) for record in records if record.get("copied_bytes"))
    waits = [float(record["ready_s"]) for record in records if record.get("ready_s") is not None]
    return StagedDataset(
        name,
        source,
        len(records),
        copied,
        max(0, needed - copied),
        copied / seconds / 1e6 if seconds else None,
        max(waits) if waits else None,
        len(records) - len(local),
    )
