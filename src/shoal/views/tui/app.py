"""The application: a headline, the list, the detail with its tabs, a filter, confirmation before any action."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Footer, Input, RichLog, Static

from shoal.errors import InputError, ShoalError
from shoal.kernel import layout, read_series
from shoal.model import ACTIVE_STATES, RETRYABLE_STATES
from shoal.observe import ObserveRuns, QueueCache, RunView, find_output, observe
from shoal.views import actions, logs, status
from shoal.views.details import RunDetails
from shoal.views.render import safe_line
from shoal.views.run_table import has_sort, sort_views
from shoal.views.status import StatusFilter, StatusReport
from shoal.views.table_choice import TableChoice
from shoal.views.terminal import Screen
from shoal.views.tui.panes import (
    STATE_WIDTH,
    TABS,
    RunLine,
    RunList,
    curve_line,
    detail_title,
    list_lines,
    seed_group_lines,
    seed_group_text,
    tab_text,
)
from shoal.views.tui.table import ListColumns, list_columns

_REFRESH_S = 2.0
#: Narrower terminals show progress and the metric beside the state instead of columns.
_MIN_TABLE_WIDTH = 120
_CURVE_DELAY_S = 0.15
#: Answers that mean yes -> what a retry asks for more of.
_MAX_REASONS = 200
_RETRY_KEYS = {"y": None, "m": "memory", "t": "time"}
_HELP = """j k, arrows   move            1-5, tab   log, errors, metrics, script, events
Enter         fold, unfold    /          filter: words, or state:failed
a             completed too   Esc        clear the filter
c             cancel          r          retry, also with more memory or time
s             sort by metric  m          mean over seeds
o             open the log    p          copy the log's path
l             log of the next rank or replica
q             quit; the runs go on"""


class ConfirmDialog(ModalScreen[str]):
    """A question that names what would be done. The answer is the key: y is yes, and a retry may also be m or t."""

    BINDINGS: ClassVar = [
        Binding("y", "answer('y')", "yes"),
        Binding("m", "answer('m')", "with more memory"),
        Binding("t", "answer('t')", "with more time"),
        Binding("n,escape,enter,q", "answer('n')", "no"),
    ]

    def __init__(self, question: str, *, more: bool = False) -> None:
        super().__init__()
        self.question, self.more = question, more

    def compose(self) -> ComposeResult:
        keys = "y  yes      n  no"
        if self.more:
            keys = "y  yes      m  with twice the memory\nn  no       t  with twice the time"
        yield Static(f"{self.question}\n\n{keys}", id="question", markup=False)

    def action_answer(self, answer: str) -> None:
        if self.more or answer in ("y", "n"):
            self.dismiss(answer)


class HelpDialog(ModalScreen[None]):
    BINDINGS: ClassVar = [Binding("escape,q,question_mark,enter", "dismiss", "close")]

    def compose(self) -> ComposeResult:
        yield Static(_HELP, id="question", markup=False)


class WatchApp(App[int]):
    """`report` is what was last seen; a thread renews it, the keys never wait for it."""

    CSS = """
    #headline { height: auto; max-height: 2; text-style: bold; }
    #left { width: 44%; border-right: solid $primary; }
    #left.wide { width: 60%; }
    #list { width: 100%; height: 1fr; scrollbar-size-vertical: 1; }
    #columns { display: none; height: 1; text-style: bold; }
    #left.wide #columns { display: block; }
    #detail { width: 1fr; }
    #title, #tabs, #curve { height: 1; padding: 0 1; }
    #curve { display: none; }
    #curve.on { display: block; }
    #text { padding: 0 1; scrollbar-size-vertical: 1; overflow-x: hidden; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    #filter.on { display: block; }
    ConfirmDialog, HelpDialog { align: center middle; }
    #question { width: auto; max-width: 76; height: auto; border: solid $primary; padding: 1 2; background: $surface; }
    """
    ENABLE_COMMAND_PALETTE = False
    TITLE = "shoal watch"
    BINDINGS: ClassVar = [
        Binding("q", "quit", "quit"),
        Binding("question_mark", "help", "help"),
        Binding("slash", "filter", "filter"),
        Binding("enter", "unfold", "unfold", priority=False),
        Binding("a", "everything", "all"),
        Binding("c", "cancel", "cancel"),
        Binding("r", "retry", "retry"),
        Binding("s", "sort", "sort"),
        Binding("m", "group", "mean"),
        Binding("o", "page", "open log"),
        Binding("p", "copy", "copy path", show=False),
        Binding("l", "next_part", "next rank", show=False),
        Binding("escape", "clear", "", show=False),
        Binding("tab", "next_tab", "", show=False, priority=True),
        *(Binding(str(number + 1), f"tab({number})", "", show=False) for number in range(len(TABS))),
    ]

    def __init__(
        self,
        home: str,
        wanted: StatusFilter,
        *,
        everything: bool = False,
        look_s: float = _REFRESH_S,
        choice: TableChoice | None = None,
        observe_runs: ObserveRuns = observe,
    ) -> None:
        super().__init__()
        self.home, self.wanted, self.everything, self.look_s = home, wanted, everything, look_s
        self.choice = choice or TableChoice()
        self.is_sorted, self.is_grouped = self.choice.sort is not None, self.choice.group
        self._memory = status.StatusMemory(home)
        self.report: StatusReport | None = None
        self.tab = 0
        self.part = 0
        self.unfolded: frozenset[str] = frozenset()
        self._ask, self._observe = QueueCache(home), observe_runs
        self._shown: tuple[str, int, tuple[str, ...]] | None = None
        self._curve_view: RunView | None = None
        self._curve_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Static("looking ...", id="headline", markup=False)
        with Horizontal():
            with Vertical(id="left"):
                yield Static("", id="columns", markup=False)
                yield RunList(id="list")
            with Vertical(id="detail"):
                yield Static("", id="title", markup=False)
                yield Static("", id="curve", markup=False)
                yield Static("", id="tabs", markup=False)
                yield RichLog(id="text", wrap=True, max_lines=2000, min_width=1)
        yield Input(placeholder="filter: words, state:failed", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#text").can_focus = False
        self.query_one(RunList).focus()
        self._look()
        self.set_interval(self.look_s, self._look)

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _look(self) -> None:
        report = status.gather_status(
            self.home,
            self.wanted,
            ask=self._ask,
            choice=self.choice,
            memory=self._memory,
            observe_runs=self._observe,
        )
        self.call_from_thread(self.put, report)

    def put(self, report: StatusReport) -> None:
        """Show what was found; tests call it too."""
        self.report = report
        plain_screen = Screen(tty=True, width=self.size.width)
        text = status.headline(report, plain_screen)
        problem = f"  SLURM DOES NOT ANSWER: {safe_line(report.slurm_problem)}" if report.slurm_problem else ""
        self.query_one("#headline", Static).update(text + problem)
        self._lay_out()

    def _lay_out(self) -> None:
        views = self.report.views if self.report else []
        words = self.query_one("#filter", Input).value.lower().split()
        shown = [
            view
            for view in views
            if (self.everything or self.is_sorted or self.is_grouped or view.state != "completed" or words)
            and _matches_words(view, words)
        ]
        runs = self.query_one(RunList)
        table = self._list_columns(shown)
        self.query_one("#left").set_class(table is not None, "wide")
        if table is not None:
            name_width = max(0, self._list_width() - table.width - STATE_WIDTH - 2)
            self.query_one("#columns", Static).update(f" {'RUN':<{name_width}} {'STATE':<{STATE_WIDTH}}{table.header}")
        runs.put(self._list_lines(shown), table)

    def _list_width(self) -> int:
        """Of the wide list, without its border and its scroll bar."""
        return self.size.width * 60 // 100 - 2

    def _list_columns(self, shown: Sequence[RunView]) -> ListColumns | None:
        """The columns beside the names, where the terminal has room for them and for the detail."""
        if self.report is None or self.is_grouped or self.size.width < _MIN_TABLE_WIDTH:
            return None
        room = self._list_width() - STATE_WIDTH - 2
        try:
            table = list_columns(shown, self.report, self.choice.columns, room)
        except InputError:  # a choice that was made for other runs
            table = list_columns(shown, self.report, (), room)
        return table if table.columns else None

    def on_resize(self) -> None:
        if self.report is not None:
            self._lay_out()

    def _list_lines(self, shown: Sequence[RunView]) -> list[RunLine]:
        """Runs, or settings over their seeds; the best first if the person sorts, and by parameters otherwise."""
        if self.report is None:
            return []
        metric, sort = self.report.metric, None
        if self.is_sorted:
            is_known = has_sort(self.choice.sort, self.report.summaries.values())
            sort = self.choice.sort if is_known else metric.name if metric is not None else None
        if self.is_grouped:
            return seed_group_lines(shown, self.report, sort)
        ordered = sort_views(shown, self.report.summaries, metric, sort)
        return list_lines(ordered, self.unfolded, self.report, fold=sort is None)

    def on_run_list_moved(self, event: RunList.Moved) -> None:
        # A message that was on its way when the person quit finds no widgets any more.
        if self.query("#title"):
            self._show(event.line)

    def _show(self, line: RunLine | None) -> None:
        title, tabs = self.query_one("#title", Static), self.query_one("#tabs", Static)
        if line is None or self.is_grouped or len(line.views) > 1:
            self._want_curve(None)
        tabs.update("".join(f"[{name}]" if at == self.tab else f" {name} " for at, name in enumerate(TABS)))
        if line is None or self.report is None:
            title.update("no runs to show; a shows completed runs")
            self._put_text("", ())
            return
        if self.is_grouped:
            title.update(safe_line(f"{line.text}: {line.word}"))
            self._put_text(line.key, tuple(seed_group_text(line, self.report, self.query_one("#text").size.width)))
            return
        if len(line.views) > 1:
            title.update(safe_line(f"{line.key}: {line.word}"))
            reasons = dict.fromkeys(view.reason for view in line.views if view.reason)
            left = [f"{len(reasons) - _MAX_REASONS:,} more reasons; Enter unfolds the runs"] * (
                len(reasons) > _MAX_REASONS
            )
            shown = [f"{len(line.views)} runs; Enter unfolds", "", *list(reasons)[:_MAX_REASONS], *left]
            self._put_text(line.key, tuple(shown))
            return
        view = line.views[0]
        details = self.report.details.get(view.name, RunDetails())
        title.update(detail_title(view, details, time.time()))
        width = self.query_one("#text").size.width
        metric = self.report.metric.name if self.report.metric is not None else None
        self._put_text(view.name, tuple(tab_text(TABS[self.tab], self.home, view, details, width, self.part, metric)))
        self._want_curve(view if metric is not None and view.output_dir else None)

    def _want_curve(self, view: RunView | None) -> None:
        """Show the metric's curve of the run on which the cursor rests: a key does not wait for a file."""
        is_other = view is None or self._curve_view is None or view.name != self._curve_view.name
        self._curve_view = view
        if is_other:
            self.query_one("#curve").remove_class("on")
        if self._curve_timer is not None:
            self._curve_timer.stop()
        self._curve_timer = self.set_timer(_CURVE_DELAY_S, self._read_curve) if view is not None else None

    @work(thread=True, exclusive=True, group="curve", exit_on_error=False)
    def _read_curve(self) -> None:
        view, report = self._curve_view, self.report
        if view is not None and report is not None and report.metric is not None:
            name = report.metric.name
            points = read_series(find_output(self.home, view)).get(name, [])
            width = self.query_one("#detail").size.width - 2
            self.call_from_thread(self._put_curve, view.name, curve_line(name, points, width))

    def _put_curve(self, name: str, text: str) -> None:
        if self._curve_view is not None and self._curve_view.name == name and self.query("#curve"):
            self.query_one("#curve", Static).update(text)
            self.query_one("#curve").set_class(bool(text), "on")

    def _put_text(self, key: str, lines: Sequence[str]) -> None:
        shown = (key, self.tab, tuple(lines))
        if shown == self._shown:
            return
        before, self._shown = self._shown, shown
        text = self.query_one("#text", RichLog)
        same = before is not None and before[:2] == shown[:2] and before[2] == shown[2][: len(before[2])]
        if not same:
            text.clear()
        fresh = shown[2][len(before[2]) :] if same and before is not None else shown[2]
        for line in fresh:
            text.write(line, scroll_end=TABS[self.tab] == "log")

    def action_tab(self, number: int) -> None:
        self.tab = number
        self._show(self.query_one(RunList).current)

    def action_next_tab(self) -> None:
        self.action_tab((self.tab + 1) % len(TABS))

    def action_next_part(self) -> None:
        self.part += 1
        self.action_tab(TABS.index("log"))

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.add_class("on")
        field.focus()

    def on_input_changed(self) -> None:
        self._lay_out()

    def on_input_submitted(self) -> None:
        self.query_one(RunList).focus()

    def action_clear(self) -> None:
        field = self.query_one("#filter", Input)
        field.value = ""
        field.remove_class("on")
        self.query_one(RunList).focus()

    def action_everything(self) -> None:
        self.everything = not self.everything
        self._lay_out()

    def action_sort(self) -> None:
        if self.report is not None and self.report.metric is None and not self.is_sorted:
            self.notify("no run has written a metric yet", markup=False)
            return
        self.is_sorted = not self.is_sorted
        self._lay_out()

    def action_group(self) -> None:
        self.is_grouped = not self.is_grouped
        self._lay_out()

    def action_unfold(self) -> None:
        line = self.query_one(RunList).current
        if line is not None and len(line.views) > 1 and not self.is_grouped:
            self.unfolded = self.unfolded ^ {line.key}
            self._lay_out()

    def action_help(self) -> None:
        self.push_screen(HelpDialog())

    def action_cancel(self) -> None:
        views = [view for view in self._chosen() if view.state in ACTIVE_STATES]
        if not views:
            self.notify("nothing to cancel here: none of these runs is active", markup=False)
            return
        self._confirm("cancel", views)

    def action_retry(self) -> None:
        views = [view for view in self._chosen() if view.state in RETRYABLE_STATES]
        if not views:
            self.notify("nothing to retry here: none of these runs failed", markup=False)
            return
        self._confirm("retry", views)

    def _confirm(self, what: str, views: Sequence[RunView]) -> None:
        names = [view.name for view in views]
        many = safe_line(names[0]) if len(names) == 1 else f"{len(names)} runs, from {safe_line(names[0])}"

        def answered(answer: str | None) -> None:
            if answer in _RETRY_KEYS:
                self._act(what, names, _RETRY_KEYS[answer])

        self.push_screen(ConfirmDialog(f"{what} {many}?", more=what == "retry"), answered)

    @work(thread=True, exit_on_error=False)
    def _act(self, what: str, names: Sequence[str], more: str | None) -> None:
        try:
            result = (
                actions.cancel_active(self.home, names)
                if what == "cancel"
                else actions.retry_runs(self.home, names, more)
            )
        except (ShoalError, OSError) as error:
            result = f"{what} failed: {error}"
        self.call_from_thread(self.notify, safe_line(result), markup=False)

    def action_page(self) -> None:
        """The log in the person's pager, with the view out of the way meanwhile."""
        view = next(iter(self._chosen()), None)
        if view is None or not view.log_dir or not view.attempt:
            self.notify("it has no log yet", markup=False)
            return
        with self.suspend():
            logs.open_pager([layout.log_file(view.log_dir, view.attempt)])
        self.refresh()

    def action_copy(self) -> None:
        view = next(iter(self._chosen()), None)
        if view is not None and view.log_dir:
            path = layout.log_file(view.log_dir, view.attempt)
            self.copy_to_clipboard(path)
            self.notify(safe_line(path), markup=False)

    def _chosen(self) -> list[RunView]:
        line = self.query_one(RunList).current
        return line.views if line is not None else []


def _matches_words(view: RunView, words: Sequence[str]) -> bool:
    """Words are searched in name, state, reason, node and job; state:failed asks for that alone. Never an error."""
    text = f"{view.name} {view.state} {view.reason or ''} {view.node or ''} {view.job_id or ''}".lower()
    for word in words:
        key, colon, value = word.partition(":")
        fields = {"state": view.state, "node": view.node, "job": view.job_id, "name": view.name, "part": view.partition}
        if colon and key in fields:
            if not any(one in (fields[key] or "").lower() for one in value.split(",")):
                return False
        elif word not in text:
            return False
    return True
