"""The durable side of a run in a pack: may I, I begin, it ended. All of it by the lease of the run's attempt."""

import os
import socket
import time
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

from ...kernel import checkpoints, fence, files, layout, lease, process
from .. import command, stages
from ..launch import container
from .node import Node


class Standing(NamedTuple):
    """What the files say about a run: `word` is free, done, ended, taken or gone; `attempt` is its last one.

    ended: tried in this generation and not done. taken: somebody works on it, `start` says who, and its lease was
    renewed `renewals` times; `names` shows the leases of its further nodes. gone: cancelled, or somebody else's by now.
    `causes` counts why earlier attempts of this revision ended; `stopping` is set if the last one was told to stop.
    """

    word: str
    claim: Optional[fence.Claim] = None
    attempt: int = 0
    start: Optional[Dict[str, Any]] = None
    end: Optional[Dict[str, Any]] = None
    tried: int = 0
    lost: int = 0
    causes: Mapping[str, int] = {}
    renewals: int = 0
    stopping: bool = False
    names: layout.RunNames = layout.parse_names(())


class Begun(NamedTuple):
    """An attempt that is ours: its number, what it is, and where its output goes."""

    claim: fence.Claim
    lease: lease.Lease
    spec: Dict[str, Any]
    resume_from: Optional[str]
    out: str
    err: str

    @property
    def number(self) -> int:
        return self.lease.number

    @property
    def record(self) -> str:
        return _path(self.claim.run_dir, self.number, "start")


def look(home: str, name: str, token: str) -> Standing:
    """How a run of submission `token` stands; reads one listing, the claim, and the records of its last attempt."""
    run_dir = layout.run_dir(home, name)
    names = layout.parse_names(files.names_in(run_dir))
    claim = fence.read_claim(run_dir, names.generation)
    if claim is None or claim.token != token or names.has_submit(claim.generation, "cancel"):
        return Standing("gone")
    tried = lost = 0
    causes: Dict[str, int] = {}
    last: Optional[lease.Attempt] = None
    for number in names.attempts.get("start", []):
        last = lease.read(run_dir, names, number)
        if last is None:
            continue
        end = last.end or {}
        if end.get("success") and end.get("revision") == claim.revision:
            return Standing("done", claim, number, last.start, last.end)
        if end.get("cause") and end.get("revision") == claim.revision:
            causes[end["cause"]] = causes.get(end["cause"], 0) + 1
        if last.start.get("generation") == claim.generation:
            tried += 1
            lost += end.get("stopped_by") == "lost"
    if last is not None and names.may_run(last.number):
        renewals = names.renewals.get((last.number, "live"), 0)
        return Standing("taken", claim, last.number, last.start, None, tried, lost, causes, renewals, names=names)
    if last is None or last.start.get("generation") != claim.generation:
        return Standing("free", claim, names.attempt)
    stopping = last.state == "lost" and bool(last.last_words)
    return Standing("ended", claim, last.number, last.start, last.end, tried, lost, causes, 0, stopping)


def spec_of(claim: fence.Claim, node: Node) -> Dict[str, Any]:
    """What a run is: as it was claimed, in the code that was kept for it, with what its parents left."""
    spec = files.read_json(os.path.join(claim.run_dir, layout.spec_file(claim.revision)))
    if spec is None:
        raise ValueError("%s has no spec %d" % (claim.run_dir, claim.revision))
    return container.settle(command.in_snapshot(stages.inherit(node.home, spec), node.code), node.environ)


def policy_of(standing: Standing) -> Mapping[str, Any]:
    """What the run's step says about going on after an end."""
    claim = _claim_of(standing)
    spec = files.read_json(os.path.join(claim.run_dir, layout.spec_file(claim.revision))) or {}
    return dict(spec.get("survive") or {})


def begin(standing: Standing, node: Node, held: Dict[str, Any], failed_nodes: Sequence[str] = ()) -> Optional[Begun]:
    """Take the next attempt and write down that it begins; None if another engine was faster.

    `failed_nodes` are what the last attempt was lost with.
    The record is there for everybody at once; that it survives a power cut is for the caller to see to (`record`).
    """
    claim = _claim_of(standing)
    spec = spec_of(claim, node)
    resume_from = None
    if spec.get("checkpoint") and (standing.tried or claim.resume):
        resume_from = checkpoints.newest(claim.output_dir, spec["checkpoint"])
    number, times = standing.attempt + 1, lease.timing(node.environ)
    mine = process.this_process()
    record = dict(
        node.me,
        agent_pid=mine["pid"],
        agent_started=mine["started"],
        mark=os.urandom(8).hex(),
        beat_s=times.beat_s,
        t=time.time(),
        output_dir=claim.output_dir,
        log_dir=claim.log_dir,
        resume_from=resume_from,
        attempt=number,
        generation=claim.generation,
        revision=claim.revision,
        token=claim.token,
        failed_nodes=list(failed_nodes),
        held=held,
    )
    os.makedirs(claim.output_dir, exist_ok=True)
    if claim.log_dir != claim.output_dir:
        os.makedirs(claim.log_dir, exist_ok=True)
    own = lease.create(claim.run_dir, number, record, times, sync=False)
    if own is None:
        return None
    out, err = (os.path.join(claim.log_dir, "attempt-%d.%s" % (number, stream)) for stream in ("out", "err"))
    return Begun(claim, own, spec, resume_from, out, err)


def end_record(begun: Begun, me: Dict[str, Any], held: Dict[str, Any], **what: Any) -> Dict[str, Any]:
    """The end of an attempt as the rest of shoal reads it; `what` is code, signal, stopped_by, times and the like.

    Whether it is good is for `survival.conclude` to say.
    """
    return dict(
        attempt=begun.number,
        generation=begun.claim.generation,
        revision=begun.claim.revision,
        token=begun.claim.token,
        output_dir=begun.claim.output_dir,
        log_dir=begun.claim.log_dir,
        job_id=me.get("job_id"),
        job_label=me.get("job_label"),
        host=me.get("host"),
        held=held,
        **what,
    )


def write_lost(standing: Standing) -> bool:
    """Close the attempt of an engine that is gone; False if it ended by itself after all."""
    run_dir = _claim_of(standing).run_dir
    return fence.close(run_dir, standing.names, standing.attempt, standing.start or {}, is_silent=True)


def this_engine(environ: Dict[str, str], own_job: bool) -> Dict[str, Any]:
    """Who we are, for start and end records: process, host, and the Slurm job with its number of lives."""
    me = process.this_process()
    if own_job:
        array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
        me["job_id"] = environ.get("SLURM_JOB_ID")
        me["job_label"] = "%s_%s" % (array, task) if array and task else environ.get("SLURM_JOB_ID")
        me["life"] = int(environ.get("SLURM_RESTART_COUNT") or 0)
        # In a step of its own an engine has one node of several; the engine of Ray has them all.
        me["nodes"] = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
        if array:
            me["array_job_id"] = array
    me["engine"] = "%s-%d" % (socket.gethostname(), os.getpid())
    return me


def _claim_of(standing: Standing) -> fence.Claim:
    if standing.claim is None:
        raise ValueError("a run that is %s has no claim to work on" % standing.word)
    return standing.claim


def _path(run_dir: str, number: int, kind: str) -> str:
    return os.path.join(run_dir, layout.attempt_file(number, kind))
