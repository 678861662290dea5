"""(files of a run, what Slurm says about its job) -> the state of the run. Pure: the same evidence, the same answer.

Evidence in order of precedence: an end record with success; a live lease, whatever Slurm says; Slurm's row while the
job is in its queue; the end record; Slurm's last known state; and when Slurm does not know the job any more, for how
long. An unknown Slurm state never counts as an end. The list of Slurm's states is in kernel/slurm_text.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from shoal.kernel import (
    FORGOTTEN,
    SLURM_ACTIVE_STATES,
    SLURM_ENDED_STATES,
    JobRow,
    LeaseTiming,
    describe_exit_code,
    submission,
)
from shoal.model import EXIT_CODE_STATES, FAILED_STATES, PROGRAM_CAUSES, QUEUED_STATES
from shoal.observe.run_files import End, RunFiles, Start, Submission, Verdict

__all__ = [
    "BLOCKED_REASONS",
    "SLURM_ACTIVE_STATES",
    "SLURM_ENDED_STATES",
    "JobRow",
    "describe_verdict",
    "verdict_of_row",
]

#: A verdict: Slurm does not know the job any more, and is not asked again.
FORGOTTEN_WORD = "FORGOTTEN"
#: Reasons with which a pending job waits for ever, and what frees it.
BLOCKED_REASONS = {
    "launch failed requeued held": "scontrol release {job}",
    "JobHoldMaxRequeue": "scontrol release {job}",
    "JobHeldAdmin": "ask the cluster's administrators",
    "JobHeldUser": "scontrol release {job}",
    "DependencyNeverSatisfied": "shoal cancel {run}",
    "PartitionTimeLimit": "shoal cancel {run}   # and ask for less time",
    "PartitionNodeLimit": "shoal cancel {run}   # and ask for fewer nodes",
    "PartitionDown": "sinfo   # the partition takes no jobs now",
    "PartitionInactive": "sinfo   # the partition takes no jobs now",
    "BadConstraints": "shoal cancel {run}   # no node can serve the request",
    "AssocGrpCPUMinutesLimit": "sacctmgr show assoc user=$USER   # the account's budget is used up",
    "InvalidAccount": "sacctmgr show assoc user=$USER",
    "InvalidQOS": "sacctmgr show assoc user=$USER",
}


def verdict_of_row(row: JobRow) -> Verdict:
    return Verdict(
        word=row.word,
        exit_code=row.exit_code,
        signal=row.signal,
        by=row.by,
        node=row.node,
        reason=row.reason,
        oom_step=row.oom_step,
    )


def describe_verdict(word: str, verdict: Verdict | None) -> str:
    if word == "CANCELLED":
        return f"cancelled by {verdict.by}" if verdict and verdict.by else "cancelled"
    if word == "FAILED" and verdict is not None:
        if (verdict.exit_code, verdict.signal) == (0, 53):
            return "Slurm could not open the output file: its folder is missing or not writable"
        return f"killed by signal {verdict.signal}" if verdict.signal else describe_exit_code(verdict.exit_code or 0)
    node = f" ({verdict.node})" if verdict and verdict.node else ""
    return {
        "TIMEOUT": "stopped at its time limit",
        "DEADLINE": "stopped at its deadline",
        "OUT_OF_MEMORY": "out of memory: the kernel killed a process of the job",
        "PREEMPTED": "preempted by another job",
        "NODE_FAIL": f"the node failed{node}",
        "BOOT_FAIL": f"the node did not boot{node}",
        "COMPLETED": "exit code 0",
    }.get(word, word)


#: Why the engine of a pack ended a run -> state and reason.
_PACK_STOP_STATES = {
    "time limit": ("timeout", "stopped at its own time limit"),
    "walltime": ("timeout", "the time of its pack was up"),
    "lost": ("lost", "what ran it was killed, or lost contact"),
    "handover": ("lost", "it ended for another job of the same run, which has not begun"),
    "probe": ("new", "it was probed, and its pack ended before its turn"),
}

#: Why an attempt ended so that another one continues the run -> the reason.
PLANNED_STOPS = {
    "superseded": "another job took the run over",
    "handover": "another job took the run over",
    "switched": "another job took the run over",
    "probe": "probed; the pack started the run again in its turn",
    "continue": "its exit code requested another job",
}

#: The reason of a run that was cancelled and whose job Slurm still has.
CANCEL_REQUESTED = "cancel requested"


class Evidence(NamedTuple):
    """What was learnt about a run outside its folder, at one moment.

    `asked` says whether the place where the run lives answered: Slurm's queue, or this machine's process table. `alive`
    is the latter's answer, None if it cannot know. `silent_s` is how long this host has seen the lease of a running
    attempt unchanged, where there is doubt; `missing_s` how long Slurm has not known the job of a run that has not
    begun, by the looks of this host.
    """

    asked: bool
    now: float
    row: JobRow | None = None
    alive: bool | None = None
    silent_s: float | None = None
    missing_s: float = 0.0
    times: LeaseTiming = LeaseTiming(20, 60, 10, 90)


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run as every view shows it. `cause` is the class of its failure (`model.CAUSES`), None if it did not fail;
    `reason` says in a sentence why it is in its state. `claims` counts its generations, those given up included.
    `refused`: Slurm took none of its submissions, so lists leave it out; only its name brings it up. An attempt that
    took a program over that was running already has `program_started` before `started`. `adopted`: shoal did not
    submit its job. `expected_start` is Slurm's estimate for a pending job; `cluster_gpus` are those of its partition,
    as sinfo told at submission."""

    name: str
    state: str
    attempt: int = 0
    job_id: str | None = None
    exit_code: int | None = None
    cause: str | None = None
    reason: str | None = None
    output_dir: str | None = None
    log_dir: str | None = None
    node: str | None = None
    slurm_state: str | None = None
    generation: int = 0
    claims: int = 0
    submitted: float | None = None
    started: float | None = None
    program_started: float | None = None
    ended: float | None = None
    resume_from: str | None = None
    hint: str | None = None
    time_limit_s: int | None = None
    gpus: int | None = None
    partition: str | None = None
    expected_start: float | None = None
    cluster_gpus: int | None = None
    refused: bool = False
    adopted: bool = False

    @property
    def experiment(self) -> str:
        return self.name.partition("/")[0]


def derive_state(files: RunFiles, evidence: Evidence) -> RunView:
    view = _derive(files, evidence)
    return msgspec.structs.replace(view, claims=files.names.generation, cause=_cause(view, files.end))


def _cause(view: RunView, end: End | None) -> str | None:
    """The class of a failure: its state, except where the end record tells failed programs apart."""
    if view.state not in FAILED_STATES:
        return None
    recorded = end.cause if end is not None and end.attempt == view.attempt else None
    return recorded if view.state == "failed" and recorded in PROGRAM_CAUSES else view.state


def _derive(files: RunFiles, evidence: Evidence) -> RunView:
    if files.damage is not None:
        return RunView(name=files.name, state="unknown", reason=files.damage, generation=files.generation)
    if files.end is not None and files.end.success and files.end.generation == files.generation:
        return _after_success(files, files.end, evidence.row)
    if files.claim is None or files.origin is None:
        refused = files.only_refused and not files.names.attempt
        return RunView(name=files.name, state="new", reason=files.given_up, refused=refused)
    view = _common_fields(files, evidence.row)
    if is_lease_live(files):
        return _running(files, evidence, view)
    if files.origin.outcome is None and evidence.row is None and not _has_started(files):
        return _unacknowledged(files, view)
    if evidence.row is not None and evidence.row.word not in SLURM_ENDED_STATES and not _has_ended(files, evidence.row):
        return _in_slurm(files, evidence.row, view)
    if files.owes:
        return RunView(**view, state="waiting", reason=submission.FOLLOW_UP_REASON)
    verdict = _verdict(files, evidence.row)
    if files.end is not None and files.end.generation == files.generation:
        if files.end.stopped_by == "probe" and evidence.alive and not files.cancelled:
            return RunView(**view, state="waiting", reason="was probed, and waits for its turn in the pack")
        return _after_end(files, files.end, verdict, view)
    if verdict is not None:
        return _ended_before_start(files, verdict, view)
    return _missing(files, evidence, view)


def _common_fields(files: RunFiles, row: JobRow | None) -> dict[str, Any]:
    """The fields that are the same in every state."""
    claim, origin, start = files.claim, files.origin, files.start
    assert claim is not None and origin is not None  # noqa: S101 (a fact of the caller, not input)
    job = row.label if row is not None else (origin.outcome.job_id if origin.outcome else None)
    if row is None and job is not None and origin.submission is not None and origin.submission.is_array:
        job = f"{job}_{claim.index}"
    begun = start if _has_started(files) else None
    return {
        "name": files.name,
        "attempt": files.names.attempt,
        "job_id": job,
        "output_dir": claim.output_dir,
        "log_dir": claim.log_dir,
        "generation": files.generation,
        "submitted": claim.t,
        "started": begun.t if begun else None,
        "program_started": (begun.program_t or begun.t) if begun else None,
        "node": _node(row, begun),
        "slurm_state": row.word if row else (files.verdict.word if files.verdict else None),
        "resume_from": begun.resume_from if begun else None,
        "adopted": files.is_adopted,
        **_requested(origin.submission),
    }


def _node(row: JobRow | None, begun: Start | None) -> str | None:
    """The node that a run is on, by Slurm's name; a run of a pack has one of its job's nodes."""
    if begun is not None and begun.held is not None:
        return begun.place
    return (row.node if row is not None else None) or (begun.place if begun is not None else None)


def _requested(submission: Submission | None) -> dict[str, Any]:
    """Time limit, GPUs over all nodes, partition; a submission of an older shoal tells only the first."""
    asked = submission.asked if submission else None
    return {
        "time_limit_s": submission.time_limit_s if submission else None,
        "gpus": asked.nodes * asked.gpus if asked else None,
        "partition": asked.partition if asked else None,
        "cluster_gpus": submission.cluster_gpus if submission else None,
    }


def _in_queue(files: RunFiles) -> bool:
    """Whether the run waits in a queue inside jobs: such a job runs long before the run does, and ends without it."""
    submission = files.origin.submission if files.origin else None
    return submission is not None and submission.layout is not None


def _has_unended_attempt(files: RunFiles) -> bool:
    ended = files.end is not None and files.start is not None and files.end.attempt == files.start.attempt
    return _has_started(files) and not ended


def is_lease_live(files: RunFiles) -> bool:
    """Whether the newest attempt holds its lease."""
    return files.start is not None and files.names.is_live(files.start.attempt)


def _running(files: RunFiles, evidence: Evidence, view: dict[str, Any]) -> RunView:
    """The run's lease is held: it runs, whatever Slurm or the process table says."""
    row, verdict, reason = evidence.row, _verdict(files, evidence.row), None
    if files.cancelled:
        reason = CANCEL_REQUESTED
    elif evidence.silent_s is not None and evidence.silent_s > evidence.times.hold_s:
        reason = f"no sign of life for {evidence.silent_s:.0f} s"
        reason += f"; Slurm says {verdict.word}" if verdict is not None else ""
    elif row is not None and SLURM_ACTIVE_STATES.get(row.word) == "pending":
        reason = f"Slurm has put its job into the queue again; attempt {files.names.attempt} runs on until then"
    return RunView(**view, state="running", reason=reason)


def _has_started(files: RunFiles) -> bool:
    return files.start is not None and files.start.generation == files.generation


def _has_ended(files: RunFiles, row: JobRow) -> bool:
    """The agent wrote the end although Slurm still lists the job; a pending row means that it will come again.

    After a signal Slurm has not said yet which it will be: preempted, requeued, out of time or cancelled.
    """
    if files.end is None or files.end.generation != files.generation or SLURM_ACTIVE_STATES.get(row.word) != "running":
        return False
    if _in_queue(files) and files.end.stopped_by == "probe":
        return False  # it waits for its turn in the same pack
    if _in_queue(files) and files.end.job_id != row.job_id and files.end.stopped_by == "walltime":
        return False  # another job of the queue will go on with it
    if _in_queue(files) and files.end.job_id == row.job_id and files.end.stopped_by == "lost":
        return True  # its engine knows, and has had its chance
    return files.cancelled or not was_interrupted(files.end)


def was_interrupted(end: End) -> bool:
    """Whether the attempt ended from outside, so that its job may go on with the run."""
    return end.stopped_by is not None and (end.stopped_by.startswith("SIG") or end.stopped_by in ("lost", "handover"))


def _after_success(files: RunFiles, end: End, row: JobRow | None) -> RunView:
    verdict = _verdict(files, row)
    oom = _was_out_of_memory(files, verdict)
    reason = end.problem if end.stopped_by in ("smoke", "switched") else None
    if oom:
        reason = "exit code 0, but the kernel killed a process of it for lack of memory"
    elif verdict is not None and not _in_queue(files) and verdict.word not in ("COMPLETED", "COMPLETING", "RUNNING"):
        reason = f"completed; Slurm later called the job {verdict.word}"
    elif reason is None:
        reason = "; ".join(end.notes) or None
    view = {
        **({"name": files.name} if files.claim is None or files.origin is None else _common_fields(files, row)),
        "attempt": end.attempt,
        "job_id": end.job_label or end.job_id,
        "exit_code": end.exit_code,
        "output_dir": end.output_dir,
        "log_dir": end.log_dir,
        "node": end.nodes or end.host,
        "generation": end.generation,
        **({} if end.submitted is None else {"submitted": end.submitted}),
        "started": end.began,
        "ended": end.ended,
        "slurm_state": verdict.word if verdict else None,
        "adopted": files.is_adopted,
    }
    return RunView(**view, state="oom" if oom else "completed", reason=reason)


def _was_out_of_memory(files: RunFiles, verdict: Verdict | None) -> bool:
    """Slurm's word about a job is not about one run of a queue in it, whose end the engine has written itself."""
    return verdict is not None and not _in_queue(files) and (verdict.word == "OUT_OF_MEMORY" or verdict.oom_step)


def _unacknowledged(files: RunFiles, view: dict[str, Any]) -> RunView:
    if files.cancelled:
        return RunView(**view, state="cancelled", reason="cancelled before Slurm answered")
    assert files.origin is not None  # noqa: S101
    if files.origin.sent is not None:
        return RunView(**view, state="unknown", reason="Slurm's answer to the submission is not known yet")
    waits = "waits for room under the budget" if files.origin.waiting else "claimed, not sent yet"
    return RunView(**view, state="waiting", reason=waits)


def _in_slurm(files: RunFiles, row: JobRow, view: dict[str, Any]) -> RunView:
    state = SLURM_ACTIVE_STATES.get(row.word)
    if state == "running" and _in_queue(files) and not files.cancelled and not _has_unended_attempt(files):
        return RunView(**view, state="waiting", reason="waits for its turn in the pack")
    if state is None:
        return RunView(**view, state="unknown", reason=f"Slurm says {row.word}, a word that shoal does not know")
    slurm_reason = row.reason if row.reason not in (None, "None", "") else None
    hint = next((text for word, text in BLOCKED_REASONS.items() if slurm_reason and word in slurm_reason), None)
    if state == "pending" and hint is not None:
        state = "blocked"
    reason = slurm_reason if state != "running" else None
    if state in QUEUED_STATES and files.end is not None:
        reason = f"requeued after attempt {files.end.attempt}; {slurm_reason}" if slurm_reason else "requeued"
    if files.cancelled:
        reason = CANCEL_REQUESTED
    if state == "running" and files.end is not None and files.end.attempt == files.names.attempt:
        reason = f"stopping after {files.end.stopped_by}"
    return RunView(
        **view,
        state=state,
        reason=reason,
        hint=hint.format(job=row.label, run=files.name) if hint else None,
        expected_start=row.started if state == "pending" else None,
    )


def _verdict(files: RunFiles, row: JobRow | None) -> Verdict | None:
    """Slurm's last word: the row in hand if it is one, else what was kept."""
    if row is not None and row.word in SLURM_ENDED_STATES:
        return verdict_of_row(row)
    return files.verdict


def derive_attempt_state(files: RunFiles, end: End, verdict: Verdict | None, following: Start | None = None) -> RunView:
    """How an attempt ended that was not the end of its run. `files` are the run's, `following` is the next attempt if
    one has begun. Slurm's verdict on a job that it started again is not known."""
    view: dict[str, Any] = {
        "name": files.name,
        "job_id": end.job_label or end.job_id,
        "output_dir": end.output_dir,
        "log_dir": end.log_dir,
        "node": end.nodes or end.host,
        "started": end.began,
    }
    if end.success:
        return RunView(**view, state="completed", attempt=end.attempt, ended=end.ended, exit_code=end.exit_code)
    ended = _after_end(files._replace(cancelled=False, verdict=None), end, verdict, view)
    state, reason = _outlived(ended, end, verdict, following)
    ended = msgspec.structs.replace(ended, state=state, reason=reason)
    return msgspec.structs.replace(ended, cause=_cause(ended, end))


def _outlived(ended: RunView, end: End, verdict: Verdict | None, following: Start | None) -> tuple[str, str | None]:
    """State and reason of an attempt whose run went on without it."""
    if following is not None and following.failed_nodes:
        return "node_fail", f"lost with node {', '.join(following.failed_nodes)}, which failed"
    if following is not None and end.stopped_by in PLANNED_STOPS:
        return "stopped", end.problem or PLANNED_STOPS[end.stopped_by]
    in_pack = end.held is not None or (following is not None and following.held is not None)
    came_again = following is not None and end.job_id is not None and following.job_id == end.job_id and not in_pack
    by_signal = (end.stopped_by or "").startswith("SIG")
    if (came_again and was_interrupted(end)) or (by_signal and verdict is None and ended.state == "cancelled"):
        signal = end.stopped_by if by_signal else "no signal"
        return "preempted", f"Slurm stopped it ({signal}) and put its job into the queue again: preempted or requeued"
    return ended.state, ended.reason


def _after_end(files: RunFiles, end: End, verdict: Verdict | None, view: dict[str, Any]) -> RunView:
    view = {**view, "ended": end.ended, "exit_code": end.exit_code, "attempt": end.attempt}
    word = verdict.word if verdict else None
    submission = files.origin.submission if files.origin else None
    limit = submission.time_limit_s if submission else None
    # On this machine the agent itself ends a run at its limit, and says so.
    on_slurm = submission is not None and submission.backend == "slurm"
    if end.stopped_by == "early_stopping":
        return RunView(**view, state="stopped", reason=end.problem or "stopped early")
    if end.oom or _was_out_of_memory(files, verdict):
        return RunView(**view, state="oom", reason="out of memory: the kernel killed a process of the run")
    if files.cancelled or end.stopped_by == "cancelled":
        return RunView(**view, state="cancelled", reason=_cancelled(files))
    if end.stopped_by in (None, "continue"):
        how = f"killed by {end.signal}" if end.signal else describe_exit_code(end.exit_code)
        return RunView(**view, state="failed", reason=end.problem or how)
    if word in SLURM_ENDED_STATES and SLURM_ENDED_STATES[word] not in EXIT_CODE_STATES:
        return RunView(**view, state=SLURM_ENDED_STATES[word], reason=describe_verdict(word, verdict))
    if end.stopped_by == "limit":
        return RunView(**view, state="timeout", reason="stopped before its time limit")
    if end.stopped_by == "lost" and _was_at_time_limit(files, end):
        return RunView(**view, state="timeout", reason="it gave its last sign of life at its time limit")
    if end.stopped_by in _PACK_STOP_STATES:
        state, reason = _PACK_STOP_STATES[end.stopped_by]
        hint = f"shoal retry {files.name}" if state == "lost" else None
        return RunView(**view, state=state, reason=end.problem or reason, hint=hint)
    if end.stopped_by == FORGOTTEN:
        return RunView(**view, state="lost", reason=end.problem)
    if end.stopped_by == "superseded":
        return RunView(**view, state="lost", reason=end.problem or "stopped itself because a newer attempt existed")
    if limit is not None and on_slurm and end.duration_s > limit - 120:
        return RunView(**view, state="timeout", reason="stopped at its time limit")
    if word is not None and SLURM_ENDED_STATES.get(word) == "failed" and not _in_queue(files):
        # Slurm put the job into the queue again and could not start it, or somebody sent the signal past Slurm.
        return RunView(**view, state="failed", reason=f"stopped by {end.stopped_by}; Slurm says {word}")
    return RunView(**view, state="cancelled", reason=f"stopped by {end.stopped_by}")


def _ended_before_start(files: RunFiles, verdict: Verdict, view: dict[str, Any]) -> RunView:
    """The job ended before the run began; an adopted one, before a command saw it run."""
    if files.is_adopted and verdict.word == FORGOTTEN_WORD:
        return RunView(**view, state="lost", reason=verdict.reason)
    state = SLURM_ENDED_STATES.get(verdict.word, "unknown")
    reason = describe_verdict(verdict.word, verdict)
    if verdict.oom_step:
        state, reason = "oom", "out of memory: the kernel killed a step of the job"
    elif _in_queue(files):
        state, reason = "new", f"its pack ended before its turn ({reason})"
    elif state in EXIT_CODE_STATES and not files.is_adopted:
        state, reason = "failed", f"the job ended before the run began ({reason}); see what Slurm printed"
    if files.cancelled and (state == "failed" or files.cancel_reason):
        state, reason = "cancelled", _cancelled(files)
    elif "Dependency" in (verdict.reason or "") and files.origin and files.origin.submission:
        needs = " or ".join(files.origin.submission.needs) or "a run that it builds on"
        reason = f"never started: {needs} did not complete"
    return RunView(**view, state=state, reason=reason, exit_code=verdict.exit_code)


def _cancelled(files: RunFiles) -> str:
    return f"cancelled: {files.cancel_reason}" if files.cancel_reason else "cancelled"


def _missing(files: RunFiles, evidence: Evidence, view: dict[str, Any]) -> RunView:
    """Accepted, not begun, and the place where it lives shows no such job or process."""
    if evidence.alive:
        return RunView(**view, state="waiting")
    if not evidence.asked:
        return RunView(**view, state="pending", reason="Slurm does not answer; this is the last known state")
    if files.cancelled:
        return RunView(**view, state="cancelled", reason=_cancelled(files))
    if evidence.alive is None and evidence.missing_s < evidence.times.hold_s:
        return RunView(
            **view, state="unknown", reason="Slurm no longer knows the job; its last files may be on their way"
        )
    if _in_queue(files):
        return RunView(**view, state="new", reason="its pack ended before its turn")
    what = "the process is gone without a trace: killed" if evidence.alive is False else "Slurm lost the job"
    return RunView(**view, state="lost", reason=what, hint=f"shoal retry {files.name}")


def _was_at_time_limit(files: RunFiles, end: End) -> bool:
    """Whether the last renewal came when the time limit was at most two beats away: the next one did not."""
    start = files.start
    submission = files.origin.submission if files.origin else None
    if start is None or start.attempt != end.attempt or submission is None:
        return False
    ends = start.ends or (start.t + submission.time_limit_s if submission.time_limit_s else None)
    return ends is not None and end.ended >= ends - 2 * start.beat_s
