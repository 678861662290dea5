"""The parameters of a sweep: names, constants and axes; and the parser of their values.

Values: "0.1,0.01", "4:80:4", "1e-4:1e-1:x10", { log_uniform = [1e-4, 1e-1] }, seeds "0-2". One parser serves sweep
files, Python and the command line, so that the same text has the same values in each.

A grid parameter is an axis of its own, zipped parameters share an axis, explicit points are one, and all random
parameters are one. The points of a sweep are the product of its axes.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, DecimalException, localcontext
from typing import Annotated, Any

from msgspec import Meta

from shoal.describe.document import Table
from shoal.describe.tables import Count, CountOrZero, SettingsTable
from shoal.errors import InputError
from shoal.job import BUILT_IN_PLACEHOLDERS, format_value

__all__ = [
    "MAX_RUNS",
    "Scalar",
    "check_scalar",
    "draw_values",
    "format_value",
    "parse_seeds",
    "parse_value",
    "parse_values",
]

Scalar = str | int | float | bool

#: More runs than this are a mistake in the description, and are refused before they are built.
MAX_RUNS = 100_000
_INTEGER = re.compile(r"[+-]?(?:0|[1-9]\d{0,30})", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:\d{1,30}\.\d{0,30}|\.\d{1,30}|\d{1,30}(?=[eE]))(?:[eE][+-]?\d{1,3})?", re.ASCII)
_NUMBER = r"[+-]?(?:\d{1,30}\.?\d{0,30}|\.\d{1,30})(?:[eE][+-]?\d{1,3})?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(?::(x?{_NUMBER}))?", re.ASCII)
_SEEDS = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_DISTRIBUTIONS = ("uniform", "log_uniform", "integers", "choice")
#: What other tools call them.
_OTHER_NAMES = {
    "loguniform": "log_uniform", "int": "integers", "integer": "integers", "randint": "integers", "choices": "choice",
    "categorical": "choice",
}  # fmt: skip
#: Drawn numbers are rounded, so that they read well in names and agree between machines.
_SAMPLED_DIGITS = 4


def parse_values(text: str, *, place: str | None = None) -> list[Scalar]:
    """The values of "0.1,0.01,4:80:4": a comma between words, each a value or a range; never empty."""
    found: list[Scalar] = []
    for word in text.split(","):
        word = word.strip()
        if not word:
            some = ",".join(one.strip() for one in text.split(",") if one.strip()) or "0.1,0.01"
            raise InputError(f"empty value in {text!r}", hint=f"use {some}", place=place)
        found += _range(word, place) if _RANGE.fullmatch(word) else [parse_value(word)]
        if len(found) > MAX_RUNS:
            raise _too_many_error(text, len(found), place)
    return found


def parse_value(word: str) -> Scalar:
    """A value as people type it: a number, true, false, or else a string. 007 keeps its zeros, as a string."""
    if _INTEGER.fullmatch(word):
        return int(word)
    if _FLOAT.fullmatch(word) and math.isfinite(number := float(word)):
        return number
    return {"true": True, "false": False}.get(word, word)


def check_scalar(value: Any, *, place: str | None = None) -> Scalar:
    """The value itself if a run can have it as a parameter: a string of one line, a finite number, true or false."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{value} cannot be a parameter", place=place)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        raise InputError("a parameter of more than 63 bits cannot be kept", place=place)
    if isinstance(value, str) and not all(letter.isprintable() for letter in value):
        raise InputError(f"{value!r} has line breaks or characters that cannot be printed", place=place)
    if isinstance(value, str | int | float):
        return value
    raise InputError(f"a parameter is a string, a number or true/false, not {type(value).__name__}", place=place)


def parse_seeds(given: Any, *, place: str | None = "--seeds") -> list[int] | None:
    """ "0-2,7" -> [0, 1, 2, 7]; a list or a range of whole numbers is taken as it is, one number as one seed."""
    if given is None:
        return None
    if isinstance(given, int) and not isinstance(given, bool):
        given = [given]
    if not isinstance(given, str):
        return _listed_seeds(given, place)
    seeds: dict[int, None] = {}
    for part in given.split(","):
        match = _SEEDS.fullmatch(part.strip())
        if match is None:
            raise InputError(f"{given!r} is not a list of seeds", hint="--seeds 0-2, or --seeds 0,1,7", place=place)
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise InputError(f"{part!r} is not a range of seeds", hint="--seeds 0-2", place=place)
        if len(seeds) + high - low >= MAX_RUNS:
            raise _too_many_error(part, high - low + 1, place)
        seeds.update(dict.fromkeys(range(low, high + 1)))
    return list(seeds)


def draw_values(
    spec: Mapping[str, Any], name: str, count: int, seed: int | str, *, place: str | None = None
) -> list[Scalar]:
    """`count` random values of { uniform = [low, high] } and the like.

    The i-th value depends on the seed, the parameter's name and i alone: more samples keep the first ones, and another
    drawn parameter changes none of them.
    """
    if len(spec) != 1 or next(iter(spec)) not in _DISTRIBUTIONS:
        raise InputError(
            f"{name} is drawn by one of {', '.join(_DISTRIBUTIONS)}",
            hint="lr = { log_uniform = [1e-4, 1e-1] }",
            place=place,
        )
    kind, given = next(iter(spec.items()))
    # A string seeds through SHA-512, the same on every machine and Python.
    source = random.Random(f"{seed}:{name}")  # noqa: S311
    if kind == "choice":
        if not isinstance(given, list) or not given:
            raise InputError(f"{name}: choice needs a list of values", place=place)
        choices = [check_scalar(value, place=place) for value in given]
        return [choices[int(source.random() * len(choices))] for _ in range(count)]
    low, high = _bounds(kind, given, name, place)
    if kind == "integers":
        return [int(low) + int(source.random() * (int(high) - int(low) + 1)) for _ in range(count)]
    if kind == "uniform":
        return [round_drawn(low + source.random() * (high - low)) for _ in range(count)]
    return [round_drawn(math.exp(math.log(low) + source.random() * math.log(high / low))) for _ in range(count)]


def _bounds(kind: str, given: Any, name: str, place: str | None) -> tuple[float, float]:
    if (
        not isinstance(given, list)
        or len(given) != 2
        or not all(isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) for one in given)
    ):
        raise InputError(f"{name}: {kind} needs [lowest, highest]", place=place)
    low, high = given
    if low >= high or (kind == "log_uniform" and low <= 0):
        raise InputError(f"{name}: nothing lies between {low} and {high} for {kind}", place=place)
    if kind == "integers" and not all(isinstance(one, int) for one in given):
        raise InputError(f"{name}: integers needs two whole numbers", place=place)
    return low, high


def round_drawn(number: float) -> float:
    """A drawn number as a run gets it."""
    return float(f"{number:.{_SAMPLED_DIGITS}g}")


def _listed_seeds(given: Any, place: str | None) -> list[int]:
    if not isinstance(given, Sequence) or not given:
        raise InputError("seeds are whole numbers", hint='seeds = "0-2", or [0, 1, 7]', place=place)
    if len(given) > MAX_RUNS:
        raise _too_many_error("seeds", len(given), place)
    seeds = list(given)
    wrong = [seed for seed in seeds if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0]
    if wrong:
        raise InputError(f"{wrong[0]!r} is not a seed: seeds are whole numbers from 0", place=place)
    seen: set[int] = set()
    for seed in seeds:
        if seed in seen:
            raise InputError(f"seed {seed} is listed twice", place=place)
        seen.add(seed)
    return seeds


def _range(word: str, place: str | None) -> list[Scalar]:
    """first:last or first:last:step, the last included where the steps meet it; a step of x10 multiplies."""
    match = _RANGE.fullmatch(word)
    assert match is not None  # noqa: S101 (the caller's fact)
    times = (match[3] or "").startswith("x")
    whole = all(_INTEGER.fullmatch(part.removeprefix("x")) for part in match.groups() if part)
    try:
        with localcontext() as context:
            context.prec = 60
            first, last = Decimal(match[1]), Decimal(match[2])
            step = Decimal((match[3] or "1").removeprefix("x"))
            numbers = (
                _geometric_range(word, first, last, step, place)
                if times
                else _linear_range(word, first, last, step, place)
            )
    except DecimalException:
        raise InputError(f"the range {word!r} leaves what numbers can hold", place=place) from None
    return [int(number) if whole else float(number) for number in numbers]


def _linear_range(word: str, first: Decimal, last: Decimal, step: Decimal, place: str | None) -> list[Decimal]:
    if step == 0 or (last - first) * step < 0:
        raise InputError(f"the range {word!r} never ends: its step does not lead to {last}", place=place)
    steps = (last - first) / step
    if steps >= MAX_RUNS:
        raise _too_many_error(word, int(min(steps, Decimal(10) ** 30)) + 1, place)
    return [first + step * index for index in range(int(steps) + 1)]


def _geometric_range(word: str, first: Decimal, last: Decimal, factor: Decimal, place: str | None) -> list[Decimal]:
    grows = factor > 1
    if factor <= 0 or factor == 1 or first <= 0 or (last < first if grows else last > first) or last <= 0:
        raise InputError(f"the range {word!r} never ends: its factor does not lead to {last}", place=place)
    found = [first]
    while (following := found[-1] * factor) <= last if grows else (following := found[-1] * factor) >= last:
        found.append(following)
        if len(found) > MAX_RUNS:
            raise _too_many_error(word, len(found), place)
    return found


def _too_many_error(what: str, count: int, place: str | None) -> InputError:
    return InputError(
        f"{what!r} stands for {count:,} values or more; {MAX_RUNS:,} runs are the limit",
        hint="a larger step, or fewer values",
        place=place,
    )


Params = dict[str, Scalar]
Axis = tuple[Params, ...]

_PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_MAX_NAME_LENGTH = 60


class SamplesTable(SettingsTable, frozen=True):
    """The keys of a sweep file about random draws."""

    num_samples: Annotated[Count, Meta(examples=["num_samples = 20"])]
    sample_seed: Annotated[CountOrZero, Meta(examples=["sample_seed = 1"])] = 0


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
    """All axes of a sweep file: what is swept, drawn, zipped, and its explicit points."""
    count, seed = _parse_samples(top)
    drawn: dict[str, list[Scalar]] = {}
    axes = []
    for name, value, place in _parameter_leaves(top.table("sweep")):
        if isinstance(value, dict):
            if not count:
                raise InputError(
                    f"{name} is drawn at random, but num_samples is not set", hint="num_samples = 20", place=place
                )
            drawn[name] = draw_values(value, name, count, seed, place=place)
        else:
            axes.append(tuple({name: one} for one in _values_listed(name, value, place)))
    if drawn:
        axes.append(tuple(dict(zip(drawn, row, strict=True)) for row in zip(*drawn.values(), strict=True)))
    elif count:
        raise top.error(("num_samples",), "nothing is drawn at random", hint="lr = { log_uniform = [1e-4, 1e-1] }")
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


def parse_space(top: Table) -> dict[str, dict[str, Any]]:
    """The parameters of [sweep] that a search chooses, each with how it is drawn; several values are a choice."""
    space: dict[str, dict[str, Any]] = {}
    for name, value, place in _parameter_leaves(top.table("sweep")):
        if isinstance(value, dict):
            draw_values(value, name, 1, 0, place=place)  # refuses what cannot be drawn
            space[name] = value
        else:
            space[name] = {"choice": _values_listed(name, value, place)}
    return space


def zip_axis(columns: Mapping[str, Axis], place: str) -> Axis:
    """One axis of columns that go together; refused if they differ in length."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        lengths_text = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InputError(f"zipped lists must be equally long: {lengths_text}", place=place)
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
        only = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else ""
        meant = _OTHER_NAMES.get(only.lower().replace("_", "").replace("-", "")) if only not in _DISTRIBUTIONS else None
        if meant is not None and isinstance(value[only], list):
            raise InputError(
                f"{prefix}{name}: unknown draw {only!r}; did you mean {meant}?",
                hint=f'{name} = {{ {meant} = {value[only]} }}   # or "{name}.{only}" = ... as a name of its own',
                place=table.place(name),
            )
        if isinstance(value, dict) and only not in _DISTRIBUTIONS:
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
    """How many values to draw and the seed of the draws; (0, 0) if nothing is drawn."""
    given = {name: top.values[name] for name in ("num_samples", "sample_seed") if top.values.get(name) is not None}
    if not given:
        return 0, 0
    if "num_samples" not in given:
        raise top.error(("sample_seed",), "nothing is drawn at random", hint="num_samples = 20")
    samples = Table(top.document, (), given).read(SamplesTable)
    if samples.num_samples > MAX_RUNS:
        raise top.error(("num_samples",), f"num_samples must be at most {MAX_RUNS:,} (got {samples.num_samples:,})")
    return samples.num_samples, samples.sample_seed
