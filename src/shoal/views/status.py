"""`shoal status`: counts first, then what is unfinished or failed, and a note when Slurm does not answer."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shoal.describe import ColumnSetting
from shoal.kernel import describe_exit_code
from shoal.model import ACTIVE_STATES, FAILED_STATES
from shoal.observe import AskQueue, RunView
from shoal.submit import observe_and_follow_up
from shoal.units import format_duration, parse_duration_s, plural
from shoal.views.columns import ColumnInput, StatusColumn, choose_columns, fit_columns, iso_time
from shoal.views.details import MAX_LOGS, RunDetails, run_details, with_log_reason
from shoal.views.render import paint_state, print_json, safe_line, state_code, state_word, table_lines, wrap_line
from shoal.views.run_groups import (
    RunGroup,
    count_states,
    expected_end,
    group_by_reason,
    group_key,
    group_runs,
    latest_end,
)
from shoal.views.select import active_since, parse_states, select_runs, unselected_sentence
from shoal.views.terminal import Screen, detect_screen


class StatusFilter(NamedTuple):
    """What a person wants to see: words for runs, states, a pattern, a span of time, the newest so many."""

    which: Sequence[str] = ()
    states: str | None = None
    name: str | None = None
    since: str | None = None
    last: int | None = None

    @property
    def words(self) -> str:
        """The flags that leave runs out, as they were given."""
        given = (("--state", self.states), ("--name", self.name), ("--since", self.since), ("--last", self.last))
        return " ".join(f"{flag} {shlex.quote(str(value))}" for flag, value in given if value is not None)


class StatusReport(NamedTuple):
    """What `status` found: of the selected runs those that pass the filter, and how many do not. Counts, GPUs and ends
    are those of `views`."""

    views: list[RunView]
    counts: dict[str, int]
    details: dict[str, RunDetails]
    gpus_busy: int
    ends: float | None
    latest_end: float | None
    left_out: int
    unselected: list[str]
    filter_words: str
    slurm_problem: str | None
    slurm_t: float | None
    now: float
    sent: list[str]


def gather_status(
    home: str,
    wanted: StatusFilter | None = None,
    *,
    ask: AskQueue | None = None,
    clock: Callable[[], float] = time.time,
    look_into: bool = True,
) -> StatusReport:
    """Look at the runs once. `look_into` also reads logs and samples of those that run or failed."""
    wanted = wanted or StatusFilter()
    states = parse_states(wanted.states)
    since = None if wanted.since is None else clock() - parse_duration_s(wanted.since, place="--since")
    names = select_runs(home, wanted.which)
    found, sent = observe_and_follow_up(home, names, clock=clock, ask=ask)
    now = clock()
    everything = list(found.listed(wanted.which).values())
    views = [view for view in everything if _matches_filter(view, wanted, states, since)]
    if wanted.last is not None:
        newest = sorted(views, key=lambda view: view.submitted or view.started or 0.0)[-wanted.last :]
        kept = {view.name for view in newest} if wanted.last > 0 else set()
        views = [view for view in views if view.name in kept]
    details: dict[str, RunDetails] = {}
    if look_into:
        interesting = [view for view in views if view.state == "running" or view.state in FAILED_STATES]
        details = {view.name: run_details(home, view, now) for view in interesting[:MAX_LOGS]}
        views = [with_log_reason(view, details[view.name].fault) if view.name in details else view for view in views]
    left = {name: one.left_s for name, one in details.items()}
    return StatusReport(
        views,
        count_states(views),
        details,
        sum(view.gpus or 0 for view in views if view.state == "running"),
        expected_end(views, left, now),
        latest_end(views),
        len(everything) - len(views),
        unselected_sentence(home, names) if wanted.which else [],
        wanted.words,
        found.slurm_problem,
        found.slurm_t,
        now,
        sent,
    )


def _matches_filter(view: RunView, wanted: StatusFilter, states: frozenset[str] | None, since: float | None) -> bool:
    from fnmatch import fnmatchcase

    if states is not None and view.state not in states:
        return False
    if wanted.name is not None and not any(
        fnmatchcase(part, wanted.name) for part in (view.name, view.name.split("/")[1])
    ):
        return False
    return since is None or active_since(view, since)


def show_status(
    report: StatusReport,
    *,
    as_json: bool = False,
    quiet: bool = False,
    everything: bool = False,
    tasks: bool = False,
    columns: Sequence[ColumnSetting] = (),
    screen: Screen | None = None,
) -> None:
    for sentence in report.sent:
        sys.stderr.write(f"note: {safe_line(sentence)}\n")
    if as_json:
        print_json(status_document(report))
        return
    shown = report.views if everything else [view for view in report.views if view.state != "done"]
    if quiet:
        for view in shown:
            print(view.name)
        return
    screen = screen or detect_screen()
    for line in status_lines(report, shown, screen, tasks=tasks, columns=columns):
        print(line)
    warn_about_slurm(report)


def status_lines(
    report: StatusReport,
    shown: Sequence[RunView],
    screen: Screen,
    *,
    tasks: bool = False,
    columns: Sequence[ColumnSetting] = (),
) -> list[str]:
    """The whole picture as lines: counts, table, what is hidden, hints."""
    lines = wrap_line(headline(report, screen), screen)
    fold = screen.tty and not tasks
    rows = group_runs(shown) if fold else list(shown)
    singles = [row for row in rows if isinstance(row, RunView)]
    folded = [row for row in rows if isinstance(row, RunGroup)]
    totals: dict[str, list[RunView]] = {}
    for view in report.views if folded else ():
        totals.setdefault(group_key(view.name), []).append(view)
    for family in folded:
        lines += group_lines(family, count_states(totals[family.key]), screen)
    if singles:
        lines += run_lines(
            singles, report, screen, choose_columns(columns), fixed=any(one.place == "--columns" for one in columns)
        )
    hidden = len(report.views) - len(shown)
    if hidden:
        lines.append(
            f"{hidden:,} done {'is' if hidden == 1 else 'are'} hidden; --all shows {'it' if hidden == 1 else 'them'}"
        )
    lines += [safe_line(note) for note in report.unselected]
    if report.left_out:
        lines.append(f"{plural(report.left_out, 'run')} left out by {report.filter_words}")
    if folded:
        lines.append("--tasks shows every run; shoal status RUN shows one")
    restarts = {view.name: report.details.get(view.name, RunDetails()).restart for view in shown}
    lines += [f"warning: {name}: {words}" for name, words in restarts.items() if words]
    lines += [f"hint: {hint}" for hint in dict.fromkeys(view.hint for view in shown if view.hint)]
    failed = [view for view in shown if view.state in FAILED_STATES]
    if failed and screen.tty:
        lines.append(f"hint: shoal why {failed[0].name}" + ("   shoal logs --errors" if len(failed) > 1 else ""))
    return lines


def run_lines(
    views: Sequence[RunView],
    report: StatusReport,
    screen: Screen,
    columns: Sequence[StatusColumn],
    *,
    fixed: bool = False,
) -> list[str]:
    """A table of single runs; on a narrow terminal less telling columns are left out, unless they were asked for."""
    cells = [
        [
            column.text(ColumnInput(view, report.details.get(view.name, RunDetails()), report.now, screen.tty))
            for column in columns
        ]
        for view in views
    ]
    kept, cells = fit_columns(columns, cells, screen, fixed)
    widest = next((at for at, column in enumerate(kept) if column.name == "why"), None)
    return table_lines([column.header for column in kept], cells, screen, widest=widest)


def group_lines(family: RunGroup, totals: Mapping[str, int], screen: Screen) -> list[str]:
    """One kind of run: the tally of all its runs, and of those shown the failures by cause and what the rest awaits."""
    counts = "  ".join(paint_state(f"{n:,} {state}", state, screen) for state, n in totals.items())
    lines = [f"{screen.paint(safe_line(family.key), '1')}   {plural(sum(totals.values()), 'run')}   {counts}"]
    ended_badly = [view for view in family.views if view.state in FAILED_STATES or view.state == "stuck"]
    failures, waiting = (
        group_by_reason(ended_badly),
        group_by_reason([view for view in family.views if view.state == "pending"]),
    )
    for group in failures[:4]:
        word = screen.paint(state_word(group[0].state), state_code(group[0].state))
        cause = (group[0].cause or "no cause known").removeprefix(f"{describe_exit_code(group[0].exit_code or 0)}: ")
        text = safe_line(f"{len(group):,} x {cause}  (as {group[0].name.split('/')[1]})")
        room = max(20, screen.width - 4 - len(state_word(group[0].state)))
        lines.append(f"  {word}  {text if len(text) <= room else text[: room - 1] + '…'}")
    lines += _hidden_line("cause", failures[4:])
    for group in waiting[:2]:
        lines.append(f"  {state_word('pending')}  {len(group):,} x {safe_line(group[0].cause or 'waits')}")
    return lines + _hidden_line("reason", waiting[2:])


def _hidden_line(noun: str, groups: Sequence[Sequence[RunView]]) -> list[str]:
    runs = plural(sum(map(len, groups)), "run")
    return [f"  and {plural(len(groups), f'more {noun}')} of {runs}; --tasks shows them"] if groups else []


def headline(report: StatusReport, screen: Screen) -> str:
    """Everything that a glance needs: counts, GPUs, expected end, age of what Slurm said."""
    total = sum(report.counts.values())
    runs = f"{total:,} of {plural(total + report.left_out, 'run')}" if report.left_out else plural(total, "run")
    experiments = {view.experiment for view in report.views}
    name = f"{safe_line(next(iter(experiments)))}   " if len(experiments) == 1 else ""
    many = f" in {len(experiments)} experiments" if len(experiments) > 1 else ""
    words = "  ".join(paint_state(f"{count:,} {state}", state, screen) for state, count in report.counts.items())
    parts = [f"{name}{runs}{many}", words]
    if report.gpus_busy:
        parts.append(f"{plural(report.gpus_busy, 'GPU')} busy")
    idle = sum(1 for one in report.details.values() if one.gpu_idle_s)
    if idle:
        parts.append(screen.paint(f"{plural(idle, 'run')} with idle GPUs", "31"))
    if any(state in report.counts for state in ACTIVE_STATES):
        parts.append(_end_text(report, screen))
    if report.slurm_t is not None:
        age = max(0.0, report.now - report.slurm_t)
        parts.append(f"(Slurm {format_duration(age)} ago)" if screen.tty else f"(Slurm at {iso_time(report.slurm_t)})")
    return "   ".join(part for part in parts if part)


def _end_text(report: StatusReport, screen: Screen) -> str:
    if report.ends is not None:
        return f"ends ~{_clock_text(report.ends, report.now, screen)}"
    if report.latest_end is not None:
        return f"end not known, time limit {_clock_text(report.latest_end, report.now, screen)}"
    return "end not known"


def _clock_text(moment: float, now: float, screen: Screen) -> str:
    far = moment - now > 20 * 3600
    return time.strftime("%a %H:%M" if far else "%H:%M", time.localtime(moment)) if screen.tty else iso_time(moment)


def warn_about_slurm(report: StatusReport) -> None:
    if report.slurm_problem:
        since = f" from {format_duration(max(0.0, report.now - report.slurm_t))} ago" if report.slurm_t else ""
        sys.stderr.write(
            f"warning: Slurm does not answer, these are last known states{since}: {safe_line(report.slurm_problem)}\n"
        )


def status_document(report: StatusReport) -> dict[str, Any]:
    """The JSON of status; also what the web page reads."""
    return {
        "runs": [run_document(view, report.details.get(view.name)) for view in report.views],
        "counts": report.counts,
        "gpus_busy": report.gpus_busy,
        "expected_end": report.ends,
        "latest_end": report.latest_end,
        "left_out": report.left_out,
        "time": report.now,
        "slurm_problem": report.slurm_problem,
        "slurm_time": report.slurm_t,
    }


def run_document(view: RunView, details: RunDetails | None = None) -> dict[str, Any]:
    """A run for --json: every field of the table and more; null where there is nothing. Times are Unix seconds."""
    details = details or RunDetails()
    record: dict[str, Any] = msgspec.to_builtins(view)
    del record["refused"]
    return {
        **record,
        "experiment": view.experiment,
        "progress": details.progress.words if details.progress else None,
        "progress_fraction": details.progress.fraction if details.progress else None,
        "progress_source": details.progress.source if details.progress else None,
        "remaining_s": details.left_s,
        "log_age_s": details.log_age_s,
        "gpu_percent": details.gpu_percent,
        "gpu_idle_s": details.gpu_idle_s,
        "memory_mb": details.memory_mb,
        "restart": details.restart,
        "error_kind": details.cause.kind if details.cause else None,
        "error_line": details.fault.log_line if details.fault else None,
        "submitted_at": iso_time(view.submitted) if view.submitted else None,
        "started_at": iso_time(view.started) if view.started else None,
        "ended_at": iso_time(view.ended) if view.ended else None,
    }
