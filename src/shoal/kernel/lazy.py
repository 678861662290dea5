"""Lazy exports of a package, so that importing a package costs nothing, and lazily compiled regular expressions.

A package's `__init__` lists what others may use once, as imports that only type checkers execute:

    TYPE_CHECKING = False
    if TYPE_CHECKING:
        from shoal.plan.submissions import plan_submissions
    else:
        __getattr__ = lazy_exports(__name__)

A command or an agent needs few of the regular expressions that it loads, so each is compiled on first use.
"""

import re
import sys
from importlib import import_module
from typing import Any, cast

TYPE_CHECKING = False  # typing itself takes longer to import than the whole of this

if TYPE_CHECKING:
    from typing import Callable, Dict

_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST, without importing ast


def lazy_exports(package: str) -> "Callable[[str], object]":
    """The `__getattr__` (PEP 562) of a package whose `if TYPE_CHECKING:` block lists its exports."""
    homes = {}  # type: Dict[str, str]

    def load(name: str) -> object:
        if not homes:
            homes.update(_listed(package))
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        value = None if home == package else getattr(import_module(home), name, None)
        if value is None:  # a module that is exported itself
            value = import_module(f"{home}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    return load


def _listed(package: str) -> "Dict[str, str]":
    """For each name that a package exports the module that defines it. Read from the source, which the zip that is
    shipped into jobs has too."""
    spec = sys.modules[package].__spec__
    loader, path = spec.loader, spec.origin  # type: ignore[union-attr]
    # A file is read as it is: get_source would import tokenize to find its encoding.
    source = loader.get_data(path) if path.endswith(".py") else loader.get_source(package)  # type: ignore[union-attr]
    homes = {}
    for statement in compile(source, package, "exec", _ONLY_AST).body:
        if getattr(getattr(statement, "test", None), "id", "") == "TYPE_CHECKING":
            for listed in statement.body:
                inside = f"{package}.{listed.module}" if listed.module else package
                homes.update({alias.name: inside if listed.level else listed.module for alias in listed.names})
    return homes


class _LazyRegex:
    def __init__(self, source: str, flags: int) -> None:
        self._source, self._flags = source, flags

    def __getattr__(self, name: str) -> Any:
        method = getattr(re.compile(self._source, self._flags), name)
        setattr(self, name, method)  # so that the next use does not come here
        return method


def regex(source: str, flags: int = 0) -> "re.Pattern[str]":
    """What re.compile gives, later. Use its methods; functions of `re` do not know it."""
    return cast("re.Pattern[str]", _LazyRegex(source, flags))
