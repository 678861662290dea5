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
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shoal.describe.document import Given
from shoal.describe.tables import SettingsTable, Text, expected, read_by
from shoal.errors import InputError
from shoal.job import HalvingRule

EarlyStoppingRule = HalvingRule
#: What --search says to leave a page's [search] out.
EARLY_STOPPING_OFF = "off"
_EARLY_STOPPING_EXAMPLE = "--search metric=loss,first=10"


def _read_amount(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        raise expected("a number above 0")
    return float(value)


if TYPE_CHECKING:
    Amount = float
else:
    Amount = read_by(_read_amount)


class SearchTable(SettingsTable, frozen=True):
    """[search]"""

    metric: Annotated[Text, Meta(examples=['metric = "loss"'])]
    first: Annotated[Amount, Meta(examples=["first = 10"])]
    mode: Literal["min", "max"] = "min"
    eta: Annotated[int, Meta(ge=2)] = 3
    last: Amount | None = None
    resource: Text | None = None

    def rule(self) -> EarlyStoppingRule:
        return EarlyStoppingRule(**msgspec.structs.asdict(self))


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
        return Given("--search", values).top.read(SearchTable).rule()
    except InputError as error:
        message = error.message.removeprefix("--search: ")
        raise InputError(message, hint=_EARLY_STOPPING_EXAMPLE, place="--search") from None


def common_early_stopping(searches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The search that all runs of a pack share; {} where there is none."""
    different = [dict(found) for index, found in enumerate(searches) if found not in searches[:index]]
    if len(different) > 1:
        raise InputError(
            "these runs belong to different searches and cannot share a pack",
            hint="submit their files one by one, or --search off",
        )
    return different[0] if different else {}


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
