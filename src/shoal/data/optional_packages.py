"""Import optional packages (numpy, torch, ...): a missing one is an error with the install command."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from shoal.errors import InputError


def require(module: str, why: str, install: str = "pip install 'shoal[data]'") -> Any:
    """The module, or one sentence that says what is missing and how to get it."""
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{why} needs {module.partition('.')[0]}, which is not installed", hint=install) from None


@cache  # Asked for in hot loops.
def numpy() -> Any:
    return require("numpy", "shoal data")


def crc32c() -> Callable[[bytes], int]:
    """The checksum of TFRecord, from whichever package for it is there."""
    for module, attribute in (("google_crc32c", "value"), ("crc32c", "crc32c")):
        try:
            return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
        except ImportError:
            continue
    raise InputError("TFRecord needs google-crc32c, which is not installed", hint="pip install google-crc32c")
