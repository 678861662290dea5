"""[status] columns = "+gpus,-node", in shoal.toml or in the user's config: the columns that `status` begins with.

`status` reads no other setting, so a file is parsed only if the word stands in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.describe.document import Table

KEYS = ("columns",)


class Said(NamedTuple):
    """A wish for columns, and where it was said."""

    text: str
    place: str


def saved_columns(root: str, environ: Mapping[str, str]) -> list[Said]:
    """The project's wish, then the person's own, which comes on top of it."""
    import os

    from shoal.describe.locate import TOML_NAME, user_config_path

    user = user_config_path(environ)
    found = []
    for path, shown in ((os.path.join(root, TOML_NAME), TOML_NAME), (user, user)):
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                if b"columns" not in file.read(1 << 18):
                    continue
        except OSError:
            continue  # Commands that need the settings say what is wrong with the file.
        from pathlib import Path

        from shoal.describe.document import Table, read_document

        document = read_document(Path(path), shown)
        said = parse_columns(Table(document, (), document.values))
        found += [said] if said else []
    return found


def parse_columns(top: Table) -> Said | None:
    table = top.table("status", KEYS)
    text = table.text("columns")
    return None if text is None else Said(text, table.place("columns"))
