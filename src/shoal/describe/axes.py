"""The parameters of a description: their names, constants, and axes, which are rows of parameters.

A grid parameter is an axis of its own, zipped ones share an axis, explicit points are one, and all drawn parameters are
one. The points of a description are the product of its axes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from msgspec import Meta

from shoal.describe.document import Table
from shoal.describe.tables import Count, CountOrZero, SettingsTable
from shoal.describe.values import MAX_RUNS, Scalar, check_scalar, draw_values, parse_values
from shoal.errors import InputError
from shoal.job import BUILT_IN_PLACEHOLDERS

Params = dict[str, Scalar]
Axis = tuple[Params, ...]

_PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_MAX_NAME_LENGTH = 60


class SamplesTable(SettingsTable, frozen=True):
    """`samples = 20`, or a table."""

    count: Annotated[Count, Meta(examples=["samples = { count = 20, seed = 1 }"])]
    seed: CountOrZero = 0


def check_parameter_name(name: str, *, place: str | None, private: bool = False) -> None:
    """Refuse what cannot be a parameter's name. Names with _ in front are for intermediate values alone."""
    if not _PARAMETER_NAME.fullmatch(name) or len(name) > _MAX_NAME_LENGTH:
        raise InputError(f"{name!r} cannot be a parameter: letters, digits, _ and dots", place=place)
    if name in BUILT_IN_PLACEHOLDERS:
        hint = 'seeds = "0-2"' if name == "seed" else f"another name than {name}"
        raise InputError(f"{name} is filled in by shoal and cannot be a parameter", hint=hint, place=place)
    if name.startswith("_") and not private:
        raise InputError(f"{name}: a name with _ in front is for derived values that stay inside", place=place)


def parse_constants(table: Table, prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    """Constants; a table inside is a dotted name, because TOML reads optimizer.lr = 0.1 as one."""
    for name, value in table.values.items():
        place = table.place(name)
        if isinstance(value, dict):
            yield from parse_constants(Table(table.document, (*table.key, name), value), f"{prefix}{name}.")
            continue
        check_parameter_name(prefix + name, place=place)
        yield prefix + name, check_scalar(value, place=place)


def parse_axes(top: Table) -> tuple[Axis, ...]:
    """All axes of a page: what is swept, drawn, zipped, and its explicit points."""
    count, seed = _parse_samples(top)
    drawn: dict[str, list[Scalar]] = {}
    axes = []
    for name, value, place in _parameter_leaves(top.table("sweep")):
        if isinstance(value, dict):
            if not count:
                raise InputError(
                    f"{name} is drawn at random, and nothing says how often", hint="samples = 20", place=place
                )
            drawn[name] = draw_values(value, name, count, seed, place=place)
        else:
            axes.append(tuple({name: one} for one in _values_listed(name, value, place)))
    if drawn:
        axes.append(tuple(dict(zip(drawn, row, strict=True)) for row in zip(*drawn.values(), strict=True)))
    elif count:
        raise top.error(("samples",), "nothing is drawn at random", hint="lr = { log_uniform = [1e-4, 1e-1] }")
    for table in tables_under(top, "zip"):
        columns = {name: _values_listed(name, value, place) for name, value, place in _parameter_leaves(table)}
        if columns:
            axes.append(
                zip_axis(
                    {name: tuple({name: one} for one in values) for name, values in columns.items()}, table.place()
                )
            )
    points = tuple(dict(parse_constants(table)) for table in tables_under(top, "points"))
    if points:
        axes.append(points)
    return tuple(axes)


def zip_axis(columns: Mapping[str, Axis], place: str) -> Axis:
    """One axis of columns that go together; refused if they differ in length."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InputError(f"zipped lists must be equally long: {told}", place=place)
    return tuple(
        {name: value for cell in row for name, value in cell.items()} for row in zip(*columns.values(), strict=True)
    )


def tables_under(top: Table, key: str) -> list[Table]:
    """[key], or every one of [[key]]."""
    given = top.values.get(key, [])
    if isinstance(given, dict):
        return [Table(top.document, (key,), given)]
    if not isinstance(given, list | tuple):
        raise top.error((key,), f"{key} is a table, or several: [[{key}]]")
    return [Table(top.document, (key, index), one) for index, one in enumerate(given)]


def _parameter_leaves(table: Table, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Every parameter of a table with its value and place; a table is either a random draw or a dotted name."""
    for name, value in table.values.items():
        inner = isinstance(value, dict) and not (
            len(value) == 1 and next(iter(value)) in ("uniform", "log_uniform", "integers", "choice")
        )
        if inner:
            yield from _parameter_leaves(Table(table.document, (*table.key, name), value), f"{prefix}{name}.")
            continue
        check_parameter_name(prefix + name, place=table.place(name))
        yield prefix + name, value, table.place(name)


def _values_listed(name: str, value: Any, place: str) -> list[Scalar]:
    if isinstance(value, str):
        values = parse_values(value, place=place)
    elif isinstance(value, list | tuple | range):
        if len(value) > MAX_RUNS:
            raise InputError(f"{name} has {len(value):,} values; {MAX_RUNS:,} runs are the limit", place=place)
        values = [check_scalar(one, place=place) for one in value]
    else:
        values = [check_scalar(value, place=place)]
    if not values:
        raise InputError(f"{name} has no values", hint="remove it, or give it one", place=place)
    seen: set[tuple[type, Scalar]] = set()
    for one in values:
        if (type(one), one) in seen:
            raise InputError(f"{name} has the value {one} twice", place=place)
        seen.add((type(one), one))
    return values


def _parse_samples(top: Table) -> tuple[int, int]:
    given = top.values.get("samples")
    if given is None or given == {}:
        return 0, 0
    samples = Table(top.document, ("samples",), given if isinstance(given, dict) else {"count": given}).read(
        SamplesTable
    )
    if samples.count > MAX_RUNS:
        raise top.error(("samples",), f"{samples.count:,} samples are too many; {MAX_RUNS:,} runs are the limit")
    return samples.count, samples.seed
