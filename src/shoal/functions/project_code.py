"""The code of a project that a definition reaches, read from its source files; nothing is imported or executed.

A job imports the files as they are at submission, not what a long-lived kernel loaded an hour ago, so files are what a
digest of code must rest on. From a definition (a function, a class, an assignment of a module) every name in it is
followed to its own definition: names of its module, `from x import y`, attribute paths such as `pkg.sub.helper`,
imports inside functions, base classes, decorators, defaults and annotations. Only files of the project are followed.

Not followed: names that exist only while a program runs (`getattr`, registries, `importlib`), what a module does when
it is imported, and files that are data.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NamedTuple

#: A function or class: what a name is followed from. Its own imports are added to those of its module.
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class ImportedName(NamedTuple):
    """What an import binds a name to: a module, or with `attribute` a name of it."""

    module: str
    attribute: str | None = None


class Definition(NamedTuple):
    """What a digest needs of one name of a module: its syntax tree as text, and what each path in it starts from."""

    text: str
    paths: tuple[tuple[list[ImportedName], list[str]], ...]


class ModuleCode:
    """The top level of one file: which statements define each name, and what each imported name is."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        self.source = Path(path).read_text("utf-8", "surrogateescape")
        self.tree = ast.parse(self.source)
        self.definitions: dict[str, list[ast.stmt]] = {}
        #: A name may be imported in several ways, as by `try: from fast import f`, `except: from slow import f`.
        self.imports: dict[str, list[ImportedName]] = {}
        self.star_imports: list[str] = []
        self._definitions: dict[str, Definition] = {}
        is_package = os.path.basename(path) == "__init__.py"
        self.package = name if is_package else name.rpartition(".")[0]
        for statement, conditions in _plain_statements(self.tree.body):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                names = _imported_names(statement, self.package, self.star_imports)
                for bound, imported in names.items():
                    self.imports.setdefault(bound, []).append(imported)
                    if conditions:
                        self.definitions.setdefault(bound, []).extend(conditions)
            else:
                for bound in _bound_names(statement):
                    self.definitions.setdefault(bound, []).extend([*conditions, statement])

    def definition(self, name: str) -> Definition:
        """The code of a name of `definitions`; computed once."""
        if name not in self._definitions:
            paths: list[tuple[list[ImportedName], list[str]]] = []
            for code in self.definitions[name]:
                imports = local_imports(code, self.package)
                paths += [(imports.get(path[0], []), path) for path in named_paths(code)]
            text = "\n".join(map(ast.dump, self.definitions[name]))
            self._definitions[name] = Definition(text, tuple(paths))
        return self._definitions[name]


class ProjectCode:
    """Collects definitions of a project's files, each once."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._parts: dict[str, str] = {}
        self._modules: dict[str, ModuleCode | None] = {}
        #: Definitions whose names are still to be followed, and names that were: imports may go in a circle.
        self._pending: list[tuple[ModuleCode, Definition]] = []
        self._followed: set[tuple[str, ...]] = set()

    def parts(self) -> dict[str, str]:
        """The syntax tree of everything that was reached, by its place in the project."""
        while self._pending:
            module, definition = self._pending.pop()
            for imports, path in definition.paths:
                if not imports:
                    self.reach(module, path)
                for imported in imports:
                    self._reach_import(imported, path[1:])
        return self._parts

    def module(self, name: str) -> ModuleCode | None:
        """The module of this name, if it is a readable file of the project."""
        if name not in self._modules:
            path = _file_of(name)
            self._modules[name] = self.file(name, path) if path else None
        return self._modules[name]

    def file(self, name: str, path: str) -> ModuleCode | None:
        """The module in this file, if that is one of the project."""
        if not is_project_file(path, self._root):
            return None
        try:
            return _read_module(name, os.path.realpath(path), os.stat(path).st_mtime_ns)
        except (OSError, SyntaxError, ValueError):
            return None

    def reach(self, module: ModuleCode, path: Iterable[str]) -> bool:
        """Collect what `a.b` in a module stands for; False if the module has no `a`, or this was followed before."""
        name, *more = path
        if (module.path, name, *more) in self._followed:
            return False
        self._followed.add((module.path, name, *more))
        # Both: a module may change what it imported, as by `helpers.setup()` or `Net.tag = 1`.
        if name in module.definitions:
            self._add(module, name)
        for imported in module.imports.get(name, ()):
            self._reach_import(imported, more)
        if name in module.definitions or name in module.imports:
            return True
        submodule = self.module(f"{module.name}.{name}") if module.package == module.name else None
        if submodule is not None:
            self._reach_in(submodule, more)
            return True
        stars = (self.module(one) for one in module.star_imports)
        return any(one is not None and self.reach(one, [name, *more]) for one in stars)

    def reach_module(self, name: str, path: Iterable[str]) -> None:
        """Collect what `module.path` stands for, if the module is one of the project."""
        module, path = self.module(name), list(path)
        if module is not None:
            self._reach_in(module, path)
        elif path and _is_namespace(name):
            self.reach_module(f"{name}.{path[0]}", path[1:])

    def _reach_import(self, imported: ImportedName, path: list[str]) -> None:
        self.reach_module(imported.module, [*([imported.attribute] if imported.attribute else []), *path])

    def _reach_in(self, module: ModuleCode, path: list[str]) -> None:
        if path:
            self.reach(module, path)
        else:  # the module itself is a value: which of its names are used is not known
            for name in module.definitions:
                self._add(module, name)

    def _add(self, module: ModuleCode, name: str) -> None:
        place = f"{os.path.relpath(module.path, self._root)}:{name}"
        if place not in self._parts:
            definition = module.definition(name)
            self._parts[place] = definition.text
            self._pending.append((module, definition))


def is_project_file(path: str, root: str) -> bool:
    """Whether a file is code of the project, and not of a package that is installed below its root."""
    inside = os.path.relpath(os.path.realpath(path), os.path.realpath(root))
    parts = inside.split(os.sep)
    return not inside.startswith("..") and not {"site-packages", "dist-packages", ".shoal"} & set(parts)


def local_imports(code: ast.AST, package: str) -> dict[str, list[ImportedName]]:
    """Names that imports inside of code bind; `package` is that of its module, for relative ones."""
    found: dict[str, list[ImportedName]] = {}
    for node in ast.walk(code):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for bound, imported in _imported_names(node, package, []).items():
                found.setdefault(bound, []).append(imported)
    return found


def _imported_names(statement: ast.Import | ast.ImportFrom, package: str, stars: list[str]) -> dict[str, ImportedName]:
    """What one import binds; modules of `import *` are added to `stars`."""
    if isinstance(statement, ast.Import):
        # `import a.b` binds a, `import a.b as c` binds a.b.
        modules = {one.asname or one.name.partition(".")[0]: one for one in statement.names}
        return {bound: ImportedName(one.name if one.asname else bound) for bound, one in modules.items()}
    module = statement.module or ""
    if statement.level:
        parents = package.split(".")
        base = ".".join(parents[: len(parents) - statement.level + 1])
        module = f"{base}.{module}".strip(".")
    stars += [module for one in statement.names if one.name == "*"]
    return {one.asname or one.name: ImportedName(module, one.name) for one in statement.names if one.name != "*"}


def named_paths(code: ast.AST) -> list[list[str]]:
    """The names that code reads, each with the attributes after it: `a.b.c(d)` has a.b.c and d. Sorted, each once.

    Parameters and variables of a function are not names of its module.
    """
    own = _own_variables(code) if isinstance(code, ast.FunctionDef | ast.AsyncFunctionDef) else set()
    found = {path for path in _paths(code) if path[0] not in own}
    return [list(path) for path in sorted(found)]


def _paths(code: ast.AST) -> Iterator[tuple[str, ...]]:
    attributes: list[str] = []
    node = code
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        yield (node.id, *reversed(attributes))
    elif attributes:
        yield from _paths(node)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _paths(child)


def _own_variables(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Parameters and assigned names of a function, without those of functions and comprehensions inside it."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    found = {one.arg for one in named if one is not None}
    shared: set[str] = set()
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.Global):
            shared.update(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        if not isinstance(node, ast.comprehension | ast.Lambda | _Definition):
            left.extend(ast.iter_child_nodes(node))
        elif isinstance(node, _Definition):
            shared.update(name for one in ast.walk(node) if isinstance(one, ast.Global) for name in one.names)
    outside = {name for one in _outside_body(function) for path in _paths(one) for name in path[:1]}
    return found - shared - outside


def _outside_body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Decorators, defaults and annotations: they are evaluated in the module."""
    arguments = function.args
    yield from function.decorator_list
    yield from (one for one in [*arguments.defaults, *arguments.kw_defaults, function.returns] if one is not None)
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    yield from (one.annotation for one in named if one is not None and one.annotation is not None)


def _plain_statements(
    body: Iterable[ast.stmt], conditions: tuple[ast.stmt, ...] = ()
) -> Iterator[tuple[ast.stmt, tuple[ast.stmt, ...]]]:
    """Statements of a module, those inside its if, try, with and loops too, each with the conditions around it."""
    for statement in body:
        if isinstance(statement, _Definition):
            yield statement, conditions
            continue
        test = getattr(statement, "test", None) or getattr(statement, "subject", None)
        within = (*conditions, ast.copy_location(ast.Expr(test), test)) if test is not None else conditions
        inner = [part for name in ("body", "orelse", "finalbody") for part in getattr(statement, name, ())]
        inner += [part for one in getattr(statement, "handlers", ()) for part in one.body]
        inner += [part for one in getattr(statement, "cases", ()) for part in one.body]
        if inner:
            yield from _plain_statements(inner, within)
        if not inner or isinstance(statement, ast.For | ast.With):
            yield statement, conditions


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    """Names to which a statement of a module gives a value, or whose value it changes: `T["a"] = 1`, `T.add(1)`."""
    if isinstance(statement, _Definition):
        yield statement.name
        return
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield from {path[0] for path in _paths(statement.value.func) if len(path) > 1}
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            base: ast.AST = node
            while isinstance(base, ast.Attribute | ast.Subscript):
                base = base.value
            if isinstance(base, ast.Name):
                yield base.id


def _file_of(name: str) -> str | None:
    """The file of a module, found without an import: the place of its top-level package, and from there by name."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded:
        return str(loaded) if str(loaded).endswith(".py") else None
    spec = _top_spec(name)
    _, *parts = name.split(".")
    if spec is None or not parts:
        return spec.origin if spec is not None and spec.origin and spec.origin.endswith(".py") else None
    for place in spec.submodule_search_locations or ():
        for path in (os.path.join(place, *parts) + ".py", os.path.join(place, *parts, "__init__.py")):
            if os.path.isfile(path):
                return path
    return None


def _is_namespace(name: str) -> bool:
    """Whether a name is that of a package without a file: a directory of modules."""
    spec = _top_spec(name)
    places = (os.path.join(one, *name.split(".")[1:]) for one in (spec and spec.submodule_search_locations) or ())
    return any(os.path.isdir(one) and not os.path.isfile(os.path.join(one, "__init__.py")) for one in places)


def _top_spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError, AttributeError):
        return None


_modules: dict[tuple[str, str, int], ModuleCode] = {}


def _read_module(name: str, path: str, changed_ns: int) -> ModuleCode:
    """Read once for each state of the file: a loop that submits reads nothing twice."""
    key = (name, path, changed_ns)
    if key not in _modules:
        for old in [one for one in _modules if one[:2] == key[:2]]:
            del _modules[old]
        _modules[key] = ModuleCode(name, path)
    return _modules[key]
