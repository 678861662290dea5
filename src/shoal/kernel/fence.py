"""May this job work on its run? Decided from files alone, before any user code runs.

A job may arrive twice (a controller that crashed replays it), late (a frozen controller accepts it minutes after the
submission was given up), although its run completed, or while an earlier job of the same run lives on a node that
Slurm has lost contact with. Correctness does not depend on Slurm's answer: the job that Slurm started last asks the
older one to hand over, and waits until that has ended, or has been silent for longer than its guard lets it run.

shoal's own submissions are recognised by the token in the job's name, or in SHOAL_TOKEN on this machine. Anything else
that executes the saved script, with plain `sbatch` or `bash`, is a person who wants to run it again: that job gets a
generation of its own if it may run, and otherwise an error that says why not.
"""

import os
import sys
import time
from typing import Any, Callable, Dict, Hashable, Mapping, NamedTuple, Optional, Tuple

from . import files, layout, lease, processes, records, slurm
from . import submission as transaction
from .records import Allocation, Outcome, Start

#: Why an attempt was stopped, after which the same generation may go on: the run was interrupted, it did not fail.
INTERRUPTING_STOPS = ("SIGTERM", "SIGINT", "SIGHUP", "walltime", "lost", "probe", "handover")
#: How long a job waits for an older one that renews its lease and does not end.
_HANDOVER_S = 900.0


class Claim(NamedTuple):
    """The generation of a run that a submission won, as its claim file says."""

    run_dir: str
    generation: int
    revision: int
    token: str
    output_dir: str
    log_dir: str
    resume: bool
    changes: Mapping[str, Any] = {}
    t: Optional[float] = None


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
        record.get("changes") or {},
        record.get("t"),
    )


class FencedError(Exception):
    """This job must not run; the message says why. That is a normal end: nothing is wrong with the run."""


class OlderJobBusy(Exception):
    """An older job of the run renews its lease and does not end, although it was asked to."""


def find_claim(run_dir: str, token: str) -> Claim:
    """The claim of this submission on the run; FencedError if another submission won the run."""
    names = layout.parse_names(files.list_names(run_dir))
    for generation in reversed(names.submits.get("claim", [])):
        claim = read_claim(run_dir, generation)
        if claim is not None and claim.token == token:
            return claim
    raise FencedError("the run belongs to another submission")


def settle_outcome(home: str, token: str, me: Allocation) -> None:
    """Accepted or given up? This job is the best witness, and whoever writes the outcome first decides: from here on
    nobody can give the submission up while its job runs."""
    adopted = Outcome("accepted", job_id=me.array_job_id or me.job_id, adopted=True)
    outcome = transaction.outcome_of(home, token) or transaction.write_outcome(home, token, adopted)
    if outcome.kind == "void":
        raise FencedError("the submission was given up: %s" % (outcome.reason or "no reason kept"))


def check_admission(claim: Claim, names: layout.RunNames, me: Allocation) -> None:
    """Return if a job of this claim may work on the run as far as a listing tells; raise FencedError otherwise.

    The same job that Slurm starts again may go on after any end but a good one; another one may not repeat an end that
    was not an interruption.
    """
    if names.generation > claim.generation:
        raise FencedError("the run was submitted again (generation %d)" % names.generation)
    if names.has_submit(claim.generation, "cancel"):
        raise FencedError("the run was cancelled")
    done = lease.successful_attempt(claim.run_dir, names, claim.revision)
    if done is not None:
        raise FencedError("the run completed already (attempt %d)" % done)
    last = lease.read_attempt(claim.run_dir, names, names.attempt) if names.state(names.attempt) == "end" else None
    if last is None or last.end is None or last.start.generation != claim.generation:
        return
    started_again = last.start.job_id == me.job_id and last.start.life != me.life
    if last.end.stopped_by not in (*INTERRUPTING_STOPS, "limit") and not started_again:
        raise FencedError("attempt %d of this submission has ended already" % last.number)


class AttemptWait:
    """A job that wants to begin the next attempt of a run, and may have to wait for another one to end.

    The other one is asked to hand over. It is closed when nothing of it can still run: its death is proved, or its
    leases have had the same names, by our own clock, for longer than its guards let it run. Its further nodes have
    guards of their own: until those have removed their leases, or are silent as well, it may run there.
    """

    def __init__(self, claim: Claim, me: Allocation, say: Callable[[str], None] = lambda text: None) -> None:
        self._claim, self._me, self._say = claim, me, say
        self._watch = LeaseWatch()
        self._asked = 0

    def look(self) -> Optional[layout.RunNames]:
        """A listing in which no attempt of the run may run; None: look again in a moment. FencedError: it must not."""
        run_dir = self._claim.run_dir
        while True:
            names = layout.parse_names(files.list_names(run_dir))
            check_admission(self._claim, names, self._me)
            number = names.attempt
            if not names.may_run(number):
                return names
            last = lease.read_attempt(run_dir, names, number)
            start = last.start if last is not None else None
            lease.kill_leftovers_of(start)
            silent = self._watch.is_silent(number, names.lease_names(number), start)
            if not close_attempt(run_dir, names, number, start, silent):
                break  # It may have another name by now, and this node's listing may be old for some time.
            self._say("attempt %d on %s gave no sign of life and was closed" % (number, start and start.place))
        if self._asked != number:
            self._asked = number
            if names.has_attempt(number, "end") or names.has_attempt(number, "lost"):
                self._say("attempt %d has ended, and its guard on another node has not said so" % number)
            else:
                self._say("attempt %d runs on %s: asking it to save and end" % (number, start and start.place))
                lease.ask_for_handover(run_dir, number, self._me)
        return None


def wait_for_older_attempts(
    claim: Claim, me: Allocation, times: lease.LeaseTiming, say: Callable[[str], None], pause: Callable[[float], None]
) -> layout.RunNames:
    """Return, with a listing, when no attempt of the run lives. `pause` waits for so many seconds; what it raises ends
    the waiting. Raises FencedError if this job must not run, and OlderJobBusy if the other one does not end."""
    turn = AttemptWait(claim, me, say)
    deadline = lease.boot_time_s() + _HANDOVER_S * times.take_s / 90.0
    while True:
        names = turn.look()
        if names is not None:
            return names
        if lease.boot_time_s() > deadline:
            raise OlderJobBusy("another attempt of the run was asked to end, and goes on")
        pause(min(2.0, times.beat_s / 4))


def close_attempt(run_dir: str, names: layout.RunNames, number: int, start: Optional[Start], is_silent: bool) -> bool:
    """Close what of an attempt can be closed; False if that is nothing, or somebody else was faster.

    That is the lease of its first node if its death is proved, and all of its leases if `is_silent`: none of them was
    renewed for so long that nothing of it can still run. While one of a further node is left, the attempt is not over.
    """
    renewals = names.renewals.get((number, "live"))
    closed = renewals is not None and (is_silent or lease.is_holder_dead(start))
    if closed and renewals is not None and not lease.close_lease(run_dir, number, renewals):
        return False
    return bool(is_silent and lease.close_node_leases(run_dir, number, names)) or closed


class LeaseWatch:
    """Since when the leases of an attempt have had the same names, by this host's own clock."""

    def __init__(self) -> None:
        self._seen: Dict[int, Tuple[Hashable, float]] = {}

    def is_silent(self, number: int, signs_of_life: Hashable, start: Optional[Start]) -> bool:
        """Whether these names were first seen so long ago that nothing under them can still run."""
        known = self._seen.get(number)
        if known is None or known[0] != signs_of_life:
            self._seen[number] = known = (signs_of_life, lease.boot_time_s())
        return lease.boot_time_s() - known[1] >= lease.timing_of(start).take_s


def why_unwanted(claim: Claim, attempt: int) -> Optional[str]:
    """Why a running attempt must stop now, or None: cancelled, superseded (the run was submitted again), or handover
    (Slurm has started another job for it)."""
    names = layout.parse_names(files.list_names(claim.run_dir))
    if names.has_submit(claim.generation, "cancel"):
        return "cancelled"
    if names.generation > claim.generation:
        return "superseded"
    if names.has_attempt(attempt, "handover"):
        return "handover"
    return None


class RunInUse(Exception):
    """The run is active or completed: a second job for it would be one too many."""


def token_of_this_job(home: str, name: str, token: str, environ: Mapping[str, str]) -> Optional[str]:
    """The submission that this process belongs to, or None if a person has just started the script.

    It is the script's own one; or, when Slurm starts a job again that was given a generation here, the one of that. In
    its environment such a job has the name that it was submitted with, so it is known by its number.
    """
    if environ.get("SHOAL_TOKEN") == token or environ.get("SLURM_JOB_NAME", "").endswith("." + token):
        return token
    run_dir, job_id = layout.run_dir(home, name), environ.get("SLURM_JOB_ID")
    last = read_claim(run_dir, layout.parse_names(files.list_names(run_dir)).generation)
    if last is None or not job_id:
        return None
    record, outcome = transaction.read_submission_record(home, last.token), transaction.outcome_of(home, last.token)
    if record is None or outcome is None or not record.by_hand:
        return None
    return last.token if outcome.job_id in (job_id, environ.get("SLURM_ARRAY_JOB_ID") or job_id) else None


def is_job_of(submission: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether Slurm runs this as a job of the submission, sent by shoal or by a person with plain sbatch."""
    name = environ.get("SLURM_JOB_NAME", "")
    sent_by_shoal = name.startswith(str(submission.get("job_name", ""))) and bool(name)
    return bool(environ.get("SLURM_JOB_ID")) and (sent_by_shoal or is_batch_job(submission, environ))


def is_batch_job(submission: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether Slurm runs the script as a job; `bash script.sh` in somebody's allocation is only a process in it."""
    header = str(submission.get("job_name", "")).rpartition(".")[0]
    return bool(environ.get("SLURM_JOB_ID")) and environ.get("SLURM_JOB_NAME") == header


def claim_next_generation(home: str, name: str, submission: Dict[str, Any], token: str, me: Allocation) -> Claim:
    """Claim the next generation of the run for this very job, recording it as accepted; RunInUse if it is in use."""
    run_dir = layout.run_dir(home, name)
    names = layout.parse_names(files.list_names(run_dir))
    last = read_claim(run_dir, names.generation)
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
    transaction.write_intent(home, intent._replace(**processes.own_identity()), None)
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
    return find_claim(run_dir, token)


def _current_use(home: str, last: Claim, names: layout.RunNames) -> Optional[str]:
    """What the last generation is still doing, in words, or None if it has ended."""
    done = lease.successful_attempt(last.run_dir, names, last.revision)
    if done is not None:
        return "completed already (attempt %d)" % done
    attempt = lease.read_attempt(last.run_dir, names, names.attempt) if names.attempt else None
    if attempt is not None and attempt.state == "live" and not lease.is_holder_dead(attempt.start):
        return "is running (attempt %d)" % names.attempt
    outcome = transaction.outcome_of(home, last.token)
    if (outcome is not None and outcome.kind == "void") or names.has_submit(last.generation, "cancel"):
        return None
    if names.has_submit(last.generation, layout.verdict_kind(names.attempt)):
        return None  # Slurm has said how the job ended, whether or not the run began.
    if attempt is None or attempt.start.generation != last.generation:
        return "is submitted as job %s" % ((outcome and outcome.job_id) or "of an unfinished submission")
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
