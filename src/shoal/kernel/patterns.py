"""Regular expressions that are compiled when they are first used: a command or an agent needs few of those it loads."""

import re
from typing import Any, cast


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
