"""One description of runs as a typed record: what a TOML page, a call of `exp.add` or flags say, checked, with places.

All doors end here. A block's axes are rows of parameters: a grid parameter is an axis of its own, zipped ones share an
axis, explicit points are one, and all drawn parameters are one. The points are the product of the axes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.config.containers import parse_container
from shoal.config.document import Document, Key, Table
from shoal.config.launches import parse_launch
from shoal.config.steps import parse_request
from shoal.errors import InputError
from shoal.model import ContainerSettings, LaunchSettings, Request
from shoal.sweep.expressions import Expression, parse_expression
from shoal.sweep.search import SEARCH_KEYS, SearchRule, parse_search
from shoal.sweep.values import MOST_RUNS, Scalar, check_scalar, draw, parse_seeds, parse_words

Params = dict[str, Scalar]
Axis = tuple[Params, ...]

KEYS = (
    "step", "name", "command", "args", "env", "launch", "container", "seeds", "cost", "params", "sweep", "zip",
    "points", "samples", "defaults", "exclude", "tables", "derived", "require", "request", "requests", "search",
    "start_from", "after",
)  # fmt: skip
REQUEST_KEYS = ("nodes", "gpus", "gpu_type", "cpus", "memory", "time")
#: What the agent fills in by itself; no parameter may be called so.
BUILT_IN = ("run", "experiment", "step", "seed", "attempt", "output_dir", "resume_from", "start_from", "parent_dir")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_LONGEST_NAME = 60


class Rule(NamedTuple):
    """A condition on points: an expression, or values that have to match."""

    expression: Expression | None
    match: Params
    place: str


class RequestRule(NamedTuple):
    """Resources for the points where `when` holds; `computed` values are expressions ("=nodes[model]")."""

    when: Expression | None
    fixed: Request
    computed: dict[str, Expression]
    place: str


class Block(NamedTuple):
    """One description. `params` hold for every point; `derived` follow from the others and never name a run."""

    place: str
    step: str | None = None
    name: str | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    launch: tuple[str, LaunchSettings | None] | None = None
    container: ContainerSettings = ContainerSettings()
    seeds: tuple[int, ...] | None = None
    params: Mapping[str, Scalar] = {}
    axes: tuple[Axis, ...] = ()
    defaults: Mapping[str, Scalar] = {}
    exclude: tuple[Rule, ...] = ()
    derived: Mapping[str, Expression | Scalar] = {}
    require: tuple[Rule, ...] = ()
    requests: tuple[RequestRule, ...] = ()
    cost: Expression | None = None
    search: SearchRule | None = None
    start_from: str | None = None
    after: tuple[str, ...] = ()


def parse_block(document: Document) -> Block:
    """The block that a document describes; every mistake is an InputError with its place."""
    top = document.table(KEYS)
    tables = {name: inner.values for name, inner in top.tables("tables").items()}
    tables = {name: _with_text_keys(top, (name,), values) for name, values in tables.items()}
    block = Block(
        place=document.shown,
        step=top.text("step"),
        name=top.text("name"),
        command=_words(top, "command"),
        args=_words(top, "args") or (),
        env=top.environment("env"),
        launch=_launch(top),
        container=parse_container(top),
        seeds=_seeds(top),
        params=dict(_flat(top.table("params"))),
        axes=_axes(top),
        defaults=dict(_flat(top.table("defaults"))),
        exclude=_rules(top, "exclude", tables),
        derived=_derived(top, tables),
        require=_rules(top, "require", tables),
        requests=_requests(top, tables),
        cost=parse_expression(cost, tables, place=top.place("cost")) if (cost := top.text("cost")) else None,
        search=parse_search(top.table("search", SEARCH_KEYS)) if "search" in top else None,
        start_from=top.text("start_from"),
        after=_after(top),
    )
    _refuse_doubles(block, top)
    return block


def with_flags(block: Block, sets: Sequence[str], zips: Sequence[str] = (), seeds: str | None = None) -> Block:
    """The block under --set, --zip and --seeds: a parameter that is set replaces what the file says about it."""
    named: dict[str, Axis] = {}
    for word in sets:
        name, equals, text = word.partition("=")
        name = name.strip()
        if not equals:
            raise InputError(f"{word!r} sets nothing", hint="--set lr=0.1,0.01", place="--set")
        check_name(name, place="--set")
        if name in named:
            raise InputError(f"{name} is set twice", place="--set")
        named[name] = tuple({name: value} for value in parse_words(text, place=f"--set {name}"))
    axes = [axis for axis in block.axes if not (len(axis[0]) == 1 and next(iter(axis[0])) in named)]
    for axis in axes:
        for name in axis[0]:
            if name in named:
                raise InputError(
                    f"{name} belongs to a zip, to points or to samples, and cannot be set alone", place="--set"
                )
    for group in zips:
        names = [name.strip() for name in group.split(",")]
        missing = [name for name in names if name not in named]
        if missing or len(names) < 2:
            raise InputError(f"--zip {group} needs two or more parameters that --set gives", place="--zip")
        axes.append(_zipped({name: named.pop(name) for name in names}, "--zip"))
    return block._replace(
        params={
            name: value
            for name, value in block.params.items()
            if all(name not in axis[0] for axis in axes) and name not in named
        },
        derived={name: value for name, value in block.derived.items() if name not in named},
        axes=(*axes, *named.values()),
        seeds=block.seeds if seeds is None else tuple(parse_seeds(seeds) or ()),
    )


def check_name(name: str, *, place: str | None, private: bool = False) -> None:
    """Refuse what cannot be a parameter's name. Names with _ in front are for intermediate values alone."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise InputError(f"{name!r} cannot be a parameter: letters, digits, _ and dots", place=place)
    if name in BUILT_IN:
        hint = 'seeds = "0-2"' if name == "seed" else f"another name than {name}"
        raise InputError(f"{name} is filled in by shoal and cannot be a parameter", hint=hint, place=place)
    if name.startswith("_") and not private:
        raise InputError(f"{name}: a name with _ in front is for derived values that stay inside", place=place)


def _words(top: Table, key: str) -> tuple[str, ...] | None:
    if isinstance(top.values.get(key), str):
        try:
            words = tuple(shlex.split(top.values[key]))
        except ValueError as error:
            raise top.error((key,), f"{key} cannot be split into words: {str(error).lower()}") from None
    else:
        words = top.strings(key) or ()
    if key in top and (not words or not words[0]):
        raise top.error((key,), f"{key} is empty")
    return words if key in top else None


def _after(top: Table) -> tuple[str, ...]:
    one = isinstance(top.values.get("after"), str)
    return (top.text("after") or "",) if one else top.strings("after") or ()


def _launch(top: Table) -> tuple[str, LaunchSettings | None] | None:
    """Mode and settings; a mode alone keeps the settings that the step has for it, so they stay open here."""
    if "launch" not in top:
        return None
    mode, settings = parse_launch(top)
    return mode, settings if isinstance(top.values["launch"], dict) else None


def _seeds(top: Table) -> tuple[int, ...] | None:
    seeds = parse_seeds(top.values.get("seeds"), place=top.place("seeds"))
    return None if seeds is None else tuple(seeds)


def _flat(table: Table, prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    """Constants; a table inside is a dotted name, because TOML reads optimizer.lr = 0.1 as one."""
    for name, value in table.values.items():
        place = table.place(name)
        if isinstance(value, dict):
            yield from _flat(Table(table.document, (*table.key, name), value), f"{prefix}{name}.")
            continue
        check_name(prefix + name, place=place)
        yield prefix + name, check_scalar(value, place=place)


def _axes(top: Table) -> tuple[Axis, ...]:
    count, seed = _samples(top)
    drawn: dict[str, list[Scalar]] = {}
    axes = []
    for name, value, place in _leaves(top.table("sweep")):
        if isinstance(value, dict):
            if not count:
                raise InputError(
                    f"{name} is drawn at random, and nothing says how often", hint="samples = 20", place=place
                )
            drawn[name] = draw(value, name, count, seed, place=place)
        else:
            axes.append(tuple({name: one} for one in _listed(name, value, place)))
    if drawn:
        axes.append(tuple(dict(zip(drawn, row, strict=True)) for row in zip(*drawn.values(), strict=True)))
    elif count:
        raise top.error(("samples",), "nothing is drawn at random", hint="lr = { log_uniform = [1e-4, 1e-1] }")
    for table in _one_or_more(top, "zip"):
        columns = {name: _listed(name, value, place) for name, value, place in _leaves(table)}
        if columns:
            axes.append(
                _zipped({name: tuple({name: one} for one in values) for name, values in columns.items()}, table.place())
            )
    points = tuple(dict(_flat(table)) for table in _one_or_more(top, "points"))
    if points:
        axes.append(points)
    return tuple(axes)


def _zipped(columns: Mapping[str, Axis], place: str) -> Axis:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InputError(f"zipped lists must be equally long: {told}", place=place)
    return tuple(
        {name: value for cell in row for name, value in cell.items()} for row in zip(*columns.values(), strict=True)
    )


def _leaves(table: Table, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Every parameter of a table with its value and place; a table is either a random draw or a dotted name."""
    for name, value in table.values.items():
        inner = isinstance(value, dict) and not (
            len(value) == 1 and next(iter(value)) in ("uniform", "log_uniform", "integers", "choice")
        )
        if inner:
            yield from _leaves(Table(table.document, (*table.key, name), value), f"{prefix}{name}.")
            continue
        check_name(prefix + name, place=table.place(name))
        yield prefix + name, value, table.place(name)


def _listed(name: str, value: Any, place: str) -> list[Scalar]:
    if isinstance(value, str):
        values = parse_words(value, place=place)
    elif isinstance(value, list | tuple | range):
        if len(value) > MOST_RUNS:
            raise InputError(f"{name} has {len(value):,} values; {MOST_RUNS:,} runs are the limit", place=place)
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


def _samples(top: Table) -> tuple[int, int]:
    given = top.values.get("samples")
    if not isinstance(given, dict):
        given = {} if given is None else {"count": given}
    table = Table(top.document, ("samples",), given, ("count", "seed"))
    count, seed = table.integer("count", 1), table.integer("seed", 0)
    if given and count is None:
        raise top.error(("samples",), "samples needs a count", hint="samples = { count = 20, seed = 1 }")
    if count and count > MOST_RUNS:
        raise top.error(("samples",), f"{count:,} samples are too many; {MOST_RUNS:,} runs are the limit")
    return count or 0, seed or 0


def _one_or_more(top: Table, key: str) -> list[Table]:
    given = top.values.get(key, [])
    if isinstance(given, dict):
        return [Table(top.document, (key,), given)]
    if not isinstance(given, list | tuple):
        raise top.error((key,), f"{key} is a table, or several: [[{key}]]")
    return [Table(top.document, (key, index), one) for index, one in enumerate(given)]


def _rules(top: Table, key: str, tables: Mapping[str, Any]) -> tuple[Rule, ...]:
    given = top.values.get(key, [])
    found = []
    for index, one in enumerate(
        [given] if isinstance(given, str | dict) else given if isinstance(given, list | tuple) else [None]
    ):
        place = top.place(key, index)
        if isinstance(one, str):
            found.append(Rule(parse_expression(one, tables, place=place), {}, place))
        elif isinstance(one, dict) and one and key == "exclude":
            found.append(Rule(None, dict(_flat(Table(top.document, (key, index), one))), place))
        else:
            raise InputError(f"{key} is a list of conditions", hint=f'{key} = ["depth * width <= 4096"]', place=place)
    return tuple(found)


def _derived(top: Table, tables: Mapping[str, Any]) -> dict[str, Expression | Scalar]:
    found: dict[str, Expression | Scalar] = {}
    for name, value, place in _leaves_of_derived(top.table("derived")):
        check_name(name, place=place, private=True)
        is_text = isinstance(value, str)
        found[name] = parse_expression(value, tables, place=place) if is_text else check_scalar(value, place=place)
    return found


def _leaves_of_derived(table: Table, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    for name, value in table.values.items():
        if isinstance(value, dict):
            yield from _leaves_of_derived(Table(table.document, (*table.key, name), value), f"{prefix}{name}.")
        else:
            yield prefix + name, value, table.place(name)


def _requests(top: Table, tables: Mapping[str, Any]) -> tuple[RequestRule, ...]:
    found = [_request_rule(top.table("request", REQUEST_KEYS), None, tables)] if "request" in top else []
    for table in _one_or_more(top, "requests"):
        checked = Table(table.document, table.key, table.values, ("when", *REQUEST_KEYS))
        when = checked.text("when")
        if when is None:
            raise table.error((), "a request in [[requests]] says when it holds", hint='when = "depth > 40"')
        inner = {name: value for name, value in table.values.items() if name != "when"}
        condition = parse_expression(when, tables, place=table.place("when"))
        found.append(_request_rule(Table(table.document, table.key, inner, REQUEST_KEYS), condition, tables))
    return tuple(found)


def _request_rule(table: Table, when: Expression | None, tables: Mapping[str, Any]) -> RequestRule:
    computed = {
        name: parse_expression(value[1:], tables, place=table.place(name))
        for name, value in table.values.items()
        if isinstance(value, str) and value.startswith("=")
    }
    fixed = {name: value for name, value in table.values.items() if name not in computed}
    return RequestRule(
        when, parse_request(Table(table.document, table.key, fixed, REQUEST_KEYS)), computed, table.place()
    )


def _with_text_keys(top: Table, key: Key, values: Mapping[Any, Any]) -> dict[str, Any]:
    """A look-up table with its keys as text; rows may nest."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        inner = (*key, name)
        if isinstance(value, dict):
            found[str(name)] = _with_text_keys(top, inner, value)
        else:
            found[str(name)] = check_scalar(value, place=top.place("tables", *inner))
    return found


def _refuse_doubles(block: Block, top: Table) -> None:
    """A parameter has one home: params, one axis, or derived."""
    homes: dict[str, str] = dict.fromkeys(block.params, "params")
    for axis in block.axes:
        for name in {name for row in axis for name in row}:
            if name in homes:
                raise top.error(
                    ("sweep", name), f"{name} is described twice, in {homes[name]} and as a swept parameter"
                )
            homes[name] = "sweep"
    for name in block.derived:
        if name in homes:
            raise top.error(("derived", name), f"{name} is described twice, in {homes[name]} and in derived")
