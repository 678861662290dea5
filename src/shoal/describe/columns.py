"""`[status] columns = "+gpus,-node"`, in shoal.toml or in the user's config: the columns that `status` shows.

`status` reads no other setting, so a file is parsed only if that word occurs in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ColumnSetting(NamedTuple):
    """Columns as a settings file names them, and where."""

    text: str
    place: str


def saved_columns(root: str, environ: Mapping[str, str]) -> list[ColumnSetting]:
    """The setting of the project, then the one of the user, which applies on top of it."""
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

        from shoal.describe.document import read_document
        from shoal.describe.tables import StatusTable

        table = read_document(Path(path), shown).top.table("status")
        columns = table.read(StatusTable).columns
        found += [ColumnSetting(columns, table.place("columns"))] if columns else []
    return found
