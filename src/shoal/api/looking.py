"""Look at runs: what they do, why, what they printed, brought and cost. Each returns what the command prints as JSON.

`which` are words for runs, as on the command line: experiments, runs, patterns, `last`; none means all of the project.
"""

from __future__ import annotations

import contextlib
import os

from shoal.api.projects import ProjectPath, project_or_directory, state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from shoal.actions import LookedUpJob, RunningAttempt
    from shoal.observe import ResultTable
    from shoal.search import Search
    from shoal.views import (
        AccountCheck,
        CostReport,
        Explanation,
        FoundLogs,
        LogChoice,
        LogError,
        RunLogs,
        StatusFilter,
        StatusReport,
        TableChoice,
    )


def run_names(which: Sequence[str] = (), *, project: ProjectPath = None) -> list[str]:
    """The runs that words mean, in order; InputError for a word that means none."""
    home = state_directory(project)
    if not which:
        from shoal.observe import run_names  # completion waits for it

        return run_names(home)
    from shoal.describe import select_runs

    return select_runs(home, which)


def has_runs(*, project: ProjectPath = None) -> bool:
    """Whether the project has any run."""
    from shoal.observe import has_runs

    return has_runs(state_directory(project))


def status(
    wanted: StatusFilter | None = None,
    *,
    choice: TableChoice | None = None,
    project: ProjectPath = None,
    only_counts_completed: bool = False,
) -> StatusReport:
    """What runs are doing. Sends what is owed: waiting runs that have room now, and follow-up jobs; `sent` tells it.

    `only_counts_completed`: the table does not show completed runs, so metrics that were written to the output of a
    completed run long after its end need not be seen.
    """
    from shoal.actions import observe_and_follow_up
    from shoal.observe import CANCEL_REQUESTED
    from shoal.views import gather_status

    home = state_directory(project)
    admitted = _admit_waiting(home)
    report = gather_status(
        home,
        wanted,
        choice=choice,
        observe_runs=observe_and_follow_up,
        checks_outputs=not only_counts_completed,
    )
    if any(view.reason == CANCEL_REQUESTED for view in report.views):
        from shoal.actions import cancel_own_jobs

        cancel_own_jobs(home, report.views, os.environ)
    return report._replace(sent=[*admitted, *report.sent])


def _admit_waiting(home: str) -> list[str]:
    if not os.path.isdir(os.path.join(home, "queue")):
        return []
    from shoal.actions import admit_waiting  # imported only here: it needs half of shoal

    names = [name for queue in admit_waiting(home) for name in queue.admitted]
    return [f"submitted {name}, which waited for room under the budget" for name in names]


def find_run(word: str, *, project: ProjectPath = None) -> LookedUpJob:
    """The run that a word means: its name, its stem alone, or a path to its script or outputs."""
    from shoal.actions import LookedUpJob
    from shoal.describe import find_run

    home = state_directory(project)
    return LookedUpJob(home, find_run(home, word))


@contextlib.contextmanager
def run_or_job(word: str, command: str, *, project: ProjectPath = None) -> Iterator[LookedUpJob]:
    """The run that a word means; a job id that is no run's name may be any job that Slurm knows. Its records then last
    as long as the context. `command` is what a hint tells to type for one task of an array."""
    from shoal.actions import is_job_id, job_as_run

    if not is_job_id(word):
        yield find_run(word, project=project)
        return
    with job_as_run(str(project_or_directory(project).home), word, os.environ, command) as found:
        yield found


def why(run: str, *, project: ProjectPath = None) -> Explanation:
    """Why a run, or any job that Slurm knows by its id, is in its state."""
    from shoal.views import about_job, explain_run

    with run_or_job(run, "shoal why", project=project) as found:
        explanation = explain_run(found.home, found.name, os.environ)
        return about_job(explanation, found.name, found.job.label) if found.job is not None else explanation


@contextlib.contextmanager
def open_logs(
    which: Sequence[str], choice: LogChoice | None = None, *, project: ProjectPath = None
) -> Iterator[FoundLogs]:
    """The log files of runs, or of one job that Slurm knows by its id; those of a job are found while this is open."""
    from shoal.actions import is_job_id
    from shoal.describe import select_runs
    from shoal.errors import InputError
    from shoal.views import find_log_sources

    if not which:
        raise InputError("which run?", hint="shoal logs RUN   # or shoal logs --errors for all that failed")
    if len(which) == 1 and is_job_id(which[0]):
        with run_or_job(which[0], "shoal logs", project=project) as found:
            yield find_log_sources(found.home, [found.name], choice)
        return
    home = state_directory(project)
    yield find_log_sources(home, select_runs(home, which), choice)


def logs(
    which: Sequence[str], choice: LogChoice | None = None, *, lines: int = 200, project: ProjectPath = None
) -> list[RunLogs]:
    """The last lines that runs printed (0: all), at most 16 MiB of each file."""
    from shoal.views import read_logs

    with open_logs(which, choice, project=project) as found:
        return read_logs(found.sources, lines)


def errors(which: Sequence[str] = (), *, project: ProjectPath = None) -> list[list[LogError]]:
    """What went wrong in failed runs: equal errors together, the most frequent first."""
    from shoal.describe import select_runs
    from shoal.views import group_errors

    home = state_directory(project)
    return group_errors(home, select_runs(home, which))


def results(
    which: Sequence[str] = (),
    *,
    metrics: Sequence[str] = (),
    over: Sequence[str] = (),
    sort: str | None = None,
    descending: bool = False,
    missing_value: float | None = None,
    partial: bool = False,
    all_params: bool = False,
    project: ProjectPath = None,
) -> ResultTable:
    """Metrics of runs over seeds: mean and standard deviation for each point. `partial`: also of runs that have not
    completed; `over`: parameters to average over first; `missing_value` counts for runs that ended without a metric."""
    from shoal.observe import tabulate
    from shoal.views import gather_results

    runs, defaults, notes = gather_results(state_directory(project), which, os.environ, partial=partial)
    table = tabulate(
        runs,
        metrics=metrics,
        sort=sort,
        descending=descending,
        all_params=all_params,
        defaults=defaults,
        over=over,
        missing_value=missing_value,
    )
    return table._replace(notes=[*notes, *table.notes])


def report(which: Sequence[str] = (), *, project: ProjectPath = None) -> CostReport:
    """What runs cost, wasted and brought."""
    from shoal.describe import project_prices
    from shoal.views import gather_report

    prices = project_prices(project_or_directory(project))
    return gather_report(state_directory(project), which, price_of=prices)


def report_html(found: CostReport, *, project: ProjectPath = None) -> str:
    """A report and the curves of its experiments as one HTML page that needs no other file."""
    from shoal.describe import read_status_settings
    from shoal.views import experiment_curves, report_page

    settings = read_status_settings(str(project_or_directory(project).root), os.environ)
    views = [history.view for history in found.histories]
    return report_page(found, experiment_curves(state_directory(project), views, settings.metric))


def check_hours(found: CostReport) -> AccountCheck:
    """The hours of a report, job by job, compared with sacct."""
    from shoal.views import check_with_sacct

    return check_with_sacct(found.allocations, os.environ)


def searches(which: Sequence[str] = (), *, project: ProjectPath = None) -> list[Search]:
    """The searches of experiments, with their trials so far; InputError if there is none."""
    from shoal.describe import select_runs
    from shoal.errors import InputError
    from shoal.observe import RunReader
    from shoal.search import read_searches

    home = state_directory(project)
    reader = RunReader(home)
    specs = [spec for name in select_runs(home, which) if (spec := reader.spec(name)) is not None]
    found = read_searches(home, specs)
    if not found:
        raise InputError(
            f"no search in {' '.join(which) or 'this project'}", hint="add [search] to a sweep file, then shoal submit"
        )
    return found


def export_search(which: Sequence[str], path: Path | None = None, *, project: ProjectPath = None) -> tuple[Path, int]:
    """Write one search as an Optuna journal, by default EXPERIMENT.journal; its path, and the number of trials."""
    from pathlib import Path

    from shoal.errors import InputError
    from shoal.search import export_journal

    found = searches(which, project=project)
    if len(found) > 1:
        names = [search.name for search in found]
        hint = f"shoal search export '{names[0]}_t*'"
        raise InputError(f"cannot write {len(names)} searches to one journal: {', '.join(names)}", hint=hint)
    path = path or Path(f"{found[0].experiment}.journal")
    return path, export_journal(found[0], path)


def running_attempt(found: LookedUpJob, node: str | None = None) -> RunningAttempt:
    """Where a run, as `run_or_job` found it, is running now: on its first node, or on `node`."""
    from shoal.actions import choose_node, find_attempt

    return choose_node(find_attempt(found.home, found.name), node)
