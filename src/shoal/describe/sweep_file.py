"""A sweep as a typed record: what a sweep file, a call of `exp.add` or flags describe, checked, with line numbers.

All kinds of experiment file end here. The parameters themselves are read by parameters.py. Early stopping is requested
by [early_stopping] in the sweep file or by --early-stop; its rule is in job/pack/early_stopping.py:

    [early_stopping]
    metric = "loss"       # as the runs write it to metrics.jsonl
    mode = "min"          # or "max"
    first = 10            # compare runs after this amount of work, then after 3 times as much, ...
    eta = 3               # 1 of 3 runs continues
    last = 200            # no comparison from here on
    resource = "step"     # the column of metrics.jsonl that counts the work (default: step or epoch)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, field

from shoal.describe.document import Document, Given, Table
from shoal.describe.expressions import Expression, parse_expression
from shoal.describe.launches import Container, Launch, LaunchMode
from shoal.describe.parameters import (
    Axis,
    Params,
    Scalar,
    check_parameter_name,
    check_scalar,
    parse_axes,
    parse_constants,
    parse_seeds,
    parse_values,
    tables_under,
    zip_axis,
)
from shoal.describe.search import SearchSettings, SearchTable, parse_search, with_set_parameters
from shoal.describe.steps import Command, RequestSettings
from shoal.describe.tables import (
    Environment,
    Key,
    MetricSetting,
    SettingsTable,
    Strings,
    Text,
    expected,
    metric_record,
    read_by,
)
from shoal.errors import InputError
from shoal.job import HalvingRule
from shoal.model import ContainerSettings, Request

EarlyStoppingRule = HalvingRule
#: What --early-stop says to leave a sweep file's [early_stopping] out.
EARLY_STOPPING_OFF = "off"
_EARLY_STOPPING_EXAMPLE = "--early-stop metric=loss,first=10"


def _read_amount(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        raise expected("a number above 0")
    return float(value)


if TYPE_CHECKING:
    Amount = float
else:
    Amount = read_by(_read_amount)


class EarlyStoppingTable(SettingsTable, frozen=True):
    """[early_stopping]"""

    metric: Annotated[Text, Meta(examples=['metric = "loss"'])]
    first: Annotated[Amount, Meta(examples=["first = 10"])]
    mode: Literal["min", "max"] = "min"
    eta: Annotated[int, Meta(ge=2, description="a whole number of at least 2")] = 3
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
            raise InputError(f"expected NAME=VALUE, got {word!r}", hint=_EARLY_STOPPING_EXAMPLE, place="--early-stop")
        values[name] = _number(value) if name in ("first", "eta", "last") else value
    try:
        return Given("--early-stop", values).top.read(EarlyStoppingTable).rule()
    except InputError as error:
        message = error.message.removeprefix("--early-stop: ")
        raise InputError(message, hint=_EARLY_STOPPING_EXAMPLE, place="--early-stop") from None


def common_early_stopping(rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The early-stopping rule that all runs of a pack share; {} without one."""
    different = [dict(found) for index, found in enumerate(rules) if found not in rules[:index]]
    if len(different) > 1:
        raise InputError(
            "cannot put these runs into one pack: their [early_stopping] rules differ",
            hint="submit their files one by one, or use --early-stop off",
        )
    return different[0] if different else {}


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


class RequestKeys(SettingsTable, frozen=True):
    """`request = { ... }`: values, or expressions such as "=nodes[model]", which are looked at later."""

    nodes: Any = None
    gpus: Any = None
    gpu_type: Any = None
    cpus: Any = None
    memory: Any = None
    time: Any = None


class RequestRuleKeys(RequestKeys, frozen=True, kw_only=True):
    """One of [[requests]]: a request that holds for some points."""

    when: Annotated[Text, Meta(examples=['when = "depth > 40"'])]


class BlockTable(SettingsTable, frozen=True):
    """The keys of a description. What they hold is read by `parse_sweep` where it takes more than a type to say it."""

    step: Text | None = None
    name: Text | None = None
    command: Command | None = None
    args: Command | None = None
    env: Environment = field(default_factory=dict)
    launch: Launch | None = None
    container: Container = ContainerSettings()
    seeds: Any = None
    cost: Text | None = None
    params: dict[str, Any] = field(default_factory=dict)
    sweep: dict[str, Any] = field(default_factory=dict)
    zip: Any = None
    points: Any = None
    num_samples: Any = None
    sample_seed: Any = None
    defaults: dict[str, Any] = field(default_factory=dict)
    exclude: Any = None
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    derived: dict[str, Any] = field(default_factory=dict)
    require: Any = None
    request: RequestKeys | None = None
    requests: Any = None
    metric: MetricSetting | None = None
    early_stopping: EarlyStoppingTable | None = None
    search: SearchTable | None = None
    start_from: Text | None = None
    after: Text | Strings = ()


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
    launch: LaunchMode | None = None
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
    metric: Mapping[str, str] = {}
    early_stopping: EarlyStoppingRule | None = None
    search: SearchSettings | None = None
    start_from: str | None = None
    after: tuple[str, ...] = ()


def parse_sweep(document: Document) -> SweepBlock:
    """The block that a document describes; every mistake is an InputError with its place."""
    top = document.top
    table = top.read(BlockTable)
    seeds = parse_seeds(table.seeds, place=top.place("seeds"))
    tables = {name: _with_text_keys(top, (name,), values) for name, values in table.tables.items()}
    block = SweepBlock(
        place=document.shown,
        step=table.step,
        name=table.name,
        command=table.command,
        args=table.args or (),
        env=table.env,
        launch=table.launch,
        container=table.container,
        seeds=None if seeds is None else tuple(seeds),
        params=dict(parse_constants(top.table("params"))),
        axes=parse_axes(top) if table.search is None else (),
        defaults=dict(parse_constants(top.table("defaults"))),
        exclude=_parse_rules(top, "exclude", tables),
        derived=_parse_derived(top, tables),
        require=_parse_rules(top, "require", tables),
        requests=_parse_requests(top, tables),
        cost=None if table.cost is None else parse_expression(table.cost, tables, place=top.place("cost")),
        metric=metric_record(table.metric),
        early_stopping=None if table.early_stopping is None else table.early_stopping.rule(),
        search=None if table.search is None else parse_search(top, table.search, tables),
        start_from=table.start_from,
        after=(table.after,) if isinstance(table.after, str) else table.after,
    )
    _refuse_duplicate_parameters(block, top)
    _refuse_opposite_directions(block, top)
    return block


def with_flags(
    block: SweepBlock, sets: Sequence[str], zips: Sequence[str] = (), seeds: str | None = None
) -> SweepBlock:
    """The block under --set, --zip and --seeds: a parameter that is set replaces what the file says about it."""
    named: dict[str, Axis] = {}
    check_set_flags(sets)
    for word in sets:
        name, _, text = word.partition("=")
        name = name.strip()
        check_parameter_name(name, place="--set")
        if name in named:
            raise InputError(f"{name} is set twice", place="--set")
        named[name] = tuple({name: value} for value in parse_values(text, place=f"--set {name}"))
    if block.search is not None:
        return _with_search_flags(block, named, zips, seeds)
    axes = [axis for axis in block.axes if not (len(axis[0]) == 1 and next(iter(axis[0])) in named)]
    for axis in axes:
        for name in axis[0]:
            if name in named:
                raise InputError(
                    f"{name} belongs to a zip, to points or to random draws, and cannot be set alone", place="--set"
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


def check_set_flags(sets: Sequence[str]) -> None:
    """Refuse `--set lr 0.1`, whose value would be taken for a file."""
    for word in sets:
        if "=" not in word:
            raise InputError(f"invalid --set {word!r}: expected NAME=VALUES", hint=f"use --set {word.strip()}=0.1,0.01")


def _with_search_flags(
    block: SweepBlock, named: Mapping[str, Axis], zips: Sequence[str], seeds: str | None
) -> SweepBlock:
    if zips:
        raise InputError("--zip cannot be used with [search]", hint="leave --zip out", place="--zip")
    assert block.search is not None  # noqa: S101 (the caller's fact)
    values = {name: [cell[name] for cell in axis] for name, axis in named.items()}
    search, fixed = with_set_parameters(block.search, values)
    kept = {name: value for name, value in block.params.items() if name not in named}
    return block._replace(
        search=search,
        params={**kept, **fixed},
        derived={name: value for name, value in block.derived.items() if name not in named},
        seeds=block.seeds if seeds is None else tuple(parse_seeds(seeds) or ()),
    )


def _refuse_opposite_directions(block: SweepBlock, top: Table) -> None:
    rule, search = block.early_stopping, block.search
    if rule is not None and search is not None and rule.metric == search.metric and rule.mode != search.direction:
        raise top.error(
            ("early_stopping", "mode"),
            f"[early_stopping] has mode = {rule.mode!r} and [search] has direction = {search.direction!r} for "
            f"{rule.metric}",
            hint=f'mode = "{search.direction}"',
        )


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
    found = [_request_rule(top.table("request"), None, tables)] if "request" in top else []
    for table in tables_under(top, "requests"):
        condition = parse_expression(table.read(RequestRuleKeys).when, tables, place=table.place("when"))
        found.append(_request_rule(table, condition, tables))
    return tuple(found)


def _request_rule(table: Table, when: Expression | None, tables: Mapping[str, Any]) -> RequestRule:
    computed = {
        name: parse_expression(value[1:], tables, place=table.place(name))
        for name, value in table.values.items()
        if isinstance(value, str) and value.startswith("=") and name != "when"
    }
    fixed = {name: value for name, value in table.values.items() if name not in computed and name != "when"}
    return RequestRule(when, Table(table.document, table.key, fixed).read(RequestSettings), computed, table.place())


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
    searched = () if block.search is None else block.search.space
    for names in (*({name for row in axis for name in row} for axis in block.axes), searched):
        for name in names:
            if name in homes:
                raise top.error(
                    ("sweep", name), f"{name} is described twice, in {homes[name]} and as a swept parameter"
                )
            homes[name] = "sweep"
    for name in block.derived:
        if name in homes:
            raise top.error(("derived", name), f"{name} is described twice, in {homes[name]} and in derived")
