"""The agent's course: who am I, may I run, which attempt is this, run it, write down how it ended.

    agent SUBMISSION_DIR [--index I|all] [--set-up-exit CODE]

Called by the batch script as its last command, so that Slurm's signals reach it and its exit code is the job's.
"""

import os
import select
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from ..kernel import (
    Allocation,
    End,
    checkpoints,
    fence,
    files,
    guard,
    layout,
    lease,
    new_token,
    process,
    resumed,
    slurm,
)
from . import by_hand, ledger, nodes, notices, survival, trial
from .attempt import Attempt, begin, kept_folder, spec_of
from .single import Single, is_replaced

#: The run is busy in an older job that does not hand over: "try again later" (sysexits.h).
_TEMPFAIL = 75


class Interrupted(Exception):
    """A signal asked this job to end before its run began."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.exit_code = 128 + int(signal.Signals[name])


def main(argv: List[str]) -> int:
    """Exit code for Slurm: the program's own; 0 if the fence held; 1 if a person asked for a run that is in use."""
    return guard.run(lambda link: _work(argv, link))


def _work(argv: List[str], link: guard.Link) -> int:
    options = _parse(argv)
    submission_dir = os.path.abspath(options["submission"])
    home = os.path.dirname(os.path.dirname(submission_dir))
    files.open_umask(home)
    try:
        submission = files.read_json(os.path.join(submission_dir, "submission.json"))
        if submission is None:
            raise fence.Fenced("there is no record of this submission in %s" % submission_dir)
        runs = submission["runs"]
        if options["index"] != "all":
            runs = [runs[int(options["index"])]]
    except fence.Fenced as why:
        print("shoal: nothing to do here: %s" % why, flush=True)
        return 0
    except (OSError, ValueError, KeyError, IndexError) as error:
        return _give_up(error)
    if os.environ.get("SLURM_JOB_ID"):
        survival.do_owed(home, submission["token"])
    # A person who runs an array's script with bash means all of it: one run after the other.
    first_bad = 0
    for name in runs:
        code = _run_one(home, name, submission, int(options["set-up-exit"]), link)
        first_bad = first_bad or code
        if code > 128:
            break
    if first_bad <= 128:
        _let_next_in(home, submission)
    return first_bad


def _run_one(home: str, name: str, submission: Dict[str, Any], set_up_exit: int, link: guard.Link) -> int:
    try:
        claim, me = _admit(home, trial.run_of(home, name, submission["token"]), submission, link)
        return _attempt(home, claim, me, set_up_exit, link)
    except fence.Fenced as why:
        print("shoal: nothing to do here: %s" % why, flush=True)
        return 0
    except by_hand.StillWanted as why:
        print("shoal: not started: %s" % why, file=sys.stderr, flush=True)
        return 1
    except fence.StillBusy as why:
        print("shoal: not started: %s" % why, file=sys.stderr, flush=True)
        return _TEMPFAIL
    except Interrupted as why:
        print("shoal: not started: %s came first" % why, file=sys.stderr, flush=True)
        return why.exit_code
    except (OSError, ValueError, KeyError) as error:
        return _give_up(error)


def _let_next_in(home: str, submission: Dict[str, Any]) -> None:
    """This job's room is free in a moment; a job that is being stopped may come again and has no time for this."""
    queue, job = submission.get("queue"), os.environ.get("SLURM_JOB_ID")
    if not queue or not job:
        return
    freed = {"jobs": 1, "nodes": int(submission.get("nodes", 1)), "gpus": int(submission.get("gpus", 0))}
    from . import admission  # most projects have no budget

    try:
        report = admission.admit(home, queue, ending=job, freed=freed, wait_s=60.0)
    except (OSError, ValueError, KeyError) as error:
        print("shoal: could not let the next run in: %s" % error, file=sys.stderr, flush=True)
        return
    for name in report.admitted:
        print("shoal: let in %s; %d wait" % (name, report.waiting), flush=True)


def _give_up(error: Exception) -> int:
    print("shoal: the agent cannot go on: %s: %s" % (type(error).__name__, error), file=sys.stderr, flush=True)
    return 74 if getattr(error, "errno", None) in files.DISK_ERRNOS else 1


def _admit(home: str, name: str, submission: Dict[str, Any], link: guard.Link) -> Tuple[fence.Claim, Allocation]:
    """The claim this job may work on and its identity; Fenced or StillWanted if it may not."""
    token = by_hand.token_of_this_job(home, name, submission["token"], os.environ)
    if token is not None:
        local = os.environ.get("SHOAL_TOKEN") == token
        me = Allocation(**process.identity(link.guard_pid), **({} if local else slurm.this_job(os.environ)))
        claim = fence.find_claim(layout.run_dir(home, name), token)
    else:
        own = slurm.this_job(os.environ) if by_hand.is_job_of_script(submission, os.environ) else {}
        me = Allocation(**process.identity(link.guard_pid), **own)
        token = new_token()
        claim = by_hand.claim_again(home, name, submission, token, me)
    fence.settle(home, token, me)
    return claim, me


def _attempt(home: str, claim: fence.Claim, me: Allocation, set_up_exit: int, link: guard.Link) -> int:
    submission = files.read_json(os.path.join(layout.submission_dir(home, claim.token), "submission.json")) or {}
    spec = spec_of(home, claim, submission.get("code"), os.environ)
    held = _begin(home, claim, me, spec, link)
    if held is None:
        return 1
    attempt = Attempt(claim, held, spec)
    _say("run %s/%s, attempt %d on %s" % (spec["experiment"], spec["stem"], held.number, process.node_name()))
    if attempt.resume_from:
        step = checkpoints.step_of(attempt.resume_from)
        told = "%s%s" % (attempt.resume_from, "" if step is None else " (step %d)" % step)
        if spec.get("resumes"):
            _say("continuing from %s" % told)
        else:
            _say("SHOAL_RESUME_FROM is %s, but the program is not known to read it, and may start over" % told)
        if attempt.keeps_checkpoint():
            _say("a copy of that checkpoint is kept in %s" % os.path.join(claim.output_dir, kept_folder(held.number)))
    elif spec.get("start_from"):
        _say("starting from %s" % spec["start_from"])
    _say("working directory %s" % attempt.spec["cwd"])
    _say("output in %s" % attempt.log)
    job = Single(home, attempt, me, link, _say)
    if set_up_exit != 0:
        job.problem = "the cluster's set-up lines ended with exit code %d" % set_up_exit
        job.problem_code = set_up_exit
    logs = [attempt.log]
    if spec.get("smoke"):
        from . import smoke

        attempt.look = smoke.watcher(spec, claim.output_dir, logs)
    else:
        attempt.look = trial.watcher(home, spec, claim, logs, attempt.resume_from)
        if attempt.look is None and attempt.resume_from:
            attempt.look = tell_beginning
    follow = os.environ.get("SHOAL_FOLLOW", "0" if os.environ.get("SLURM_JOB_NAME", "").endswith(claim.token) else "1")
    job.follows = follow == "1"
    job.loop()
    if job.end is None or not job.ours:
        told = "shoal: another job has closed attempt %d and goes on with the run" % held.number
        print(told, file=sys.stderr, flush=True)
        return 1
    return _conclude(home, attempt, job.end, me, link)


def _begin(
    home: str, claim: fence.Claim, me: Allocation, spec: Dict[str, Any], link: guard.Link
) -> Optional[lease.Lease]:
    """The next attempt of the run, ours alone; None if the run goes on in another job, elsewhere."""
    times = lease.timing(os.environ)
    full_since: Optional[float] = None
    while True:
        names = fence.wait_for_turn(claim, me, times, _say, lambda wait_s: _pause(wait_s, link))
        failed_nodes = nodes.failed_before(claim.run_dir, claim.generation, nodes.ask_slurm(os.environ))
        if os.environ.get("SLURMD_NODENAME") in failed_nodes:
            moved, words = survival.move_away(home, claim, spec, failed_nodes, str(me.job_label))
            print("shoal: %s" % words, file=sys.stderr, flush=True)
            if moved:
                return None
        try:
            again = _has_earlier_attempt(claim)
            if spec.get("trial"):
                os.makedirs(claim.output_dir, exist_ok=True)
                again = _begin_trial(home, spec, claim)
            ends = float(os.environ.get("SLURM_JOB_END_TIME") or 0) or None  # older Slurm does not say
            held = begin(claim, names.attempt + 1, me, spec, again, os.environ, failed_nodes=failed_nodes, ends=ends)
        except OSError as error:
            full_since = _wait_for_disk(error, full_since, link)
            continue
        if held is not None:
            return held
        _pause(min(2.0, times.beat_s / 4), link)  # Another job was faster; our listing may be too old to show that.


def _wait_for_disk(error: OSError, since: Optional[float], link: guard.Link) -> float:
    """Wait a moment for room on the disk, and say since when; raises `error` if that is no help, or took too long."""
    if error.errno not in files.DISK_ERRNOS:
        raise error
    now = time.monotonic()
    if since is None:
        print("shoal: not started yet: %s" % error, file=sys.stderr, flush=True)
    elif now - since > ledger.patience_s(os.environ):
        raise error
    _pause(ledger.RETRY_S, link)
    return since or now


def _pause(wait_s: float, link: guard.Link) -> None:
    """Wait, unless a signal asks this job to end."""
    select.select([link.fd], [], [], wait_s)
    name = link.asked_to_stop()
    if name is not None:
        raise Interrupted(name)
    if link.is_broken:
        raise Interrupted("SIGKILL")


def _conclude(home: str, attempt: Attempt, end: End, me: Allocation, link: guard.Link) -> int:
    """Do what follows from an end that is on disk, and return the job's exit code, which nothing here can change."""
    name = attempt.name
    if attempt.look is tell_beginning:
        tell_beginning(attempt, is_over=True)
    _say("attempt %d ended with exit code %d after %.0f s" % (attempt.number, end.exit_code, end.duration_s))
    try:
        if not is_replaced(attempt):
            told = survival.follow_up(home, name, attempt.claim, attempt.spec, end, me.job_label)
            if told:
                print("shoal: %s" % told, file=sys.stderr, flush=True)
            notices.after_end(home, name, attempt.env, last=bool(end.job_id))
        if end.success:
            trial.dismiss(home, name)
        elif end.stopped_by == "SIGTERM" and end.job_id:
            from . import preempted

            preempted.wait_for_slurm(os.environ, link)
    except (OSError, ValueError, KeyError) as error:
        print("shoal: after the end: %s: %s" % (type(error).__name__, error), file=sys.stderr, flush=True)
    # Runs that build on this one wait for exit code 0, which a program may have though its run is not done.
    if end.cause in ("limit", "bad_result", "oom", "SIGTERM", "SIGINT", "SIGHUP", "handover", "superseded"):
        return end.exit_code or 1
    return 0 if end.success else end.exit_code


def tell_beginning(attempt: Attempt, is_over: bool = False) -> None:
    """Say if an attempt that was given a checkpoint did not continue from it, as soon as its log tells."""
    checkpoint = attempt.resume_from or ""
    found = resumed.beginning(attempt.claim.log_dir, attempt.number, checkpoint, is_over)
    if found is not None:
        attempt.look = None
        if not found.continued:
            print("shoal: warning: %s" % found.words(attempt.number, checkpoint), file=sys.stderr, flush=True)


def _begin_trial(home: str, spec: Dict[str, Any], claim: fence.Claim) -> bool:
    """Give a trial the run's newest checkpoint to start from; Fenced if there is nothing to take over any more."""
    why = trial.pointless(home, spec)
    if why is not None:
        trial.withdraw(claim, why)
        raise fence.Fenced(why)
    trial.bring_checkpoint(home, spec, claim.output_dir)
    return True


def _has_earlier_attempt(claim: fence.Claim) -> bool:
    """Whether an earlier attempt worked in this same output folder, as after a requeue."""
    names = layout.parse_names(files.names_in(claim.run_dir))
    found = (lease.read(claim.run_dir, names, number) for number in names.attempts.get("start", []))
    return any(one is not None and one.start.output_dir == claim.output_dir for one in found)


def _parse(argv: List[str]) -> Dict[str, str]:
    options = {"submission": argv[0] if argv else ".", "index": "0", "set-up-exit": "0"}
    for flag, value in zip(argv[1::2], argv[2::2]):
        options[flag.lstrip("-")] = value
    return options


def _say(text: str) -> None:
    if os.environ.get("SHOAL_FOLLOW") != "0":
        print("shoal: %s" % text, file=sys.stderr, flush=True)
