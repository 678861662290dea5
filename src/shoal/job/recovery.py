"""What an end means: did the attempt succeed, why did it end, and does the run continue in a follow-up job.

The step's policy (`recovery` in its spec) limits how often each cause is answered by another job: a time limit by one
that continues from the newest checkpoint, lack of memory by one with more of it, and so on. The end record says so
(`next`), and it is owed from then on (kernel/submission.py): an ordinary submission of the run's next generation, which
waits for the job that ended and passes the same fence. The ending job makes it, or the next command or job if Slurm
does not answer.
"""

import math
import os
import re
import time
from typing import Any, Callable, List, Mapping, Optional, Tuple

from ..kernel import (
    ClaimRecord,
    End,
    FollowUp,
    checkpoints,
    fence,
    files,
    find_cause,
    layout,
    lease,
    processes,
    records,
    slurm,
    submission,
)
from . import environment, job_constraints

_TAIL_BYTES = 64 * 1024
CHECK_TIMEOUT_S = 600
#: Ends that are no failure: the time was nearly up, or the program asked for another job by its exit code.
CONTINUING_CAUSES = ("limit", "continue")
_MEMORY_OPTION = re.compile(r"--mem=(\d+)([KMGT]?)\Z")
_MB_PER_UNIT = {"K": 1 / 1024.0, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}
_MAX_BACKOFF_S = 3600
_SLURM_RETRY_S = 2.0
#: Owed by jobs that gave up, and looked at by one that ends.
_MAX_PENDING_FOLLOW_UPS = 20


def note_requested_stop(end: End, spec: Mapping[str, Any]) -> End:
    """The end, with a note if the run itself wants to go on: by its exit code, or because it heard the warning."""
    if end.stopped_by is not None:
        return end
    policy = spec.get("recovery") or {}
    if policy.get("continue_exit_code") is not None and end.exit_code == policy["continue_exit_code"]:
        return end._replace(stopped_by="continue", problem="exit code %s asks for another job" % end.exit_code)
    # A callable that saves its call asks by its exit code; with 0 it has returned in time.
    saves = (spec.get("function") or {}).get("checkpoints")
    if end.warned and ((end.exit_code == 0 and not saves) or end.signal == "SIGUSR1"):
        return end._replace(stopped_by="limit")
    return end


def note_time_limit(end: End, spec: Mapping[str, Any], environ: Mapping[str, str]) -> End:
    """The end of a program that asks for another job by its exit code and was stopped by Slurm: at its time limit that
    is one more way to be told that the time is up; a job that somebody cancels, or that another one takes the place
    of, is not continued here."""
    wanted = (spec.get("recovery") or {}).get("continue_exit_code")
    if end.stopped_by != "SIGTERM" or not end.job_id or wanted is None or end.exit_code != wanted:
        return end
    state = slurm.job_state(end.job_id, environ)
    return end._replace(stopped_by="time limit", cause="limit") if state is not None and state.timed_out else end


def result_check(end: End, spec: Mapping[str, Any], env: Mapping[str, str]) -> Optional[List[str]]:
    """The command of the step's result check, if that decides."""
    policy = spec.get("recovery") or {}
    if not policy.get("result_check") or end.stopped_by is not None or end.oom:
        return None
    return environment.fill_all(policy["result_check"], environment.placeholder_values(spec, env))


def judge_end(end: End, log: str, check_exit: Optional[int]) -> End:
    """The end, with whether it is good, and else why; a check's word counts, not the program's exit code."""
    good = end.exit_code == 0
    if check_exit is not None:
        good = check_exit == 0
        failed = None if good else "the result check ended with exit code %d" % check_exit
        end = end._replace(check_exit=check_exit, problem=end.problem or failed)
    end = end._replace(success=good and not end.stopped_by and not end.oom)
    return end._replace(cause=_cause(end, log))


def _cause(end: End, log: str) -> Optional[str]:
    if end.success:
        return None
    if end.oom:
        return "oom"
    if end.stopped_by:
        return "limit" if end.stopped_by == "time limit" else end.stopped_by
    cause = find_cause(_read_tail(log).decode("utf-8", "replace").splitlines())  # host memory is `end.oom`
    if cause is not None and cause.kind == "cuda_oom":
        return "cuda_oom"
    return "bad_result" if end.check_exit else "failed"


def plan_next(home: str, claim: fence.Claim, spec: Mapping[str, Any], end: End) -> Optional[FollowUp]:
    """What follows an end by itself, or None if nothing does. Asks only files."""
    policy, cause = spec.get("recovery") or {}, end.cause
    if end.success or cause is None or not end.job_id:
        return None
    before, limit = _count_earlier(claim, end.attempt, cause), _max_follow_ups(home, claim, policy, cause)
    record = submission.last_send(home, claim.token)
    if before >= limit or record is None or _ignored_checkpoint(claim, end):
        return None
    changed, _ = change_options(list(record.argv), cause, policy)
    if changed is None:
        return None
    changed = changed + _other_partition(claim, end, policy)
    wait_s = backoff_s(policy, cause, before)
    return FollowUp(cause, before + 1, limit, changed, time.time() + wait_s if wait_s else None)


def submit_follow_up(
    home: str, name: str, claim: fence.Claim, spec: Mapping[str, Any], end: End, job: Optional[str]
) -> Optional[str]:
    """Put the run's next generation into Slurm's queue if its end says so; returns what was done, in words."""
    following = end.next
    if job:
        submit_pending_follow_ups(home, claim.token)
    if following is None or not job:
        return _why_no_follow_up(home, claim, spec, end) if job else None
    silent = not slurm_answers_in_time(lambda: _record_pending(home, name, claim, following, job))
    if silent:
        return "not continued yet: Slurm does not answer; the next command or job of this project continues it"
    new_job, words = continue_run(home, name, claim, claim.generation, following, job)
    if new_job is None:
        return "not continued: %s" % words
    return "continues as job %s (%s, %d of %d%s)" % (new_job, following.cause, following.number, following.limit, words)


def continue_run(
    home: str, name: str, claim: fence.Claim, seen: int, following: FollowUp, job: str
) -> Tuple[Optional[str], str]:
    """Do what is owed after an end: submit the generation after `seen`, which was the newest when it was decided.

    Returns the new job and what differs from the old one, in words; or None and why there is none.
    """

    def adapt(argv: List[str]) -> Tuple[Optional[List[str]], str]:
        names = tuple(word.partition("=")[0] + "=" for word in following.options)
        argv = [word for word in argv if not word.startswith(names)] if names else argv
        wait_s = math.ceil((following.not_before or 0.0) - time.time())
        begin = ["--begin=now+%d" % wait_s] if wait_s > 0 else []
        ask = job_constraints.ask_slurm(os.environ)
        changed, avoided = job_constraints.exclude_nodes(
            [*argv, *following.options, *begin], job_constraints.failed_nodes(claim.run_dir, ask), ask
        )
        changes = [", " + word.lstrip("-").replace("=", " ") for word in following.options]
        return changed, "".join([*changes, ", " + avoided if avoided else ""])

    done = _submit_next_job(home, name, claim, seen, job, adapt)
    if done[0] is not None:
        _remove_pending(home, claim.token)
    return done


def _max_follow_ups(home: str, claim: fence.Claim, policy: Mapping[str, Any], cause: str) -> int:
    """How many times a cause is answered by another job."""
    if cause in CONTINUING_CAUSES:
        return int(policy.get("max_follow_ups") or 0)
    times = int((policy.get("max_retries") or {}).get(cause, 0))
    if not times:
        return 0
    from . import admission  # only then: it knows the budget

    return admission.max_retries(home, claim.token, times)


def _why_no_follow_up(home: str, claim: fence.Claim, spec: Mapping[str, Any], end: End) -> Optional[str]:
    """Why a run that its step's policy is about does not go on; None if the policy says nothing."""
    policy, cause = spec.get("recovery") or {}, end.cause
    limit = 0 if end.success or cause is None else _max_follow_ups(home, claim, policy, cause)
    if not limit or cause is None:
        return None
    before = _count_earlier(claim, end.attempt, cause)
    if before >= limit:
        return "not continued: %s for the %dth time, and %d are allowed" % (cause, before + 1, limit)
    over = _ignored_checkpoint(claim, end)
    if over is not None:
        return "not continued: %s" % over
    record = submission.last_send(home, claim.token)
    if record is None:
        return "not continued: nothing says how the job was submitted"
    return "not continued: %s" % change_options(list(record.argv), cause, policy)[1]


def _ignored_checkpoint(claim: fence.Claim, end: End) -> Optional[str]:
    """Why a run that ran out of time would come no further in another job: it ignored its checkpoint in this one."""
    if end.cause not in CONTINUING_CAUSES:
        return None
    names = layout.parse_names(files.list_names(claim.run_dir))
    record = lease.read_attempt(claim.run_dir, names, end.attempt)
    checkpoint = record.start.resume_from if record is not None else None
    found = checkpoints.check_resume(claim.log_dir, end.attempt, checkpoint, is_over=True) if checkpoint else None
    return None if found is None or found.continued else found.words(end.attempt, checkpoint or "")


def slurm_answers_in_time(at_first_silence: Callable[[], None] = lambda: None) -> bool:
    """Whether Slurm answers before the ending job has to leave it to others. Nothing is sent before: a request that a
    frozen controller takes and does not answer would have to be waited for."""
    deadline = time.monotonic() + submission.follow_up_grace_s(os.environ)
    logged = False
    while not slurm.is_controller_up(os.environ):
        if not logged:
            at_first_silence()
            logged = True
        if time.monotonic() + _SLURM_RETRY_S > deadline:
            return False
        time.sleep(_SLURM_RETRY_S)
    return True


def _record_pending(home: str, name: str, claim: fence.Claim, following: FollowUp, job: str) -> None:
    """Spare other jobs the search; commands find it in the end record in any case."""
    note = {"run": name, "generation": claim.generation, "next": records.non_default_fields(following), "job": job}
    note["uid"] = os.getuid()
    try:
        files.make_dir(os.path.join(home, "owed"))
        files.create_exclusive(os.path.join(home, "owed", claim.token), files.to_json(note), sync=False)
    except OSError:
        pass


def submit_pending_follow_ups(home: str, own: str) -> None:
    """What other jobs of this user had to leave, now that Slurm may answer again."""
    folder = os.path.join(home, "owed")
    left = [name for name in files.list_names(folder) if ".tmp-" not in name and name != own]
    if not left or not slurm.is_controller_up(os.environ):
        return
    for token in left[:_MAX_PENDING_FOLLOW_UPS]:
        try:
            note = files.read_json(os.path.join(folder, token)) or {}
            if note.get("uid") != os.getuid():
                continue
            following = records.decode_record(note["next"], FollowUp)
            claim = fence.read_claim(layout.run_dir(home, note["run"]), note["generation"])
            if claim is not None and has_pending_follow_up(home, claim, following):
                seen = layout.parse_names(files.list_names(claim.run_dir)).generation
                job, words = continue_run(home, note["run"], claim, seen, following, note["job"])
                print("shoal: %s %s" % (note["run"], "continues as job %s" % job if job else words), flush=True)
            if claim is None or not has_pending_follow_up(home, claim, following):
                _remove_pending(home, token)
        except (OSError, ValueError, KeyError) as error:
            print("shoal: could not continue another run: %s" % error, flush=True)


def _remove_pending(home: str, token: str) -> None:
    try:
        os.unlink(os.path.join(home, "owed", token))
    except OSError:
        pass


def has_pending_follow_up(home: str, claim: fence.Claim, following: Optional[FollowUp]) -> bool:
    """Whether what follows an end of this claim's generation still has to be done, by the claims that came later."""
    names = layout.parse_names(files.list_names(claim.run_dir))
    claims = names.submits.get("claim", [])
    standing, refused = claim.generation, False
    for generation in claims:
        later = fence.read_claim(claim.run_dir, generation) if generation > claim.generation else None
        if later is not None:
            outcome = submission.outcome_of(home, later.token)
            if outcome is None or outcome.kind != "void":
                standing = generation
            elif outcome.refused:
                refused = True
    return submission.is_follow_up_pending(
        following, claim.generation, standing, refused, claims, names.submits.get("cancel", [])
    )


def warn_program(env: Mapping[str, str], by_signal: Callable[[], None]) -> None:
    """Tell a program that its time is nearly up, in the way that its step chose."""
    if env.get("SHOAL_WARN_WITH") == "file":
        try:
            files.create_exclusive(env["SHOAL_STOP_FILE"], b"time limit\n")
            return
        except OSError:
            pass  # A signal is better than nothing.
    by_signal()


def leave_failed_node(
    home: str, claim: fence.Claim, spec: Mapping[str, Any], bad: List[str], job: str
) -> Tuple[bool, str]:
    """Slurm has started the job again on the node that failed under it: let another job go on elsewhere, if it can.

    It ends after as many moves as there are nodes: each job excludes all that failed before.
    """
    name = "%s/%s" % (spec["experiment"], spec["stem"])

    def adapt(argv: List[str]) -> Tuple[Optional[List[str]], str]:
        ask = job_constraints.ask_slurm(os.environ)
        earlier = job_constraints.failed_nodes(claim.run_dir, ask)
        changed, words = job_constraints.exclude_nodes(argv, list(dict.fromkeys(earlier + bad)), ask)
        return (changed if changed != argv else None), words

    new_job, words = _submit_next_job(home, name, claim, claim.generation, job, adapt)
    if new_job is None:
        return False, "goes on here: %s" % words
    return True, "goes on as job %s, which %s" % (new_job, words)


#: The old job's options -> those of the new one, and what differs, in words; None and why if it makes no sense.
_ChangeOptions = Callable[[List[str]], Tuple[Optional[List[str]], str]]


def _submit_next_job(
    home: str, name: str, claim: fence.Claim, seen: int, job: str, adapt: _ChangeOptions
) -> Tuple[Optional[str], str]:
    """Submit the generation after `seen`, to start when `job` is over; what waits for `job` then waits for the new one.

    Returns the new job and what differs from the old one; or None and why there is none.
    """
    record, intent = submission.last_send(home, claim.token), submission.read_submission_record(home, claim.token)
    if record is None or intent is None:
        return None, "nothing says how the job was submitted"
    token = submission.new_token()
    folder = layout.submission_dir(home, token)
    ours = ("--job-name=", "--array=", "--output=", "--dependency=", "--begin=")
    argv, words = adapt([word for word in record.argv if not word.startswith(ours)])
    if argv is None:
        return None, words
    argv += [
        "--job-name=%s" % submission.job_name(name, token),
        "--output=%s/slurm-%%j.out" % folder.replace("%", "%%"),
        *slurm.after_current_job(job, os.environ),
    ]
    script = files.read_trusted(os.path.join(layout.submission_dir(home, claim.token), "script.sh"))
    script = _single_job_script(script.replace(claim.token.encode(), token.encode()))
    now, job_name = time.time(), submission.job_name(name, token)
    intent = intent._replace(
        token=token, runs=[name], job_name=job_name, t=now, waits=False, argv=argv, environment=record.environment
    )
    next_claim = ClaimRecord(token, claim.revision, claim.output_dir, claim.log_dir, t=now, changes=claim.changes)
    sent = submission.submit_one(home, intent._replace(**processes.own_identity()), script, seen + 1, next_claim)
    if sent is None:
        return None, "another command has claimed the run"
    if sent.kind != "accepted":
        return None, sent.message
    job_constraints.move_dependents(job, str(sent.job_id))
    return str(sent.job_id), words


def _single_job_script(script: bytes) -> bytes:
    """The script of an array as that of one job, whose only run has the index 0; sbatch would read its --array line."""
    script = re.sub(rb"(?m)^#SBATCH --array=.*\n", b"", script)
    return script.replace(b'--index "${SLURM_ARRAY_TASK_ID:-all}"', b"--index 0")


def change_options(argv: List[str], cause: str, policy: Mapping[str, Any]) -> Tuple[Optional[List[str]], str]:
    """The options that the policy changes after such an end; None and why if another attempt makes no sense."""
    if cause != "oom":
        return [], ""
    grown = [grow_memory(word, float(policy.get("memory_factor") or 0)) for word in argv]
    changed = [word for word, was in zip(grown, argv) if word != was]
    if not changed:
        return None, "its memory is not to be raised (recovery.memory_factor), or nothing says how much it had"
    return changed, ""


def _other_partition(claim: fence.Claim, end: End, policy: Mapping[str, Any]) -> List[str]:
    """The partition for jobs after so many attempts (`partition_after`)."""
    after = policy.get("partition_after")
    if not after or len(_earlier_ends(claim, end.attempt)) + 1 < int(after["attempts"]):
        return []
    return ["--partition=%s" % after["partition"]]


def backoff_s(policy: Mapping[str, Any], cause: str, before: int) -> float:
    """How long a retry waits, twice as long each time; what only goes on does not wait."""
    if cause in CONTINUING_CAUSES or not policy.get("backoff_s"):
        return 0.0
    return float(min(float(policy["backoff_s"]) * 2 ** min(before, 32), _MAX_BACKOFF_S))


def grow_memory(word: str, factor: float) -> str:
    """--mem=50M, twice as much; any other word as it is."""
    match = _MEMORY_OPTION.match(word)
    if match is None or factor <= 1:
        return word
    return "--mem=%dM" % round(int(match.group(1)) * _MB_PER_UNIT[match.group(2)] * factor)


def _count_earlier(claim: fence.Claim, attempt: int, cause: str) -> int:
    """How many earlier attempts of this revision ended for the same cause."""
    return sum(1 for end in _earlier_ends(claim, attempt) if end.cause == cause)


def _earlier_ends(claim: fence.Claim, attempt: int) -> List[End]:
    ends = lease.read_ends(claim.run_dir, layout.parse_names(files.list_names(claim.run_dir)))
    return [end for end in ends if end.attempt < attempt and end.revision == claim.revision]


def _read_tail(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _TAIL_BYTES))
            return file.read()
    except OSError:
        return b""
