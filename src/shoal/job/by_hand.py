"""A person ran the saved script with plain `sbatch` or `bash`: give that job a generation of its own, if it may.

shoal's own submissions are recognised by the token in the job's name, or in SHOAL_TOKEN on this machine. Anything else
that executes the script is a person, who means "run this again" and must get either that or a sentence why not.
"""

import os
import sys
import time
from typing import Any, Dict, Mapping, Optional

from ..kernel import Allocation, fence, files, layout, lease, process, records, slurm
from ..kernel import submission as transaction


class RunInUse(Exception):
    """The run is queued, running or done: a second job for it would be one too many."""


def token_of_this_job(home: str, name: str, token: str, environ: Mapping[str, str]) -> Optional[str]:
    """The submission that this process belongs to, or None if a person has just started the script.

    It is the script's own one; or, when Slurm starts a job again that was given a generation here, the one of that. In
    its environment such a job has the name that it was submitted with, so it is known by its number.
    """
    if environ.get("SHOAL_TOKEN") == token or environ.get("SLURM_JOB_NAME", "").endswith("." + token):
        return token
    run_dir, job_id = layout.run_dir(home, name), environ.get("SLURM_JOB_ID")
    last = fence.read_claim(run_dir, layout.parse_names(files.list_names(run_dir)).generation)
    if last is None or not job_id:
        return None
    record, outcome = transaction.read_submission_record(home, last.token), transaction.outcome_of(home, last.token)
    if record is None or outcome is None or not record.by_hand:
        return None
    return last.token if outcome.job_id in (job_id, environ.get("SLURM_ARRAY_JOB_ID") or job_id) else None


def is_batch_job(submission: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether Slurm runs the script as a job; `bash script.sh` in somebody's allocation is only a process in it."""
    header = str(submission.get("job_name", "")).rpartition(".")[0]
    return bool(environ.get("SLURM_JOB_ID")) and environ.get("SLURM_JOB_NAME") == header


def claim_next_generation(home: str, name: str, submission: Dict[str, Any], token: str, me: Allocation) -> fence.Claim:
    """Claim the next generation of the run for this very job, recording it as accepted; StillWanted if it is in use."""
    run_dir = layout.run_dir(home, name)
    names = layout.parse_names(files.list_names(run_dir))
    last = fence.read_claim(run_dir, names.generation)
    if last is None:
        raise RunInUse("%s has no record in %s" % (name, home))
    busy = _current_use(home, last, names)
    if busy is not None:
        raise RunInUse("%s %s; `shoal status` tells more" % (name, busy))
    now, runs = time.time(), list(submission["runs"]) if me.array_job_id else [name]
    intent = records.decode_record(submission, records.Submission)._replace(
        token=token,
        by_hand=True,
        t=now,
        backend="slurm" if me.job_id else "local",
        runs=runs,
        argv=(),
        waits=False,
    )
    transaction.write_intent(home, intent._replace(**process.own_identity()), None)
    output_dir = _unused_output_dir(last.output_dir)
    log_dir = output_dir if last.log_dir == last.output_dir else last.log_dir
    claim = records.ClaimRecord(
        token, last.revision, output_dir, log_dir, index=runs.index(name), t=now, changes=last.changes
    )
    won = transaction.claim_generation(home, name, names.generation + 1, claim)
    lost = records.Outcome("void", reason="another command claimed the run first")
    accepted = records.Outcome("accepted", job_id=me.array_job_id or me.job_id)
    transaction.write_outcome(home, token, accepted if won else lost)
    if not won:
        raise RunInUse("%s was submitted by another command just now" % name)
    rename_job(me, transaction.job_name(name, token))
    return fence.find_claim(run_dir, token)


def _current_use(home: str, last: fence.Claim, names: layout.RunNames) -> Optional[str]:
    """What the last generation is still doing, in words, or None if it has ended."""
    done = lease.successful_attempt(last.run_dir, names, last.revision)
    if done is not None:
        return "is done already (attempt %d)" % done
    attempt = lease.read_attempt(last.run_dir, names, names.attempt) if names.attempt else None
    if attempt is not None and attempt.state == "live" and not lease.is_holder_dead(attempt.start):
        return "is running (attempt %d)" % names.attempt
    outcome = transaction.outcome_of(home, last.token)
    if (outcome is not None and outcome.kind == "void") or names.has_submit(last.generation, "cancel"):
        return None
    if names.has_submit(last.generation, layout.verdict_kind(names.attempt)):
        return None  # Slurm has said how the job ended, whether or not the run began.
    if attempt is None or attempt.start.generation != last.generation:
        return "is queued as job %s" % ((outcome and outcome.job_id) or "of an unfinished submission")
    return None


def _unused_output_dir(last: str) -> str:
    """A folder beside the last one, named after this second, or a later one if that name was used before."""
    parent, moment = os.path.dirname(last), time.time()
    used = set(files.list_names(parent)) | {os.path.basename(last)}
    while (name := time.strftime("%Y%m%d_%H%M%S", time.localtime(moment))) in used:
        moment += 1
    return os.path.join(parent, name)


def rename_job(me: Allocation, name: str) -> None:
    """Put the token into the job's name, so that every view finds the job as it finds all others.

    A task is named by its place in the array: by its own number Slurm would rename the whole array, if it is the last.
    """
    job_id = me.job_label or me.job_id
    if job_id:
        done = slurm.update_job(job_id, {"JobName": name}, os.environ)
        if not done.ok:  # The run is recorded all the same; only Slurm's view of it stays without the token.
            print("shoal: cannot rename job %s: %s" % (job_id, done.problem), file=sys.stderr, flush=True)
