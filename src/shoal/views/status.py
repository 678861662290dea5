"""`shoal status`: counts first, then what is unfinished or failed, and a note when Slurm does not answer."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec

from shoal.describe import active_since, parse_causes, parse_states, select_runs, unselected_sentence
from shoal.kernel import describe_exit_code
from shoal.model import ACTIVE_STATES, ENDED_STATES, FAILED_STATES, SUCCESSFUL_STATES
from shoal.observe import (
    AskQueue,
    ObserveRuns,
    RunCode,
    RunSummaries,
    RunSummary,
    RunView,
    SettledRuns,
    allocated_gpus,
    observe,
    other_code_notes,
)
from shoal.units import format_duration, parse_duration_s, plural
from shoal.views.columns import (
    ColumnInput,
    ColumnSource,
    StatusColumn,
    choose_columns,
    fit_columns,
    iso_time,
)
from shoal.views.details import MAX_LOGS, KnownFailures, RunDetails
from shoal.views.render import (
    finite_or_none,
    paint_state,
    print_json,
    safe_line,
    state_code,
    state_word,
    table_lines,
    wrap_line,
)
from shoal.views.run_groups import (
    ExpectedEnd,
    RunGroup,
    count_states,
    expected_end,
    group_by_reason,
    group_key,
    group_runs,
    latest_end,
)
from shoal.views.run_table import (
    MetricChoice,
    best_run,
    best_value,
    choose_metric,
    format_number,
    format_param,
    has_sort,
    last_value,
    short_param_names,
    sort_views,
    varying_params,
)
from shoal.views.table_choice import TableChoice
from shoal.views.terminal import Screen, detect_screen

#: On a narrower terminal progress stands in REASON, where other runs have their reason.
_MIN_PROGRESS_WIDTH = 100


class StatusFilter(NamedTuple):
    """What a person wants to see: words for runs, states, causes, a pattern, a span of time, the newest so many."""

    which: Sequence[str] = ()
    states: str | None = None
    causes: str | None = None
    name: str | None = None
    since: str | None = None
    last: int | None = None

    @property
    def words(self) -> str:
        """The flags that leave runs out, as they were given."""
        given = (
            ("--state", self.states),
            ("--cause", self.causes),
            ("--name", self.name),
            ("--since", self.since),
            ("--last", self.last),
        )
        return " ".join(f"{flag} {shlex.quote(str(value))}" for flag, value in given if value is not None)


class StatusReport(NamedTuple):
    """What `status` found: of the selected runs those that pass the filter, and how many do not. Counts, GPUs and ends
    are those of `views`."""

    views: list[RunView]
    counts: dict[str, int]
    details: dict[str, RunDetails]
    gpus_allocated: int
    ends: ExpectedEnd | None
    latest_end: float | None
    left_out: int
    unselected: list[str]
    filter_words: str
    slurm_problem: str | None
    slurm_t: float | None
    now: float
    sent: Sequence[str]
    summaries: Mapping[str, RunSummary] = {}
    metric: MetricChoice | None = None
    unread: int = 0

    @property
    def has_failed(self) -> bool:
        """Whether one of the runs has ended without success."""
        return any(view.state in ENDED_STATES - SUCCESSFUL_STATES for view in self.views)


class StatusMemory:
    """What a view that looks again and again keeps from look to look."""

    def __init__(self, home: str, *, stays: bool = True, max_look_s: float | None = None) -> None:
        self.settled = SettledRuns(home, stays=stays)
        self.summaries = RunSummaries(home) if max_look_s is None else RunSummaries(home, max_look_s=max_look_s)
        self.failures = KnownFailures(home, float("inf") if max_look_s is None else max_look_s)


def gather_status(
    home: str,
    wanted: StatusFilter | None = None,
    *,
    ask: AskQueue | None = None,
    clock: Callable[[], float] = time.time,
    choice: TableChoice | None = None,
    memory: StatusMemory | None = None,
    observe_runs: ObserveRuns = observe,
    names: Sequence[str] | None = None,
    checks_outputs: bool = True,
) -> StatusReport:
    """Look at the runs once, with logs and samples of those that run or failed. `memory` is kept by a view that looks
    again; `names` are those that a caller has listed already. Without `checks_outputs`, and in views that look again,
    the output of runs that ended long ago is checked for a few of them in each look."""
    memory = memory or StatusMemory(home, stays=False)
    wanted = wanted or StatusFilter()
    states, causes = parse_states(wanted.states), parse_causes(wanted.causes)
    since = None if wanted.since is None else clock() - parse_duration_s(wanted.since, place="--since")
    if names is None:
        names = select_runs(home, wanted.which) if wanted.which else memory.settled.names()
    found = observe_runs(home, names, clock=clock, ask=ask, settled=memory.settled)
    now = clock()
    everything = list(found.listed(wanted.which).values())
    views = [
        view
        for view in everything
        if (states is None or view.state in states)
        and (causes is None or view.cause in causes)
        and (wanted.name is None or _matches_name(view, wanted.name))
        and (since is None or active_since(view, since))
    ]
    if wanted.last is not None:
        newest = sorted(views, key=lambda view: view.submitted or view.started or 0.0)[-wanted.last :]
        kept = {view.name for view in newest} if wanted.last > 0 else set()
        views = [view for view in views if view.name in kept]
    choice = choice or TableChoice()
    unchecked = found.unchecked if memory.settled.stays or not checks_outputs else frozenset()
    read, unread = memory.summaries.read(views, clock, unchecked)
    metric = choose_metric(read.values(), choice.metric, choice.sort)
    views, details = _with_details(home, views, now, read, memory.failures, unchecked)
    left = {name: one.left_s for name, one in details.items()}
    return StatusReport(
        views,
        count_states(views),
        details,
        allocated_gpus(home, views),
        expected_end(views, left, now),
        latest_end(views),
        len(everything) - len(views),
        unselected_sentence(home, names) if wanted.which else [],
        wanted.words,
        found.slurm_problem,
        found.slurm_t,
        now,
        found.sent,
        read,
        metric,
        unread + memory.failures.unread,
    )


def _with_details(
    home: str,
    views: Sequence[RunView],
    now: float,
    read: Mapping[str, RunSummary],
    failures: KnownFailures,
    unchecked: AbstractSet[str],
) -> tuple[list[RunView], dict[str, RunDetails]]:
    """The runs with their reasons in the words of their logs, and the details of those that run or failed."""
    failures.begin_look()
    details: dict[str, RunDetails] = {}
    complete = []
    for view in views:
        if (view.state == "running" or view.state in FAILED_STATES) and len(details) < MAX_LOGS:
            is_unchecked = view.name in unchecked
            view, details[view.name] = failures.details_of(home, view, now, read[view.name], is_unchecked)
        complete.append(view)
    failures.save()
    return complete, details


def _matches_name(view: RunView, pattern: str) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(part, pattern) for part in (view.name, view.name.split("/")[1]))


def show_status(
    report: StatusReport,
    *,
    as_json: bool = False,
    quiet: bool = False,
    everything: bool = False,
    tasks: bool = False,
    choice: TableChoice | None = None,
    screen: Screen | None = None,
) -> None:
    for sentence in report.sent:
        sys.stderr.write(f"note: {safe_line(sentence)}\n")
    if as_json:
        print_json(status_document(report))
        return
    shown = report.views if everything else [view for view in report.views if view.state != "completed"]
    if quiet:
        for view in shown:
            print(view.name)
        return
    screen = screen or detect_screen()
    for line in status_lines(report, shown, screen, tasks=tasks, choice=choice):
        print(line)
    warn_about_slurm(report)


def status_lines(
    report: StatusReport,
    shown: Sequence[RunView],
    screen: Screen,
    *,
    tasks: bool = False,
    choice: TableChoice | None = None,
) -> list[str]:
    """The whole picture as lines: counts, table, what is hidden, hints."""
    choice = choice or TableChoice()
    if choice.is_sort_remembered and not has_sort(choice.sort, report.summaries.values()):
        choice = choice._replace(sort=None)
    lines = wrap_line(headline(report, screen), screen)
    if choice.group:
        from shoal.views.seed_groups import seed_group_lines

        return [*lines, *seed_group_lines(report, shown, screen, choice.sort), *_notes(report, screen, choice)]
    fold = screen.tty and not tasks and choice.sort is None
    ordered = sort_views(shown, report.summaries, report.metric, choice.sort)
    rows = group_runs(ordered) if fold else list(ordered)
    singles = [row for row in rows if isinstance(row, RunView)]
    folded = [row for row in rows if isinstance(row, RunGroup)]
    totals: dict[str, list[RunView]] = {}
    for view in report.views if folded else ():
        totals.setdefault(group_key(view.name), []).append(view)
    for family in folded:
        lines += group_lines(family, count_states(totals[family.key]), screen)
        lines += best_lines(totals[family.key], report)
    if singles:
        columns = choose_columns(choice.columns, ColumnSource(report.summaries, report.metric))
        fixed = any(one.place == "--columns" for one in choice.columns)
        lines += run_lines(singles, report, screen, columns, fixed=fixed)
    hidden = len(report.views) - len(shown)
    if hidden:
        lines.append(
            f"{hidden:,} completed {'is' if hidden == 1 else 'are'} hidden; "
            f"--all shows {'it' if hidden == 1 else 'them'}"
        )
    lines += [safe_line(note) for note in report.unselected]
    if report.left_out:
        lines.append(f"{plural(report.left_out, 'run')} left out by {report.filter_words}")
    if folded:
        lines.append("--tasks shows every run; shoal status RUN shows one; --group shows parameters and metrics")
    restarts = {view.name: report.details.get(view.name, RunDetails()).restart for view in shown}
    lines += [f"warning: {name}: {words}" for name, words in restarts.items() if words]
    lines += [f"hint: {hint}" for hint in dict.fromkeys(view.hint for view in shown if view.hint)]
    failed = [view for view in shown if view.state in FAILED_STATES]
    if failed and screen.tty:
        lines.append(f"hint: shoal why {failed[0].name}" + ("   shoal logs --errors" if len(failed) > 1 else ""))
    return lines + _notes(report, screen, choice)


def _notes(report: StatusReport, screen: Screen, choice: TableChoice) -> list[str]:
    """What the table does not show, and where its form comes from."""
    notes = []
    if report.unread:
        notes.append(f"note: metrics of {plural(report.unread, 'run')} not read yet; run the command again")
    notes += [f"note: {sentence}" for sentence in code_notes(report)]
    if choice.is_remembered and screen.tty:
        notes.append("columns, sort and groups as you chose them last; --reset restores the usual table")
    return notes


def code_notes(report: StatusReport) -> list[str]:
    """What to tell about runs that different code made, of all runs of the report: hidden ones are completed."""
    found = ((view, report.summaries[view.name]) for view in report.views if view.name in report.summaries)
    return other_code_notes(
        RunCode(view.name, one.step, one.code, view.submitted or view.started or 0.0)
        for view, one in found
        if not one.is_trial
    )


def best_lines(views: Sequence[RunView], report: StatusReport) -> list[str]:
    """Of a family of runs: the one with the best value so far, and what it is set to."""
    family = {view.name: report.summaries[view.name] for view in views if view.name in report.summaries}
    name = best_run(family, report.metric)
    if name is None or report.metric is None:
        return []
    names = varying_params(family.values())
    short = short_param_names(names)
    params = "  ".join(f"{short[one]} {format_param(family[name].params.get(one))}" for one in names)
    value = format_number(last_value(family[name], report.metric))
    return [safe_line(f"  best   {report.metric.name} {value}  {params}  ({name.split('/')[1]})".replace("    ", "  "))]


def run_lines(
    views: Sequence[RunView],
    report: StatusReport,
    screen: Screen,
    columns: Sequence[StatusColumn],
    *,
    fixed: bool = False,
) -> list[str]:
    """A table of single runs; on a narrow terminal less telling columns are left out, unless they were asked for."""
    if screen.tty and screen.width < _MIN_PROGRESS_WIDTH and not fixed:
        columns = [column for column in columns if column.name not in ("progress", "end")]
    has_progress = any(column.name == "progress" for column in columns)
    best = best_run(report.summaries, report.metric) if screen.tty else None
    cells = []
    for view in views:
        details, summary = report.details.get(view.name, RunDetails()), report.summaries.get(view.name, RunSummary())
        cell = ColumnInput(view, details, report.now, screen.tty, summary, report.metric, has_progress)
        mark = " *" if view.name == best else ""
        cells.append([column.text(cell) + (mark if column.name == "last" else "") for column in columns])
    kept, cells = fit_columns(columns, cells, screen, fixed)
    widest = next((at for at, column in enumerate(kept) if column.name == "reason"), None)
    return table_lines([column.header for column in kept], cells, screen, widest=widest)


def group_lines(family: RunGroup, totals: Mapping[str, int], screen: Screen) -> list[str]:
    """One kind of run: the tally of its runs, and of those shown the failures by reason and what the rest waits for."""
    counts = "  ".join(paint_state(f"{n:,} {state}", state, screen) for state, n in totals.items())
    lines = [f"{screen.paint(safe_line(family.key), '1')}   {plural(sum(totals.values()), 'run')}   {counts}"]
    ended_badly = [view for view in family.views if view.state in FAILED_STATES or view.state == "blocked"]
    failures, waiting = (
        group_by_reason(ended_badly),
        group_by_reason([view for view in family.views if view.state == "pending"]),
    )
    for group in failures[:4]:
        word = screen.paint(state_word(group[0].state), state_code(group[0].state))
        reason = (group[0].reason or "no reason known").removeprefix(f"{describe_exit_code(group[0].exit_code or 0)}: ")
        text = safe_line(f"{len(group):,} x {reason}  (as {group[0].name.split('/')[1]})")
        room = max(20, screen.width - 4 - len(state_word(group[0].state)))
        lines.append(f"  {word}  {text if len(text) <= room else text[: room - 1] + '…'}")
    lines += _hidden_line("reason", failures[4:])
    for group in waiting[:2]:
        lines.append(f"  {state_word('pending')}  {len(group):,} x {safe_line(group[0].reason or 'waits')}")
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
    if report.gpus_allocated:
        parts.append(f"{plural(report.gpus_allocated, 'GPU')} allocated")
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
        gpus = report.ends.if_gpus
        free = f" if {plural(gpus, 'GPU')} {'is' if gpus == 1 else 'are'} free" if gpus else ""
        return f"ends ~{_clock_text(report.ends.t, report.now, screen)}{free}"
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
        "runs": [
            run_document(view, report.details.get(view.name), report.summaries.get(view.name), report.metric)
            for view in report.views
        ],
        **counts_document(report),
    }


def counts_document(report: StatusReport) -> dict[str, Any]:
    """What is true of all runs together."""
    return {
        "counts": report.counts,
        "gpus_allocated": report.gpus_allocated,
        "expected_end": report.ends.t if report.ends else None,
        "expected_end_if_gpus": report.ends.if_gpus if report.ends else None,
        "latest_end": report.latest_end,
        "left_out": report.left_out,
        "time": report.now,
        "slurm_problem": report.slurm_problem,
        "slurm_time": report.slurm_t,
    }


def run_document(
    view: RunView,
    details: RunDetails | None = None,
    summary: RunSummary | None = None,
    metric: MetricChoice | None = None,
) -> dict[str, Any]:
    """A run for --json: every field of the table and more; null where there is nothing. Times are Unix seconds."""
    details = details or RunDetails()
    progress = details.progress or (summary.progress if summary is not None else None)
    percent = details.gpu_percent
    if percent is None and summary is not None:
        percent = summary.gpu_percent
    record: dict[str, Any] = msgspec.to_builtins(view)
    del record["refused"]
    return {
        **record,
        "experiment": view.experiment,
        **(_summary_document(summary, metric) if summary is not None else {}),
        "progress": progress.words if progress else None,
        "progress_fraction": progress.fraction if progress else None,
        "progress_source": progress.source if progress else None,
        "remaining_s": details.left_s,
        "log_age_s": details.log_age_s,
        "gpu_percent": percent,
        "gpu_idle_s": details.gpu_idle_s,
        "memory_mb": details.memory_mb,
        "restart": details.restart,
        "trial": dict(details.trial) if details.trial is not None else None,
        "error_kind": details.cause.kind if details.cause else None,
        "error_line": details.fault.log_line if details.fault else None,
        "submitted_at": iso_time(view.submitted) if view.submitted else None,
        "started_at": iso_time(view.started) if view.started else None,
        "ended_at": iso_time(view.ended) if view.ended else None,
    }


def _summary_document(summary: RunSummary, metric: MetricChoice | None) -> dict[str, Any]:
    """What a run is set to and has reached; a value that is not finite is null."""
    compared = None
    if metric is not None and metric.name in summary.metrics:
        last, best = last_value(summary, metric), best_value(summary, metric)
        compared = {"name": metric.name, "mode": metric.mode, "last": finite_or_none(last), "best": best}
    return {
        "seed": summary.seed,
        "params": summary.params,
        "metrics": {name: finite_or_none(one.last) for name, one in summary.metrics.items()},
        "metric": compared,
        "code": summary.code or None,
    }
