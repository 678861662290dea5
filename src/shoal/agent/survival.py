"""What becomes of a run after an attempt: was it good, why did it end, and does it go on in a follow-up job.

The step's policy (`survive` in its spec) says how often each cause may be answered by another job: a time limit by one
that continues from the newest checkpoint, lack of memory by one with more of it, and so on. A follow-up is an ordinary
submission of the run's next generation, made by the job that ends; it waits for that job and passes the same fence.
"""

import os
import random
import re
import subprocess
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ..kernel import fence, files, layout, lease, process, slurm
from . import admission, environment, nodes, stages

#: What GPUs say when their own memory is full; the host's memory has its own witness (memory.py).
_CUDA_OOM = re.compile(rb"CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|HIP out of memory")
_TAIL_BYTES = 64 * 1024
CHECK_TIMEOUT_S = 600
_MEMORY = re.compile(r"--mem=(\d+)([KMGT]?)\Z")
_KILO = {"K": 1 / 1024.0, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}
_LONGEST_BACKOFF_S = 3600


def judge(end: Dict[str, Any], spec: Mapping[str, Any], claim: fence.Claim, env: Mapping[str, str], err: str) -> None:
    """Complete the end record: `success`, `cause`, and for a run with a result check what that said."""
    words = check_of(end, spec, claim, env)
    conclude(end, err, None if words is None else _check(words, spec, env, err))


def check_of(
    end: Dict[str, Any], spec: Mapping[str, Any], claim: fence.Claim, env: Mapping[str, str]
) -> Optional[List[str]]:
    """The command of the step's result check, if that decides; notes in the end that the run itself wants to go on."""
    policy = spec.get("survive") or {}
    asked_on = policy.get("continue_code") is not None and end["exit_code"] == policy["continue_code"]
    polite = end.get("warned") and (end["exit_code"] == 0 or end["signal"] == "SIGUSR1")
    if end["stopped_by"] is None and (asked_on or polite):
        end["stopped_by"] = "limit"
    if not policy.get("check") or end["stopped_by"] is not None or end["oom"]:
        return None
    values = {name: environment.text_of(value) for name, value in (spec.get("params") or {}).items()}
    values.update(output_dir=claim.output_dir, run=env["SHOAL_RUN"], seed=env["SHOAL_SEED"])
    return environment.complete(policy["check"], values)


def conclude(end: Dict[str, Any], err: str, check_exit: Optional[int]) -> None:
    """Write into the end whether it is good, and else why; a check's word counts, not the program's exit code."""
    good = end["exit_code"] == 0
    if check_exit is not None:
        end["check_exit"] = check_exit
        good = check_exit == 0
        if not good:
            end["problem"] = end["problem"] or "the result check ended with exit code %d" % check_exit
    end["success"] = good and not end["stopped_by"] and not end["oom"]
    end["cause"] = _cause(end, err)


def _cause(end: Mapping[str, Any], err: str) -> Optional[str]:
    if end["success"]:
        return None
    if end["oom"]:
        return "oom"
    if end["stopped_by"]:
        return "limit" if end["stopped_by"] == "time limit" else str(end["stopped_by"])
    if _CUDA_OOM.search(_tail(err)):
        return "cuda_oom"
    return "bad_result" if end.get("check_exit") else "failed"


def _check(words: List[str], spec: Mapping[str, Any], env: Mapping[str, str], err: str) -> int:
    """Run the step's own check of what was written."""
    try:
        with open(err, "ab", 0) as file:
            done = subprocess.run(
                words,
                env=dict(env),
                cwd=spec["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                timeout=CHECK_TIMEOUT_S,
                check=False,
            )
            return done.returncode
    except (OSError, subprocess.TimeoutExpired):
        return 127


def follow_up(
    home: str, name: str, claim: fence.Claim, spec: Mapping[str, Any], end: Mapping[str, Any], job: Optional[str]
) -> Optional[str]:
    """Put the run's next generation into Slurm's queue if the policy says so; returns what was done, in words."""
    policy, cause = spec.get("survive") or {}, end.get("cause")
    if end["success"] or cause is None or not job:
        return None
    times = int(policy.get("follow_ups") or 0) if cause == "limit" else int((policy.get("retry") or {}).get(cause, 0))
    before = _earlier(claim, end["attempt"], cause)
    if times == 0:
        return None
    if cause != "limit":
        times = admission.retries(home, claim.token, times)
    if before >= times:
        return "not continued: %s for the %dth time, and %d are allowed" % (cause, before + 1, times)

    def adapt(argv: List[str]) -> Tuple[Optional[List[str]], str]:
        changed, words = _options(argv, cause, policy, before)
        if changed is None:
            return None, words
        ask = nodes.ask_slurm(os.environ)
        changed, avoided = nodes.avoid(changed, nodes.failed(claim.run_dir, ask), ask)
        return changed, words + (", " + avoided if avoided else "")

    new_job, words = _next_job(home, name, claim, job, adapt)
    if new_job is None:
        return "not continued: %s" % words
    return "continues as job %s (%s, %d of %d%s)" % (new_job, cause, before + 1, times, words)


def warn(env: Mapping[str, str], by_signal: Callable[[], None]) -> None:
    """Tell a program that its time is nearly up, in the way that its step chose."""
    if env.get("SHOAL_WARN_BY") == "file":
        try:
            files.create_exclusive(env["SHOAL_STOP_FILE"], b"time limit\n")
            return
        except OSError:
            pass  # A signal is better than nothing.
    by_signal()


def move_away(home: str, claim: fence.Claim, spec: Mapping[str, Any], bad: List[str], job: str) -> Tuple[bool, str]:
    """Slurm has started the job again on the node that failed under it: let another job go on elsewhere, if it can.

    It ends after as many moves as there are nodes: each job excludes all that failed before.
    """
    name = "%s/%s" % (spec["experiment"], spec["stem"])

    def adapt(argv: List[str]) -> Tuple[Optional[List[str]], str]:
        ask = nodes.ask_slurm(os.environ)
        earlier = nodes.failed(claim.run_dir, ask)
        changed, words = nodes.avoid(argv, list(dict.fromkeys(earlier + bad)), ask)
        return (changed if changed != argv else None), words

    new_job, words = _next_job(home, name, claim, job, adapt)
    if new_job is None:
        return False, "goes on here: %s" % words
    return True, "goes on as job %s, which %s" % (new_job, words)


#: The old job's options -> those of the new one, and what differs, in words; None and why if it makes no sense.
_Adapt = Callable[[List[str]], Tuple[Optional[List[str]], str]]


def _next_job(home: str, name: str, claim: fence.Claim, job: str, adapt: _Adapt) -> Tuple[Optional[str], str]:
    """Submit the run's next generation, to start when `job` ends, and let what waits for `job` wait for the new one.

    Returns the new job and what differs from the old one; or None and why there is none.
    """
    old = layout.submission_dir(home, claim.token)
    sent = files.read_json(os.path.join(old, "sent.json")) or files.read_json(os.path.join(old, "waiting.json"))
    submission = files.read_json(os.path.join(old, "submission.json"))
    if sent is None or submission is None:
        return None, "nothing says how the job was submitted"
    token = "".join(random.SystemRandom().choice(layout.TOKEN_LETTERS) for _ in claim.token)
    folder = layout.submission_dir(home, token)
    ours = ("--job-name=", "--array=", "--output=", "--dependency=", "--begin=")
    argv, words = adapt([word for word in sent["argv"] if not word.startswith(ours)])
    if argv is None:
        return None, words
    argv += [
        "--job-name=%s" % _job_name(name, token),
        "--output=%s/slurm-%%j.out" % folder.replace("%", "%%"),
        "--dependency=afterany:%s" % job,
    ]
    answer = _submit(home, name, claim, submission, dict(sent, argv=argv), token)
    if answer is None:
        return None, "another command has claimed the run"
    if answer.kind != "accepted":
        return None, answer.message
    stages.move_children(job, str(answer.job_id))
    return str(answer.job_id), words


def _submit(
    home: str, name: str, claim: fence.Claim, submission: Mapping[str, Any], sent: Mapping[str, Any], token: str
) -> Optional[slurm.Answer]:
    """Intent, claim, mark, send, outcome: the transaction of every submission. None if somebody else won the claim."""
    folder = layout.submission_dir(home, token)
    script = files.read_own(os.path.join(layout.submission_dir(home, claim.token), "script.sh"))
    script = script.replace(claim.token.encode(), token.encode())
    env = admission.read_environment(home, sent["environment"])
    files.make_dir(folder, exist_ok=False)
    files.create_exclusive(os.path.join(folder, "script.sh"), script, executable=True)
    files.create_exclusive(os.path.join(folder, "sent.json"), files.to_json(dict(sent)))
    record = dict(submission, token=token, runs=[name], job_name=_job_name(name, token), t=time.time())
    record.update(process.this_process())
    files.create_exclusive(os.path.join(folder, "submission.json"), files.to_json(record))
    wish = {
        "token": token,
        "revision": claim.revision,
        "output_dir": claim.output_dir,
        "log_dir": claim.log_dir,
        "t": time.time(),
        "index": 0,
    }
    path = os.path.join(claim.run_dir, layout.submit_file(claim.generation + 1, "claim"))
    outcome_path = os.path.join(folder, "outcome.json")
    if not files.create_exclusive(path, files.to_json(wish)):
        files.create_exclusive(outcome_path, files.to_json({"kind": "void", "reason": "lost the race"}))
        return None
    mark = dict(process.this_process(), schema=1, t=time.time())
    files.create_exclusive(os.path.join(folder, "sending"), files.to_json(mark))
    answer = slurm.sbatch(sent["argv"], script, env)
    if answer.kind == "accepted":
        files.create_exclusive(outcome_path, files.to_json({"kind": "accepted", "job_id": answer.job_id}))
    elif answer.kind != "unclear":
        files.create_exclusive(outcome_path, files.to_json({"kind": "void", "reason": answer.message}))
    return answer


def _options(kept: List[str], cause: str, policy: Mapping[str, Any], before: int) -> Tuple[Optional[List[str]], str]:
    """What the policy changes about a job's options, and that in words; None and why if another try makes no sense."""
    change = ""
    if cause == "oom":
        grown = [grow(word, float(policy.get("memory") or 0)) for word in kept]
        told = [word for word, was in zip(grown, kept) if word != was]
        if not told:
            return None, "its memory is not to be raised (survive.memory), or nothing says how much it had"
        kept, change = grown, ", " + told[0].lstrip("-").replace("=", " ")
    if cause != "limit" and policy.get("backoff_s"):
        wait_s = min(int(float(policy["backoff_s"]) * 2**before), _LONGEST_BACKOFF_S)
        kept = [*kept, "--begin=now+%d" % wait_s]
    return kept, change


def grow(word: str, factor: float) -> str:
    """--mem=50M, twice as much; any other word as it is."""
    match = _MEMORY.match(word)
    if match is None or factor <= 1:
        return word
    return "--mem=%dM" % round(int(match.group(1)) * _KILO[match.group(2)] * factor)


def _earlier(claim: fence.Claim, attempt: int, cause: str) -> int:
    """How many earlier attempts of this revision ended for the same cause."""
    ends = lease.ends(claim.run_dir, layout.parse_names(files.names_in(claim.run_dir)))
    before = [end for end in ends if end.get("attempt", 0) < attempt and end.get("revision") == claim.revision]
    return sum(1 for end in before if end.get("cause") == cause)


def _job_name(name: str, token: str) -> str:
    return "%s.%s" % (name.replace("/", "."), token)


def _tail(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _TAIL_BYTES))
            return file.read()
    except OSError:
        return b""
