"""The fence: may this job work on its run? Decided from files alone, before any user code runs.

A job may arrive twice (a controller that crashed replays it), late (a frozen controller accepts it minutes after the
submission was given up), or although its run is done. Correctness does not rest on time-outs or on Slurm's word: the
generation's owner and the attempt's number are taken by exclusive creation, and whoever comes second leaves.
"""

import os
from typing import Any, Dict, NamedTuple, Optional

from . import files, layout


class Claim(NamedTuple):
    """The generation of a run that a submission won, as its claim file says."""

    run_dir: str
    generation: int
    revision: int
    token: str
    output_dir: str
    log_dir: str
    resume: bool


def read_claim(run_dir: str, generation: int) -> Optional[Claim]:
    record = files.read_json(os.path.join(run_dir, layout.submit_file(generation, "claim")))
    if record is None:
        return None
    return Claim(
        run_dir,
        generation,
        record["revision"],
        record["token"],
        record["output_dir"],
        record["log_dir"],
        bool(record.get("resume")),
    )


class Fenced(Exception):
    """This job must not run; the message says why. That is a normal end: nothing is wrong with the run."""


def find_claim(run_dir: str, token: str) -> Claim:
    """The claim of this submission on the run; Fenced if another submission won the run."""
    names = layout.parse_names(files.names_in(run_dir))
    for generation in reversed(names.submits.get("claim", [])):
        claim = read_claim(run_dir, generation)
        if claim is not None and claim.token == token:
            return claim
    raise Fenced("the run belongs to another submission")


def take_ownership(claim: Claim, submission_dir: str, me: Dict[str, Any]) -> None:
    """Return if this job is the one that works on the claim's generation; raise Fenced otherwise.

    `me` identifies the job: its Slurm id, or for a process without Slurm its host, pid and start time. The same job
    passes again after a requeue; any other never does.
    """
    names = layout.parse_names(files.names_in(claim.run_dir))
    if names.generation > claim.generation:
        raise Fenced("the run was submitted again (generation %d)" % names.generation)
    if names.has_submit(claim.generation, "cancel"):
        raise Fenced("the run was cancelled")
    if (done := finished_attempt(claim.run_dir, names, claim.revision)) is not None:
        raise Fenced("the run is done already (attempt %d)" % done)
    settle(submission_dir, me)
    owner_path = os.path.join(claim.run_dir, layout.submit_file(claim.generation, "owner"))
    if not files.create_exclusive(owner_path, files.to_json(me)):
        owner = files.read_json(owner_path) or {}
        if any(owner.get(key) != me.get(key) for key in ("job_id", "host", "pid", "started") if key in me):
            raise Fenced("generation %d belongs to %s" % (claim.generation, describe(owner)))


def settle(submission_dir: str, me: Dict[str, Any]) -> None:
    """Accepted or given up? This job is the best witness, and whoever writes the outcome first decides: from here on
    nobody can give the submission up while its job runs."""
    path = os.path.join(submission_dir, layout.outcome_file())
    outcome = files.read_json(path)
    if outcome is None:
        job_id = me.get("array_job_id") or me.get("job_id")
        outcome = {"kind": "accepted", "job_id": job_id, "adopted": True}
        if not files.create_exclusive(path, files.to_json(outcome)):
            outcome = files.read_json(path) or outcome
    if outcome.get("kind") == "void":
        raise Fenced("the submission was given up: %s" % outcome.get("reason", "no reason kept"))


def finished_attempt(run_dir: str, names: layout.RunNames, revision: int) -> Optional[int]:
    """The attempt of this revision that ended well, if there is one."""
    for attempt in reversed(names.attempts.get("end", [])):
        end = files.read_json(os.path.join(run_dir, layout.attempt_file(attempt, "end")))
        if end is not None and end.get("success") and end.get("revision") == revision:
            return attempt
    return None


def begin_attempt(claim: Claim, start: Dict[str, Any]) -> int:
    """Take the next attempt number and write its start record; the number is never used again."""
    attempt = layout.parse_names(files.names_in(claim.run_dir)).attempt
    while True:
        attempt += 1
        record = dict(start, attempt=attempt, generation=claim.generation, revision=claim.revision, token=claim.token)
        path = os.path.join(claim.run_dir, layout.attempt_file(attempt, "start"))
        if files.create_exclusive(path, files.to_json(record)):
            return attempt


def superseded(claim: Claim, attempt: int) -> Optional[str]:
    """Why a running attempt must stop now, or None: a later one exists, or somebody cancelled the run."""
    names = layout.parse_names(files.names_in(claim.run_dir))
    if names.has_submit(claim.generation, "cancel"):
        return "cancelled"
    if names.generation > claim.generation or names.attempt > attempt:
        return "superseded"
    return None


def describe(owner: Dict[str, Any]) -> str:
    if owner.get("job_id"):
        return "job %s" % owner["job_id"]
    return "process %s on %s" % (owner.get("pid"), owner.get("host"))
