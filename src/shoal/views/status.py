"""`shoal status`: counts first, then what is unfinished or failed; honest about a Slurm that does not answer."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from shoal.model import STATES
from shoal.observe import observe
from shoal.store.fold import RunView
from shoal.units import format_duration
from shoal.views.render import paint_state, print_json, print_table, shorter, state_word
from shoal.views.select import parse_states, select_runs


class Report(NamedTuple):
    """What `status` found. `counts` is over all selected runs, `views` those in the wanted states."""

    views: list[RunView]
    counts: dict[str, int]
    slurm_problem: str | None
    now: float


def gather(home: str, which: Sequence[str] = (), states: str | None = None) -> Report:
    wanted = parse_states(states)
    found = observe(home, select_runs(home, which))
    counts = Counter(view.state for view in found.views.values())
    views = [view for view in found.views.values() if wanted is None or view.state in wanted]
    return Report(views, {state: counts[state] for state in STATES if counts[state]}, found.slurm_problem, time.time())


def show(report: Report, *, as_json: bool, quiet: bool, everything: bool) -> None:
    if as_json:
        print_json(
            {
                "runs": [as_record(view) for view in report.views],
                "counts": report.counts,
                "slurm_problem": report.slurm_problem,
            }
        )
        return
    shown = report.views if everything else [view for view in report.views if view.state != "done"]
    if quiet:
        for view in shown:
            print(view.name)
        return
    _show_counts(report)
    if shown:
        rows = [_row(view, report.now) for view in shown]
        print_table(("RUN", "STATE", "WHY", "TRY", "JOB", "NODE", "TIME", "OUTPUT"), rows, widest=7)
    hidden = len(report.views) - len(shown)
    if hidden:
        print(f"{hidden} done {'is' if hidden == 1 else 'are'} hidden; shoal status --all shows them")
    for hint in dict.fromkeys(view.hint for view in shown if view.hint):
        print(f"hint: {hint}")


def as_record(view: RunView) -> dict[str, Any]:
    """A run for --json: every field of the table and more; null where there is nothing."""
    record: dict[str, Any] = msgspec.to_builtins(view)
    return {**record, "experiment": view.experiment, "progress": progress_of(view)}


def _show_counts(report: Report) -> None:
    total = sum(report.counts.values())
    words = "  ".join(paint_state(f"{count} {state}", state) for state, count in report.counts.items())
    print(f"{total} {'run' if total == 1 else 'runs'}   {words}")
    if report.slurm_problem:
        sys.stderr.write(f"warning: Slurm does not answer, these are last known states: {report.slurm_problem}\n")


def _row(view: RunView, now: float) -> tuple[str, ...]:
    return (
        view.name,
        state_word(view.state),
        view.cause or progress_of(view) or "",
        str(view.attempt or "-"),
        view.job_id or "-",
        view.node or "-",
        _elapsed(view, now),
        shorter(view.output_dir) if view.output_dir else "-",
    )


def _elapsed(view: RunView, now: float) -> str:
    if view.started is None:
        return "-"
    return format_duration(max(0.0, (view.ended or now) - view.started))


def progress_of(view: RunView) -> str | None:
    """The last line that the program wrote to $SHOAL_PROGRESS; only running runs have one worth showing."""
    if view.state != "running" or view.output_dir is None:
        return None
    try:
        with open(os.path.join(view.output_dir, "progress"), "rb") as file:  # noqa: PTH123
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4096))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return None
    return next((line.strip() for line in reversed(lines) if line.strip()), None)
