"""One description of runs as a typed record: what a TOML page, a call of `exp.add` or flags say, checked, with places.

All doors end here. The parameters themselves are read by axes.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.describe.axes import Axis, Params, check_parameter_name, parse_axes, parse_constants, tables_under, zip_axis
from shoal.describe.containers import parse_container
from shoal.describe.document import Document, Key, Table
from shoal.describe.expressions import Expression, parse_expression
from shoal.describe.launches import parse_launch
from shoal.describe.search import EARLY_STOPPING_KEYS, EarlyStoppingRule, parse_early_stopping
from shoal.describe.steps import parse_request
from shoal.describe.values import Scalar, check_scalar, parse_seeds, parse_values
from shoal.errors import InputError
from shoal.model import ContainerSettings, LaunchSettings, Request

SWEEP_KEYS = (
    "step", "name", "command", "args", "env", "launch", "container", "seeds", "cost", "params", "sweep", "zip",
    "points", "samples", "defaults", "exclude", "tables", "derived", "require", "request", "requests", "search",
    "start_from", "after",
)  # fmt: skip
REQUEST_KEYS = ("nodes", "gpus", "gpu_type", "cpus", "memory", "time")


class SweepRule(NamedTuple):
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


class SweepBlock(NamedTuple):
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
    exclude: tuple[SweepRule, ...] = ()
    derived: Mapping[str, Expression | Scalar] = {}
    require: tuple[SweepRule, ...] = ()
    requests: tuple[RequestRule, ...] = ()
    cost: Expression | None = None
    search: EarlyStoppingRule | None = None
    start_from: str | None = None
    after: tuple[str, ...] = ()


def parse_sweep(document: Document) -> SweepBlock:
    """The block that a document describes; every mistake is an InputError with its place."""
    top = document.table(SWEEP_KEYS)
    tables = {name: inner.values for name, inner in top.tables("tables").items()}
    tables = {name: _with_text_keys(top, (name,), values) for name, values in tables.items()}
    block = SweepBlock(
        place=document.shown,
        step=top.text("step"),
        name=top.text("name"),
        command=_parse_words(top, "command"),
        args=_parse_words(top, "args") or (),
        env=top.environment("env"),
        launch=_parse_launch(top),
        container=parse_container(top),
        seeds=_parse_seeds(top),
        params=dict(parse_constants(top.table("params"))),
        axes=parse_axes(top),
        defaults=dict(parse_constants(top.table("defaults"))),
        exclude=_parse_rules(top, "exclude", tables),
        derived=_parse_derived(top, tables),
        require=_parse_rules(top, "require", tables),
        requests=_parse_requests(top, tables),
        cost=parse_expression(cost, tables, place=top.place("cost")) if (cost := top.text("cost")) else None,
        search=parse_early_stopping(top.table("search", EARLY_STOPPING_KEYS)) if "search" in top else None,
        start_from=top.text("start_from"),
        after=_parse_after(top),
    )
    _refuse_duplicate_parameters(block, top)
    return block


def with_flags(
    block: SweepBlock, sets: Sequence[str], zips: Sequence[str] = (), seeds: str | None = None
) -> SweepBlock:
    """The block under --set, --zip and --seeds: a parameter that is set replaces what the file says about it."""
    named: dict[str, Axis] = {}
    for word in sets:
        name, equals, text = word.partition("=")
        name = name.strip()
        if not equals:
            raise InputError(f"{word!r} sets nothing", hint="--set lr=0.1,0.01", place="--set")
        check_parameter_name(name, place="--set")
        if name in named:
            raise InputError(f"{name} is set twice", place="--set")
        named[name] = tuple({name: value} for value in parse_values(text, place=f"--set {name}"))
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
        axes.append(zip_axis({name: named.pop(name) for name in names}, "--zip"))
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


def _parse_words(top: Table, key: str) -> tuple[str, ...] | None:
    words = top.words(key) or ()
    if key in top and (not words or not words[0]):
        raise top.error((key,), f"{key} is empty")
    return words if key in top else None


def _parse_after(top: Table) -> tuple[str, ...]:
    one = isinstance(top.values.get("after"), str)
    return (top.text("after") or "",) if one else top.strings("after") or ()


def _parse_launch(top: Table) -> tuple[str, LaunchSettings | None] | None:
    """Mode and settings; a mode alone keeps the settings that the step has for it, so they stay open here."""
    if "launch" not in top:
        return None
    mode, settings = parse_launch(top)
    return mode, settings if isinstance(top.values["launch"], dict) else None


def _parse_seeds(top: Table) -> tuple[int, ...] | None:
    seeds = parse_seeds(top.values.get("seeds"), place=top.place("seeds"))
    return None if seeds is None else tuple(seeds)


def _parse_rules(top: Table, key: str, tables: Mapping[str, Any]) -> tuple[SweepRule, ...]:
    given = top.values.get(key, [])
    found = []
    for index, one in enumerate(
        [given] if isinstance(given, str | dict) else given if isinstance(given, list | tuple) else [None]
    ):
        place = top.place(key, index)
        if isinstance(one, str):
            found.append(SweepRule(parse_expression(one, tables, place=place), {}, place))
        elif isinstance(one, dict) and one and key == "exclude":
            found.append(SweepRule(None, dict(parse_constants(Table(top.document, (key, index), one))), place))
        else:
            raise InputError(f"{key} is a list of conditions", hint=f'{key} = ["depth * width <= 4096"]', place=place)
    return tuple(found)


def _parse_derived(top: Table, tables: Mapping[str, Any]) -> dict[str, Expression | Scalar]:
    found: dict[str, Expression | Scalar] = {}
    for name, value, place in _derived_leaves(top.table("derived")):
        check_parameter_name(name, place=place, private=True)
        is_text = isinstance(value, str)
        found[name] = parse_expression(value, tables, place=place) if is_text else check_scalar(value, place=place)
    return found


def _derived_leaves(table: Table, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    for name, value in table.values.items():
        if isinstance(value, dict):
            yield from _derived_leaves(Table(table.document, (*table.key, name), value), f"{prefix}{name}.")
        else:
            yield prefix + name, value, table.place(name)


def _parse_requests(top: Table, tables: Mapping[str, Any]) -> tuple[RequestRule, ...]:
    found = [_request_rule(top.table("request", REQUEST_KEYS), None, tables)] if "request" in top else []
    for table in tables_under(top, "requests"):
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


def _refuse_duplicate_parameters(block: SweepBlock, top: Table) -> None:
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
