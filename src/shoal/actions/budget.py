"""The budget of a project on a cluster, and of its steps and experiments: how many jobs, nodes and GPUs their runs may
hold or wait for at once, how many attempts a run has, and who is sent first.

What fits is sent; the rest is claimed like every other run, then waits on disk until a job that ends, or the next
command, finds room for it (job/admission.py).
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec

from shoal.actions.transaction import ClaimedSubmission
from shoal.clusters import ClusterAnswers, ClusterFacts, read_submit_limit
from shoal.describe import Cluster, Project, Step
from shoal.errors import InputError, SchedulerError
from shoal.job import ResourceCounts, ScopedCounts, admission
from shoal.kernel import files, slurm, submission
from shoal.names import make_slug, token_of_job
from shoal.observe import Submission, run_names
from shoal.plan import PlannedSubmission

HELD_KINDS = ("jobs", "nodes", "gpus")
PROJECT_KINDS = (*HELD_KINDS, "attempts")
SCOPE_KINDS = (*PROJECT_KINDS, "priority")
_EXAMPLE = {"jobs": 20, "nodes": 8, "gpus": 32, "attempts": 6, "priority": -1}


class BudgetAdmission(NamedTuple):
    """Our turn at a queue: what it may hold, what it holds, and why nothing can be sent now, if so."""

    home: str
    queue: str
    turn: int
    maxima: ScopedCounts
    used: ScopedCounts
    closed: str | None

    def split(
        self, submissions: Sequence[PlannedSubmission]
    ) -> tuple[list[PlannedSubmission], list[PlannedSubmission]]:
        """What has room now, as large arrays; and the rest, one run each, so that each can be let in by itself."""
        now: list[PlannedSubmission] = []
        later: list[PlannedSubmission] = []
        used, blocked, unsent = self.used, set[str](), set[str]()
        for planned in submissions:
            scopes, need, fitting = submission_scopes(planned), submission_use(planned), 0
            waits = (
                self.closed is not None
                or bool(blocked & {admission.PROJECT, *scopes})
                or bool(unsent & set(planned.needs))
            )
            # A queue inside jobs is let in as a whole.
            count = 1 if planned.pack is not None else len(planned.runs)
            while not waits and fitting < count:
                full = admission.full_scopes(need, used, self.maxima, scopes)
                blocked.update(full)
                waits = bool(full)
                if not waits:
                    used = admission.add_usage(used, need, scopes)
                    fitting += 1
            if planned.pack is not None:
                (now if fitting else later).append(planned)
                unsent.update(run.spec.name for run in planned.runs if not fitting)
                continue
            if fitting:
                now.append(planned._replace(runs=planned.runs[:fitting], layout="array" if fitting > 1 else "job"))
            later += [planned._replace(runs=(run,), layout="job") for run in planned.runs[fitting:]]
            unsent.update(run.spec.name for run in planned.runs[fitting:])
        return now, later

    def reason(self, planned: PlannedSubmission) -> str:
        """Why a submission waits."""
        if self.closed:
            return self.closed
        named = [scope for scope in (*submission_scopes(planned), admission.PROJECT) if self.maxima.get(scope)]
        limits = [
            (f"{scope}: " if scope else "")
            + ", ".join(f"{number} {kind}" for kind, number in self.maxima[scope].items())
            for scope in named
        ]
        return f"no room under {'; '.join(limits)}" if limits else "it depends on runs that wait"

    def close(self) -> None:
        admission.release_lock(self.home, self.queue, self.turn)


def submission_scopes(planned: PlannedSubmission) -> tuple[str, ...]:
    """The scopes whose limits a submission has to keep."""
    first = planned.runs[0].spec
    return admission.scopes_of(first.name, first.step_kind)


def submission_use(planned: PlannedSubmission) -> ResourceCounts:
    """What one run of a submission holds; a pack holds its jobs, however many runs wait in them."""
    jobs = planned.pack.pilots if planned.pack is not None and planned.layout == "pilots" else 1
    nodes = planned.request.nodes or 1
    return {"jobs": jobs, "nodes": jobs * nodes, "gpus": jobs * nodes * (planned.request.gpus or 0)}


def queue_name(cluster: Cluster) -> str:
    return make_slug(cluster.name)


def enter_queue(
    home: str,
    cluster: Cluster,
    submissions: Sequence[PlannedSubmission],
    facts: ClusterFacts,
    environ: Mapping[str, str],
    project: Project,
) -> BudgetAdmission | None:
    """Take our turn and look at the room; None if there is no budget. Where others wait, all join the line.

    `facts` are what is known about the cluster already; shoal.toml of `project` declares limits of steps.
    """
    queue = queue_name(cluster)
    declare_limits(home, queue, project)
    _read_account_limit(home, queue, submissions, facts, environ)
    maxima = admission.limits(home, queue)
    if not maxima:
        return None
    turn = admission.take_lock(home, queue, 30.0)
    if turn is None:
        raise SchedulerError("another command is letting runs in and does not end", hint="try again in a minute")
    used, problem = admission.project_usage(home, queue)
    waiting = len(admission.waiting_entries(home, queue))
    closed = problem or (f"{waiting} others wait in front" if waiting else None)
    return BudgetAdmission(home, queue, turn, maxima, used, closed)


def enqueue(claimed: ClaimedSubmission, project: Project, queue: str) -> None:
    """Let a claimed submission, whose intent says how to send it, join the line."""
    admission.enqueue(str(project.home), queue, claimed.token, submission_use(claimed.planned))


def set_limits(home: str, cluster: Cluster, text: str, scope: str = admission.PROJECT) -> None:
    """jobs=20,nodes=8,gpus=32,attempts=6,priority=-1, or none; it holds from now on for every run of the scope on this
    cluster: the project, a step or an experiment. Attempts bound retries, also of active runs.
    """
    queue = queue_name(cluster)
    record = _read_limits(home, queue)
    given = _parse_limits(text, SCOPE_KINDS if scope else PROJECT_KINDS)
    if scope:
        scopes = {name: values for name, values in record.get("scopes", {}).items() if name != scope}
        record["scopes"] = {**scopes, scope: given} if given else scopes
    else:
        record = {**{kind: value for kind, value in record.items() if kind not in PROJECT_KINDS}, **given}
    _write_limits(home, queue, record)


def _parse_limits(text: str, kinds: Sequence[str]) -> dict[str, int]:
    found = {}
    for part in text.split(",") if text != "none" else ():
        kind, _, number = part.strip().partition("=")
        digits = number.removeprefix("-") if kind == "priority" else number
        if kind not in kinds or not (digits.isascii() and digits.isdigit() and int(digits) < 10**7):
            example = ",".join(f"{name}={value}" for name, value in _EXAMPLE.items() if name in kinds)
            raise InputError(f"invalid budget {text!r}: expected {example}, or none", hint=f"shoal budget {example}")
        if kind != "priority" and int(number) < 1:
            raise InputError(f"{kind} of a budget must be at least 1 (got {number})", hint="shoal budget none")
        found[kind] = int(number)
    return found


def declare_limits(home: str, queue: str, project: Project) -> None:
    """Keep the limits that shoal.toml declares for steps where jobs find them. A path is that of a file with a number,
    which is read again each time."""
    declared: dict[str, dict[str, int | str]] = {}
    for step in project.steps.values():
        for kind, value in msgspec.structs.asdict(step.budget).items():
            if value is not None:
                declared.setdefault(step.name, {})[kind] = _checked_path(value, kind, step, project)
    record = _read_limits(home, queue)
    if record.get("declared", {}) != declared:
        _write_limits(home, queue, {**record, "declared": declared})


def _checked_path(value: int | str, kind: str, step: Step, project: Project) -> int | str:
    if isinstance(value, int):
        return value
    path = os.path.join(project.root, value)
    if admission.read_number(path) is None:
        why = f"invalid {kind} in [steps.{step.name}.budget]: {value} is not a file with a number"
        raise InputError(why, hint=f"echo 32 > {value}", place=step.origin)
    return path


def limits_and_usage(home: str, cluster: Cluster) -> tuple[dict[str, dict[str, int]], ScopedCounts, str | None]:
    """What each scope may hold, what it holds now, and why Slurm did not say, if so."""
    queue = queue_name(cluster)
    settings = {
        admission.PROJECT: {kind: int(v) for kind, v in _read_limits(home, queue).items() if kind in PROJECT_KINDS},
        **admission.scope_settings(home, queue),
    }
    used, problem = admission.project_usage(home, queue)
    return {scope: values for scope, values in settings.items() if values}, used, problem


def check_scope(home: str, project: Project, scope: str) -> None:
    """Refuse a scope that is neither the project, a step, nor an experiment."""
    experiments = {name.split("/")[0] for name in run_names(home)}
    if scope and scope not in project.steps and scope not in experiments:
        known = ", ".join([*project.steps, *sorted(experiments)])
        raise InputError(f"no step or experiment named {scope!r}; known are {known}", hint="shoal status")


def set_max_parallel(home: str, scope: str, number: str, environ: Mapping[str, str]) -> list[str]:
    """Let at most `number` tasks of each array of a scope run at once; returns the ids of the arrays.

    The scope is a step, an experiment, a run, or a pattern of runs.
    """
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 10**6):
        raise InputError(f"invalid max_parallel {number!r}: expected a number of at least 1", hint="max_parallel=8")
    rows, problem = slurm.squeue(environ)
    if problem is not None:
        raise SchedulerError(f"cannot read the queue: {problem}", hint="scontrol ping")
    arrays: dict[str, None] = {}
    for row in rows:
        token = token_of_job(row.name)
        intent = submission.read_submission_record(home, token) if token and not row.has_ended else None
        if intent is not None and intent.is_array and _is_in_scope(intent, scope):
            arrays[row.array_job_id or row.job_id] = None
    for array in arrays:
        done = slurm.update_job(array, {"ArrayTaskThrottle": number}, environ)
        why = _refusal(done.stderr)
        if not done.ok and why:
            raise SchedulerError(f"cannot change array {array}: {why}", hint=f"scontrol show job {array}")
    return list(arrays)


def _refusal(stderr: str) -> str:
    """What scontrol says of the tasks of an array that it did not change; those that ended meanwhile do not matter."""
    fine = ("no error", "already finished", "already completing")
    return "; ".join(line for line in stderr.splitlines() if line.strip() and not line.lower().strip().endswith(fine))


def _is_in_scope(intent: Submission, scope: str) -> bool:
    names = [intent.step, intent.runs[0].split("/")[0], *intent.runs, *(run.split("/")[1] for run in intent.runs)]
    return any(fnmatchcase(name, scope) for name in names)


def _read_account_limit(
    home: str,
    queue: str,
    submissions: Sequence[PlannedSubmission],
    facts: ClusterFacts,
    environ: Mapping[str, str],
) -> None:
    """Many runs at once: ask how many jobs accounting allows; Slurm need not refuse what can wait on disk."""
    count = sum(len(planned.runs) for planned in submissions)
    if count < 2:
        return
    asked = submissions[0].resolved
    options = (asked.get("account"), asked.get("qos"), asked.get("partition"))
    answers = ClusterAnswers(home, environ)
    limit = read_submit_limit(environ, getpass.getuser(), *options, known=facts, answers=answers)
    if limit is None:
        return
    left = admission.slurm_room(limit.account, limit.qos)
    if count * 2 > min(limit.max_jobs, limit.max_jobs if left is None else left):
        _write_limits(
            home,
            queue,
            {**_read_limits(home, queue), "submit": limit.max_jobs, "account": limit.account, "qos": limit.qos},
        )


def _read_limits(home: str, queue: str) -> dict[str, Any]:
    record = files.read_json(os.path.join(admission.queue_dir(home, queue), "limits.json")) or {}
    return {kind: value for kind, value in record.items() if kind != "schema"}


def _write_limits(home: str, queue: str, limits: Mapping[str, Any]) -> None:
    folder = admission.queue_dir(home, queue)
    files.make_dir(folder)
    files.replace(os.path.join(folder, "limits.json"), files.to_json({"schema": 1, **limits}))


def admit_waiting(home: str) -> list[admission.AdmissionResult]:
    """Let in what has room, on every cluster that has a line; costs one listing where there is none."""
    return [admission.admit(home, queue, wait_s=0.0) for queue in files.list_names(os.path.join(home, "queue"))]
