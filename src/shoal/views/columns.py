"""The columns of `shoal status`: which there are, what they show, and which are dropped on a narrow terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shoal.describe import ColumnSetting
from shoal.errors import InputError
from shoal.kernel import KIND_TEXTS, SELF_EXPLAINING_KINDS
from shoal.observe import RunView
from shoal.units import format_duration
from shoal.views.details import RunDetails
from shoal.views.pending import explain_reason
from shoal.views.render import cell_width, safe_line, short_path, state_word
from shoal.views.terminal import Screen


class ColumnInput(NamedTuple):
    """What a column is computed from."""

    view: RunView
    details: RunDetails
    now: float
    tty: bool


class StatusColumn(NamedTuple):
    """`key` is also the key of --json. `gives_way`: the higher, the sooner it is left out of a narrow terminal."""

    name: str
    header: str
    key: str
    text: Callable[[ColumnInput], str]
    gives_way: int = 0


def _relative_time(seconds: float | None, cell: ColumnInput) -> str:
    """A short span for people, the moment itself for machines."""
    if seconds is None:
        return "-"
    if cell.tty:
        return f"{format_duration(seconds)} ago"
    return iso_time(cell.now - seconds)


def iso_time(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def _elapsed_text(cell: ColumnInput) -> str:
    view = cell.view
    if view.started is None:
        return "-"
    spent = format_duration(max(0.0, (view.ended or cell.now) - view.started))
    return f"{spent} / {format_duration(view.time_limit_s)}" if view.time_limit_s else spent


def _reason_text(cell: ColumnInput) -> str:
    """For people the most telling words first, because space is scarce; for machines the cause as it is."""
    cause, known = cell.view.cause, cell.details.cause
    if cause and cell.tty and known and cell.view.state == "failed":
        word = "" if known.kind in SELF_EXPLAINING_KINDS else f"{KIND_TEXTS[known.kind]}: "
        return f"{word}{known.line}"
    if cause and cell.tty and cell.view.state == "pending":
        before, semicolon, word = cause.rpartition("; ")
        return f"{before}{semicolon}{explain_reason(word).sentence}"
    if cause:
        return cause
    idle = cell.details.gpu_idle_s
    progress = cell.details.progress.words if cell.details.progress else ""
    if progress and cell.details.left_s is not None:
        progress = f"{progress}, {format_duration(cell.details.left_s)} left"
    return "   ".join(filter(None, (f"GPUs idle for {format_duration(idle)}" if idle else "", progress)))


def _gpu_text(cell: ColumnInput) -> str:
    if cell.details.gpu_percent is not None:
        return f"{cell.details.gpu_percent:.0f}%"
    return "no data" if cell.view.state == "running" and cell.view.gpus else "-"


def _log_age_text(cell: ColumnInput) -> str:
    return _relative_time(cell.details.log_age_s, cell)


def _memory_text(cell: ColumnInput) -> str:
    return "-" if cell.details.memory_mb is None else f"{cell.details.memory_mb / 1024:.1f}G"


COLUMNS = (
    StatusColumn("run", "RUN", "name", lambda c: c.view.name),
    StatusColumn("state", "STATE", "state", lambda c: state_word(c.view.state)),
    StatusColumn("why", "WHY", "cause", _reason_text),
    StatusColumn("try", "TRY", "attempt", lambda c: str(c.view.attempt or "-"), 4),
    StatusColumn("job", "JOB", "job_id", lambda c: c.view.job_id or "-", 5),
    StatusColumn("node", "NODE", "node", lambda c: c.view.node or "-", 3),
    StatusColumn("time", "TIME", "started", _elapsed_text, 1),
    StatusColumn("gpus", "GPUS", "gpus", lambda c: "-" if c.view.gpus is None else str(c.view.gpus), 6),
    StatusColumn("gpu", "GPU", "gpu_percent", _gpu_text, 2),
    StatusColumn("memory", "MEMORY", "memory_mb", _memory_text, 7),
    StatusColumn("log", "LOG", "log_age_s", _log_age_text, 6),
    StatusColumn("partition", "PARTITION", "partition", lambda c: c.view.partition or "-", 8),
    StatusColumn("slurm", "SLURM", "slurm_state", lambda c: c.view.slurm_state or "-", 9),
    StatusColumn("exit", "EXIT", "exit_code", lambda c: "-" if c.view.exit_code is None else str(c.view.exit_code), 7),
    StatusColumn(
        "output", "OUTPUT", "output_dir", lambda c: short_path(c.view.output_dir) if c.view.output_dir else "-", 10
    ),
)
COLUMNS_BY_NAME = {column.name: column for column in COLUMNS}
DEFAULT_COLUMNS = ("run", "state", "why", "try", "job", "node", "time", "gpu", "log", "output")


def choose_columns(said: Sequence[ColumnSetting]) -> list[StatusColumn]:
    """`name,name` replaces the usual columns, `+name,-name` adds to and removes from them; the last word counts."""
    names = list(DEFAULT_COLUMNS)
    for one in said:
        names = _apply_setting(names, one.text, one.place)
    return [COLUMNS_BY_NAME[name] for name in names]


def _apply_setting(names: Sequence[str], text: str, place: str) -> list[str]:
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    for word in words:
        if word.lstrip("+-") not in COLUMNS_BY_NAME:
            raise InputError(
                f"there is no column {word.lstrip('+-')!r}", hint=f"one of {', '.join(COLUMNS_BY_NAME)}", place=place
            )
    if all(word[0] not in "+-" for word in words):
        return list(dict.fromkeys(words))
    chosen = list(names)
    for word in words:
        name = word.lstrip("+-")
        chosen = [one for one in chosen if one != name]
        if word[0] != "-":
            chosen.append(name)
    return chosen or list(names)


def fit_columns(
    columns: Sequence[StatusColumn], rows: Sequence[Sequence[str]], screen: Screen, fixed: bool
) -> tuple[list[StatusColumn], list[list[str]]]:
    """Leave out columns until the rest fits with some room for WHY; `fixed` ones were asked for."""
    if not screen.tty or fixed:
        return list(columns), [list(row) for row in rows]
    kept = list(range(len(columns)))
    widths = [
        max([cell_width(columns[at].header), *(cell_width(safe_line(row[at])) for row in rows)], default=0)
        for at in kept
    ]
    least = {"why": 28}

    def needed() -> int:
        sizes = (min(widths[at], least.get(columns[at].name, widths[at])) for at in kept)
        return sum(sizes) + 2 * (len(kept) - 1)

    while needed() > screen.width:
        worst = max(kept, key=lambda at: columns[at].gives_way)
        if columns[worst].gives_way == 0:
            break
        kept.remove(worst)
    # Columns in which nothing stands say nothing.
    if rows:
        empty = [at for at in kept if columns[at].gives_way and all(row[at] in ("-", "") for row in rows)]
        kept = [at for at in kept if at not in empty]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]
