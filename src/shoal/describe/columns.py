"""`[status]` in shoal.toml or in the user's config: the columns of `status`, and the metric it compares runs by.

`status` reads no other setting, so a file is parsed only if that word occurs in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ColumnSetting(NamedTuple):
    """Columns as a settings file names them, and where."""

    text: str
    place: str


class StatusSettings(NamedTuple):
    """`columns` in the order in which they apply; `metric` has a `name`, and a `mode` where one is set."""

    columns: list[ColumnSetting]
    metric: dict[str, str]


def read_status_settings(root: str, environ: Mapping[str, str]) -> StatusSettings:
    """The settings of the project, then those of the user, which apply on top of them."""
    import os

    from shoal.describe.locate import TOML_NAME, user_config_path

    user = user_config_path(environ)
    found = StatusSettings([], {})
    for path, shown in ((os.path.join(root, TOML_NAME), TOML_NAME), (user, user)):
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                if b"status" not in file.read(1 << 18):
                    continue
        except OSError:
            continue  # Commands that need the settings say what is wrong with the file.
        from pathlib import Path

        from shoal.describe.document import read_document
        from shoal.describe.tables import StatusTable, metric_record

        table = read_document(Path(path), shown).top.table("status")
        settings = table.read(StatusTable)
        columns = [ColumnSetting(settings.columns, table.place("columns"))] if settings.columns else []
        found = StatusSettings([*found.columns, *columns], metric_record(settings.metric) or found.metric)
    return found
