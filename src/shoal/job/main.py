"""The agent, the main process of a job of one run: identify the run, check that it may start, execute it.

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
    AllocationLog,
    End,
    Grant,
    checkpoints,
    fence,
    files,
    guard,
    layout,
    lease,
    new_token,
    processes,
    slurm,
)
from . import job_constraints, notifications, record_writer, recovery, replacement
from .attempt import Attempt, begin_attempt, kept_checkpoint_dir, read_run_spec
from .environment import format_value
from .single_run import SingleRunExecutor, is_superseded

#: The run is busy in an older job that does not hand over: "try again later" (sysexits.h).
_EXIT_TEMPFAIL = 75


class InterruptedBeforeStart(Exception):
    """A signal asked this job to end before its run began."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.exit_code = 128 + int(signal.Signals[name])


def main(argv: List[str]) -> int:
    """Exit code for Slurm: the program's own; 0 if the fence held; 1 if a person asked for a run that is in use."""
    submission_dir = os.path.abspath(_parse(argv)["submission"])
    log = AllocationLog(os.path.dirname(os.path.dirname(submission_dir)), os.environ)
    return guard.run_guarded(lambda link: _work(argv, submission_dir, log, link), log.end)


def _work(argv: List[str], submission_dir: str, log: AllocationLog, link: guard.GuardLink) -> int:
    options = _parse(argv)
    home = os.path.dirname(os.path.dirname(submission_dir))
    files.open_umask(home)
    try:
        submission = files.read_json(os.path.join(submission_dir, "submission.json"))
        if submission is None:
            raise fence.FencedError("there is no record of this submission in %s" % submission_dir)
        runs = submission["runs"]
        if options["index"] != "all":
            runs = [runs[int(options["index"])]]
    except fence.FencedError as why:
        print("shoal: nothing to do here: %s" % why, flush=True)
        return 0
    except (OSError, ValueError, KeyError, IndexError) as error:
        return _fail(error)
    own_job = "SHOAL_TOKEN" not in os.environ and fence.is_job_of(submission, os.environ)
    log.begin(own_job, _local_grant(submission))
    if os.environ.get("SLURM_JOB_ID"):
        recovery.submit_pending_follow_ups(home, submission["token"])
    # A person who runs an array's script with bash means all of it: one run after the other.
    first_bad = 0
    for name in runs:
        code = _run_one(home, name, submission, int(options["set-up-exit"]), link)
        first_bad = first_bad or code
        if code > 128:
            break
    if first_bad <= 128:
        _admit_next(home, submission)
    log.ask_slurm()
    return first_bad


def _local_grant(submission: Dict[str, Any]) -> Grant:
    """What a run takes on this machine: what it asked for."""
    asked = submission.get("asked") or {}
    return Grant(nodes=1, gpus=int(asked.get("gpus") or 0), cpus=asked.get("cpus"), memory_mb=asked.get("memory_mb"))


def _run_one(home: str, name: str, submission: Dict[str, Any], set_up_exit: int, link: guard.GuardLink) -> int:
    try:
        claim, me = _admit(home, replacement.run_of(home, name, submission["token"]), submission, link)
        return _run_attempt(home, claim, me, set_up_exit, link)
    except fence.FencedError as why:
        print("shoal: nothing to do here: %s" % why, flush=True)
        return 0
    except fence.RunInUse as why:
        print("shoal: not started: %s" % why, file=sys.stderr, flush=True)
        return 1
    except fence.OlderJobBusy as why:
        print("shoal: not started: %s" % why, file=sys.stderr, flush=True)
        return _EXIT_TEMPFAIL
    except InterruptedBeforeStart as why:
        print("shoal: not started: %s came first" % why, file=sys.stderr, flush=True)
        return why.exit_code
    except (OSError, ValueError, KeyError) as error:
        return _fail(error)


def _admit_next(home: str, submission: Dict[str, Any]) -> None:
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


def _fail(error: Exception) -> int:
    print("shoal: the agent cannot go on: %s: %s" % (type(error).__name__, error), file=sys.stderr, flush=True)
    return 74 if getattr(error, "errno", None) in files.DISK_ERRNOS else 1


def _admit(home: str, name: str, submission: Dict[str, Any], link: guard.GuardLink) -> Tuple[fence.Claim, Allocation]:
    """The claim this job may work on and its identity; FencedError or RunInUse if it may not."""
    token = fence.token_of_this_job(home, name, submission["token"], os.environ)
    if token is not None:
        local = os.environ.get("SHOAL_TOKEN") == token
        me = Allocation(
            **processes.process_identity(link.guard_pid), **({} if local else slurm.current_job(os.environ))
        )
        claim = fence.find_claim(layout.run_dir(home, name), token)
    else:
        own = slurm.current_job(os.environ) if fence.is_batch_job(submission, os.environ) else {}
        me = Allocation(**processes.process_identity(link.guard_pid), **own)
        token = new_token()
        claim = fence.claim_next_generation(home, name, submission, token, me)
    fence.settle_outcome(home, token, me)
    return claim, me


def _run_attempt(home: str, claim: fence.Claim, me: Allocation, set_up_exit: int, link: guard.GuardLink) -> int:
    submission = files.read_json(os.path.join(layout.submission_dir(home, claim.token), "submission.json")) or {}
    spec = read_run_spec(home, claim, submission.get("code"), os.environ)
    if spec.get("search"):
        spec = _with_trial_parameters(home, spec, me)
    held = _begin(home, claim, me, spec, link)
    if held is None:
        return 1
    attempt = Attempt(claim, held, spec)
    if submission.get("backend") == "local":
        attempt.limit_s = submission.get("time_limit_s")  # no Slurm ends it
    _say("run %s/%s, attempt %d on %s" % (spec["experiment"], spec["stem"], held.number, processes.node_name()))
    if attempt.resume_from:
        step = checkpoints.step_of(attempt.resume_from)
        checkpoint = "%s%s" % (attempt.resume_from, "" if step is None else " (step %d)" % step)
        if spec.get("resumes"):
            _say("continuing from %s" % checkpoint)
        else:
            _say("SHOAL_RESUME_FROM is %s, but the program is not known to read it, and may start over" % checkpoint)
        if attempt.keeps_checkpoint():
            _say(
                "a copy of that checkpoint is kept in %s"
                % os.path.join(claim.output_dir, kept_checkpoint_dir(held.number))
            )
    elif spec.get("start_from"):
        _say("starting from %s" % spec["start_from"])
    _say("working directory %s" % attempt.spec["cwd"])
    _say("output in %s" % attempt.log)
    job = SingleRunExecutor(home, attempt, me, link, _say)
    if set_up_exit != 0:
        job.problem = "the cluster's set-up lines ended with exit code %d" % set_up_exit
        job.problem_code = set_up_exit
    logs = [attempt.log]
    if spec.get("smoke"):
        from . import single_run

        attempt.look = single_run.smoke_watcher(spec, claim.output_dir, logs)
    else:
        attempt.look = replacement.watcher(home, spec, claim, logs, attempt.resume_from)
        if attempt.look is None and attempt.resume_from:
            attempt.look = warn_if_not_resumed
    follow = os.environ.get("SHOAL_FOLLOW", "0" if os.environ.get("SLURM_JOB_NAME", "").endswith(claim.token) else "1")
    job.follows = follow == "1"
    job.loop()
    if job.end is None or not job.ours:
        message = "shoal: another job has closed attempt %d and goes on with the run" % held.number
        print(message, file=sys.stderr, flush=True)
        return 1
    return _conclude(home, attempt, job.end, me, link)


def _with_trial_parameters(home: str, spec: Dict[str, Any], me: Allocation) -> Dict[str, Any]:
    """The parameters of its trial; the sampler is asked once and ends."""
    from . import sampler  # most runs are no trials

    child = sampler.SamplerProcess(os.environ)
    try:
        found = sampler.with_parameters(home, spec, child, me, sampler.LOAD_S)
    finally:
        child.close()
    params = found.get("params") or {}
    values = ", ".join(
        "%s = %s" % (name, format_value(params[name])) for name in spec["search"]["space"] if name in params
    )
    _say(found.get("not_needed") or "trial %d: %s" % (spec["search"]["trial"], values))
    return found


def _begin(
    home: str, claim: fence.Claim, me: Allocation, spec: Dict[str, Any], link: guard.GuardLink
) -> Optional[lease.Lease]:
    """The next attempt of the run, ours alone; None if the run goes on in another job, elsewhere."""
    times = lease.timing(os.environ)
    full_since: Optional[float] = None
    while True:
        names = fence.wait_for_older_attempts(claim, me, times, _say, lambda wait_s: _wait(wait_s, link))
        failed_nodes = job_constraints.failed_before_requeue(
            claim.run_dir, claim.generation, job_constraints.ask_slurm(os.environ)
        )
        if os.environ.get("SLURMD_NODENAME") in failed_nodes:
            moved, words = recovery.leave_failed_node(home, claim, spec, failed_nodes, str(me.job_label))
            print("shoal: %s" % words, file=sys.stderr, flush=True)
            if moved:
                return None
        try:
            has_earlier_attempt = _has_earlier_attempt(claim)
            if spec.get("replacement"):
                os.makedirs(claim.output_dir, exist_ok=True)
                has_earlier_attempt = _prepare_replacement(home, spec, claim)
            ends = float(os.environ.get("SLURM_JOB_END_TIME") or 0) or None  # older Slurm does not say
            held = begin_attempt(
                claim,
                names.attempt + 1,
                me,
                spec,
                has_earlier_attempt,
                os.environ,
                failed_nodes=failed_nodes,
                ends=ends,
            )
        except OSError as error:
            full_since = _wait_for_disk(error, full_since, link)
            continue
        if held is not None:
            return held
        _wait(min(2.0, times.beat_s / 4), link)  # Another job was faster; our listing may be too old to show that.


def _wait_for_disk(error: OSError, since: Optional[float], link: guard.GuardLink) -> float:
    """Wait a moment for room on the disk, and say since when; raises `error` if that is no help, or took too long."""
    if error.errno not in files.DISK_ERRNOS:
        raise error
    now = time.monotonic()
    if since is None:
        print("shoal: not started yet: %s" % error, file=sys.stderr, flush=True)
    elif now - since > record_writer.max_disk_wait_s(os.environ):
        raise error
    _wait(record_writer.DISK_RETRY_S, link)
    return since or now


def _wait(wait_s: float, link: guard.GuardLink) -> None:
    """Wait, unless a signal asks this job to end."""
    select.select([link.fd], [], [], wait_s)
    name = link.asked_to_stop()
    if name is not None:
        raise InterruptedBeforeStart(name)
    if link.is_broken:
        raise InterruptedBeforeStart("SIGKILL")


def _conclude(home: str, attempt: Attempt, end: End, me: Allocation, link: guard.GuardLink) -> int:
    """Do what follows from an end that is on disk, and return the job's exit code, which nothing here can change."""
    name = attempt.name
    if attempt.look is warn_if_not_resumed:
        warn_if_not_resumed(attempt, is_over=True)
    _say("attempt %d ended with exit code %s after %.0f s" % (attempt.number, end.exit_code, end.duration_s))
    try:
        if not is_superseded(attempt):
            message = recovery.submit_follow_up(home, name, attempt.claim, attempt.spec, end, me.job_label)
            if message:
                print("shoal: %s" % message, file=sys.stderr, flush=True)
            notifications.notify_end(home, name, attempt.env, last=bool(end.job_id))
        if end.success:
            replacement.withdraw_pending(home, name)
        elif end.stopped_by == "SIGTERM" and end.job_id:
            from .launch import srun_steps

            srun_steps.wait_for_preemption(os.environ, link)
    except (OSError, ValueError, KeyError) as error:
        print("shoal: after the end: %s: %s" % (type(error).__name__, error), file=sys.stderr, flush=True)
    # Runs that build on this one wait for exit code 0, which a program may have though its run has not completed.
    if end.cause in ("limit", "bad_result", "oom", "SIGTERM", "SIGINT", "SIGHUP", "handover", "superseded"):
        return end.exit_code or 1
    return 0 if end.success else end.exit_code or 0


def warn_if_not_resumed(attempt: Attempt, is_over: bool = False) -> None:
    """Say if an attempt that was given a checkpoint did not continue from it, as soon as its log tells."""
    checkpoint = attempt.resume_from or ""
    found = checkpoints.check_resume(attempt.claim.log_dir, attempt.number, checkpoint, is_over)
    if found is not None:
        attempt.look = None
        if not found.continued:
            print("shoal: warning: %s" % found.words(attempt.number, checkpoint), file=sys.stderr, flush=True)


def _prepare_replacement(home: str, spec: Dict[str, Any], claim: fence.Claim) -> bool:
    """Give a replacement the run's newest checkpoint to start from; FencedError if nothing is left to take over."""
    why = replacement.why_obsolete(home, spec)
    if why is not None:
        replacement.withdraw(claim, why)
        raise fence.FencedError(why)
    replacement.copy_checkpoint(home, spec, claim.output_dir)
    return True


def _has_earlier_attempt(claim: fence.Claim) -> bool:
    """Whether an earlier attempt worked in this same output folder, as after a requeue."""
    names = layout.parse_names(files.list_names(claim.run_dir))
    found = (lease.read_attempt(claim.run_dir, names, number) for number in names.attempts.get("start", []))
    return any(one is not None and one.start.output_dir == claim.output_dir for one in found)


def _parse(argv: List[str]) -> Dict[str, str]:
    options = {"submission": argv[0] if argv else ".", "index": "0", "set-up-exit": "0"}
    for flag, value in zip(argv[1::2], argv[2::2]):
        options[flag.lstrip("-")] = value
    return options


def _say(text: str) -> None:
    if os.environ.get("SHOAL_FOLLOW") != "0":
        print("shoal: %s" % text, file=sys.stderr, flush=True)
