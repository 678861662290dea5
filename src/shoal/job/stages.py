"""Runs that build on other runs: which job to wait for, what to start from, and who has to wait for somebody else now.

A run names its parents; Slurm does the waiting (afterok). What the parent left, its output folder and its newest good
checkpoint, is looked up when the child starts, because nobody knows it before.
"""

import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..kernel import checkpoints, files, layout, lease, replace_job, slurm
from ..kernel import submission as transaction


class DependencyState(NamedTuple):
    """`done`; or what to wait for, as sbatch --dependency takes it; or why there is neither."""

    done: bool
    waits: Optional[str] = None
    problem: Optional[str] = None


def dependency_state(home: str, name: str, any_end: bool = False) -> DependencyState:
    """How far a run is that others build on.

    A child waits for its parent's job to end well. The job of a pack says nothing about one of its runs, so there, and
    with `any_end`, its end is waited for, and the child itself looks whether its parent is done.
    """
    run_dir = layout.run_dir(home, name)
    names = layout.parse_names(files.list_names(run_dir))
    if lease.successful_attempt(run_dir, names, names.revision) is not None:
        return DependencyState(True)
    claim = files.read_json(os.path.join(run_dir, layout.submit_file(names.generation, "claim"))) or {}
    job, shape = claim_job(home, claim)
    if job is None:
        ended = bool(names.attempt) and not names.is_live(names.attempt)
        return DependencyState(False, None, "%s %s" % (name, "did not end well" if ended else "has no job yet"))
    return DependencyState(False, ("afterany:" if any_end or shape else "afterok:") + job)


def claim_job(home: str, claim: Mapping[str, Any]) -> Tuple[Optional[str], Optional[str]]:
    """(the job of a claim, its own task if it is an array, because the number alone may stand for all of them; the
    shape of a queue that it waits in)."""
    token = str(claim.get("token", "-"))
    outcome = transaction.outcome_of(home, token)
    if outcome is None or outcome.kind != "accepted" or not outcome.job_id:
        return None, None
    submission = transaction.read_submission_record(home, token)
    if submission is None:
        return outcome.job_id, None
    label = "%s_%d" % (outcome.job_id, claim.get("index", 0)) if submission.is_array else outcome.job_id
    return label, submission.shape


def dependency_option(home: str, names: List[str], any_end: bool = False) -> DependencyState:
    """One answer for all parents: everything done, or what those that are not have to be waited for."""
    waits: Dict[str, None] = {}
    for name in names:
        found = dependency_state(home, name, any_end)
        if found.problem is not None:
            return found
        if found.waits is not None:
            waits[found.waits] = None
    return DependencyState(not waits, ",".join(waits) or None)


def apply_parent_outputs(home: str, spec: Mapping[str, Any]) -> Dict[str, Any]:
    """The spec with what its parents left: start_from and parent_dir; `cannot_start` tells why it must not begin."""
    found = dict(spec)
    for name in spec.get("parents") or ():
        if not dependency_state(home, name).done:
            return dict(found, cannot_start="its parent %s is not done" % name)
    first = spec.get("start_parent")
    if not first:
        return found
    folders = output_dirs(home, first)
    pattern = (newest_spec(home, first) or {}).get("checkpoint")
    for folder in folders:
        newest = checkpoints.newest_checkpoint(folder, pattern) if pattern else folder
        if newest is not None:
            return dict(found, start_from=newest, parent_dir=folder)
    where = " in %s" % folders[0] if folders else ""
    return dict(found, cannot_start="its parent %s has no checkpoint %s%s" % (first, pattern, where))


def output_dirs(home: str, name: str) -> List[str]:
    """The output folders of a run, newest first."""
    run_dir = layout.run_dir(home, name)
    found: List[str] = []
    for generation in reversed(layout.parse_names(files.list_names(run_dir)).submits.get("claim", [])):
        claim = files.read_json(os.path.join(run_dir, layout.submit_file(generation, "claim"))) or {}
        if claim.get("output_dir") and claim["output_dir"] not in found:
            found.append(claim["output_dir"])
    return found


def move_dependents(old: str, new: str) -> List[str]:
    """Let jobs that wait for `old` wait for its follow-up instead; called before `old` ends. Returns their ids."""
    moved = []
    for job, waits in slurm.pending_dependencies(os.environ):
        changed = replace_job(waits, old, new)
        if changed is not None:
            slurm.update_job(job, {"Dependency": changed}, os.environ)
            moved.append(job)
    return moved


def newest_spec(home: str, name: str) -> Optional[Dict[str, Any]]:
    run_dir = layout.run_dir(home, name)
    revision = layout.parse_names(files.list_names(run_dir)).revision
    return files.read_json(os.path.join(run_dir, layout.spec_file(revision)))
