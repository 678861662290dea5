"""A block -> its points, in order: every combination of its axes and seeds, less what is excluded, with derived values.

Nothing is built before its number is known to be reasonable, and every mistake names the point at which it shows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shoal.describe.expressions import EvaluationError, Expression
from shoal.describe.parameters import MAX_RUNS, Params, Scalar, check_scalar, format_value
from shoal.describe.sweep_file import RequestRule, SweepBlock, SweepRule
from shoal.errors import InputError
from shoal.model import Request


class SweepPoint(NamedTuple):
    """One run of a block. `params` are those that may name it; `derived` follow from them; `seed` may be absent."""

    params: Params
    derived: Params
    seed: int | None
    request: Request
    cost: float | None
    place: str
    #: Of a trial: what chooses its other parameters when it starts.
    search: Mapping[str, Any] = {}

    @property
    def values(self) -> Params:
        return {**self.params, **self.derived}

    def describe(self) -> str:
        """The point for messages: depth = 4, lr = 0.1, seed = 0."""
        shown = {**self.params, **({} if self.seed is None else {"seed": self.seed})}
        return ", ".join(f"{name} = {format_value(value)}" for name, value in shown.items()) or "the only point"


def count_points(block: SweepBlock) -> int:
    """How many points the block has before exclusions; computed, not built."""
    trials = 1 if block.search is None else block.search.trials
    return trials * math.prod(len(axis) for axis in block.axes) * (1 if block.seeds is None else len(block.seeds))


def expand_points(block: SweepBlock) -> list[SweepPoint]:
    """All points of a block, each checked against every rule; an InputError names the first that breaks one."""
    total = count_points(block)
    if total > MAX_RUNS:
        sizes = " x ".join(str(len(axis)) for axis in block.axes) + (
            f" x {len(block.seeds)} seeds" if block.seeds else ""
        )
        raise InputError(
            f"this describes {total:,} runs ({sizes}); {MAX_RUNS:,} are the limit",
            hint="fewer values, zip instead of a grid, or num_samples = 100 random draws",
            place=block.place,
        )
    order = derivation_order(block)
    check_names(block)
    requests: dict[tuple[object, ...], Request] = {}
    points = [_make_point(block, params, seed, order, requests) for params, seed in _combinations(block)]
    if not points:
        raise InputError("every combination is excluded: no run is left", place=block.place)
    return points


def _combinations(block: SweepBlock) -> Iterator[tuple[Params, int | None]]:
    """Later axes turn faster and seeds fastest. Exclusions that need a derived value wait until it is known."""
    early = [rule for rule in block.exclude if not (rule.expression and rule.expression.names & set(block.derived))]
    seeds: tuple[int | None, ...] = (None,) if block.seeds is None else block.seeds
    for row in itertools.product(*block.axes):
        params = dict(block.params)
        for cell in row:
            params.update(cell)
        for seed in seeds:
            if not any(rule_applies(rule, _with_seed(params, seed)) for rule in early):
                yield params, seed


def _make_point(
    block: SweepBlock, params: Params, seed: int | None, order: list[str], requests: dict[tuple[object, ...], Request]
) -> SweepPoint:
    values = _with_seed(params, seed)
    derived: Params = {}
    for name in order:
        formula = block.derived[name]
        values[name] = derived[name] = (
            derived_value(name, formula, values) if isinstance(formula, Expression) else formula
        )
    for rule in block.require:
        if not rule_applies(rule, values):
            assert rule.expression is not None  # noqa: S101 (requirements are expressions)
            raise InputError(
                f"the run with {_describe_point(params, seed)} breaks the rule {rule.expression.source!r} "
                f"({rule.expression.reads(values)})",
                hint="change the values, or leave such points out with exclude = [...]",
                place=rule.place,
            )
    cost = None
    if block.cost is not None:
        cost = _derived_number("cost", block.cost, values)
    kept = {name: value for name, value in derived.items() if not name.startswith("_")}
    return SweepPoint(params, kept, seed, _request(block, values, requests), cost, block.place)


def derivation_order(block: SweepBlock) -> list[str]:
    """Derived values so that each comes after those it reads; a circle is an error that shows it."""
    done: dict[str, None] = {}
    path: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        formula = block.derived[name]
        if name in path:
            circle = " -> ".join([*path[path.index(name) :], name])
            place = formula.place if isinstance(formula, Expression) else block.place
            raise InputError(f"derived values go in a circle: {circle}", place=place)
        path.append(name)
        for needed in sorted(formula.names) if isinstance(formula, Expression) else ():
            if needed in block.derived:
                visit(needed)
        path.pop()
        done[name] = None

    for name in block.derived:
        visit(name)
    return list(done)


def check_names(block: SweepBlock) -> None:
    """Every name that an expression reads must be a parameter of some point."""
    known = {*block.params, *block.derived, "seed", *(name for axis in block.axes for row in axis for name in row)}
    rules = [rule.expression for rule in (*block.exclude, *block.require) if rule.expression is not None]
    formulas = [formula for formula in block.derived.values() if isinstance(formula, Expression)]
    conditions = [rule.when for rule in block.requests if rule.when is not None]
    computed = [formula for rule in block.requests for formula in rule.computed.values()]
    for expression in (*rules, *formulas, *conditions, *computed, *([block.cost] if block.cost else [])):
        for name in sorted(expression.names - known):
            from difflib import get_close_matches

            near = get_close_matches(name, known, n=1)
            guess = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(known))}"
            raise InputError(
                f"{expression.source!r} reads {name}, which is no parameter{guess}",
                place=expression.place or block.place,
            )
    for rule in block.exclude:
        for name in rule.match:
            if name not in known:
                raise InputError(f"exclude speaks of {name}, which is no parameter", place=rule.place)


def rule_applies(rule: SweepRule, values: Mapping[str, Scalar]) -> bool:
    if rule.expression is None:
        return all(name in values and values[name] == value for name, value in rule.match.items())
    try:
        return rule.expression.is_true(values)
    except EvaluationError as error:
        raise _evaluation_error(rule.expression, error, values) from None


def derived_value(name: str, formula: Expression, values: Mapping[str, Scalar]) -> Scalar:
    try:
        return check_scalar(formula.value(values), place=formula.place)
    except EvaluationError as error:
        raise InputError(
            f"{name} = {formula.source} {error}, for {_describe_values(values)}", place=formula.place
        ) from None


def _derived_number(name: str, formula: Expression, values: Mapping[str, Scalar]) -> float:
    value = derived_value(name, formula, values)
    if isinstance(value, str) or value < 0:
        raise InputError(
            f"{name} is {value!r}, for {_describe_values(values)}: it must be a number from 0", place=formula.place
        )
    return float(value)


def _request(block: SweepBlock, values: Mapping[str, Scalar], known: dict[tuple[object, ...], Request]) -> Request:
    """The request of one point: later rules win over earlier ones, key by key. Equal ones are made once."""
    holding = []
    for rule in block.requests:
        if rule.when is not None:
            try:
                if not rule.when.is_true(values):
                    continue
            except EvaluationError as error:
                raise _evaluation_error(rule.when, error, values) from None
        holding.append((rule, {name: derived_value(name, formula, values) for name, formula in rule.computed.items()}))
    key = tuple((id(rule), *computed.values()) for rule, computed in holding)
    if key not in known:
        request = Request()
        for rule, computed in holding:
            request = _computed_request(rule, computed, values).over(rule.fixed.over(request))
        known[key] = request
    return known[key]


def _computed_request(rule: RequestRule, computed: Params, values: Mapping[str, Scalar]) -> Request:
    found: dict[str, int | float | str] = {}
    for name, value in computed.items():
        wants_number = name in ("nodes", "gpus", "cpus")
        if isinstance(value, float) and value.is_integer() and wants_number:
            value = int(value)
        if name == "gpus" and isinstance(value, float) and 0 < value < 1:
            found[name] = value
            continue
        fits = (isinstance(value, int) and not isinstance(value, bool)) if wants_number else isinstance(value, str)
        if not fits or isinstance(value, float):
            kind = "a whole number" if wants_number else 'a word with its unit, such as "2h" or "64G"'
            raise InputError(
                f"the request's {name} is {value!r}, for {_describe_values(values)}: it must be {kind}",
                place=rule.computed[name].place,
            )
        found[name] = value
    try:
        return Request(**found)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(
            f"{error.message}, for {_describe_values(values)}", hint=error.hint, place=rule.place
        ) from None


def _evaluation_error(expression: Expression, error: EvaluationError, values: Mapping[str, Scalar]) -> InputError:
    return InputError(f"{expression.source!r} {error}, for {_describe_values(values)}", place=expression.place)


def _with_seed(params: Params, seed: int | None) -> Params:
    return dict(params) if seed is None else {**params, "seed": seed}


def _describe_point(params: Params, seed: int | None) -> str:
    return _describe_values(_with_seed(params, seed))


def _describe_values(values: Mapping[str, Scalar]) -> str:
    return ", ".join(f"{name} = {format_value(value)}" for name, value in values.items()) or "the only point"
