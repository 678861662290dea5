"""The durable side of a run in a pack: may I, I begin, it ended.

An attempt is taken by creating its start record under the number that follows the last one; of two engines that want
it, the file system chooses. A start without an end belongs to an engine that works on it, or to one that is gone; the
latter is recognised by its process (same host) or by the silence of its lease (another host), and its end is written
by whoever notices, so that it cannot be written differently later.
"""

import os
import socket
import time
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

from ...kernel import checkpoints, fence, files, layout, process
from .. import command, stages
from ..launch import container
from .node import Node

#: Exit code written for an attempt whose engine was killed: as for a process that was.
_KILLED = 137


class Standing(NamedTuple):
    """What the files say about a run: `word` is free, done, ended, taken or gone; `attempt` is its last one.

    ended: tried in this generation and not done. taken: somebody works on it, `start` says who. gone: cancelled, or
    somebody else's by now. `causes` counts why earlier attempts of this revision ended.
    """

    word: str
    claim: Optional[fence.Claim] = None
    attempt: int = 0
    start: Optional[Dict[str, Any]] = None
    end: Optional[Dict[str, Any]] = None
    tried: int = 0
    lost: int = 0
    causes: Mapping[str, int] = {}


class Begun(NamedTuple):
    """An attempt that is ours: its number, what it is, and where its output goes."""

    claim: fence.Claim
    number: int
    spec: Dict[str, Any]
    resume_from: Optional[str]
    out: str
    err: str
    record: str


def look(home: str, name: str, token: str) -> Standing:
    """How a run of submission `token` stands; reads one listing, the claim, and the records of its last attempt."""
    run_dir = layout.run_dir(home, name)
    names = layout.parse_names(files.names_in(run_dir))
    claim = fence.read_claim(run_dir, names.generation)
    if claim is None or claim.token != token or names.has_submit(claim.generation, "cancel"):
        return Standing("gone")
    tried = lost = 0
    causes: Dict[str, int] = {}
    start = end = None
    for number in names.attempts.get("start", []):
        start = _read(run_dir, number, "start")
        end = _read(run_dir, number, "end") if names.has_attempt(number, "end") else None
        if end is not None and end.get("success") and end.get("revision") == claim.revision:
            return Standing("done", claim, number, start, end)
        if end is not None and end.get("cause") and end.get("revision") == claim.revision:
            causes[end["cause"]] = causes.get(end["cause"], 0) + 1
        if start is not None and start.get("generation") == claim.generation:
            tried += 1
            lost += end is not None and end.get("stopped_by") == "lost"
    ours = start is not None and start.get("generation") == claim.generation
    if not ours:
        return Standing("free", claim, names.attempt)
    return Standing("ended" if end is not None else "taken", claim, names.attempt, start, end, tried, lost, causes)


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
    number = standing.attempt + 1
    record = dict(
        node.me,
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
    path = _path(claim.run_dir, number, "start")
    if not files.create_exclusive(path, files.to_json(record), sync=False):
        return None
    out, err = (os.path.join(claim.log_dir, "attempt-%d.%s" % (number, stream)) for stream in ("out", "err"))
    return Begun(claim, number, spec, resume_from, out, err, path)


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


def write_end(run_dir: str, end: Dict[str, Any]) -> bool:
    """Write the end of an attempt; False if somebody else has, because this engine was taken for dead."""
    return files.create_exclusive(_path(run_dir, end["attempt"], "end"), files.to_json(end))


def write_lost(standing: Standing) -> bool:
    """End an attempt whose engine is gone; False if it ended by itself after all."""
    start, claim = standing.start or {}, _claim_of(standing)
    began = float(start.get("t") or 0)
    end = {
        key: start.get(key)
        for key in ("attempt", "generation", "revision", "token", "output_dir", "log_dir", "job_id", "job_label")
    }
    end.update(
        host=start.get("host"),
        held=start.get("held"),
        exit_code=_KILLED,
        signal="SIGKILL",
        stopped_by="lost",
        oom=False,
        problem="the engine that ran it was killed",
        began=began,
        ended=time.time(),
        duration_s=max(0.0, time.time() - began),
        success=False,
        cause="lost",
    )
    return write_end(claim.run_dir, end)


def is_gone(start: Dict[str, Any], me: Dict[str, Any], silent_s: float, lease_s: float) -> bool:
    """Whether the engine that began an attempt is certainly or very probably no more.

    On this host its process is looked at. The same Slurm job in an earlier life (a requeue) is over by definition. Any
    other must not have renewed its lease for `lease_s`.
    """
    alive = process.is_alive(start)
    if alive is not None:
        return not alive
    if start.get("job_id") and start.get("job_id") == me.get("job_id") and start.get("life") != me.get("life"):
        return True
    return silent_s > lease_s


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


def _read(run_dir: str, number: int, kind: str) -> Optional[Dict[str, Any]]:
    return files.read_json(_path(run_dir, number, kind))


def _path(run_dir: str, number: int, kind: str) -> str:
    return os.path.join(run_dir, layout.attempt_file(number, kind))
