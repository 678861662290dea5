"""A block with [search] -> its trials: a run for each trial and seed, with all that is known of it before it starts.

Rules that read a searched parameter travel with the trial as text, and the sampler applies them to its points. Nothing
that Slurm must know at submission (request, cost) may depend on a searched parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal.describe.expand import SweepPoint, check_names, derivation_order, derived_value, expand_points, rule_applies
from shoal.describe.expressions import Expression, parse_expression
from shoal.describe.parameters import Params, Scalar
from shoal.describe.search import MAX_REFUSED, SearchSettings, draw_point, trial_label
from shoal.describe.sweep_file import SweepBlock, SweepRule
from shoal.errors import InputError


class TrialRules(NamedTuple):
    """What a point of a search must satisfy, and what follows from it; `derived` in order of computation."""

    derived: Mapping[str, Expression | Scalar]
    exclude: tuple[SweepRule, ...]
    require: tuple[SweepRule, ...]

    def derive(self, fixed: Mapping[str, Scalar], params: Params) -> Params | None:
        """What follows from a point, without private values; None if a rule refuses it."""
        values: Params = {**fixed, **params}
        for name, formula in self.derived.items():
            values[name] = derived_value(name, formula, values) if isinstance(formula, Expression) else formula
        if any(rule_applies(rule, values) for rule in self.exclude):
            return None
        if not all(rule_applies(rule, values) for rule in self.require):
            return None
        return {name: values[name] for name in self.derived if not name.startswith("_")}

    def record(self, tables: Mapping[str, Any]) -> dict[str, Any]:
        """As text, for the job; {} without rules."""
        if not any(self):
            return {}
        return {
            "derived": {name: _as_text(one) for name, one in self.derived.items()},
            "exclude": [_as_text(one.expression) if one.expression else dict(one.match) for one in self.exclude],
            "require": [_as_text(one.expression) for one in self.require],
            "tables": dict(tables),
        }


def read_rules(record: Mapping[str, Any]) -> TrialRules:
    """The inverse of `TrialRules.record`."""
    tables = record.get("tables", {})

    def read(one: Any) -> Any:
        is_text = isinstance(one, dict) and set(one) == {"expression"}
        return parse_expression(one["expression"], tables) if is_text else one

    def rule(one: Any) -> SweepRule:
        found = read(one)
        return SweepRule(found, {}, "") if isinstance(found, Expression) else SweepRule(None, found, "")

    return TrialRules(
        {name: read(one) for name, one in record.get("derived", {}).items()},
        tuple(rule(one) for one in record.get("exclude", ())),
        tuple(rule(one) for one in record.get("require", ())),
    )


def _as_text(one: Any) -> Any:
    return {"expression": one.source} if isinstance(one, Expression) else one


def expand_trials(block: SweepBlock, base: str, python: str) -> list[SweepPoint]:
    """A point for each trial and seed. `base` begins the names of its runs; `python` executes the sampler."""
    settings = block.search
    assert settings is not None  # noqa: S101 (the caller's fact)
    probe = block._replace(axes=((draw_point(settings, 0, 0),),))
    check_names(probe)
    late = _dependent_names(settings, block)
    _refuse_late_resources(block, late)
    rules = _trial_rules(block, late)
    early = block._replace(
        search=None,
        derived={name: one for name, one in block.derived.items() if name not in late},
        exclude=tuple(rule for rule in block.exclude if not _names_of(rule) & late),
        require=tuple(rule for rule in block.require if not _names_of(rule) & late),
    )
    runs = expand_points(early)
    found = []
    for trial in range(settings.trials):
        record = _trial_record(settings, trial, base, [run.seed for run in runs], python)
        record["rules"] = rules.record(settings.tables)
        record["drawn"] = _allowed_point(settings, trial, block.params, rules)
        if trial < len(settings.points):
            record["point"] = record["drawn"]
        found += [run._replace(search=record) for run in runs]
    return found


def _trial_record(
    settings: SearchSettings, trial: int, base: str, seeds: list[int | None], python: str
) -> dict[str, Any]:
    record = {
        "trial": trial,
        "base": base,
        "name": f"{base}_{trial_label(trial)}",
        "seeds": seeds,
        "metric": settings.metric,
        "direction": settings.direction,
        "sampler": settings.sampler,
        "seed": settings.seed,
        "until": None if settings.until is None else list(settings.until),
        "patience": settings.patience,
        "space": {name: dict(draw) for name, draw in settings.space.items()},
        "command": [python, "-m", "shoal.search", settings.sampler],
    }
    return {name: value for name, value in record.items() if value is not None}


def _allowed_point(
    settings: SearchSettings, trial: int, fixed: Mapping[str, Scalar], rules: TrialRules
) -> dict[str, Params]:
    """A random point that no rule refuses, and what follows from it."""
    for again in range(MAX_REFUSED):
        params = draw_point(settings, trial, again)
        derived = rules.derive(fixed, params)
        if derived is not None:
            return {"params": params, "derived": derived}
    whose = f"point {trial + 1} of [[points]]" if trial < len(settings.points) else f"trial {trial_label(trial)}"
    raise InputError(
        f"exclude and require refuse {MAX_REFUSED} random draws for {whose}",
        hint="narrow the ranges in [sweep], or relax the rules",
        place=settings.place,
    )


def _dependent_names(settings: SearchSettings, block: SweepBlock) -> set[str]:
    """The searched parameters and everything that follows from them."""
    found = set(settings.space)
    for name in derivation_order(block):
        formula = block.derived[name]
        if isinstance(formula, Expression) and formula.names & found:
            found.add(name)
    return found


def _trial_rules(block: SweepBlock, late: set[str]) -> TrialRules:
    """Rules and derived values that read a searched parameter, with the derived values that those need."""
    exclude = tuple(rule for rule in block.exclude if _names_of(rule) & late)
    require = tuple(rule for rule in block.require if _names_of(rule) & late)
    needed = {name for name in block.derived if name in late}
    needed |= {name for rule in (*exclude, *require) for name in _names_of(rule) if name in block.derived}
    order = derivation_order(block)
    for name in reversed(order):
        formula = block.derived[name]
        if name in needed and isinstance(formula, Expression):
            needed |= formula.names & set(block.derived)
    derived = {name: block.derived[name] for name in order if name in needed}
    expressions = [one for one in derived.values() if isinstance(one, Expression)]
    expressions += [rule.expression for rule in (*exclude, *require) if rule.expression is not None]
    for expression in expressions:
        if "seed" in expression.names:
            raise InputError(
                f"{expression.source!r} reads seed and a searched parameter, and a trial has one point for all seeds",
                place=expression.place or block.place,
            )
    return TrialRules(derived, exclude, require)


def _refuse_late_resources(block: SweepBlock, late: set[str]) -> None:
    """Requests and costs are needed at submission, when the parameters of a trial are not known."""
    asked = [(rule.when, "[[requests]]") for rule in block.requests if rule.when is not None]
    asked += [(formula, "the request") for rule in block.requests for formula in rule.computed.values()]
    asked += [(block.cost, "cost")] if block.cost is not None else []
    for expression, what in asked:
        names = sorted(expression.names & late) if expression is not None else []
        if expression is not None and names:
            raise InputError(
                f"{what} reads {names[0]}, which [search] chooses when the trial starts",
                hint=f"write {what} without {names[0]}",
                place=expression.place or block.place,
            )


def _names_of(rule: SweepRule) -> set[str]:
    return set(rule.match) if rule.expression is None else set(rule.expression.names)
