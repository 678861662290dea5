"""A function and its arguments as a description: how the function reaches the job, its name, the bound arguments.

A function of a module travels by reference and is imported from the code snapshot; one of a script that runs as
`__main__` too, by importing the script's copy; all others (notebook, interpreter, nested, lambda) by value, as a
pickle.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import os
import sys
import textwrap
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import InputError
from shoal.functions.digests import SHORT, ValueDigests, bound_values, digest_code, digest_value
from shoal.functions.project_code import is_project_file
from shoal.job import function_call

#: Larger globals of a function that travels by value are refused: they would be in the pickle of each submission.
_MAX_GLOBAL_BYTES = 1 << 20
_MAX_SHOWN = 60
#: Of a callable with a `checkpoint` method, as in submitit: how long before the limit it is called, and how many times
#: the run continues. A run has at least so long before it is warned.
_WARN_BEFORE_S, _MAX_FOLLOW_UPS, _MIN_WORK_S = 90, 3, 31


class CapturedValue(NamedTuple):
    """A variable that a function holds: in the name of a run, in tables, and the code that it names."""

    shown: Any
    label: Any
    code: Mapping[str, str]


class FunctionSource(NamedTuple):
    """How a function is found in a job. `how`: reference, script or value. `module` is empty by value; `file` is the
    script, and `owner` the instance that a method is called on. `label` names its runs."""

    how: str
    function: Any
    module: str
    qualname: str
    label: str
    file: str = ""
    owner: Any = None
    code: str = ""
    source: str = ""
    #: Whether it has submitit's `checkpoint` method, which is called before the time is up.
    checkpoints: bool = False
    #: Values that are part of the identity of its runs, as arguments are, and travel with the function.
    captured: Mapping[str, CapturedValue] = {}
    values: ValueDigests = ValueDigests(None)

    @property
    def identity(self) -> str:
        """What a run's identity says about its function; by value, in whichever kernel."""
        return f"{self.module or '__main__'}:{self.qualname}"


class BoundCall(NamedTuple):
    """The arguments of one call. `params` are JSON's scalars and travel in the run's description; `objects` are all
    others. `shown` are the values that name the run, `labels` those that its tables show beside `defaults`: scalars of
    the signature that no argument replaces."""

    params: Mapping[str, Any]
    objects: Mapping[str, Any]
    shown: Mapping[str, Any]
    labels: Mapping[str, Any]
    digests: Mapping[str, str]
    seed: int | None
    positional: tuple[str, ...] = ()
    starred: str | None = None
    defaults: Mapping[str, Any] = {}
    #: Of `labels` those that are variables of the function, and not arguments; and the code that arguments name.
    captured: tuple[str, ...] = ()
    code: Mapping[str, str] = {}


def find_function(given: Callable[..., Any], root: str, name: str | None, unnamed: str | None = None) -> FunctionSource:
    """How this callable reaches a job; InputError for one that has no name.

    With `unnamed`, a name for such callables, each call is a run of its own: code without a name is welcome, and a
    script without a main guard too, because its functions travel by value.
    """
    source = _find(given, root, name, unnamed)
    code, text = digest_code(source.function, root, by_value=source.how == "value")
    if source.owner is not None:
        code = digest_value([code, digest_code(type(source.owner), root)[0]])[:16]
    is_object = source.owner is not None and source.function.__name__ == "__call__"
    saves = function_call.checkpoint_method(source.owner if is_object else source.function) is not None
    source = source._replace(code=code, source=text, checkpoints=saves, values=ValueDigests(root))
    if source.how != "value" or unnamed is not None:
        return source
    captured = captured_values(source.function)
    return source._replace(captured={name: _describe_captured(source, name, captured[name], root) for name in captured})


def _find(given: Callable[..., Any], root: str, name: str | None, unnamed: str | None) -> FunctionSource:
    if not callable(given):
        raise InputError(f"{given!r} is not a function", hint="shoal.submit(train, lr=0.1)")
    owner = None
    function: Any = given
    if isinstance(given, types.MethodType) and not inspect.isclass(given.__self__):
        owner, function = given.__self__, given.__func__
    elif not hasattr(given, "__qualname__") and not isinstance(given, functools.partial):
        owner, function = given, type(given).__call__
    if isinstance(given, functools.partial) or getattr(function, "__name__", "") == "<lambda>":
        kind = "a partial" if isinstance(given, functools.partial) else "a lambda"
        name = name or unnamed
        if name is None:
            raise InputError(f"{kind} has no name, and a run needs one", hint='add name="train" to the call')
        return FunctionSource("value", given, "", name, name)
    qualname: str = function.__qualname__
    if isinstance(function, types.MethodType):  # of a class: a subclass has its own
        qualname = f"{function.__self__.__qualname__}.{function.__name__}"  # type: ignore[attr-defined]
    plain = type(owner).__name__ if owner is not None and function.__name__ == "__call__" else qualname
    label = name or plain.rpartition("<locals>.")[2].replace(".", "_")
    holder = function.__self__ if isinstance(function, types.MethodType) else function
    module = str(getattr(holder, "__module__", "") or "")
    if module == "__mp_main__":
        raise InputError(
            f"{label} is defined in the script whose function this run executes, and cannot be submitted from there",
            hint="put it into a module, and import that in the script",
        )
    if "<locals>" in qualname:
        return FunctionSource("value", function, "", qualname, label, owner=owner)
    if module != "__main__":
        return FunctionSource("reference", function, module, qualname, label, owner=owner)
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), str(getattr(main, "__file__", None) or "")
    as_module = spec.name if spec is not None and spec.name and not spec.name.startswith("ipykernel") else ""
    is_script = os.path.isfile(file) and ("ipykernel" not in sys.modules or _is_defined_in(function, file))
    line = _unguarded_line(file) if as_module or is_script else 0
    if (line and unnamed is not None) or not (as_module or is_script):
        return FunctionSource("value", function, "", qualname, label, owner=owner)
    if line:
        raise InputError(
            f"{label} is defined in {Path(file).name}, which the job imports: this line would submit again",
            hint='put what submits under: if __name__ == "__main__":',
            place=f"{os.path.basename(file)}:{line}",
        )
    if as_module:
        return FunctionSource("reference", function, as_module, qualname, label, owner=owner)
    file = os.path.realpath(file)
    return FunctionSource("script", function, _script_module(file, root), qualname, label, file, owner)


def _script_module(file: str, root: str) -> str:
    """A script by the name that it would have as a module, `a.train` in a directory `a`: two are two experiments.
    One outside of the project has its whole path, because its directory is in no name."""
    inside = os.path.relpath(file, os.path.realpath(root))
    return file if inside.startswith("..") else os.path.splitext(inside)[0].replace(os.sep, ".")


def _is_defined_in(function: Any, file: str) -> bool:
    try:
        return os.path.realpath(inspect.getsourcefile(function) or "") == os.path.realpath(file)
    except (TypeError, OSError):
        return False


def captured_values(function: Any) -> dict[str, Any]:
    """What tells apart two functions of one name, by the name of the variable: arguments of a partial, variables of a
    closure, and defaults that were computed when the function was made. None for a function that a module, a script or
    a notebook has under its name: what is bound to that is part of its code."""
    if isinstance(function, functools.partial):
        named = list(_parameters(function.func))
        positions = dict(
            zip(
                [*named, *(f"argument{place}" for place in range(len(named), len(function.args)))],
                function.args,
                strict=False,
            )
        )
        return {**captured_values(function.func), **positions, **function.keywords}
    if "<" not in str(getattr(function, "__qualname__", "")):
        return {}
    free = getattr(getattr(function, "__code__", None), "co_freevars", ())
    held = {name: value for name, value in bound_values(function) if name in free and value is not function}
    return {**{name: _parameters(function)[name].default for name in _computed_defaults(function)}, **held}


def _describe_captured(source: FunctionSource, name: str, value: Any, root: str) -> CapturedValue:
    """InputError for a value that cannot be told apart from others."""
    if is_scalar(value):
        return CapturedValue(value, value, {})
    try:
        digest = ValueDigests(root, as_pickle=False).digest(value)
    except Exception as error:
        raise InputError(
            f"cannot tell runs of {source.label} apart: it holds {name!r} ({type(value).__qualname__}): {error}",
            hint="pass what it is made from as an argument, and make it in the function",
        ) from error
    return CapturedValue(*_show_object(value, digest.content), digest.code)


def _computed_defaults(function: Any) -> set[str]:
    """Parameters whose default is not written down in the function itself; all, where the source cannot be read."""
    names = {name for name, one in _parameters(function).items() if one.default is not inspect.Parameter.empty}
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return names
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return names
    positional = [one.arg for one in [*node.args.posonlyargs, *node.args.args]]
    defaults = dict(zip(reversed(positional), reversed(node.args.defaults), strict=False))
    defaults |= {
        one.arg: value for one, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value
    }
    return {name for name in names if name not in defaults or not _is_literal(defaults[name])}


def _is_literal(code: ast.expr) -> bool:
    try:
        ast.literal_eval(code)
    except (ValueError, TypeError):
        return False
    return True


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def owner_parameter(source: FunctionSource) -> str:
    """The parameter that a callable object is passed as, if it is called as itself in the job."""
    is_object = source.checkpoints and source.owner is not None
    return next(iter(inspect.signature(source.function).parameters)) if is_object else ""


def checkpoint_policy(limit_s: int | None, warn_before_s: int | None, max_follow_ups: int | None) -> dict[str, Any]:
    """The recovery of a callable with a `checkpoint` method: warned before its time limit, and continued. Where the
    limit is too short for a warning, and none was asked for, Slurm's SIGTERM at the limit is the warning."""
    if warn_before_s is None:
        warn_before_s = _WARN_BEFORE_S if limit_s is None else min(_WARN_BEFORE_S, (limit_s - _MIN_WORK_S) // 2)
        warn_before_s = 0 if limit_s is not None and limit_s < 2 * _MIN_WORK_S else warn_before_s
    return {
        **({"warn_before_s": warn_before_s, "warn_with": "signal"} if warn_before_s else {}),
        "max_follow_ups": _MAX_FOLLOW_UPS if max_follow_ups is None else max_follow_ups,
        "continue_exit_code": function_call.EXIT_CONTINUE,
    }


def _unguarded_line(file: str) -> int:
    """The line of the script that submits, if it is not under a main guard; else 0. The script is imported in the job:
    what submits must not be executed there. An Executor submits from a thread, while the script is at that line."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    line = 0
    while frame is not None:  # the outermost frame of the script is its top level
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            line = frame.f_lineno
        frame = frame.f_back
    if not line or not os.path.isfile(file):
        return 0
    for statement in ast.parse(Path(file).read_bytes()).body:
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            is_guard = isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test)
            return 0 if is_guard else line
    return 0


def bind_arguments(source: FunctionSource, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundCall:
    """Arguments by their names; InputError where they do not fit the function, or cannot be pickled."""
    given: list[Any] = [*([source.owner] if source.owner is not None else []), *args]
    try:
        signature = inspect.signature(source.function)
    except (TypeError, ValueError):  # builtins without a signature: arguments keep their positions
        signature = inspect.Signature(
            [
                inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
                inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
            ]
        )
    try:
        bound = signature.bind(*given, **kwargs)
    except TypeError as error:
        raise InputError(
            f"{source.label}() cannot be called like this: {error}", hint=f"{source.label}{signature}"
        ) from None
    values, positional, starred = _by_name(signature, bound)
    defaults = {
        name: one.default for name, one in signature.parameters.items() if one.default is not inspect.Parameter.empty
    }
    seed = _take_seed(values, defaults, positional)
    kept = {
        name: value
        for name, value in values.items()
        if name in positional or not (name in defaults and _is_same(value, defaults[name]))
    }
    found = _add_captured(_sort_arguments(source, kept, seed, positional, starred), source, kept)
    shown = {*kept, *found.captured}
    unset = {name: value for name, value in defaults.items() if name not in shown and is_scalar(value)}
    return found._replace(defaults={name: value for name, value in unset.items() if name != "seed" or seed is None})


def _by_name(
    signature: inspect.Signature, bound: inspect.BoundArguments
) -> tuple[dict[str, Any], tuple[str, ...], str | None]:
    """All arguments by name, those that must be passed by position in their order, and the name of *args."""
    values: dict[str, Any] = {}
    positional: list[str] = []
    starred = None
    kinds = inspect.Parameter
    has_more = any(
        one.kind is kinds.VAR_POSITIONAL and bound.arguments.get(name) for name, one in signature.parameters.items()
    )
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is kinds.VAR_KEYWORD:
            _refuse_wrong_names(value, signature)
            values.update(value)
        elif kind is kinds.VAR_POSITIONAL:
            starred, values[name] = name, tuple(value)
        else:
            values[name] = value
            if kind is kinds.POSITIONAL_ONLY or (has_more and kind is kinds.POSITIONAL_OR_KEYWORD):
                positional.append(name)
    return values, tuple(positional), starred


def _refuse_wrong_names(given: Mapping[str, Any], signature: inspect.Signature) -> None:
    """Names in **kwargs become names of parameters: they must be such, and not those of other parameters."""
    for name in given:
        if not name.isidentifier():
            raise InputError(f"{name!r} cannot be the name of an argument", hint="letters, digits and _ only")
        if name in signature.parameters:
            raise InputError(f"{name!r} is an argument twice: by position, and in **kwargs", hint="rename one of them")


def _take_seed(values: dict[str, Any], defaults: Mapping[str, Any], positional: Sequence[str]) -> int | None:
    """A parameter called `seed` is the seed of the run, where it can be one."""
    seed = values.get("seed", defaults.get("seed"))
    if "seed" in positional or type(seed) is not int or seed < 0:
        return None
    values.pop("seed", None)
    return seed


def _is_same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and (value is default or (is_scalar(value) and value == default))


def _sort_arguments(
    source: FunctionSource,
    values: Mapping[str, Any],
    seed: int | None,
    positional: tuple[str, ...],
    starred: str | None,
) -> BoundCall:
    params, objects, shown, labels, digests = {}, {}, {}, {}, {}
    code: dict[str, str] = {}
    for name, value in values.items():
        if is_scalar(value):
            params[name] = shown[name] = labels[name] = value
            continue
        try:
            digest = source.values.digest(value)
        except Exception as error:
            raise InputError(
                f"argument {name!r} of {source.label} cannot be pickled ({type(value).__qualname__}): {error}",
                hint="pass what it is made from, such as a path, and make it in the function",
            ) from error
        objects[name], digests[name] = value, digest.content
        code.update(digest.code)
        shown[name], labels[name] = _show_object(value, digest.content)
    return BoundCall(params, objects, shown, labels, digests, seed, positional, starred, code=code)


def _add_captured(call: BoundCall, source: FunctionSource, given: Mapping[str, Any]) -> BoundCall:
    """The call with what its function holds, as far as no argument replaces it."""
    shown, labels, code = dict(call.shown), dict(call.labels), dict(call.code)
    names: list[str] = []
    parameters = _parameters(source.function) if source.captured else {}
    for variable, value in source.captured.items():
        if variable in parameters and (variable in given or (variable == "seed" and call.seed is not None)):
            continue
        name = variable if variable not in given else f"closure_{variable}"
        names.append(name)
        shown[name], labels[name] = value.shown, value.label
        code.update(value.code)
    return call._replace(shown=shown, labels=labels, captured=tuple(names), code=code)


def _show_object(value: Any, digest: str) -> tuple[Any, Any]:
    """An object in a run's name and in tables. A name shows `data-1f3a9c2e`; the sign keeps digits apart from the
    parameter's name."""
    number = value.item() if _is_numpy_scalar(value) else None
    if number is not None and is_scalar(number):
        return number, number
    return f"-{digest[:SHORT]}", _label_of(value, digest)


def _is_numpy_scalar(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "shape", None) == ()


def _label_of(value: Any, digest: str) -> str:
    """A value in a table: plain data as text where it is short, everything else by type and digest."""
    text = repr(value) if type(value) in (type(None), list, tuple, dict) else ""
    short = 0 < len(text) <= _MAX_SHOWN and text.isprintable() and " at 0x" not in text
    return text if short else f"{type(value).__name__}-{digest[:SHORT]}"


def is_scalar(value: Any) -> bool:
    """Whether a value can be a parameter of a run, as in a sweep: it is the same after a trip through JSON."""
    if type(value) is str:
        return value.isprintable() and len(value) <= 1000
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is bool or (type(value) is int and abs(value) < 2**63)


def refuse_large_globals(source: FunctionSource, dumps: Callable[[Any], bytes]) -> None:
    """Refuse a function that travels by value and reads a large global; the message names it."""
    target = source.function.func if isinstance(source.function, functools.partial) else source.function
    code, names = getattr(target, "__code__", None), getattr(target, "__globals__", {})
    cells = getattr(target, "__closure__", None) or ()
    free = zip(getattr(code, "co_freevars", ()), (_content(cell) for cell in cells), strict=False)
    for name, value in [*((name, names.get(name)) for name in _code_names(code)), *free]:
        if value is None or inspect.ismodule(value) or inspect.isfunction(value) or inspect.isclass(value):
            continue
        size = _size_of(value, dumps)
        if size > _MAX_GLOBAL_BYTES:
            raise InputError(
                f"{source.label} reads {name!r}, which has {size / 1e6:.1f} MB and would be in the function's pickle",
                hint=f"pass it as an argument, which is kept once: shoal.submit({source.label}, {name}={name})",
            )


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _code_names(code: Any) -> list[str]:
    if code is None:
        return []
    inner = [name for one in code.co_consts if inspect.iscode(one) for name in _code_names(one)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _size_of(value: Any, dumps: Callable[[Any], bytes]) -> int:
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    try:
        return len(dumps(value))
    except Exception:  # told when the whole function is pickled
        return 0


def experiment_of(source: FunctionSource, root: str, environ: Mapping[str, str]) -> str:
    """The experiment of a function's runs where none is given: its module or script, the notebook, or the directory."""
    if source.module:
        return Path(source.module).stem if os.path.isabs(source.module) else source.module.replace(".", "_")
    notebook = environ.get("JPY_SESSION_NAME", "")
    return Path(notebook).stem or Path(root).name or "functions"


def import_paths(source: FunctionSource, root: str) -> list[str]:
    """Directories of the project that the function's imports need, relative to its root; that of its module first."""
    found: list[str] = []
    module = sys.modules.get(source.module) if source.how == "reference" else None
    file = getattr(module, "__file__", None)
    if file and is_project_file(file, root):
        depth = source.module.count(".") + (1 if os.path.basename(file) == "__init__.py" else 0)
        found.append(str(Path(file).resolve().parents[depth]))
    found += [entry or os.getcwd() for entry in sys.path]
    inside = [
        os.path.relpath(os.path.realpath(one), os.path.realpath(root)) for one in found if is_project_file(one, root)
    ]
    return list(dict.fromkeys(inside))


def script_path(source: FunctionSource, root: str) -> str:
    """The script of a function, relative to the project's root: the job has a copy. Outside of it, its whole path."""
    inside = os.path.relpath(source.file, os.path.realpath(root)) if source.file else ""
    return source.file if inside.startswith("..") else inside
