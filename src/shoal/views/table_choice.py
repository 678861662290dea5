"""How a person wants the table of runs: columns, sort, groups. The last choice on a terminal holds for the project.

The choice is a small file in the state directory, one per user; `shoal status --reset` removes it. Output into a pipe
and JSON never depend on it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal.describe import ColumnSetting, find_root, read_status_settings
from shoal.observe import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shoal.views.status import StatusReport

REMEMBERED = "the remembered --columns"


class TableChoice(NamedTuple):
    """`metric` is the project's setting. `is_remembered`: a part of this was chosen by an earlier command, and with
    `is_sort_remembered` the sort, which these runs need not have."""

    columns: Sequence[ColumnSetting] = ()
    sort: str | None = None
    group: bool = False
    metric: Mapping[str, str] = {}
    is_remembered: bool = False
    is_sort_remembered: bool = False


class SavedChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    columns: str = ""
    sort: str | None = None
    group: bool = False
    schema: int = 1


class TableFlags(NamedTuple):
    """What a command line says about the table; None: nothing."""

    columns: str | None = None
    sort: str | None = None
    group: bool | None = None


def choose_table(home: str, flags: TableFlags, environ: Mapping[str, str], *, remembers: bool) -> TableChoice:
    """What the settings around the current directory say about the table, then with `remembers` the last choice, then
    the command line."""
    saved = read_choice(home) if remembers else SavedChoice()
    settings = read_status_settings(find_root(os.getcwd()), environ)
    columns = settings.columns
    if flags.columns:
        columns = [*columns, ColumnSetting(flags.columns, "--columns")]
    elif saved.columns:
        columns = [*columns, ColumnSetting(saved.columns, REMEMBERED)]
    is_sort_remembered = flags.sort is None and saved.sort is not None
    is_group_remembered = flags.group is None and saved.group
    return TableChoice(
        columns,
        flags.sort if flags.sort is not None else saved.sort,
        bool(saved.group if flags.group is None else flags.group),
        settings.metric,
        is_sort_remembered or is_group_remembered or (not flags.columns and bool(saved.columns)),
        is_sort_remembered,
    )


def remember_table(home: str, flags: TableFlags, report: StatusReport) -> None:
    """Keep what was given on the command line for the next command in this project."""
    if not flags.columns and flags.sort is None and flags.group is None:
        return
    from shoal.views.columns import ColumnSource, canonical_setting

    saved, source = read_choice(home), ColumnSource(report.summaries, report.metric)
    columns = canonical_setting(ColumnSetting(flags.columns, "--columns"), source) if flags.columns else saved.columns
    sort = flags.sort if flags.sort is not None else saved.sort
    save_choice(home, SavedChoice(columns, sort, saved.group if flags.group is None else flags.group))


def read_choice(home: str) -> SavedChoice:
    """What was chosen last; nothing, if that cannot be read."""
    try:
        with open(_path(home), "rb") as file:  # noqa: PTH123
            if os.fstat(file.fileno()).st_uid == os.getuid():
                found = msgspec.json.decode(file.read(), type=SavedChoice)
                return found if found.schema == 1 else SavedChoice()
    except (OSError, msgspec.MsgspecError):
        pass
    return SavedChoice()


def save_choice(home: str, choice: SavedChoice) -> None:
    """For the next command; where the state directory cannot be written, this command was all it was for."""
    if choice != read_choice(home):
        with contextlib.suppress(OSError):
            replace(_path(home), msgspec.json.encode(choice))


def forget_choice(home: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_path(home))


def _path(home: str) -> str:
    return os.path.join(home, f"status-{os.getuid()}.json")
