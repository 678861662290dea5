"""A trial: a second job that takes a run over once it is healthy. Until then the first job is the run.

A trial is a run of its own, with its own folder, named after the run and its GPUs (000_train_0_8gpus). When it has done
the steps it was asked for, its agent claims the run's next generation for itself: one file, created exclusively, is the
moment of the switch. Only then is the first job cancelled. Whoever dies before that file changes nothing; and a first
job that finds the file, but no sign of life behind it, takes its run back in the same way.
"""

import os
import re
import shutil
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional

from ..kernel import checkpoints, fence, files, layout, progress, submission
from . import stages

if TYPE_CHECKING:
    from .attempt import Attempt

_NAME = re.compile(r"_(?:\d+x)?\d+gpus\Z")
#: Beats without a sign of life from a trial that has claimed the run, after which its first job takes it back.
_BEATS = 3.0
#: In a trial's end record: it goes on as the run.
SWITCHED = "switched"


def run_of(home: str, name: str, token: str) -> str:
    """The run that a submission works on: for a trial that has taken over, the run that it was a trial of."""
    goal = _spec(home, name).get("trial", {}).get("of")
    if goal:
        try:
            fence.find_claim(layout.run_dir(home, goal), token)
            return str(goal)
        except fence.Fenced:
            pass
    return name


def trials_of(home: str, name: str) -> List[str]:
    """The trials that a run has, or had."""
    experiment, _, stem = name.partition("/")
    found = files.names_in(os.path.join(layout.runs_dir(home), experiment))
    near = sorted(one for one in found if one.startswith(stem) and _NAME.match(one[len(stem) :]))
    full = ["%s/%s" % (experiment, one) for one in near]
    return [one for one in full if _spec(home, one).get("trial", {}).get("of") == name]


def pointless(home: str, spec: Mapping[str, Any]) -> Optional[str]:
    """Why a trial has nothing to take over (any more), or None."""
    goal = spec["trial"]["of"]
    run_dir = layout.run_dir(home, goal)
    names = layout.parse_names(files.names_in(run_dir))
    if names.revision != spec["trial"]["revision"]:
        return "%s was started over" % goal
    if fence.finished_attempt(run_dir, names, names.revision) is not None:
        return "%s is done" % goal
    if names.has_submit(names.generation, "cancel"):
        return "%s was cancelled" % goal
    return None


def withdraw(claim: fence.Claim, why: str) -> None:
    """Write down that a trial is not wanted any more; its state is then cancelled, with this reason."""
    path = os.path.join(claim.run_dir, layout.submit_file(claim.generation, "cancel"))
    files.create_exclusive(path, files.to_json({"schema": 1, "t": time.time(), "reason": why}))


def bring_checkpoint(home: str, spec: Mapping[str, Any], output_dir: str) -> None:
    """Copy the run's newest checkpoint into the trial's own folder, because the first job may tidy up its own."""
    pattern = spec.get("checkpoint")
    if not pattern or checkpoints.newest(output_dir, pattern) is not None:
        return
    for folder in stages.output_folders(home, spec["trial"]["of"]):
        for _ in range(3):
            newest = checkpoints.newest(folder, pattern)
            if newest is None:
                break
            if _copy(newest, os.path.join(output_dir, os.path.relpath(newest, folder))):
                return


def _copy(source: str, goal: str) -> bool:
    """Whether all of it was copied, and nothing wrote to it meanwhile."""
    part = goal + ".part"
    try:
        before = _stamp(source)
        os.makedirs(os.path.dirname(goal), exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        if os.path.isdir(source):
            shutil.copytree(source, part)
        else:
            shutil.copyfile(source, part)
        if _stamp(source) != before:
            return False
        os.rename(part, goal)
        return True
    except (OSError, shutil.Error) as error:
        if getattr(error, "errno", None) in files.DISK_ERRNOS:
            raise
        return False


def _stamp(path: str) -> List[Any]:
    found = [path] + [os.path.join(top, name) for top, _, names in os.walk(path) for name in names]
    stats = [os.stat(one) for one in sorted(found)]
    return [(one.st_ino, one.st_size, one.st_mtime_ns) for one in stats]


def watcher(
    home: str, spec: Mapping[str, Any], claim: fence.Claim, logs: List[str], resume_from: Optional[str]
) -> Optional[Callable[["Attempt"], None]]:
    """What looks at a trial now and then, and lets it take over when it is healthy; None for any other run."""
    if not spec.get("trial") or claim.run_dir == layout.run_dir(home, spec["trial"]["of"]):
        return None
    step = checkpoints.step_of(resume_from) if resume_from else 0
    first: List[float] = [] if step is None else [float(step)]
    before = progress.read(claim.output_dir, logs)  # of an earlier attempt in the same folder

    def look(attempt: "Attempt") -> None:
        why = pointless(home, spec)
        if why is not None:
            withdraw(attempt.claim, why)
            attempt.stop("cancelled")
            return
        seen = progress.read(claim.output_dir, logs)
        if seen is None or seen.step is None or seen == before:
            return
        if first and seen.step < first[0]:
            first.clear()  # The number in the checkpoint's name counts something else than the program does.
        first.append(seen.step)
        enough = seen.step - first[0] >= float(spec["trial"]["after_step"])
        if enough and take_over(home, attempt, spec["trial"]["of"]):
            attempt.look = None

    return look


def take_over(home: str, attempt: "Attempt", goal: str) -> bool:
    """Make this attempt the run's newest and end the job that was the run; False if the run is not to be had.

    The first beat comes last: until then the other job takes nobody for alive here (`beaten`).
    """
    with attempt.moving:
        mine, number, old = attempt.claim, attempt.number, _record_before(home, goal, attempt.claim.token)
        if old is None or not _become(home, attempt, goal):
            return False
        _end_trial(mine, number, goal)
        job, _ = stages.job_of(home, old)
        _end_job(job, old["token"])
        attempt.beat()
        return True


def _end_trial(claim: fence.Claim, number: int, goal: str) -> None:
    start = files.read_json(os.path.join(claim.run_dir, layout.attempt_file(number, "start"))) or {}
    began, now = float(start.get("t", time.time())), time.time()
    kept = ("attempt", "generation", "revision", "token", "output_dir", "log_dir", "host", "job_id", "job_label")
    end = {key: start.get(key) for key in kept}
    end.update(exit_code=0, success=True, stopped_by=SWITCHED, problem="it goes on as %s" % goal)
    end.update(began=began, ended=now, duration_s=now - began)
    try:
        files.create_exclusive(os.path.join(claim.run_dir, layout.attempt_file(number, "end")), files.to_json(end))
    except OSError:
        pass  # A full disk; the run itself goes on, and that is what counts.


def as_the_run(end: Dict[str, Any], claim: fence.Claim, number: int) -> None:
    """The end of an attempt that took over: it is the run's, and counts from the switch."""
    start = files.read_json(os.path.join(claim.run_dir, layout.attempt_file(number, "start"))) or {}
    began = max(float(start.get("t", end["began"])), end["began"])
    end.update(attempt=number, generation=claim.generation, revision=claim.revision, began=began)
    end["duration_s"] = max(0.0, end["ended"] - began)


def beaten(attempt: "Attempt") -> Optional[str]:
    """Why an attempt that a newer generation stands before must stop; None while nobody lives behind that one."""
    home, name = layout.home_of(attempt.claim.run_dir), layout.name_of(attempt.claim.run_dir)
    record = _newest_record(home, name)
    names = layout.parse_names(files.names_in(attempt.claim.run_dir))
    if record is None or not record.get("switched") or names.generation == attempt.claim.generation:
        return "superseded"
    if record["token"] == attempt.claim.token:
        _become(home, attempt, name)  # once more: the disk was full when it was taken back
        return None
    if names.attempt > attempt.number and names.has_attempt(names.attempt, "beat"):
        return "superseded"
    if time.time() - float(record.get("t", 0)) > _BEATS * attempt.beat_s:
        _become(home, attempt, name)
    return None


def dismiss(home: str, name: str) -> None:
    """The run is done: trials that still wait in Slurm's queue have nothing to do; a running one sees it by itself."""
    for one in trials_of(home, name):
        claim = _newest(home, one)
        if claim is None or claim.token == (_newest_record(home, name) or {}).get("token"):
            continue
        outcome = submission.outcome_of(home, claim.token)
        job = (outcome.job_id if outcome is not None else None) or ""
        if _is_ours(job, claim.token, ("PENDING",)):
            withdraw(claim, "%s is done" % name)
            stages.slurm(["scancel", "--state=PENDING", job])


def _become(home: str, attempt: "Attempt", goal: str) -> bool:
    """Claim the next generation of `goal` for this attempt; True if the run is its own now. Exclusive creation decides:
    if somebody else was faster, nothing has happened. After an error it can be repeated."""
    run_dir, mine = layout.run_dir(home, goal), attempt.claim
    claim = _newest(home, goal)
    if claim is None:
        return False
    if claim.token != mine.token:
        own = files.read_json(os.path.join(mine.run_dir, layout.submit_file(mine.generation, "claim"))) or {}
        kept: Dict[str, Any] = {key: own[key] for key in ("token", "index", "output_dir", "log_dir") if key in own}
        wish = dict(kept, schema=1, revision=claim.revision, t=time.time(), switched=True)
        path = os.path.join(run_dir, layout.submit_file(claim.generation + 1, "claim"))
        if not files.create_exclusive(path, files.to_json(wish)):
            return False
        claim = fence.read_claim(run_dir, claim.generation + 1) or claim
    start = files.read_json(os.path.join(mine.run_dir, layout.attempt_file(attempt.number, "start"))) or {}
    owner = {key: start.get(key) for key in ("job_id", "job_label")}
    files.create_exclusive(os.path.join(run_dir, layout.submit_file(claim.generation, "owner")), files.to_json(owner))
    began = start.get("program_t") or start.get("t")
    number = fence.begin_attempt(claim, dict(start, t=time.time(), program_t=began))
    for stream in ("out", "err"):
        _same_log(mine.log_dir, attempt.number, number, stream)
    attempt.claim, attempt.number = claim, number
    return True


def _same_log(folder: str, old: int, new: int, stream: str) -> None:
    """The program goes on writing to its log; under its new number the same file is found as well."""
    try:
        os.symlink("attempt-%d.%s" % (old, stream), os.path.join(folder, "attempt-%d.%s" % (new, stream)))
    except OSError:
        pass


def _end_job(job: Optional[str], token: str) -> None:
    """Cancel the job that was the run, by id and only if it carries its token; runs that wait for it wait for us."""
    mine = os.environ.get("SLURM_JOB_ID")
    if job and mine:
        stages.move_children(job, mine)
    if job and _is_ours(job, token):
        stages.slurm(["scancel", job])


def _is_ours(job: str, token: str, words: Optional[Any] = None) -> bool:
    if not job:
        return False
    for line in stages.slurm(["squeue", "-h", "-j", job, "-o", "%T|%j"]).splitlines():
        word, _, name = line.partition("|")
        return name.endswith("." + token) and (words is None or word in words)
    return False


def _newest(home: str, name: str) -> Optional[fence.Claim]:
    run_dir = layout.run_dir(home, name)
    return fence.read_claim(run_dir, layout.parse_names(files.names_in(run_dir)).generation)


def _record_before(home: str, name: str, token: str) -> Optional[Dict[str, Any]]:
    """The newest claim of somebody else: if a full disk broke a switch off half-way, the newest may be our own."""
    run_dir = layout.run_dir(home, name)
    for generation in reversed(layout.parse_names(files.names_in(run_dir)).submits.get("claim", [])):
        record = files.read_json(os.path.join(run_dir, layout.submit_file(generation, "claim")))
        if record is not None and record["token"] != token:
            return record
    return None


def _newest_record(home: str, name: str) -> Optional[Dict[str, Any]]:
    run_dir = layout.run_dir(home, name)
    generation = layout.parse_names(files.names_in(run_dir)).generation
    return files.read_json(os.path.join(run_dir, layout.submit_file(generation, "claim")))


def _spec(home: str, name: str) -> Dict[str, Any]:
    return stages.newest_spec(home, name) or {}
