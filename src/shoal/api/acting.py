"""Change what is there: cancel runs, adopt jobs, set budgets."""

from __future__ import annotations

import os
from typing import NamedTuple

from shoal.api.projects import ProjectPath, project_or_directory, read_project, state_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.actions import CancelReport, SubmitTarget
    from shoal.observe import RunView


def cancel(
    which: Sequence[str],
    *,
    agrees: Callable[[Sequence[RunView]], bool] | None = None,
    dry_run: bool = False,
    command_id: str | None = None,
    project: ProjectPath = None,
) -> CancelReport:
    """Stop the active runs among those that `which` names: runs, experiments, patterns.

    `agrees` is asked before several runs, or a job that shoal did not submit, are cancelled; without it they are.
    """
    from shoal.actions import cancel_active
    from shoal.describe import select_runs
    from shoal.errors import InputError

    if not which:
        raise InputError("cancel which runs?", hint="name runs or experiments, as in shoal.api.cancel(['001_example'])")
    home = state_directory(project)
    return cancel_active(
        home, select_runs(home, which), os.environ, agrees=agrees, dry_run=dry_run, command_id=command_id
    )


class AdoptedRun(NamedTuple):
    """A job as a run. `did`: adopted, would adopt, known (adopted before) or own (shoal submitted it)."""

    name: str
    job_id: str
    state: str
    did: str
    adopted: bool
    notes: list[str]


def adopt(
    jobs: Sequence[str] = (),
    *,
    mine: bool = False,
    name: str | None = None,
    dry_run: bool = False,
    project: ProjectPath = None,
) -> list[AdoptedRun]:
    """Make runs of jobs that shoal did not submit: job ids, tasks of arrays, names of jobs; or with `mine` every job of
    this user in the queue. Nothing about the jobs changes."""
    from shoal.actions import adopt_jobs, find_jobs, own_jobs
    from shoal.errors import InputError
    from shoal.observe import observe

    if mine == bool(jobs):
        raise InputError("which jobs: ids and names, or --mine?", hint="shoal adopt --mine")
    settings = project_or_directory(project)
    found = adopt_jobs(
        own_jobs(os.environ) if mine else find_jobs(jobs, os.environ),
        settings,
        os.environ,
        name=name,
        dry_run=dry_run,
    )
    recorded = [one.name for one in found if not dry_run or one.did != "adopted"]
    views = observe(str(settings.home), recorded, environ=os.environ).views if recorded else {}
    return [
        AdoptedRun(
            one.name,
            one.job.label,
            views[one.name].state if one.name in views else one.job.word.lower(),
            "would adopt" if dry_run and one.did == "adopted" else one.did,
            one.did != "own",
            list(one.notes),
        )
        for one in found
    ]


class BudgetScope(NamedTuple):
    """What a step or an experiment (None: the project) may hold at once, and what it holds."""

    scope: str | None
    limits: Mapping[str, int]
    used: Mapping[str, int]


class BudgetReport(NamedTuple):
    """The budgets of a project on a cluster. `problem`: why Slurm did not tell what is in use."""

    cluster: str
    scopes: list[BudgetScope]
    problem: str | None


class BudgetChange(NamedTuple):
    """A new limit. `admitted` are waiting runs that it let in; `arrays`, for max_parallel, the arrays that have it."""

    cluster: str
    admitted: list[str]
    arrays: list[str] | None = None


def budget(*, on: str | None = None, project: ProjectPath = None) -> BudgetReport:
    """What runs may hold on a cluster at once, and what they hold."""
    from shoal.actions import limits_and_usage

    target = _budget_target(on, project)
    limits, used, problem = limits_and_usage(target.home, target.cluster)
    scopes = [BudgetScope(scope or None, values, used.get(scope, {})) for scope, values in limits.items()]
    return BudgetReport(target.cluster.name, scopes, problem)


def set_budget(limits: str, scope: str = "", *, on: str | None = None, project: ProjectPath = None) -> BudgetChange:
    """Limit a step or an experiment, or the project: "jobs=20,gpus=32", "none", or "max_parallel=8" for arrays in the
    queue. Holds at once; waiting runs that have room then are sent."""
    from shoal.actions import admit_waiting, check_scope, set_limits, set_max_parallel
    from shoal.observe import open_state_dir

    target = _budget_target(on, project)
    home = open_state_dir(target.project.home, target.project.shared_by)
    kind, _, number = limits.partition("=")
    if kind == "max_parallel":
        return BudgetChange(target.cluster.name, [], set_max_parallel(home, scope or "*", number, os.environ))
    check_scope(home, target.project, scope)
    set_limits(home, target.cluster, limits, scope)
    return BudgetChange(target.cluster.name, [name for result in admit_waiting(home) for name in result.admitted])


def _budget_target(on: str | None, project: ProjectPath) -> SubmitTarget:
    from shoal.actions import submit_target
    from shoal.errors import InputError

    target = submit_target(read_project(project), on, os.environ)
    if target.cluster.is_local:
        raise InputError("a budget needs a Slurm cluster, and this machine is none", hint="shoal budget --on CLUSTER")
    return target
