"""The agent's course: who am I, may I run, which attempt is this, run it, write down how it ended.

    agent SUBMISSION_DIR [--index I|all] [--set-up-exit CODE]

Called by the batch script as its last command, so that Slurm's signals reach it and its exit code is the job's.
"""

import os
import random
import select
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from ..kernel import checkpoints, fence, files, guard, layout, lease, process, progress
from . import admission, by_hand, command, handover, nodes, notices, packages, preempted, smoke, stages, survival, trial
from .attempt import Attempt
from .launch import container, node_guards, plan

#: A full disk is waited for so long before a job gives up; nothing of the user has run then.
_DISK_VARIABLE, _DISK_S, _RETRY_S = "SHOAL_DISK_S", 60.0, 2.0
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


def _admit(home: str, name: str, submission: Dict[str, Any], link: guard.Link) -> Tuple[fence.Claim, Dict[str, Any]]:
    """The claim this job may work on and its identity; Fenced or StillWanted if it may not."""
    token = by_hand.token_of_this_job(home, name, submission["token"], os.environ)
    if token is not None:
        local = os.environ.get("SHOAL_TOKEN") == token
        me: Dict[str, Any] = dict(process.identity(link.guard_pid), **({} if local else _this_job()))
        claim = fence.find_claim(layout.run_dir(home, name), token)
    else:
        own = _this_job() if by_hand.is_job_of_script(submission, os.environ) else {}
        me = dict(process.identity(link.guard_pid), **own)
        token = "".join(random.SystemRandom().choice(layout.TOKEN_LETTERS) for _ in submission["token"])
        claim = by_hand.claim_again(home, name, submission, token, me)
    fence.settle(home, token, me)
    return claim, me


def _this_job() -> Dict[str, Any]:
    """The Slurm job: its own number, that of its array, the one that people type, and how often Slurm started it."""
    job: Dict[str, Any] = {"job_id": os.environ.get("SLURM_JOB_ID"), "job_label": _job_label()}
    job["life"] = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return dict(job, array_job_id=array) if array else job


def _attempt(home: str, claim: fence.Claim, me: Dict[str, Any], set_up_exit: int, link: guard.Link) -> int:
    spec = files.read_json(os.path.join(claim.run_dir, layout.spec_file(claim.revision)))
    if spec is None:
        raise ValueError("%s has no spec %d" % (claim.run_dir, claim.revision))
    submission = files.read_json(os.path.join(layout.submission_dir(home, claim.token), "submission.json")) or {}
    spec = container.settle(command.in_snapshot(stages.inherit(home, spec), submission.get("code")), os.environ)
    held = _begin(home, claim, me, spec, link)
    if held is None:
        return 1
    number, resume_from = held.number, held.start["resume_from"]
    out, err = (os.path.join(claim.log_dir, "attempt-%d.%s" % (number, stream)) for stream in ("out", "err"))
    _say("run %s/%s, attempt %d on %s" % (spec["experiment"], spec["stem"], number, socket.gethostname()))
    if resume_from:
        step = checkpoints.step_of(resume_from)
        _say("continuing from %s%s" % (resume_from, "" if step is None else " (step %d)" % step))
    elif spec.get("start_from"):
        _say("starting from %s" % spec["start_from"])
    _say("output in %s" % out)
    attempt = Attempt(claim, held, spec["cwd"], link)
    attempt.keeper.keep(held, claim)
    try:
        end = _run(home, attempt, spec, (out, err), set_up_exit, link)
        end.update(job_id=me.get("job_id"), job_label=_job_label(), host=socket.gethostname(), log_dir=claim.log_dir)
        if not attempt.is_lost:
            survival.judge(end, spec, claim, attempt.env, err)
            if spec.get("smoke"):
                smoke.judge(end, spec, progress.read(claim.output_dir, [out, err]))
            ours = _write_end(home, claim, attempt, spec, end)
    finally:
        attempt.release()
    if attempt.is_lost or not ours:
        print("shoal: another job has closed attempt %d and goes on with the run" % number, file=sys.stderr, flush=True)
        return 1
    return _conclude(home, attempt, spec, end, link)


def _begin(
    home: str, claim: fence.Claim, me: Dict[str, Any], spec: Dict[str, Any], link: guard.Link
) -> Optional[lease.Lease]:
    """The next attempt of the run, ours alone; None if the run goes on in another job, elsewhere."""
    times = lease.timing(os.environ)
    full_since: Optional[float] = None
    while True:
        names = fence.wait_for_turn(claim, me, times, _say, lambda wait_s: _pause(wait_s, link))
        failed_nodes = nodes.failed_before(claim.run_dir, claim.generation, nodes.ask_slurm(os.environ))
        if os.environ.get("SLURMD_NODENAME") in failed_nodes:
            moved, words = survival.move_away(home, claim, spec, failed_nodes, str(_job_label()))
            print("shoal: %s" % words, file=sys.stderr, flush=True)
            if moved:
                return None
        try:
            os.makedirs(claim.output_dir, exist_ok=True)
            os.makedirs(claim.log_dir, exist_ok=True)
            again = _has_earlier_attempt(claim)
            if spec.get("trial"):
                again = _begin_trial(home, spec, claim)
            resume_from = None
            if spec.get("checkpoint") and (again or claim.resume):
                resume_from = checkpoints.newest(claim.output_dir, spec["checkpoint"])
            start = dict(_start_record(home, claim, me, spec, link), resume_from=resume_from, failed_nodes=failed_nodes)
            start["attempt"] = names.attempt + 1
            held = lease.create(claim.run_dir, names.attempt + 1, start, times)
        except OSError as error:
            full_since = _wait_for_disk(error, full_since, link)
            continue
        if held is not None:
            return held


def _start_record(
    home: str, claim: fence.Claim, me: Dict[str, Any], spec: Dict[str, Any], link: guard.Link
) -> Dict[str, Any]:
    mine = process.this_process()
    return dict(
        process.identity(link.guard_pid),
        agent_pid=mine["pid"],
        agent_started=mine["started"],
        mark=os.urandom(8).hex(),
        beat_s=lease.timing(os.environ).beat_s,
        job_id=me.get("job_id"),
        job_label=_job_label(),
        life=me.get("life"),
        t=time.time(),
        generation=claim.generation,
        revision=claim.revision,
        token=claim.token,
        output_dir=claim.output_dir,
        log_dir=claim.log_dir,
        ends=float(os.environ.get("SLURM_JOB_END_TIME") or 0) or None,  # older Slurm does not say
        nodes=os.environ.get("SLURM_JOB_NODELIST") if me.get("job_id") else None,
        python=packages.keep(home, spec["command"], dict(os.environ, **(spec.get("env") or {})), spec["cwd"]),
    )


def _wait_for_disk(error: OSError, since: Optional[float], link: guard.Link) -> float:
    """Wait a moment for room on the disk, and say since when; raises `error` if that is no help, or took too long."""
    if error.errno not in files.DISK_ERRNOS:
        raise error
    now = time.monotonic()
    if since is None:
        print("shoal: not started yet: %s" % error, file=sys.stderr, flush=True)
    elif now - since > float(os.environ.get(_DISK_VARIABLE) or _DISK_S):
        raise error
    _pause(_RETRY_S, link)
    return since or now


def _pause(wait_s: float, link: guard.Link) -> None:
    """Wait, unless a signal asks this job to end."""
    select.select([link.fd], [], [], wait_s)
    name = link.asked_to_stop()
    if name is not None:
        raise Interrupted(name)
    if link.is_broken:
        raise Interrupted("SIGKILL")


def _write_end(home: str, begun: fence.Claim, attempt: Attempt, spec: Dict[str, Any], end: Dict[str, Any]) -> bool:
    """Write the end down, for as long as it takes: this record is the result. False if the lease was closed meanwhile.

    It needs no room on the disk; only a file server that is away can hold it up.
    """
    if spec.get("trial") and end["success"] and attempt.claim == begun and trial.pointless(home, spec) is None:
        trial.take_over(home, attempt, spec["trial"]["of"])  # it was done before anybody looked
    if attempt.claim != begun:
        trial.as_the_run(end, attempt)
    replaced = _is_replaced(attempt)
    if end["stopped_by"] and replaced:
        end["stopped_by"] = "superseded"
    end["next"] = None if replaced else survival.plan_next(home, attempt.claim, spec, end)
    told = False
    while True:
        try:
            return attempt.held.end(end)
        except OSError as error:
            if not told:
                print("shoal: cannot write down the end yet: %s" % error, file=sys.stderr, flush=True)
            told = True
            time.sleep(1)


def _conclude(home: str, attempt: Attempt, spec: Dict[str, Any], end: Dict[str, Any], link: guard.Link) -> int:
    """Do what follows from an end that is on disk, and return the job's exit code, which nothing here can change."""
    name = layout.name_of(attempt.claim.run_dir)
    _say("attempt %d ended with exit code %d after %.0f s" % (attempt.number, end["exit_code"], end["duration_s"]))
    try:
        if not _is_replaced(attempt):
            told = survival.follow_up(home, name, attempt.claim, spec, end, _job_label())
            if told:
                print("shoal: %s" % told, file=sys.stderr, flush=True)
            notices.after_end(home, name, attempt.env, last=bool(end["job_id"]))
        if end["success"]:
            trial.dismiss(home, name)
        elif end["stopped_by"] == "SIGTERM" and end["job_id"]:
            preempted.wait_for_slurm(os.environ, link)
    except (OSError, ValueError, KeyError) as error:
        print("shoal: after the end: %s: %s" % (type(error).__name__, error), file=sys.stderr, flush=True)
    # Runs that build on this one wait for exit code 0, which a program may have though its run is not done.
    if end["cause"] in ("limit", "bad_result", "oom", "SIGTERM", "SIGINT", "SIGHUP", "handover", "superseded"):
        return int(end["exit_code"]) or 1
    return 0 if end["success"] else int(end["exit_code"])


def _is_replaced(attempt: Attempt) -> bool:
    try:
        return fence.unwanted(attempt.claim, attempt.number) == "superseded"
    except OSError:
        return False  # The file server is away; the end is written when it is back.


def _begin_trial(home: str, spec: Dict[str, Any], claim: fence.Claim) -> bool:
    """Give a trial the run's newest checkpoint to start from; Fenced if there is nothing to take over any more."""
    why = trial.pointless(home, spec)
    if why is not None:
        trial.withdraw(claim, why)
        raise fence.Fenced(why)
    trial.bring_checkpoint(home, spec, claim.output_dir)
    return True


def _run(
    home: str,
    attempt: Attempt,
    spec: Dict[str, Any],
    logs: Tuple[str, str],
    set_up_exit: int,
    link: guard.Link,
) -> Dict[str, Any]:
    """From the data to the end of the program: what the end record will say about it."""
    here_only = "SHOAL_TOKEN" in os.environ
    claim, number, resume_from = attempt.claim, attempt.number, attempt.held.start["resume_from"]
    argv, env, problem = command.prepare(spec, claim, number, resume_from, os.environ, logs, here_only)
    attempt.prepare(argv, env)
    if set_up_exit != 0:
        problem = "the cluster's set-up lines ended with exit code %d" % set_up_exit
    folder = os.path.join(claim.log_dir, "data-%d" % number)
    data = handover.Handover(spec, attempt.env, folder, _say, link.asked_to_stop)
    attempt.node_guards = node_guards.NodeGuards(attempt.held, os.environ, link.asked_to_stop)
    problem = problem or attempt.node_guards.begin() or data.bring()
    if problem is None:
        attempt.argv = command.inside(spec, claim, argv, attempt.env)
    else:
        attempt.stopped_by = link.asked_to_stop()
        attempt.argv = ["sh", "-c", 'echo "shoal: $1" >&2; exit "$2"', "sh", problem, str(set_up_exit or 2)]
    follow = os.environ.get("SHOAL_FOLLOW", "0" if os.environ.get("SLURM_JOB_NAME", "").endswith(claim.token) else "1")
    with plan.no_orphans(spec), attempt.node_guards:
        watch_smoke = smoke.watcher(spec, claim.output_dir, list(logs))
        attempt.look = watch_smoke or trial.watcher(home, spec, claim, list(logs), resume_from)
        end = attempt.run(*logs, follow == "1")
    end["data"] = data.close()
    if problem is not None:
        end["problem"] = problem
    return end


def _has_earlier_attempt(claim: fence.Claim) -> bool:
    """Whether an earlier attempt worked in this same output folder, as after a requeue."""
    names = layout.parse_names(files.names_in(claim.run_dir))
    found = (lease.read(claim.run_dir, names, number) for number in names.attempts.get("start", []))
    return any(one is not None and one.start.get("output_dir") == claim.output_dir for one in found)


def _job_label() -> Optional[str]:
    """The id that people type: 1234_5 for an array task, 1234 otherwise."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return "%s_%s" % (array, index) if array and index else os.environ.get("SLURM_JOB_ID")


def _parse(argv: List[str]) -> Dict[str, str]:
    options = {"submission": argv[0] if argv else ".", "index": "0", "set-up-exit": "0"}
    for flag, value in zip(argv[1::2], argv[2::2]):
        options[flag.lstrip("-")] = value
    return options


def _say(text: str) -> None:
    if os.environ.get("SHOAL_FOLLOW") != "0":
        print("shoal: %s" % text, file=sys.stderr, flush=True)
