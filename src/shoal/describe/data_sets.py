"""`data = { imagenet = "data/imagenet" }` of a step: what its runs read, to be staged on the node before they start."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from shoal.describe.document import Table

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
#: Whoever lists the folder sees everything; shoal.data may begin with the first shard.
_WAITS = ("all", "first")


def parse_data(step: Table) -> dict[str, dict[str, str]]:
    """{name: {"path", "wait"}}; a data set is a path, or a table with a path and `wait`. Mistakes carry their line."""
    if "data" not in step:
        return {}
    table, found = step.table("data"), {}
    for name, value in table.values.items():
        if not _NAME.fullmatch(name):
            raise table.error(
                (name,),
                f"{name!r} cannot be the name of a data set",
                hint='letters, digits and _: data = { images = "..." }',
            )
        if isinstance(value, dict):
            inner = Table(table.document, (*table.key, name), value, ("path", "wait"))
            path, wait = inner.text("path"), inner.text("wait", _WAITS) or "all"
        else:
            path, wait = table.text(name), "all"
        if not path or "\0" in path:
            raise table.error((name,), f"data set {name!r} has no path", hint=f'data = {{ {name} = "data/{name}" }}')
        found[name] = {"path": path, "wait": wait}
    return found


def resolve_data(asked: dict[str, dict[str, str]], root: str | Path) -> dict[str, Any]:
    """The same with absolute paths: relative ones begin at the project's root, and ~ is the user's home."""
    return {
        name: {**one, "path": os.path.normpath(os.path.join(root, os.path.expanduser(one["path"])))}
        for name, one in asked.items()
    }
