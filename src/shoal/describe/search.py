"""How a search is asked for: [search] on a sweep's page, or --search. The rule itself is the agent's.

[search]
metric = "loss"       # as the runs write it to metrics.jsonl
mode = "min"          # or "max"
first = 10            # runs are compared when they have done so much, then 3 times as much, ...
eta = 3               # 1 of 3 goes on
last = 200            # no comparison from here on
resource = "step"     # what counts the work in metrics.jsonl; step or epoch unless said
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.describe.document import Given, Table
from shoal.errors import InputError
from shoal.job import HalvingRule

EarlyStoppingRule = HalvingRule
EARLY_STOPPING_KEYS = ("metric", "mode", "first", "eta", "last", "resource")
#: What --search says to leave a page's [search] out.
EARLY_STOPPING_OFF = "off"
_EARLY_STOPPING_EXAMPLE = "--search metric=loss,first=10"


def parse_early_stopping(table: Table) -> EarlyStoppingRule:
    """The rule of a [search] table; every mistake is an InputError with its place."""
    metric = table.text("metric")
    if metric is None:
        raise table.error((), "a search needs the metric that decides", hint='metric = "loss"')
    if "first" not in table:
        raise table.error((), "a search needs the work after which runs are first compared", hint="first = 10")
    return EarlyStoppingRule(
        metric=metric,
        mode=table.text("mode", ("min", "max")) or "min",
        first=_amount(table, "first") or 1.0,
        eta=table.integer("eta", 2) or 3,
        last=_amount(table, "last"),
        resource=table.text("resource"),
    )


def parse_early_stop_flag(text: str) -> EarlyStoppingRule | None:
    """metric=loss,first=10,eta=3 -> a rule; off -> None."""
    if text == EARLY_STOPPING_OFF:
        return None
    values: dict[str, Any] = {}
    for word in text.split(","):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not value:
            raise InputError(f"{word!r} says nothing about a search", hint=_EARLY_STOPPING_EXAMPLE, place="--search")
        values[name] = _number(value) if name in ("first", "eta", "last") else value
    try:
        return parse_early_stopping(Given("--search", values).table(EARLY_STOPPING_KEYS))
    except InputError as error:
        raise InputError(error.message, hint=_EARLY_STOPPING_EXAMPLE, place="--search") from None


def common_early_stopping(searches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The search that all runs of a pack share; {} where there is none."""
    different = [dict(found) for index, found in enumerate(searches) if found not in searches[:index]]
    if len(different) > 1:
        raise InputError(
            "these runs belong to different searches and cannot share a pack",
            hint="submit their files one by one, or --search off",
        )
    return different[0] if different else {}


def _amount(table: Table, name: str) -> float | None:
    value = table.values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        raise table.error((name,), f"{name} must be a number above 0", hint=f"{name} = 10")
    return float(value)


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
