"""The columns of `shoal status`: which there are, what they show, and which are dropped on a narrow terminal.

Besides the fixed ones every parameter and every metric of the runs is a column: `param:lr` and `metric:val_loss`, or
`lr` and `val_loss` where no other column has that name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from shoal.describe import ColumnSetting
from shoal.errors import InputError
from shoal.job import format_value
from shoal.kernel import KIND_TEXTS, SELF_EXPLAINING_KINDS
from shoal.model import ENDED_STATES
from shoal.observe import RunSummary, RunView
from shoal.units import format_duration
from shoal.views.details import RunDetails
from shoal.views.pending import explain_reason
from shoal.views.render import cell_width, safe_line, short_path, state_word
from shoal.views.run_table import (
    MAX_PARAM_COLUMNS,
    MetricChoice,
    best_value,
    find_param,
    format_number,
    format_param,
    last_value,
    short_param_names,
    shorten_names,
    varying_params,
)
from shoal.views.terminal import Screen


class ColumnInput(NamedTuple):
    """What a column is computed from."""

    view: RunView
    details: RunDetails
    now: float
    tty: bool
    summary: RunSummary = RunSummary()
    metric: MetricChoice | None = None
    has_progress: bool = False


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
    if view.started is None or (view.ended is None and view.state in ENDED_STATES):
        return "-"
    spent = format_duration(max(0.0, (view.ended or cell.now) - view.started))
    return f"{spent} / {format_duration(view.time_limit_s)}" if view.time_limit_s else spent


def _reason_text(cell: ColumnInput) -> str:
    """For people the most telling words first, because space is scarce; for machines the reason as it is."""
    reason, known = cell.view.reason, cell.details.cause
    if reason and cell.tty and known and cell.view.state == "failed":
        word = "" if known.kind in SELF_EXPLAINING_KINDS else f"{KIND_TEXTS[known.kind]}: "
        return f"{word}{known.line}"
    if reason and cell.tty and cell.view.state == "pending":
        before, semicolon, word = reason.rpartition("; ")
        return f"{before}{semicolon}{explain_reason(word).sentence}"
    if reason:
        return reason
    idle = cell.details.gpu_idle_s
    progress = cell.details.progress.words if cell.details.progress and not cell.has_progress else ""
    if progress and cell.details.left_s is not None:
        progress = f"{progress}, ~{format_duration(cell.details.left_s)} left"
    chosen = ", ".join(f"{name} = {format_value(value)}" for name, value in (cell.details.trial or {}).items())
    return "   ".join(filter(None, (f"GPUs idle for {format_duration(idle)}" if idle else "", progress, chosen)))


def _gpu_text(cell: ColumnInput) -> str:
    percent = cell.details.gpu_percent if cell.details.gpu_percent is not None else cell.summary.gpu_percent
    if percent is not None:
        return f"{percent:.0f}%"
    return "no data" if cell.view.state == "running" and cell.view.gpus else "-"


def _log_age_text(cell: ColumnInput) -> str:
    return _relative_time(cell.details.log_age_s, cell)


def _memory_text(cell: ColumnInput) -> str:
    return "-" if cell.details.memory_mb is None else f"{cell.details.memory_mb / 1024:.1f}G"


def _progress_text(cell: ColumnInput) -> str:
    """Of a completed run nothing: what its program printed last tells less than its state."""
    found = cell.details.progress or cell.summary.progress
    if found is None or cell.view.state == "completed":
        return "-"
    if cell.tty and found.fraction is not None:
        return f"{int(100 * found.fraction)}%"
    return found.words


def _end_text(cell: ColumnInput) -> str:
    """When a running run is expected to end, at its own pace."""
    if cell.details.left_s is None:
        return "-"
    end = cell.now + cell.details.left_s
    if not cell.tty:
        return iso_time(end)
    return "~" + time.strftime("%a %H:%M" if cell.details.left_s > 20 * 3600 else "%H:%M", time.localtime(end))


def _seed_text(cell: ColumnInput) -> str:
    return "-" if cell.summary.seed is None else str(cell.summary.seed)


COLUMNS = (
    StatusColumn("run", "RUN", "name", lambda c: c.view.name),
    StatusColumn("state", "STATE", "state", lambda c: state_word(c.view.state)),
    StatusColumn("reason", "REASON", "reason", _reason_text),
    StatusColumn("seed", "SEED", "seed", _seed_text, 5),
    StatusColumn("progress", "PROGRESS", "progress", _progress_text, 2),
    StatusColumn("end", "END", "remaining_s", _end_text, 4),
    StatusColumn("last", "LAST", "metric", lambda c: format_number(last_value(c.summary, c.metric)), 1),
    StatusColumn("best", "BEST", "metric", lambda c: format_number(best_value(c.summary, c.metric)), 3),
    StatusColumn("cause", "CAUSE", "cause", lambda c: c.view.cause or "-", 10),
    StatusColumn("attempt", "ATTEMPT", "attempt", lambda c: str(c.view.attempt or "-"), 7),
    StatusColumn("job", "JOB", "job_id", lambda c: c.view.job_id or "-", 8),
    StatusColumn("node", "NODE", "node", lambda c: c.view.node or "-", 6),
    StatusColumn("time", "TIME", "started", _elapsed_text, 3),
    StatusColumn("gpus", "GPUS", "gpus", lambda c: "-" if c.view.gpus is None else str(c.view.gpus), 9),
    StatusColumn("gpu", "GPU", "gpu_percent", _gpu_text, 4),
    StatusColumn("memory", "MEMORY", "memory_mb", _memory_text, 10),
    StatusColumn("log", "LOG", "log_age_s", _log_age_text, 9),
    StatusColumn("partition", "PARTITION", "partition", lambda c: c.view.partition or "-", 11),
    StatusColumn("slurm", "SLURM", "slurm_state", lambda c: c.view.slurm_state or "-", 12),
    StatusColumn("adopted", "ADOPTED", "adopted", lambda c: "yes" if c.view.adopted else "-", 12),
    StatusColumn("exit", "EXIT", "exit_code", lambda c: "-" if c.view.exit_code is None else str(c.view.exit_code), 10),
    StatusColumn("code", "CODE", "code", lambda c: c.summary.code or "-", 12),
    StatusColumn(
        "output", "OUTPUT", "output_dir", lambda c: short_path(c.view.output_dir) if c.view.output_dir else "-", 13
    ),
)
COLUMNS_BY_NAME = {column.name: column for column in COLUMNS}
#: `params` stands for the parameters that vary. Columns with nothing in them are left out.
DEFAULT_COLUMNS = (
    "run", "state", "params", "seed", "progress", "end", "last", "best", "reason", "attempt", "job", "node", "time",
    "gpu", "log", "output",
)  # fmt: skip


class ColumnSource:
    """The columns that these runs have."""

    def __init__(self, summaries: Mapping[str, RunSummary], metric: MetricChoice | None = None) -> None:
        self._runs = list(summaries.values())
        self.metric = metric
        self.varying = varying_params(self._runs)

    @property
    def defaults(self) -> list[str]:
        shown = self.varying[:MAX_PARAM_COLUMNS]
        has_seeds = len({one.seed for one in self._runs if one.seed is not None}) > 1 and bool(self.varying)
        absent = {"seed"} if not has_seeds else set()
        absent |= {"last", "best"} if self.metric is None else set()
        return [
            name
            for word in DEFAULT_COLUMNS
            if word not in absent
            for name in ([f"param:{one}" for one in shown] if word == "params" else [word])
        ]

    def canonical(self, word: str) -> str | None:
        """The column's own name: lr -> param:lr; None if these runs have no such column."""
        if word.lower() in COLUMNS_BY_NAME or word.startswith(("param:", "metric:")):
            return word if ":" in word else word.lower()
        if (param := find_param(word, self._runs)) is not None:
            return f"param:{param}"
        return f"metric:{word}" if any(word in one.metrics for one in self._runs) else None

    def column(self, name: str) -> StatusColumn:
        kind, _, rest = name.partition(":")
        if kind == "param":
            header = short_param_names([*self.varying, *([] if rest in self.varying else [rest])])[rest]
            return StatusColumn(name, header, "params", lambda c: format_param(c.summary.params.get(rest)), 2)
        if kind == "metric":
            one = MetricChoice(rest, None)
            return StatusColumn(name, rest, "metrics", lambda c: format_number(last_value(c.summary, one)), 1)
        column = COLUMNS_BY_NAME[name]
        if name == "last" and self.metric is not None:
            return column._replace(header=self.metric.name)
        return column


def choose_columns(settings: Sequence[ColumnSetting], source: ColumnSource) -> list[StatusColumn]:
    """`name,name` replaces the usual columns, `+name,-name` adds to and removes from them; the last word counts."""
    names = source.defaults
    for one in settings:
        names = _apply_setting(names, one, source)
    return [source.column(name) for name in names]


def canonical_setting(setting: ColumnSetting, source: ColumnSource) -> str:
    """The same choice in words that also hold for other runs: +lr -> +param:lr."""
    return ",".join(sign + name for sign, name in _column_words(setting, source))


def _column_words(setting: ColumnSetting, source: ColumnSource) -> list[tuple[str, str]]:
    found = []
    for word in (word.strip() for word in setting.text.split(",") if word.strip()):
        sign = word[0] if word[0] in "+-" else ""
        name = source.canonical(word[len(sign) :])
        if name is None:
            have = [*COLUMNS_BY_NAME, *source.varying]
            raise InputError(
                f"unknown column {word[len(sign) :]!r}",
                hint=f"use one of: {', '.join(have)}, or a parameter or metric: param:NAME, metric:NAME",
                place=setting.place,
            )
        found.append((sign, name))
    return found


def _apply_setting(names: Sequence[str], setting: ColumnSetting, source: ColumnSource) -> list[str]:
    words = _column_words(setting, source)
    if not any(sign for sign, _ in words):
        return list(dict.fromkeys(name for _, name in words))
    chosen = list(names)
    for sign, name in words:
        chosen = [one for one in chosen if one != name]
        if sign != "-":
            chosen.append(name)
    return chosen or list(names)


def fit_columns(
    columns: Sequence[StatusColumn], rows: Sequence[Sequence[str]], screen: Screen, fixed: bool
) -> tuple[list[StatusColumn], list[list[str]]]:
    """Leave out empty columns, then the least telling ones until the rest fits with some room for RUN and REASON, whose
    names are shortened in the middle; `fixed` ones were asked for."""
    if not screen.tty:
        return list(columns), [list(row) for row in rows]
    kept = [
        at
        for at in range(len(columns))
        if fixed or not rows or not columns[at].gives_way or any(row[at] not in ("-", "") for row in rows)
    ]
    widths = [
        max([cell_width(column.header), *(cell_width(safe_line(row[at])) for row in rows)], default=0)
        for at, column in enumerate(columns)
    ]
    least = {"reason": max(28, screen.width // 5), "run": max(24, screen.width // 4)}

    def needed() -> int:
        sizes = (min(widths[at], least.get(columns[at].name, widths[at])) for at in kept)
        return sum(sizes) + 2 * (len(kept) - 1)

    while not fixed and needed() > screen.width:
        worst = max(kept, key=lambda at: (columns[at].gives_way, at))
        if columns[worst].gives_way == 0:
            break
        kept.remove(worst)
    cells = [[row[at] for at in kept] for row in rows]
    run = next((at for at, column in enumerate(columns) if column.name == "run"), None)
    if (
        run in kept
        and widths[run] > least["run"]
        and needed() - min(widths[run], least["run"]) + widths[run] > screen.width
    ):
        room = max(least["run"], screen.width - needed() + least["run"])
        short = shorten_names([row[run] for row in rows], room)
        cells = [[short[row[at]] if at == run else row[at] for at in kept] for row in rows]
    return [columns[at] for at in kept], cells
