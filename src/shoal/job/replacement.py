"""A replacement job: it takes a run over once it is healthy. Until then the original job is the run.

A replacement is a run of its own, with its own directory, named after the run and its GPUs (000_train_0_8gpus). When it
has done the training steps it was asked for, its agent claims the run's next generation for itself: one file, created
exclusively, is the moment of the switch. Only then is the original job cancelled. A replacement that ends before that
file changes nothing; and an original job that finds the file, but no live lease behind it, takes its run back in the
same way.
"""

import os
import re
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional

from ..kernel import (
    Allocation,
    End,
    adopted,
    checkpoints,
    fence,
    files,
    layout,
    lease,
    processes,
    progress,
    slurm,
    submission,
)
from . import job_constraints

if TYPE_CHECKING:
    from .attempt import Attempt

_NAME = re.compile(r"_(?:(?:\d+x)?\d+gpus|\d+nodes)\Z")
#: In a replacement's end record: its program goes on as the run.
SWITCHED = "switched"


def run_of(home: str, name: str, token: str) -> str:
    """The run that a submission works on: for a replacement that has taken over, the run that it replaces."""
    original = _spec(home, name).get("replacement", {}).get("of")
    if original:
        try:
            fence.find_claim(layout.run_dir(home, original), token)
            return str(original)
        except fence.FencedError:
            pass
    return name


def replacements_of(home: str, name: str) -> List[str]:
    """The replacements that a run has, or had."""
    experiment, _, stem = name.partition("/")
    stems = files.list_names(os.path.join(layout.runs_dir(home), experiment))
    similar = sorted(other for other in stems if other.startswith(stem) and _NAME.match(other[len(stem) :]))
    names = ["%s/%s" % (experiment, other) for other in similar]
    return [other for other in names if _spec(home, other).get("replacement", {}).get("of") == name]


def why_obsolete(home: str, spec: Mapping[str, Any]) -> Optional[str]:
    """Why a replacement has nothing to take over (any more), or None."""
    original = spec["replacement"]["of"]
    run_dir = layout.run_dir(home, original)
    names = layout.parse_names(files.list_names(run_dir))
    if names.revision != spec["replacement"]["revision"]:
        return "%s was started over" % original
    if lease.successful_attempt(run_dir, names, names.revision) is not None:
        return "%s completed" % original
    if names.has_submit(names.generation, "cancel"):
        return "%s was cancelled" % original
    return None


def withdraw(claim: fence.Claim, why: str) -> None:
    """Write down that a replacement is not wanted any more; its state is then cancelled, with this reason."""
    path = os.path.join(claim.run_dir, layout.submit_file(claim.generation, "cancel"))
    files.create_in_run_dir(path, files.to_json({"schema": 1, "t": time.time(), "reason": why}))


def copy_checkpoint(home: str, spec: Mapping[str, Any], output_dir: str) -> None:
    """Copy the run's newest checkpoint into the replacement's directory: the original job may delete its own."""
    pattern = spec.get("checkpoint")
    if not pattern or checkpoints.newest_checkpoint(output_dir, pattern) is not None:
        return
    for folder in job_constraints.output_dirs(home, spec["replacement"]["of"]):
        for _ in range(3):
            newest = checkpoints.newest_checkpoint(folder, pattern)
            if newest is None:
                break
            if checkpoints.copy_checkpoint_file(newest, os.path.join(output_dir, os.path.relpath(newest, folder))):
                layout.link_cwd(folder, output_dir)
                return


def watcher(
    home: str, spec: Mapping[str, Any], claim: fence.Claim, logs: List[str], resume_from: Optional[str]
) -> Optional[Callable[["Attempt"], None]]:
    """What looks at a replacement now and then, and lets it take over when it is healthy; None for any other run."""
    if not spec.get("replacement") or claim.run_dir == layout.run_dir(home, spec["replacement"]["of"]):
        return None
    original = str(spec["replacement"]["of"])
    adopted.refresh(home, original, os.environ, time.time())
    step = checkpoints.step_of(resume_from) if resume_from else 0
    first: List[float] = [] if step is None else [float(step)]
    output = progress.RunOutput(claim.output_dir, logs)
    before = progress.read_progress(output)  # of an earlier attempt in the same folder

    def look(attempt: "Attempt") -> None:
        why = why_obsolete(home, spec)
        if why is not None:
            withdraw(attempt.claim, why)
            attempt.stop("cancelled")
            return
        seen = progress.read_progress(output)
        if seen is None or seen.step is None or seen == before:
            return
        if first and seen.step < first[0]:
            first.clear()  # The number in the checkpoint's name counts something else than the program does.
        first.append(seen.step)
        is_healthy = seen.step - first[0] >= float(spec["replacement"]["after_step"])
        if is_healthy and take_over(home, attempt, original):
            attempt.look = None

    return look


def take_over(home: str, attempt: "Attempt", original: str) -> bool:
    """Make this attempt the newest of the original run and end the job that was the run; False if it cannot be claimed.

    The claim decides. The original job is then told to end; when its attempt is over, ours begins under the run's name.
    Our program runs all the while, in a directory of its own.
    """
    adopted.refresh(home, original, os.environ, time.time())
    if why_obsolete(home, attempt.spec) is not None:
        return False  # the next look withdraws it
    old = _record_before(home, original, attempt.claim.token)
    claim = _claim_for(home, attempt, original)
    if old is None or claim is None:
        return False
    files.check_free_space(claim.run_dir, lease.ATTEMPT_BYTES)  # an original job that was ended in vain would be a loss
    job, _ = job_constraints.claim_job(home, old)
    _cancel_job(home, job, old["token"])
    if adopted.kept_description(layout.submission_dir(home, old["token"])) is not None:
        _wait_for_end(job)
        adopted.write_superseded(claim.run_dir, time.time())
    try:
        fence.wait_for_older_attempts(
            claim, Allocation(**processes.own_identity()), attempt.times, lambda text: None, time.sleep
        )
    except (fence.FencedError, fence.OlderJobBusy):
        return False
    return _continue_as(attempt, claim, "it goes on as %s" % original, success=True)


def end_of_run(end: End, attempt: "Attempt") -> End:
    """The end of an attempt that took over: it is the run's, and counts from the switch."""
    began, claim = max(attempt.held.start.t, end.began), attempt.claim
    end = end._replace(attempt=attempt.number, generation=claim.generation, revision=claim.revision)
    return end._replace(began=began, duration_s=max(0.0, end.ended - began))


def why_superseded(attempt: "Attempt") -> Optional[str]:
    """Why an attempt of which a newer generation exists must stop; None while that one may have no living job."""
    home, name = layout.state_dir_of(attempt.claim.run_dir), layout.run_name_of(attempt.claim.run_dir)
    record = _newest_record(home, name)
    if record is None or not record.get("switched"):
        return "superseded"
    if record["token"] != attempt.claim.token:
        alive = _is_alive(home, record, attempt)
        if alive is not False:
            return "superseded" if alive else None
    claim = _claim_for(home, attempt, name)
    if claim is None:
        return "superseded"
    _continue_as(attempt, claim, "the run was taken back from a replacement job that died", success=False)
    return None


def _is_alive(home: str, record: Mapping[str, Any], attempt: "Attempt") -> Optional[bool]:
    """Whether the replacement behind a claim renews its lease; None until that can be told."""
    submission = files.read_json(os.path.join(layout.submission_dir(home, record["token"]), "submission.json")) or {}
    if not submission.get("runs"):
        return False
    run_dir = layout.run_dir(home, submission["runs"][int(record.get("index", 0))])
    names = layout.parse_names(files.list_names(run_dir))
    renewals = names.renewals.get((names.attempt, "live"))
    if not names.is_live(names.attempt) or renewals is None:
        return False
    if attempt.rival is None or attempt.rival[0] != record["token"]:
        attempt.rival = (str(record["token"]), renewals, fence.LeaseWatch())
    _, first, watch = attempt.rival
    if renewals != first:
        return True
    last = lease.read_attempt(run_dir, names, names.attempt)
    start = last.start if last is not None else None
    if not watch.is_silent(names.attempt, names.lease_names(names.attempt), start):
        return None
    # Our listing may be old; only the file server knows whether it was renewed since.
    return False if fence.close_attempt(run_dir, names, names.attempt, start, is_silent=True) else None


def _continue_as(attempt: "Attempt", claim: fence.Claim, why: str, success: bool) -> bool:
    """Let the running program go on as the next attempt of a run whose newest claim is ours; the old lease ends."""
    with attempt.moving:
        if attempt.is_closed:
            return False
        mine, held = attempt.claim, attempt.held
        names = layout.parse_names(files.list_names(claim.run_dir))
        start = held.start._replace(
            attempt=names.attempt + 1,
            generation=claim.generation,
            revision=claim.revision,
            token=claim.token,
            t=time.time(),
            program_t=held.start.program_t or held.start.t,
        )
        new = lease.create_lease(claim.run_dir, names.attempt + 1, start, attempt.times)
        if new is None:
            return False
        try:
            if attempt.node_guards is not None:
                attempt.node_guards.move(new)
            _end_lease(attempt, why, success)
        except OSError:
            lease.close_lease(new.run_dir, new.number, new.renewals)  # The program goes on as what it was.
            lease.close_node_leases(new.run_dir, new.number, layout.parse_names(files.list_names(new.run_dir)))
            raise
        _link_log(mine.log_dir, held.number, new.number)
        attempt.claim, attempt.held = claim, new
        _move_samples(attempt)
        if attempt.keeper is not None:
            attempt.keeper.keep(new, claim)
            attempt.keeper.release(held)
        return True


def _end_lease(attempt: "Attempt", why: str, success: bool) -> None:
    start, now = attempt.held.start, time.time()
    end = lease.infer_lost_end(start, 0, None)._replace(
        exit_code=0,
        signal=None,
        success=success,
        stopped_by=SWITCHED,
        cause=None if success else SWITCHED,
        problem=why,
        ended=now,
        duration_s=now - start.t,
    )
    attempt.held.end(end)


def withdraw_pending(home: str, name: str) -> None:
    """The run completed: a replacement that is still pending has nothing to do; a running one sees it by itself."""
    for replacement in replacements_of(home, name):
        claim = _newest(home, replacement)
        if claim is None or claim.token == (_newest_record(home, name) or {}).get("token"):
            continue
        outcome = submission.outcome_of(home, claim.token)
        job = (outcome.job_id if outcome is not None else None) or ""
        if _is_job_of(home, job, claim.token, ("PENDING",)):
            withdraw(claim, "%s completed" % name)
            slurm.scancel([job], os.environ, state="PENDING")


def _claim_for(home: str, attempt: "Attempt", name: str) -> Optional[fence.Claim]:
    """The newest claim of a run, made for this attempt now or before; None if another process was faster. Exclusive
    creation decides, and after an error it can be repeated."""
    run_dir, mine = layout.run_dir(home, name), attempt.claim
    claim = _newest(home, name)
    if claim is None or claim.token == mine.token:
        return claim
    own = files.read_json(os.path.join(mine.run_dir, layout.submit_file(mine.generation, "claim"))) or {}
    kept: Dict[str, Any] = {key: own[key] for key in ("token", "index", "output_dir", "log_dir") if key in own}
    record = dict(kept, schema=1, revision=claim.revision, t=time.time(), switched=True, changes=claim.changes)
    path = os.path.join(run_dir, layout.submit_file(claim.generation + 1, "claim"))
    if not files.create_in_run_dir(path, files.to_json(record)):
        return None
    return fence.read_claim(run_dir, claim.generation + 1)


def _link_log(log_dir: str, old: int, new: int) -> None:
    """The program goes on writing to its log; under its new number the same file is found as well."""
    try:
        os.symlink(layout.log_file("", old), layout.log_file(log_dir, new))
    except OSError:
        pass


def _move_samples(attempt: "Attempt") -> None:
    """The samples of the program are now the run's. Its further nodes go on writing where they began to, and are found
    under the run's name as well."""
    old = attempt.use_file
    attempt.use_file = os.path.join(attempt.claim.run_dir, layout.attempt_file(attempt.held.number, "use"))
    attempt.move_samples(old, attempt.use_file)
    for number in range(1, int(os.environ.get("SLURM_JOB_NUM_NODES") or 1)):
        target = os.path.relpath("%s%d" % (old, number), attempt.claim.run_dir)
        try:
            os.symlink(target, "%s%d" % (attempt.use_file, number))
        except OSError:
            pass


def _wait_for_end(job: Optional[str]) -> None:
    """An adopted job writes no end: wait until Slurm has ended it. It is given up after as long as a lease is."""
    deadline = time.monotonic() + lease.timing(os.environ).take_s
    while job and time.monotonic() < deadline:
        rows, problem = slurm.squeue(os.environ, job=job)
        if problem is None and all(row.has_ended for row in rows):
            return
        time.sleep(1.0)


def _cancel_job(home: str, job: Optional[str], token: str) -> None:
    """Cancel the job that was the run, by id and only if it is of its submission; runs that wait for it wait for us."""
    mine = os.environ.get("SLURM_JOB_ID")
    if job and mine:
        job_constraints.move_dependents(job, mine)
    if job and _is_job_of(home, job, token):
        slurm.scancel([job], os.environ)


def _is_job_of(home: str, job: str, token: str, words: Optional[Any] = None) -> bool:
    """Whether a job that has not ended is the one of a submission: its name ends with the token, or is the one that an
    adopted job had."""
    if not job:
        return False
    live = [row for row in slurm.squeue(os.environ, job=job).rows if not row.has_ended]
    known = adopted.kept_description(layout.submission_dir(home, token))
    is_ours = bool(live) and (live[0].name == known.name if known else live[0].name.endswith("." + token))
    return is_ours and (words is None or live[0].word in words)


def _newest(home: str, name: str) -> Optional[fence.Claim]:
    run_dir = layout.run_dir(home, name)
    return fence.read_claim(run_dir, layout.parse_names(files.list_names(run_dir)).generation)


def _record_before(home: str, name: str, token: str) -> Optional[Dict[str, Any]]:
    """The newest claim of somebody else: if a full disk broke a switch off half-way, the newest may be our own."""
    run_dir = layout.run_dir(home, name)
    for generation in reversed(layout.parse_names(files.list_names(run_dir)).submits.get("claim", [])):
        record = files.read_json(os.path.join(run_dir, layout.submit_file(generation, "claim")))
        if record is not None and record["token"] != token:
            return record
    return None


def _newest_record(home: str, name: str) -> Optional[Dict[str, Any]]:
    run_dir = layout.run_dir(home, name)
    generation = layout.parse_names(files.list_names(run_dir)).generation
    return files.read_json(os.path.join(run_dir, layout.submit_file(generation, "claim")))


def _spec(home: str, name: str) -> Dict[str, Any]:
    return job_constraints.newest_spec(home, name) or {}
