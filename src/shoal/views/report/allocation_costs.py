"""The allocations of runs with what they cost: records of allocations and attempts to `costs.divide`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from shoal.kernel import Grant, layout, list_names
from shoal.model import FAILED_STATES
from shoal.observe import (
    AllocationView,
    ClaimRecord,
    DamagedRecord,
    NodeUsage,
    RunReader,
    read_allocation_views,
    run_files,
)
from shoal.views.report.accounting import AttemptHistory
from shoal.views.report.costs import AllocationCosts, Costs, Holding, divide


class AllocationRow(NamedTuple):
    """An allocation, the attempts in it, and its costs in GPU-seconds and CPU-seconds."""

    view: AllocationView
    attempts: list[AttemptHistory]
    gpu: AllocationCosts
    cpu: AllocationCosts

    def costs_of(self, runs: Collection[str]) -> tuple[Costs, Costs]:
        """The part of it that these runs pay, in GPU-hours and CPU-hours."""
        gpu = sum((one for (run, _), one in self.gpu.by_attempt.items() if run in runs), Costs())
        cpu = sum((one for (run, _), one in self.cpu.by_attempt.items() if run in runs), Costs())
        return gpu.in_hours(), cpu.in_hours()


class Waits(NamedTuple):
    """What an attempt waited for before its begin, in seconds and in this order; None: not known, or not at all.

    `turn_s` is for its turn in a pack; of a run that begins again in the same pack it is all that it waited for.
    """

    dependency_s: float | None = None
    queue_s: float | None = None
    set_up_s: float | None = None
    turn_s: float | None = None


class AttemptCosts(NamedTuple):
    """What one attempt pays, in GPU-hours and CPU-hours, and its allocation. Attempt 0: the run did not begin there."""

    view: AllocationView
    attempt: int
    gpu: Costs
    cpu: Costs
    waits: Waits


def costs_of_attempts(rows: Iterable[AllocationRow]) -> dict[str, list[AttemptCosts]]:
    """What the attempts of each run pay, in order of time; all together it is what the run pays."""
    found: dict[str, list[AttemptCosts]] = {}
    for row in rows:
        waits = _waits(row)
        for (run, attempt), gpu in row.gpu.by_attempt.items():
            cpu, waited = row.cpu.by_attempt.get((run, attempt), Costs()), waits.get((run, attempt), Waits())
            found.setdefault(run, []).append(AttemptCosts(row.view, attempt, gpu.in_hours(), cpu.in_hours(), waited))
    return found


def _waits(row: AllocationRow) -> dict[tuple[str, int], Waits]:
    view, grant = row.view, row.view.grant
    known = not view.is_local and grant.submitted is not None and grant.eligible is not None
    dependency_s = max(0.0, (grant.eligible or 0.0) - (grant.submitted or 0.0)) if known else None
    if not row.attempts:
        return {(run, 0): Waits(dependency_s, view.queue_wait_s, view.duration_s) for run, _ in row.gpu.by_attempt}
    first = min(one.begin for one in row.attempts)
    before = Waits(dependency_s, view.queue_wait_s, max(0.0, first - view.start))
    ends: dict[str, float] = {}
    found: dict[tuple[str, int], Waits] = {}
    for one in sorted(row.attempts, key=lambda one: one.begin):
        waited = Waits() if one.run in ends else before
        turn_s = max(0.0, one.begin - ends.get(one.run, first)) if one.held is not None else None
        found[one.run, one.attempt] = waited._replace(turn_s=turn_s)
        ends[one.run] = one.end
    return found


def tokens_of_runs(home: str, names: Iterable[str]) -> list[str]:
    """Every submission that these runs were ever part of."""
    found: dict[str, None] = {}
    for name in names:
        folder = layout.run_dir(home, name)
        for generation in layout.parse_names(list_names(folder)).submits.get("claim", []):
            try:
                path = f"{folder}/{layout.submit_file(generation, 'claim')}"
                claim = run_files.read_checked(path, ClaimRecord)
            except DamagedRecord:
                continue
            if claim is not None:
                found[claim.token] = None
    return list(found)


def allocation_rows(
    reader: RunReader,
    tokens: Sequence[str],
    attempts: Sequence[AttemptHistory],
    environ: Mapping[str, str],
    now: float,
) -> list[AllocationRow]:
    """The allocations of submissions, oldest first. `attempts` are those of all runs in them.

    An attempt whose allocation left no record (one of an older shoal, or a full disk) gets one from its request.
    """
    groups: dict[str, list[AttemptHistory]] = {}
    for one in attempts:
        groups.setdefault(one.allocation or f"{one.token}/{one.run}/{one.attempt}", []).append(one)
    signs = {key: max(one.end for one in group) for key, group in groups.items()}
    running = {one.allocation for one in attempts if one.state == "running"}
    views = read_allocation_views(reader, tokens, signs, running, environ, now)
    known = {view.key for view in views}
    views += [_assumed(key, group) for key, group in groups.items() if key not in known]
    return [_row(view, groups.get(view.key, [])) for view in sorted(views, key=lambda view: (view.start, view.key))]


def _assumed(key: str, group: Sequence[AttemptHistory]) -> AllocationView:
    first = group[0]
    grant = Grant(
        nodes=first.asked.nodes,
        gpus=first.asked.nodes * first.asked.gpus,
        cpus=first.asked.nodes * (first.asked.cpus or 1),
        time_limit_s=first.time_limit_s,
        submitted=first.submitted,
    )
    begin, end = min(one.begin for one in group), max(one.end for one in group)
    return AllocationView(key, None, 0, "", "", tuple(one.run for one in group), grant, begin, end, "estimate")


def _row(view: AllocationView, attempts: list[AttemptHistory]) -> AllocationRow:
    limit_s = view.grant.time_limit_s
    attempts = [_until_allocation_end(one, view, attempts) for one in attempts]
    gpu = [_gpu_holding(one, view) for one in attempts]
    cpu = [_cpu_holding(one, view) for one in attempts]
    runs = _runs_of(view)
    return AllocationRow(
        view,
        attempts,
        divide(view.start, view.end, view.gpus, limit_s, gpu, runs, [(one.t, one.gpus) for one in view.resizes]),
        divide(view.start, view.end, view.cpus, limit_s, cpu, runs, [(one.t, one.cpus) for one in view.resizes]),
    )


def _until_allocation_end(
    one: AttemptHistory, view: AllocationView, others: Sequence[AttemptHistory]
) -> AttemptHistory:
    """An attempt that was killed with its job has no end of its own: it may have worked as long as the job lasted."""
    alone = one.held is None and not any(other.begin > one.begin for other in others)
    return one._replace(end=max(one.end, view.end)) if one.state == "lost" and alone else one


def _runs_of(view: AllocationView) -> Sequence[str]:
    """Whose allocation it is: of a task of an array one run, of a pack all."""
    _, underscore, index = (view.grant.job_label or "").partition("_")
    if view.layout == "array" and underscore and index.isdigit() and int(index) < len(view.runs):
        return (view.runs[int(index)],)
    return view.runs


def _gpu_holding(one: AttemptHistory, view: AllocationView) -> Holding:
    """A run alone in a job holds all that Slurm granted, whatever it asked for."""
    amount = one.share * len(one.held.gpus) if one.held is not None else float(view.gpus)
    busy = idle = 0.0
    for node in one.use.nodes if one.use else ():
        for gpu in node.gpus:
            seen = _seen_s(one, node) * one.share
            busy += seen * gpu.mean_percent / 100
            idle += seen * (1 - gpu.mean_percent / 100)
    return _holding(one, amount, busy, idle)


def _cpu_holding(one: AttemptHistory, view: AllocationView) -> Holding:
    amount = float(one.held.cpus or 1) if one.held is not None else float(view.cpus)
    nodes = one.use.nodes if one.use else []
    busy = sum(node.cpu_s * _seen_s(one, node) / node.duration_s for node in nodes if node.duration_s > 0)
    measured = sum(_seen_s(one, node) for node in nodes) * amount / max(1, one.asked.nodes)
    return _holding(one, amount, busy, max(0.0, measured - busy))


def _seen_s(one: AttemptHistory, node: NodeUsage) -> float:
    """How long the node was sampled within the attempt. A further node of a run that was switched has one record for
    both of its attempts."""
    return min(node.duration_s, max(0.0, one.end - one.begin))


def _holding(one: AttemptHistory, amount: float, busy_s: float, idle_s: float) -> Holding:
    waits = [float(record["ready_s"]) for record in one.data if record.get("ready_s") is not None]
    return Holding(
        one.run,
        one.attempt,
        one.begin,
        one.end,
        amount,
        staging_s=min(max(waits, default=0.0), max(0.0, one.end - one.begin)),
        busy_s=busy_s,
        idle_s=idle_s,
        wasted_s=wasted_s(one),
    )


def wasted_s(one: AttemptHistory) -> float:
    """Work that was lost: since the newest checkpoint, or all of it if there is none or the next attempt ignored it."""
    was_repeated = one.is_followed and one.state != "completed"
    if one.state not in FAILED_STATES and not was_repeated:
        return 0.0
    saved = one.checkpoint_t if one.is_continued else None
    return max(0.0, one.end - max(one.begin, saved or one.begin))
