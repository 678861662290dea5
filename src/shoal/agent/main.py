"""The agent's course: who am I, may I run, which attempt is this, run it, write down how it ended.

    agent SUBMISSION_DIR [--index I|all] [--set-up-exit CODE]

Called by the batch script as its last command, so that Slurm's signals reach it and its exit code is the job's.
"""

import os
import random
import socket
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

from ..kernel import checkpoints, fence, files, layout, process, progress
from . import admission, by_hand, command, handover, nodes, notices, packages, preempted, smoke, stages, survival, trial
from .attempt import Attempt, hear_warnings_later
from .launch import container, plan


def main(argv: List[str]) -> int:
    """Exit code for Slurm: the program's own; 0 if the fence held; 1 if a person asked for a run that is in use."""
    hear_warnings_later()
    options = _parse(argv)
    submission_dir = os.path.abspath(options["submission"])
    home = os.path.dirname(os.path.dirname(submission_dir))
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
    # A person who runs an array's script with bash means all of it: one run after the other.
    first_bad = 0
    for name in runs:
        code = _run_one(home, name, submission, int(options["set-up-exit"]))
        first_bad = first_bad or code
        if code > 128:
            break
    if first_bad <= 128:
        _let_next_in(home, submission)
    return first_bad


def _run_one(home: str, name: str, submission: Dict[str, Any], set_up_exit: int) -> int:
    try:
        claim, me = _admit(home, trial.run_of(home, name, submission["token"]), submission)
        return _attempt(home, claim, me, set_up_exit)
    except fence.Fenced as why:
        print("shoal: nothing to do here: %s" % why, flush=True)
        return 0
    except by_hand.StillWanted as why:
        print("shoal: not started: %s" % why, file=sys.stderr, flush=True)
        return 1
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


def _admit(home: str, name: str, submission: Dict[str, Any]) -> Any:
    """The claim this job may work on and its identity; Fenced or StillWanted if it may not."""
    token = by_hand.token_of_this_job(home, name, submission["token"], os.environ)
    if token is not None:
        me: Dict[str, Any] = process.this_process() if os.environ.get("SHOAL_TOKEN") == token else _this_job()
        claim = fence.find_claim(layout.run_dir(home, name), token)
    else:
        me = _this_job() if by_hand.is_job_of_script(submission, os.environ) else process.this_process()
        token = "".join(random.SystemRandom().choice(layout.TOKEN_LETTERS) for _ in submission["token"])
        claim = by_hand.claim_again(home, name, submission, token, me)
    fence.take_ownership(claim, layout.submission_dir(home, token), me)
    return claim, me


def _this_job() -> Dict[str, Any]:
    """The Slurm job: its own number, that of its array, and the one that people type."""
    job = {"job_id": os.environ.get("SLURM_JOB_ID"), "job_label": _job_label()}
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return dict(job, array_job_id=array) if array else job


def _attempt(home: str, claim: fence.Claim, me: Dict[str, Any], set_up_exit: int) -> int:
    spec = files.read_json(os.path.join(claim.run_dir, layout.spec_file(claim.revision)))
    if spec is None:
        raise ValueError("%s has no spec %d" % (claim.run_dir, claim.revision))
    submission = files.read_json(os.path.join(layout.submission_dir(home, claim.token), "submission.json")) or {}
    spec = container.settle(command.in_snapshot(stages.inherit(home, spec), submission.get("code")), os.environ)
    again = _has_earlier_attempt(claim)
    failed_nodes = nodes.failed_before(claim.run_dir, claim.generation, nodes.ask_slurm(os.environ))
    if os.environ.get("SLURMD_NODENAME") in failed_nodes:
        moved, words = survival.move_away(home, claim, spec, failed_nodes, str(_job_label()))
        print("shoal: %s" % words, file=sys.stderr, flush=True)
        if moved:
            return 1
    os.makedirs(claim.output_dir, exist_ok=True)
    os.makedirs(claim.log_dir, exist_ok=True)
    resume_from = None
    if spec.get("trial"):
        again = _begin_trial(home, spec, claim)
    if spec.get("checkpoint") and (again or claim.resume):
        resume_from = checkpoints.newest(claim.output_dir, spec["checkpoint"])
    start = dict(
        process.this_process(),
        job_id=me.get("job_id"),
        job_label=_job_label(),
        t=time.time(),
        output_dir=claim.output_dir,
        log_dir=claim.log_dir,
        resume_from=resume_from,
        ends=float(os.environ.get("SLURM_JOB_END_TIME") or 0) or None,  # older Slurm does not say
        nodes=os.environ.get("SLURM_JOB_NODELIST") if me.get("job_id") else None,
        failed_nodes=failed_nodes,
        python=packages.keep(home, spec["command"], dict(os.environ, **(spec.get("env") or {})), spec["cwd"]),
    )
    number = fence.begin_attempt(claim, start)
    out, err = (os.path.join(claim.log_dir, "attempt-%d.%s" % (number, stream)) for stream in ("out", "err"))
    _say("run %s/%s, attempt %d on %s" % (spec["experiment"], spec["stem"], number, socket.gethostname()))
    if resume_from:
        step = checkpoints.step_of(resume_from)
        _say("continuing from %s%s" % (resume_from, "" if step is None else " (step %d)" % step))
    elif spec.get("start_from"):
        _say("starting from %s" % spec["start_from"])
    _say("output in %s" % out)
    attempt, end, env = _run(home, claim, number, spec, resume_from, out, err, set_up_exit)
    end.update(job_id=me.get("job_id"), job_label=_job_label(), host=socket.gethostname(), log_dir=claim.log_dir)
    survival.judge(end, spec, claim, env, err)
    if spec.get("smoke"):
        smoke.judge(end, spec, progress.read(claim.output_dir, [out, err]))
    return _conclude(home, claim, attempt, spec, end, env)


def _conclude(
    home: str, begun: fence.Claim, attempt: Attempt, spec: Dict[str, Any], end: Dict[str, Any], env: Dict[str, str]
) -> int:
    """Write the end down, do what follows from it, and return the job's exit code."""
    if spec.get("trial") and end["success"] and attempt.claim == begun and trial.pointless(home, spec) is None:
        trial.take_over(home, attempt, spec["trial"]["of"])  # it was done before anybody looked
    claim, number = attempt.claim, attempt.number
    name = layout.name_of(claim.run_dir)
    if claim != begun:
        trial.as_the_run(end, claim, number)
    replaced = fence.superseded(claim, number) == "superseded"
    if replaced and end["stopped_by"]:
        end["stopped_by"] = "superseded"
    end["next"] = None if replaced else survival.plan_next(home, claim, spec, end)
    _write_end(claim, number, end)
    _say("attempt %d ended with exit code %d after %.0f s" % (number, end["exit_code"], end["duration_s"]))
    if not replaced:
        told = survival.follow_up(home, name, claim, spec, end, _job_label())
        if told:
            print("shoal: %s" % told, file=sys.stderr, flush=True)
        notices.after_end(home, name, env, last=bool(end["job_id"]))
    if end["success"]:
        trial.dismiss(home, name)
    elif end["stopped_by"] == "SIGTERM" and end["job_id"]:
        preempted.wait_for_slurm(os.environ)
    # Runs that build on this one wait for exit code 0, which a program may have though its run is not done.
    if end["cause"] in ("limit", "bad_result", "oom", "SIGTERM", "SIGINT", "SIGHUP"):
        return int(end["exit_code"]) or 1
    return 0 if end["success"] else int(end["exit_code"])


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
    claim: fence.Claim,
    number: int,
    spec: Dict[str, Any],
    resume_from: Optional[str],
    out: str,
    err: str,
    set_up_exit: int,
) -> Tuple[Attempt, Dict[str, Any], Dict[str, str]]:
    here_only = "SHOAL_TOKEN" in os.environ
    argv, env, problem = command.prepare(spec, claim, number, resume_from, os.environ, (out, err), here_only)
    if set_up_exit != 0:
        problem = "the cluster's set-up lines ended with exit code %d" % set_up_exit
    data = handover.for_attempt(spec, env, claim, number, _say)
    problem = problem or data.begin()
    if problem is None:
        argv = command.inside(spec, claim, argv, env)
    else:
        argv = ["sh", "-c", 'echo "shoal: $1" >&2; exit "$2"', "sh", problem, str(set_up_exit or 2)]
    follow = os.environ.get("SHOAL_FOLLOW", "0" if os.environ.get("SLURM_JOB_NAME", "").endswith(claim.token) else "1")
    with plan.no_orphans(spec):
        logs = [out, err]
        look = smoke.watcher(spec, claim.output_dir, logs) or trial.watcher(home, spec, claim, logs, resume_from)
        attempt = Attempt(claim, number, argv, env, spec["cwd"], look)
        end = attempt.run(out, err, follow == "1")
    end["data"] = data.close()
    if problem is not None:
        end["problem"] = problem
    return attempt, end, env


def _has_earlier_attempt(claim: fence.Claim) -> bool:
    """Whether an earlier attempt worked in this same output folder, as after a requeue."""
    names = layout.parse_names(files.names_in(claim.run_dir))
    starts = (
        files.read_json(os.path.join(claim.run_dir, layout.attempt_file(k, "start")))
        for k in names.attempts.get("start", [])
    )
    return any(start is not None and start.get("output_dir") == claim.output_dir for start in starts)


def _write_end(claim: fence.Claim, number: int, end: Dict[str, Any]) -> None:
    """Keep trying for a minute: a disk that is full now may have room in a moment, and this record is the result."""
    path = os.path.join(claim.run_dir, layout.attempt_file(number, "end"))
    deadline = time.monotonic() + float(os.environ.get("SHOAL_GRACE_S") or 60)
    while True:
        try:
            files.create_exclusive(path, files.to_json(end))
            return
        except OSError as error:
            if time.monotonic() > deadline:
                print("shoal: cannot write %s: %s" % (path, error), file=sys.stderr, flush=True)
                return
            time.sleep(1)


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
