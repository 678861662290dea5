"""Digests of values and of code that are the same in every process: what the identity of a function's run rests on.

Bytes of a pickle are not: sets of strings have another order in each process, and functions of a notebook carry the
kernel's process id. A value is digested by its structure, code by its syntax tree without positions and comments.
"""

from __future__ import annotations

import ast
import contextlib
import copyreg
import enum
import functools
import hashlib
import inspect
import operator
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from shoal.functions.project_code import ProjectCode, is_project_file, local_imports, named_paths

#: Digits of a digest in a run's name.
SHORT = 8


def digest_value(value: Any) -> str:
    """64 hexadecimal digits that depend on the content of a value alone; TypeError if it cannot be pickled."""
    return ValueDigests(None).digest(value).content


class ValueDigest(NamedTuple):
    """`content` tells values apart. `code` has the digests of functions and classes of the project that a value names
    and a job imports: a change of them is a change of the run's code, not another value."""

    content: str
    code: Mapping[str, str]


class ValueDigests:
    """Digests of values in the project at `root`; the code of each function or class in them is read once.

    `as_pickle`: values travel as pickles that are kept by their digest, in which functions of `__main__` are contained.
    """

    def __init__(self, root: str | None, *, as_pickle: bool = True) -> None:
        self.root, self.as_pickle = root, as_pickle
        #: By id; the object itself keeps its id from being used again. None while its code is read: it holds itself.
        self._codes: dict[int, tuple[Any, str | None]] = {}
        self._in_project: dict[str, bool] = {}

    def digest(self, value: Any) -> ValueDigest:
        hasher = hashlib.sha256()
        walk = _Walk(hasher.update, self)
        walk.add(value)
        return ValueDigest(hasher.hexdigest(), walk.code)

    def code_of(self, target: Any, *, by_value: bool) -> str:
        if id(target) not in self._codes:
            self._codes[id(target)] = (target, None)
            code = _CodeWalk(self.root, by_value, self).digest(target, ())[0]
            self._codes[id(target)] = (target, code)
        return self._codes[id(target)][1] or "itself"

    def is_of_project(self, module: str) -> bool:
        if module not in self._in_project:
            file = getattr(sys.modules.get(module), "__file__", None)
            self._in_project[module] = bool(self.root and file and is_project_file(file, self.root))
        return self._in_project[module]


class _Walk:
    """Feeds a value to a hash, part by part; a part that occurs again is its number. `code` is what ValueDigest has."""

    def __init__(self, feed: Callable[[Any], object], digests: ValueDigests) -> None:
        self._feed, self._digests = feed, digests
        self.code: dict[str, str] = {}
        self._seen: dict[int, int] = {}
        #: Parts that were made on the way: their ids must not be used again.
        self._kept: list[Any] = []

    def add(self, value: Any) -> None:
        kind = type(value)
        if value is None or kind in (bool, int, float, complex):
            self._text(f"{kind.__name__} {value!r}")
        elif kind is str:
            self._bytes("str", value.encode("utf-8", "surrogatepass"))
        elif kind in (bytes, bytearray):
            self._bytes(kind.__name__, value)
        elif id(value) in self._seen:
            self._text(f"again {self._seen[id(value)]}")
        else:
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)
            self._add_object(value, kind)

    def _add_object(self, value: Any, kind: type) -> None:
        if kind in (list, tuple):
            self._text(f"{kind.__name__} {len(value)}")
            for one in value:
                self.add(one)
        elif kind is dict:
            self._text(f"dict {len(value)}")
            pairs = [(self._nested(name), one) for name, one in value.items()]
            for digest, one in sorted(pairs, key=operator.itemgetter(0)):
                self._text(digest)
                self.add(one)
        elif kind in (set, frozenset):
            self._text(f"{kind.__name__} {sorted(map(self._nested, value))}")
        elif isinstance(value, enum.Enum):
            self._text(f"enum {kind.__module__} {kind.__qualname__} {value.name}")
        elif isinstance(value, type | types.BuiltinFunctionType | types.ModuleType):
            self._text(f"named {getattr(value, '__module__', '')} {getattr(value, '__qualname__', None) or value!r}")
            owner = getattr(value, "__self__", None)
            if owner is not None and not inspect.ismodule(owner):
                self.add(owner)
            if isinstance(value, type):
                self._add_code(value)
        elif isinstance(value, types.FunctionType):
            self._text(f"function {value.__module__} {value.__qualname__}")
            self._add_code(value)
        elif isinstance(value, types.MethodType):
            self._text(f"method {value.__func__.__qualname__}")
            self.add(value.__self__)
        else:
            self._add_parts(value, kind)

    def _nested(self, value: Any) -> str:
        """A part whose place depends on its digest."""
        content, code = self._digests.digest(value)
        self.code.update(code)
        return content

    def _add_code(self, target: Any) -> None:
        """The code of a function or class of this session, which travels with the value, or of the project."""
        module, qualname = str(target.__module__), str(target.__qualname__)
        is_contained = "<" in qualname or (module == "__main__" and self._digests.as_pickle)
        if is_contained:
            self._text(self._digests.code_of(target, by_value=True))
        elif module == "__main__" or self._digests.is_of_project(module):
            self.code[f"{module}.{qualname}"] = self._digests.code_of(target, by_value=module == "__main__")

    def _add_parts(self, value: Any, kind: type) -> None:
        """Any other object: what pickle would take it apart into. The pickle of a tensor has addresses in it."""
        torch: Any = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            self._text(f"tensor {kind.__qualname__} {value.dtype} {tuple(value.shape)} {value.requires_grad}")
            flat = value.detach().cpu().contiguous().reshape(-1)
            self._bytes("tensor", flat.view(torch.uint8).numpy().tobytes())
            return
        registered = copyreg.dispatch_table.get(kind)  # of types without a method, such as re.Pattern
        try:
            parts = registered(value) if registered is not None else value.__reduce_ex__(4)
        except TypeError:
            if (by_cloudpickle := _cloudpickle_reducers().get(kind)) is None:
                raise
            parts = by_cloudpickle(value)
        self._text(f"object {kind.__module__} {kind.__qualname__}")
        self._add_code(kind)
        if isinstance(parts, str):
            self._text(parts)
            return
        maker, args, *more = parts
        self._text(f"made by {getattr(maker, '__module__', '')} {getattr(maker, '__qualname__', repr(maker))}")
        self.add(args)
        for part in more:
            self.add(list(part) if isinstance(part, Iterator) else part if not callable(part) else None)

    def _text(self, text: str) -> None:
        self._bytes("text", text.encode("utf-8", "surrogatepass"))

    def _bytes(self, kind: str, data: bytes | bytearray) -> None:
        self._feed(f"{kind} {len(data)}\n".encode())
        self._feed(data)


@functools.cache
def _cloudpickle_reducers() -> Mapping[type, Callable[[Any], Any]]:
    """For types that travel although pickle refuses them: read-only dicts, views of dicts and bytes."""
    try:
        from cloudpickle import CloudPickler
    except ImportError:
        return {}
    found: Mapping[type, Callable[[Any], Any]] = CloudPickler.dispatch_table
    return found


def digest_code(function: Any, root: str | None, *, by_value: bool = False) -> tuple[str, str]:
    """16 digits for the code of a function or class, with what it reaches of the project at `root`, and its source.

    Comments, empty lines and positions do not count. Code in files of the project is read from there (project_code.py).
    Of all other functions (notebook, nested, partial) what is bound to them counts too: defaults, variables of a
    closure, arguments of a partial, constants of their module. `by_value`: the values of all globals that they read
    count, because they travel with them. Without source (a builtin) the digest is that of its name.
    """
    return _CodeWalk(root, by_value, ValueDigests(root)).digest(function, ())


class _CodeWalk:
    """The code that one function reaches. `parts` has it by name, `project` what is in files of the project."""

    def __init__(self, root: str | None, by_value: bool, digests: ValueDigests) -> None:
        self._root, self._by_value, self._digests = root, by_value, digests
        self._project = ProjectCode(root) if root is not None else None
        self._parts: dict[str, str] = {}

    def digest(self, function: Any, within: tuple[int, ...]) -> tuple[str, str]:
        """`within` are the functions that this one is bound to: a closure may hold itself."""
        source = self._add_file_code(function)
        if source is None:
            source = self._add_bound(function, within)
        parts = {**self._parts, **(self._project.parts() if self._project else {})}
        text = "\n".join(f"{name} {code}" for name, code in sorted(parts.items()))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16], source

    def _add_bound(self, function: Any, within: tuple[int, ...]) -> str:
        """A function with everything that is bound to it; its source."""
        within = (*within, id(function))
        while True:  # a decorator with functools.wraps around the function, which is the last of the chain
            for name, value in bound_values(function):
                self._parts[f"bound {len(self._parts)} {name}"] = self._digest_bound(value, within)
            inner = function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)
            if inner is None or id(inner) in within:
                return self._add_object(function, True)
            self._add_object(function, True)
            function, within = inner, (*within, id(inner))

    def _digest_bound(self, value: Any, within: tuple[int, ...]) -> str:
        if isinstance(value, types.FunctionType | functools.partial):
            walk = _CodeWalk(self._root, self._by_value, self._digests)
            return "itself" if id(value) in within else walk.digest(value, within)[0]
        self._follow(type(value))
        return self._digest_or_type(value)

    def _digest_or_type(self, value: Any) -> str:
        try:
            content, code = self._digests.digest(value)
        except Exception:  # what cannot be pickled is refused later, with its name
            return type(value).__qualname__
        self._parts.update((f"code of {name}", one) for name, one in code.items())
        return content

    def _add_file_code(self, target: Any) -> str | None:
        """Add a definition from its file; its source, or None if it is not one of the top level of a project's file."""
        name, qualname = getattr(target, "__module__", None), str(getattr(target, "__qualname__", ""))
        if self._project is None or name is None or "<locals>" in qualname or isinstance(target, functools.partial):
            return None
        main_spec = getattr(sys.modules.get(name), "__spec__", None) if name == "__main__" else None
        try:
            path = inspect.getsourcefile(inspect.unwrap(target)) or ""
        except (TypeError, OSError):  # a builtin; a class of a kernel
            return None
        module = self._project.file(main_spec.name if main_spec is not None else name, path)
        top = qualname.partition(".")[0]
        if module is None or top not in module.definitions:
            return None
        self._project.reach(module, [top])
        self._add_constants(target, module.definitions[top])
        return "\n".join(ast.get_source_segment(module.source, one) or "" for one in module.definitions[top])

    def _add_constants(self, target: Any, code: list[ast.stmt]) -> None:
        """The values of constants that a function names: they may come from the environment, which no file tells."""
        values = getattr(inspect.unwrap(target), "__globals__", {})
        names = {path[0] for one in code for path in named_paths(one) if len(path) == 1}
        for name in names & values.keys():
            if _is_constant(values[name]):
                self._parts[f"value of {target.__module__}.{name}"] = repr(values[name])

    def _follow(self, value: Any) -> None:
        """Add a function or class that code names: one of the project's files, or of this session."""
        value = inspect.unwrap(value) if callable(value) else value
        is_code = inspect.isfunction(value) or inspect.isclass(value)
        if is_code and self._add_file_code(value) is None and getattr(value, "__module__", "") == "__main__":
            self._add_object(value, False)

    def _add_object(self, target: Any, is_first: bool) -> str:
        """A function or class as it is in this process, and what it names; its source."""
        label = f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', '')}"
        if label in self._parts:
            return ""
        self._parts[label] = ""
        try:
            source = textwrap.dedent(inspect.getsource(target))
            tree: ast.AST = ast.parse(source)
        except (OSError, TypeError, SyntaxError, IndentationError):
            if inspect.isclass(target):
                self._add_members(target)
            elif is_first and getattr(target, "__code__", None) is not None:
                self._parts[label] = _code_text(target.__code__)
            return ""
        self._parts[label] = ast.dump(tree)
        module = inspect.getmodule(target)
        names = getattr(target, "__globals__", vars(module) if module is not None else {})
        body: Any = tree
        self._add_names(body.body[0] if len(body.body) == 1 else tree, names)
        return source

    def _add_names(self, code: ast.AST, names: Mapping[str, Any]) -> None:
        imports = local_imports(code, "")
        for name, *attributes in named_paths(code):
            for origin in imports.get(name, ()):
                path = [*([origin.attribute] if origin.attribute else []), *attributes]
                self._reach(origin.module, path)
            if name in imports:
                continue
            if inspect.ismodule(names.get(name)):
                self._reach(names[name].__name__, attributes)
            elif name in names:
                self._add_value(name, names[name])

    def _reach(self, module: str, path: list[str]) -> None:
        if self._project is not None:
            self._project.reach_module(module, path)

    def _add_value(self, name: str, value: Any) -> None:
        if callable(value) and hasattr(value, "__qualname__"):
            self._follow(value)
        elif _is_constant(value) or (self._by_value and not callable(value)):
            self._parts[f"global {name}"] = self._digest_or_type(value)
            self._follow(type(value))

    def _add_members(self, target: type) -> None:
        """A class whose source is not known, as in a notebook: its methods, attributes and base classes."""
        for name, value in vars(target).items():
            wrapped = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if inspect.isfunction(wrapped):
                self._add_object(wrapped, False)
            elif _is_constant(value) and name not in ("__module__", "__doc__"):
                self._parts[f"{target.__qualname__}.{name}"] = self._digest_or_type(value)
        for base in target.__bases__:
            self._follow(base)


def _code_text(code: types.CodeType) -> str:
    """Bytecode and constants, without the addresses that code inside of code is shown with."""
    constants = [_code_text(one) if inspect.iscode(one) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names!r} {constants!r}"


def bound_values(function: Any) -> Iterator[tuple[str, Any]]:
    """What belongs to a function beside its code: defaults, and the variables of its closure."""
    if isinstance(function, functools.partial):
        yield from _numbered(function.args)
        yield from function.keywords.items()
        return
    function = getattr(function, "__func__", function)
    yield from _numbered(getattr(function, "__defaults__", None) or ())
    yield from (getattr(function, "__kwdefaults__", None) or {}).items()
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            yield name, cell.cell_contents


def _numbered(values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((str(place), value) for place, value in enumerate(values))


def _is_constant(value: Any) -> bool:
    """Whether a global cannot change while the program runs, unless it is assigned anew."""
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or type(value) in (bool, int, float, str, bytes)
