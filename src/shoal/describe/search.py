"""[search] of a sweep file: trials whose parameters a sampler chooses when they start.

    [search]
    metric = "loss"        # as the runs write it to metrics.json or metrics.jsonl
    direction = "min"      # or "max"
    sampler = "tpe"        # random, tpe, gp, cmaes or qmc
    trials = 60
    seed = 0
    until = "loss < 0.1"   # start no trial after one has reached this
    patience = 20          # or after so many without a better one
    [sweep]
    lr = { log_uniform = [1e-5, 1] }
    depth = [4, 8, 12]     # a list is a choice

A trial is a run for each seed, named t000, t001, ... before its parameters are known. What it has at submission is a
random draw that satisfies every rule; the sampler's point takes its place when the trial starts (job/sampler.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from shoal.describe.document import Table
from shoal.describe.parameters import MAX_RUNS, Params, Scalar, draw_values, parse_constants, parse_space, tables_under
from shoal.describe.tables import Count, CountOrZero, SettingsTable, Text
from shoal.errors import InputError

SAMPLERS = ("random", "tpe", "gp", "cmaes", "qmc")
#: What each sampler imports, beside Optuna's own dependencies.
SAMPLER_MODULES = {
    "random": (),
    "tpe": ("optuna",),
    "gp": ("optuna", "torch", "scipy"),
    "cmaes": ("cmaes",),
    "qmc": ("scipy",),
}
#: A point that a rule refuses is replaced so many times.
MAX_REFUSED = 20
#: The interpreter of the sampler; without it that of the command which submits.
PYTHON_VARIABLE = "SHOAL_SEARCH_PYTHON"
_UNTIL = re.compile(r"\s*(.+?)\s*(<=|>=|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*", re.ASCII)


class SearchTable(SettingsTable, frozen=True):
    """[search]"""

    metric: Annotated[Text, Meta(examples=['metric = "loss"'])]
    trials: Annotated[Count, Meta(examples=["trials = 60"])]
    direction: Annotated[Literal["min", "max"], Meta(examples=['direction = "min"'])] = "min"
    sampler: Annotated[Literal["random", "tpe", "gp", "cmaes", "qmc"], Meta(examples=['sampler = "tpe"'])] = "tpe"
    seed: CountOrZero = 0
    until: Text | None = None
    patience: Count | None = None


class SearchSettings(NamedTuple):
    """A search as a sweep file describes it. `space` has each searched parameter with how it is drawn; `points` are the
    user's own, which come first; `tables` are those that its rules look up."""

    metric: str
    trials: int
    direction: str
    sampler: str
    seed: int
    until: tuple[str, float] | None
    patience: int | None
    space: Mapping[str, Mapping[str, Any]]
    points: tuple[Params, ...]
    tables: Mapping[str, Any]
    place: str


def parse_search(top: Table, table: SearchTable, tables: Mapping[str, Any]) -> SearchSettings:
    """[search] with the space in [sweep]; what cannot be combined with it is refused."""
    for key, instead in (("zip", "a list in [sweep] is a choice"), ("num_samples", "trials in [search]")):
        if top.values.get(key):
            raise top.error((key,), f"{key} cannot be used with [search]", hint=instead)
    space = parse_space(top)
    if not space:
        raise top.error(
            ("search",), "[search] has no parameters to choose", hint="[sweep] with lr = { log_uniform = [1e-5, 1] }"
        )
    if table.trials > MAX_RUNS:
        raise top.error(("search", "trials"), f"trials must be at most {MAX_RUNS:,} (got {table.trials:,})")
    numeric = [name for name, draw in space.items() if "choice" not in draw]
    if table.sampler == "cmaes" and len(numeric) < 2:
        raise top.error(
            ("search", "sampler"),
            f"sampler cmaes needs 2 or more drawn numbers (got {len(numeric)})",
            hint='sampler = "tpe"',
        )
    points = tuple(dict(parse_constants(point)) for point in tables_under(top, "points"))
    for index, point in enumerate(points):
        _check_point(point, space, top.place("points", index))
    return SearchSettings(
        table.metric,
        table.trials,
        table.direction,
        table.sampler,
        table.seed,
        None if table.until is None else _parse_until(table.until, table.metric, top.place("search", "until")),
        table.patience,
        space,
        points,
        tables,
        top.place("search"),
    )


def _parse_until(text: str, metric: str, place: str) -> tuple[str, float]:
    found = _UNTIL.fullmatch(text)
    if found is None or found[1] != metric:
        raise InputError(
            f"until is a condition on {metric} (got {text!r})", hint=f'until = "{metric} < 0.1"', place=place
        )
    return found[2], float(found[3])


def _check_point(point: Params, space: Mapping[str, Mapping[str, Any]], place: str) -> None:
    for name, value in point.items():
        if name not in space:
            raise InputError(f"{name} is not a parameter of [sweep]", hint=f"one of {', '.join(space)}", place=place)
        if not is_inside(value, space[name]):
            kind, given = next(iter(space[name].items()))
            raise InputError(f"{name} = {value} is outside {kind} = {given}", place=place)


def is_inside(value: Any, draw: Mapping[str, Any]) -> bool:
    """Whether a value can come from { log_uniform = [low, high] } and the like."""
    kind, given = next(iter(draw.items()))
    if kind == "choice":
        return any(type(value) is type(one) and value == one for one in given)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and given[0] <= value <= given[1] and (kind != "integers" or float(value).is_integer())


def with_set_parameters(settings: SearchSettings, named: Mapping[str, list[Scalar]]) -> tuple[SearchSettings, Params]:
    """The search under --set, and the parameters that have one value now; those with several are choices."""
    space = {name: draw for name, draw in settings.space.items() if name not in named}
    space.update({name: {"choice": values} for name, values in named.items() if len(values) > 1})
    if not space:
        raise InputError("--set leaves the search no parameter to choose", place="--set")
    fixed = {name: values[0] for name, values in named.items() if len(values) == 1}
    points = tuple({name: value for name, value in point.items() if name in space} for point in settings.points)
    return settings._replace(space=space, points=points), fixed


def draw_point(settings: SearchSettings, trial: int, again: int) -> Params:
    """A random point for a trial; `again` counts those that a rule has refused."""
    source = f"{settings.seed}:{trial}:{again}"
    found = {name: draw_values(dict(draw), name, 1, source)[0] for name, draw in settings.space.items()}
    return {**found, **(settings.points[trial] if trial < len(settings.points) else {})}


def trial_label(trial: int) -> str:
    """7 -> t007."""
    return f"t{trial:03d}"


def sampler_python(environ: Mapping[str, str]) -> str:
    """The interpreter that executes the sampler in jobs."""
    return environ.get(PYTHON_VARIABLE) or sys.executable
