"""Exports of a package that are imported when they are first used, so that importing a package costs nothing."""

import sys
from importlib import import_module
from typing import Callable, Dict, List, Tuple


def lazy_exports(package: str, modules: Dict[str, str]) -> Tuple[Callable[[str], object], List[str]]:
    """A package's `__getattr__` (PEP 562) and `__all__`.

    `modules` says which module defines what: `{"lease": "Lease take"}`. A key that ends in "/" lists modules that are
    exported themselves: `{"/": "files layout", "pack/": "engine"}`.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        if home.endswith("/"):
            value: object = import_module(f"{package}.{home[:-1]}.{name}" if home[:-1] else f"{package}.{name}")
        else:
            value = getattr(import_module(f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, sorted(homes)
