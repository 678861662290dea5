"""A small safe language for derived values, conditions and rules: `min(batch // (nodes * gpus), largest[model])`.

It has a subset of Python's syntax: numbers, strings, arithmetic, comparisons, `and or not`, `a if b else c`, `in`, a
few functions, parameters by name, and tables by subscript. The text is parsed, every node is checked against a list,
and each becomes a small function; nothing is ever passed to eval. Sizes are bounded, so that no expression can use up
memory or time.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shoal.describe.parameters import Scalar, format_value
from shoal.errors import InputError
from shoal.units import shorten_list

ParameterValues = Mapping[str, Scalar]
LookupTable = Mapping[str, Any]
_Compute = Callable[[ParameterValues], Any]

_MAX_LENGTH = 1000
_MAX_DEPTH = 40
_MAX_BITS = 256
_MAX_TEXT_LENGTH = 200

_ARITHMETIC: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", operator.pow),
}
_COMPARISONS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
}
#: Functions of numbers: how many arguments at least and at most.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "min": (min, 1, 20),
    "max": (max, 1, 20),
    "abs": (abs, 1, 1),
    "round": (lambda x, digits=0: round(x, digits) if digits else round(x), 1, 2),
    "floor": (math.floor, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
    "log": (math.log, 1, 1),
    "log2": (math.log2, 1, 1),
    "log10": (math.log10, 1, 1),
    "exp": (math.exp, 1, 1),
    "int": (int, 1, 1),
    "float": (float, 1, 1),
}


class EvaluationError(Exception):
    """The expression has no value for these parameters; the message says why, the caller knows which run it is."""


class Expression(NamedTuple):
    """A checked expression: call `compute(values)`. `names` are the parameters that it reads."""

    source: str
    names: frozenset[str]
    place: str | None
    compute: _Compute

    def value(self, values: ParameterValues) -> Scalar:
        found = self._run(values)
        if isinstance(found, float) and not math.isfinite(found):
            raise EvaluationError(f"is {found}")
        if not isinstance(found, str | int | float):
            raise EvaluationError("is not a number, a string or true/false")
        return found

    def is_true(self, values: ParameterValues) -> bool:
        """A condition; what is neither true nor false is a mistake (`batch % 8` instead of `batch % 8 == 0`)."""
        found = self._run(values)
        if not isinstance(found, bool):
            raise EvaluationError(f"is {found!r}, neither true nor false")
        return found

    def _run(self, values: ParameterValues) -> Any:
        try:
            return self.compute(values)
        except ZeroDivisionError:
            raise EvaluationError("divides by zero") from None
        except OverflowError:
            raise EvaluationError("is too large a number") from None
        except ValueError as error:
            raise EvaluationError(f"has no value: {error}") from None

    def reads(self, values: ParameterValues) -> str:
        """The parameters that it looks at, for messages: batch = 12, gpus = 8."""
        return ", ".join(f"{name} = {format_value(values[name])}" for name in sorted(self.names) if name in values)


def parse_expression(text: str, tables: Mapping[str, LookupTable], *, place: str | None = None) -> Expression:
    """Check an expression and make it computable; everything that the language does not have is an InputError."""
    if not text.strip() or len(text) > _MAX_LENGTH:
        raise InputError(f"an expression has between 1 and {_MAX_LENGTH} characters", place=place)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(f"{text!r} is not an expression: {why}", place=place) from None
    builder = _ExpressionBuilder(text, tables, place)
    compute = builder.build(tree.body, 0)
    return Expression(text.strip(), frozenset(builder.names), place, compute)


class _ExpressionBuilder:
    """Turns syntax into small functions, one for each node."""

    def __init__(self, text: str, tables: Mapping[str, LookupTable], place: str | None) -> None:
        self.text, self.tables, self.place = text, tables, place
        self.names: set[str] = set()

    def build(self, node: ast.expr, depth: int) -> _Compute:
        if depth > _MAX_DEPTH:
            raise self._refuse("it is nested too deeply")
        maker = getattr(self, f"_{type(node).__name__.lower()}", None)
        if maker is None:
            raise self._refuse(f"{ast.unparse(node)[:40]!r} is more than the language has")
        compute: _Compute = maker(node, depth + 1)
        return compute

    def _refuse(self, why: str) -> InputError:
        return InputError(
            f"the expression {self.text!r} cannot be used: {why}",
            hint="it may have numbers, strings, parameters, tables[...], + - * / // % **, comparisons, and or not, "
            f"x if y else z, {', '.join(_FUNCTIONS)}, str",
            place=self.place,
        )

    def _constant(self, node: ast.Constant, depth: int) -> _Compute:
        value = node.value
        if not isinstance(value, str | int | float) or isinstance(value, complex):
            raise self._refuse(f"{value!r} is not a value that parameters have")
        try:
            _check_bounds(value)
        except EvaluationError as error:
            raise self._refuse(f"it holds what {error}") from None
        return lambda values: value

    def _name(self, node: ast.Name, depth: int) -> _Compute:
        return self._parameter({"true": "True", "false": "False"}.get(node.id, node.id))

    def _attribute(self, node: ast.Attribute, depth: int) -> _Compute:
        """optimizer.lr is the parameter of that name; there are no objects here."""
        parts = [node.attr]
        inner: ast.expr = node.value
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            raise self._refuse(f"{ast.unparse(node)[:40]!r} is more than the language has")
        return self._parameter(".".join([inner.id, *reversed(parts)]))

    def _parameter(self, name: str) -> _Compute:
        if name in ("True", "False"):
            return lambda values: name == "True"
        self.names.add(name)

        def look(values: ParameterValues) -> Any:
            try:
                return values[name]
            except KeyError:
                raise EvaluationError(f"reads {name}, which this run does not have") from None

        return look

    def _binop(self, node: ast.BinOp, depth: int) -> _Compute:
        if type(node.op) not in _ARITHMETIC:
            raise self._refuse("this operator is more than the language has")
        sign, apply = _ARITHMETIC[type(node.op)]
        left, right = self.build(node.left, depth), self.build(node.right, depth)

        def compute(values: ParameterValues) -> Any:
            a, b = left(values), right(values)
            if isinstance(a, str) or isinstance(b, str):
                if sign != "+" or not (isinstance(a, str) and isinstance(b, str)):
                    raise EvaluationError(f"cannot compute {a!r} {sign} {b!r}")
            elif sign == "**" and (abs(b) > _MAX_BITS or (a < 0 and not isinstance(b, int))):
                raise EvaluationError(f"cannot compute {a!r} ** {b!r}")
            return _check_bounds(apply(a, b))

        return compute

    def _unaryop(self, node: ast.UnaryOp, depth: int) -> _Compute:
        inner = self.build(node.operand, depth)
        if isinstance(node.op, ast.Not):
            return lambda values: not _as_bool(inner(values))
        if not isinstance(node.op, ast.USub | ast.UAdd):
            raise self._refuse("this operator is more than the language has")
        factor = -1 if isinstance(node.op, ast.USub) else 1

        def compute(values: ParameterValues) -> Any:
            value = inner(values)
            if isinstance(value, str):
                raise EvaluationError(f"cannot negate {value!r}")
            return factor * value

        return compute

    def _boolop(self, node: ast.BoolOp, depth: int) -> _Compute:
        parts = [self.build(value, depth) for value in node.values]
        if isinstance(node.op, ast.And):
            return lambda values: all(_as_bool(part(values)) for part in parts)
        return lambda values: any(_as_bool(part(values)) for part in parts)

    def _compare(self, node: ast.Compare, depth: int) -> _Compute:
        first = self.build(node.left, depth)
        pairs: list[tuple[Callable[[Any, Any], Any], _Compute]] = []
        for op, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                pairs.append((_membership(isinstance(op, ast.In)), self._several(right, depth)))
            elif type(op) in _COMPARISONS:
                pairs.append((_comparison(*_COMPARISONS[type(op)]), self.build(right, depth)))
            else:
                raise self._refuse("this comparison is more than the language has")

        def compute(values: ParameterValues) -> Any:
            left = first(values)
            for compare, other in pairs:
                right = other(values)
                if not compare(left, right):
                    return False
                left = right
            return True

        return compute

    def _several(self, node: ast.expr, depth: int) -> _Compute:
        if not isinstance(node, ast.Tuple | ast.List | ast.Set):
            raise self._refuse("after `in` stands a list, such as [1, 2]")
        parts = [self.build(one, depth) for one in node.elts]
        return lambda values: [part(values) for part in parts]

    def _ifexp(self, node: ast.IfExp, depth: int) -> _Compute:
        test, then, otherwise = (self.build(part, depth) for part in (node.test, node.body, node.orelse))
        return lambda values: then(values) if _as_bool(test(values)) else otherwise(values)

    def _call(self, node: ast.Call, depth: int) -> _Compute:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise self._refuse(f"{ast.unparse(node.func)[:40]!r} cannot be called")
        name = node.func.id
        parts = [self.build(argument, depth) for argument in node.args]
        if name == "str" and len(parts) == 1:
            return lambda values: format_value(parts[0](values))
        if name not in _FUNCTIONS:
            raise self._refuse(f"there is no function {name!r}")
        function, min_count, max_count = _FUNCTIONS[name]
        if not min_count <= len(parts) <= max_count:
            raise self._refuse(f"{name} takes {min_count} to {max_count} arguments")

        def compute(values: ParameterValues) -> Any:
            arguments = [part(values) for part in parts]
            if any(isinstance(argument, str) for argument in arguments) and name not in ("int", "float"):
                raise EvaluationError(f"{name} works on numbers")
            return _check_bounds(function(*arguments))

        return compute

    def _subscript(self, node: ast.Subscript, depth: int) -> _Compute:
        """table[key], table[key, key] or table[key][key]; keys are compared as text, because TOML keys are text."""
        keys: list[ast.expr] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Subscript):
            keys[:0] = inner.slice.elts if isinstance(inner.slice, ast.Tuple) else [inner.slice]
            inner = inner.value
        if not isinstance(inner, ast.Name) or inner.id not in self.tables:
            known = f"; there are {', '.join(self.tables)}" if self.tables else ""
            raise self._refuse(f"there is no table {ast.unparse(inner)[:40]!r}{known}")
        name, table = inner.id, self.tables[inner.id]
        parts = [self.build(key, depth) for key in keys]
        return lambda values: _look_up(name, table, [format_value(part(values)) for part in parts])


def _look_up(name: str, table: LookupTable, keys: list[str]) -> Any:
    found: Any = table
    for depth, key in enumerate(keys):
        if not isinstance(found, Mapping):
            raise EvaluationError(f"asks table {name} for more than {depth} keys")
        if key not in found:
            shown = "][".join(keys[: depth + 1])
            raise EvaluationError(f"finds no entry {name}[{shown}]; it has {shorten_list(found, 6)}")
        found = found[key]
    if isinstance(found, Mapping):
        raise EvaluationError(f"asks table {name} for a whole row; it has {shorten_list(found, 6)}")
    return found


def _check_bounds(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise EvaluationError("is too large a number")
    if isinstance(value, str) and len(value) > _MAX_TEXT_LENGTH:
        raise EvaluationError("is too long a text")
    if isinstance(value, complex):
        raise EvaluationError("is not a real number")
    return value


def _as_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise EvaluationError(f"uses {value!r} as true or false")
    return value


def _comparison(sign: str, apply: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compare(a: Any, b: Any) -> Any:
        if isinstance(a, str) != isinstance(b, str) and sign not in ("==", "!="):
            raise EvaluationError(f"cannot compare {a!r} {sign} {b!r}")
        return apply(a, b)

    return compare


def _membership(wanted: bool) -> Callable[[Any, Any], Any]:
    return lambda a, several: (a in several) is wanted
