"""The budget of a project on a cluster: how many jobs, nodes and GPUs its runs may hold or wait for at once.

What fits is sent; the rest is claimed like every other run, then waits on disk until a job that ends, or the next
command, finds room for it (job/admission.py).
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.clusters import ClusterFacts, read_submit_limit
from shoal.describe import Cluster, Project
from shoal.errors import InputError, SchedulerError
from shoal.job import ResourceCounts, admission
from shoal.kernel import files
from shoal.names import make_slug
from shoal.plan import PlannedSubmission
from shoal.submit.transaction import ClaimedSubmission

_LIMIT_KINDS = ("jobs", "nodes", "gpus")


class BudgetAdmission(NamedTuple):
    """Our turn at a queue: what it may hold, what it holds, and whether others wait in front."""

    home: str
    queue: str
    turn: int
    most: ResourceCounts
    used: ResourceCounts
    closed: str | None

    def split(
        self, submissions: Sequence[PlannedSubmission]
    ) -> tuple[list[PlannedSubmission], list[PlannedSubmission]]:
        """What has room now, as large arrays; and the rest, one run each, so that each can be let in by itself."""
        now: list[PlannedSubmission] = []
        later: list[PlannedSubmission] = []
        used = dict(self.used)
        for planned in submissions:
            need, fitting = submission_use(planned), 0
            if planned.pack is not None:  # a queue inside jobs is let in as a whole
                has_room = self.closed is None and not later and admission.fits(need, used, self.most)
                (now if has_room else later).append(planned)
                used = admission.add_usage(used, need) if has_room else used
                continue
            while (
                self.closed is None
                and not later
                and fitting < len(planned.runs)
                and admission.fits(need, used, self.most)
            ):
                used = admission.add_usage(used, need)
                fitting += 1
            if fitting:
                now.append(planned._replace(runs=planned.runs[:fitting], shape="array" if fitting > 1 else "job"))
            later += [planned._replace(runs=(run,), shape="job") for run in planned.runs[fitting:]]
        return now, later

    def close(self) -> None:
        admission.release_lock(self.home, self.queue, self.turn)


def submission_use(planned: PlannedSubmission) -> ResourceCounts:
    """What one run of a submission holds; a pack holds its jobs, however many runs wait in them."""
    jobs = planned.pack.pilots if planned.pack is not None and planned.shape == "pilots" else 1
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
) -> BudgetAdmission | None:
    """Take our turn and look at the room; None if there is no budget. Whoever waits already goes first.

    `facts` are what is known about the cluster already.
    """
    queue = queue_name(cluster)
    _read_account_limit(home, queue, submissions, facts, environ)
    most = admission.limits(home, queue)
    if not most:
        return None
    turn = admission.take_lock(home, queue, 30.0)
    if turn is None:
        raise SchedulerError("another command is letting runs in and does not end", hint="try again in a minute")
    used, problem = admission.project_usage(home, queue)
    waiting = len(admission.waiting_entries(home, queue))
    closed = problem or (f"{waiting} others wait in front" if waiting else None)
    return BudgetAdmission(home, queue, turn, most, used, closed)


def enqueue(claimed: ClaimedSubmission, project: Project, queue: str) -> None:
    """Let a claimed submission, whose intent says how to send it, join the line."""
    admission.enqueue(str(project.home), queue, claimed.token, submission_use(claimed.planned))


def set_limits(home: str, cluster: Cluster, text: str) -> None:
    """--budget jobs=20,nodes=8,gpus=32,attempts=6, or none; it holds for every run of the project on this cluster from
    now on. Attempts bound retries, also of runs that are under way.
    """
    ours = (*_LIMIT_KINDS, "attempts")
    found = {kind: value for kind, value in _read_limits(home, queue_name(cluster)).items() if kind not in ours}
    for part in text.split(",") if text != "none" else ():
        kind, _, number = part.strip().partition("=")
        if kind not in ours or not (number.isascii() and number.isdigit() and 0 < int(number) < 10**7):
            raise InputError(f"{text!r} is not a budget", hint="--budget jobs=20,nodes=8,gpus=32", place="--budget")
        found[kind] = int(number)
    _write_limits(home, queue_name(cluster), found)


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
    limit = read_submit_limit(environ, getpass.getuser(), *options, known=facts)
    if limit is None:
        return
    left = admission.slurm_room(limit.account, limit.qos)
    if count * 2 > min(limit.most, limit.most if left is None else left):
        _write_limits(
            home,
            queue,
            {**_read_limits(home, queue), "submit": limit.most, "account": limit.account, "qos": limit.qos},
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
