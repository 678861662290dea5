"""How a run of a queue stands, and who this engine is, for the records."""

import os
from typing import Any, Dict, Mapping, NamedTuple, Optional

from ...kernel import Allocation, End, Start, fence, files, layout, lease, process, slurm


class QueuedRunStatus(NamedTuple):
    """What the files say about a run: `word` is free, done, ended, taken or gone; `attempt` is its last one.

    ended: tried in this generation and not done. taken: somebody works on it, `start` says who, and its lease was
    renewed `renewals` times; `names` shows the leases of its further nodes. gone: cancelled, or somebody else's by now.
    `causes` counts why earlier attempts of this revision ended; `stopping` is set if the last one was told to stop.
    """

    word: str
    claim: Optional[fence.Claim] = None
    attempt: int = 0
    start: Optional[Start] = None
    end: Optional[End] = None
    tried: int = 0
    lost: int = 0
    causes: Mapping[str, int] = {}
    renewals: int = 0
    stopping: bool = False
    names: layout.RunNames = layout.parse_names(())


def read_status(home: str, name: str, token: str) -> QueuedRunStatus:
    """How a run of submission `token` stands; reads one listing, the claim, and the records of its last attempt."""
    run_dir = layout.run_dir(home, name)
    names = layout.parse_names(files.list_names(run_dir))
    claim = fence.read_claim(run_dir, names.generation)
    if claim is None or claim.token != token or names.has_submit(claim.generation, "cancel"):
        return QueuedRunStatus("gone")
    tried = lost = 0
    causes: Dict[str, int] = {}
    last: Optional[lease.AttemptRecord] = None
    for number in names.attempts.get("start", []):
        last = lease.read_attempt(run_dir, names, number)
        if last is None:
            continue
        end = last.end
        if end is not None and end.success and end.revision == claim.revision:
            return QueuedRunStatus("done", claim, number, last.start, last.end)
        if end is not None and end.cause and end.revision == claim.revision:
            causes[end.cause] = causes.get(end.cause, 0) + 1
        if last.start.generation == claim.generation:
            tried += 1
            lost += end is not None and end.stopped_by == "lost"
    if names.may_run(names.attempt):
        # Of an attempt that is just being created the record may not be there yet.
        start = last.start if last is not None and last.number == names.attempt else None
        renewals = names.renewals.get((names.attempt, "live"), 0)
        return QueuedRunStatus("taken", claim, names.attempt, start, None, tried, lost, causes, renewals, names=names)
    if last is None or last.start.generation != claim.generation:
        return QueuedRunStatus("free", claim, names.attempt)
    stopping = last.state == "lost" and bool(last.last_words)
    return QueuedRunStatus("ended", claim, last.number, last.start, last.end, tried, lost, causes, 0, stopping)


def recovery_policy(standing: QueuedRunStatus) -> Mapping[str, Any]:
    """What the run's step says about going on after an end."""
    claim = required_claim(standing)
    spec = files.read_json(os.path.join(claim.run_dir, layout.spec_file(claim.revision))) or {}
    return dict(spec.get("survive") or {})


def close_lost_attempt(standing: QueuedRunStatus) -> bool:
    """Close the attempt of an engine that is gone; False if it ended by itself after all."""
    return fence.close_attempt(
        required_claim(standing).run_dir, standing.names, standing.attempt, standing.start, is_silent=True
    )


def engine_allocation(environ: Dict[str, str], own_job: bool) -> Allocation:
    """Who we are, for start and end records: process, host, and the Slurm job with its number of lives."""
    job = slurm.current_job(environ) if own_job else {}
    return Allocation(**process.own_identity(), **job, engine="%s-%d" % (process.host_name(), os.getpid()))


def required_claim(standing: QueuedRunStatus) -> fence.Claim:
    if standing.claim is None:
        raise ValueError("a run that is %s has no claim to work on" % standing.word)
    return standing.claim
