"""What restricts the next job of a run: nodes that failed under it, and runs that it depends on.

A node has failed when Slurm reports it for the run's job, or when a job is requeued whose last attempt was cut off: no
end record, and no request to stop. What a job learns so is in its start record.

A run names its parents; Slurm does the waiting (afterok). The parent's output directory and newest complete checkpoint
are looked up when the child starts, because they are unknown before.
"""

import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..kernel import Allocation, Start, checkpoints, files, layout, lease, replace_job, slurm, slurm_text
from ..kernel import submission as transaction

_NODE_FAIL_STATES = [word for word, state in slurm_text.SLURM_ENDED_STATES.items() if state == "node_fail"]
#: Beginnings of sinfo's words for nodes that take no jobs.
_DOWN_STATES = ("down", "fail", "drain", "boot", "error", "unk", "no_resp")

#: (arguments of a Slurm program) -> whether it succeeded, and what it printed.
AskSlurm = Callable[[List[str]], Tuple[bool, str]]


def ask_slurm(environ: Mapping[str, str]) -> AskSlurm:
    """Questions to Slurm from here, as an argument, so that tests and both sides of a submission share the rest."""

    def ask(argv: List[str]) -> Tuple[bool, str]:
        done = slurm.run_command(argv, slurm.QUERY_TIMEOUT_S, environ)
        return done.ok, " ".join((done.stdout if done.ok else done.stderr).split())

    return ask


def failed_before_requeue(run_dir: str, generation: int, ask: AskSlurm) -> List[str]:
    """Nodes that the attempt before this one was lost with, when Slurm has started its job again."""
    names = layout.parse_names(files.list_names(run_dir))
    last = lease.read_attempt(run_dir, names, names.attempt) if names.attempt else None
    if last is None or last.start.generation != generation or not last.start.nodes:
        return []
    allocated = last.start.nodes
    silent = last.state == "lost" and not last.last_words
    return _down_nodes(allocated, ask) or ([allocated] if silent and _is_single_node(allocated) else [])


def nodes_lost_with(start: Optional[Start], me: Allocation, ask: AskSlurm) -> List[str]:
    """Nodes that an engine of a pack was lost with: those that Slurm calls down, or the one that its job, which is
    ours, has come back from. An engine that was killed has not lost its node.
    """
    if start is None or not start.nodes or not me.job_id:
        return []
    came_back = start.job_id == me.job_id and start.life != me.life
    return _down_nodes(start.nodes, ask) or ([start.nodes] if came_back and _is_single_node(start.nodes) else [])


def failed_nodes(run_dir: str, ask: AskSlurm) -> List[str]:
    """Every node that has failed under a run. Of a job on several nodes those count that Slurm still calls down."""
    names = layout.parse_names(files.list_names(run_dir))
    found: List[str] = []
    for number in names.attempts.get("start", []):
        attempt = lease.read_attempt(run_dir, names, number)
        found += attempt.start.failed_nodes if attempt is not None else []
    for kind, generations in names.submits.items():
        for generation in generations if kind.startswith("verdict") else []:
            verdict = _read_record(run_dir, layout.submit_file(generation, kind))
            if verdict.get("word") in _NODE_FAIL_STATES and verdict.get("node"):
                found += [verdict["node"]] if _is_single_node(verdict["node"]) else _down_nodes(verdict["node"], ask)
    return list(dict.fromkeys(found))


def exclude_nodes(argv: List[str], bad: List[str], ask: AskSlurm) -> Tuple[List[str], str]:
    """sbatch's options without these nodes, beside those that the user excludes; and what was done, in words.

    Where too few nodes are left for the job, it avoids only the last that failed; or none: better there than never.
    """
    own = next((word.partition("=")[2] for word in argv if word.startswith("--exclude=")), "")
    new = [node for node in bad if node not in own.split(",")]
    if not new:
        return argv, ""
    kept = [word for word in argv if not word.startswith("--exclude=")]
    ours = ("--array=", "--dependency=", "--begin=", "--output=", "--job-name=")
    answer = ""
    for some in [new, new[-1:]] if len(new) > 1 else [new]:
        changed = [*kept, "--exclude=%s" % ",".join([*([own] if own else []), *some])]
        tested = [word for word in changed if not word.startswith(ours)]
        possible, answer = ask(["sbatch", "--test-only", *tested, "--wrap=true"])
        if possible:
            return changed, "avoids %s, which failed" % ", ".join(some)
    return argv, "cannot avoid %s, which failed: without it Slurm has no place (%s)" % (", ".join(new), answer)


def _down_nodes(nodes: str, ask: AskSlurm) -> List[str]:
    """Those of a job's nodes that Slurm calls down now."""
    answered, answer = ask(["sinfo", "-h", "-N", "-n", nodes, "-o", "%N|%T"])
    pairs = [word.partition("|") for word in answer.split()] if answered else []
    return sorted({name for name, _, state in pairs if state.startswith(_DOWN_STATES)})


def _is_single_node(nodes: str) -> bool:
    return "[" not in nodes and "," not in nodes


def _read_record(run_dir: str, name: str) -> Dict[str, Any]:
    record: Optional[Dict[str, Any]] = files.read_json(os.path.join(run_dir, name))
    return record or {}


class DependencyState(NamedTuple):
    """`completed`; or what to wait for, as sbatch --dependency takes it; or why there is neither."""

    completed: bool
    waits: Optional[str] = None
    problem: Optional[str] = None


def dependency_state(home: str, name: str, any_end: bool = False) -> DependencyState:
    """How far a run is that others build on.

    A child waits for its parent's job to complete. The job of a pack says nothing about one of its runs, so there, and
    with `any_end`, its end is waited for, and the child itself looks whether its parent completed.
    """
    run_dir = layout.run_dir(home, name)
    names = layout.parse_names(files.list_names(run_dir))
    if lease.successful_attempt(run_dir, names, names.revision) is not None:
        return DependencyState(True)
    claim = files.read_json(os.path.join(run_dir, layout.submit_file(names.generation, "claim"))) or {}
    job, queue_layout = claim_job(home, claim)
    if job is None:
        ended = bool(names.attempt) and not names.is_live(names.attempt)
        return DependencyState(False, None, "%s %s" % (name, "did not complete" if ended else "has no job yet"))
    return DependencyState(False, ("afterany:" if any_end or queue_layout else "afterok:") + job)


def claim_job(home: str, claim: Mapping[str, Any]) -> Tuple[Optional[str], Optional[str]]:
    """(the job of a claim, its own task if it is an array, because the number alone may stand for all of them; the
    layout of a queue that it waits in)."""
    token = str(claim.get("token", "-"))
    outcome = transaction.outcome_of(home, token)
    if outcome is None or outcome.kind != "accepted" or not outcome.job_id:
        return None, None
    submission = transaction.read_submission_record(home, token)
    if submission is None:
        return outcome.job_id, None
    label = "%s_%d" % (outcome.job_id, claim.get("index", 0)) if submission.is_array else outcome.job_id
    return label, submission.layout


def dependency_option(home: str, names: List[str], any_end: bool = False) -> DependencyState:
    """One answer for all parents: all completed, or what those that are not have to be waited for."""
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
        if not dependency_state(home, name).completed:
            return dict(found, cannot_start="its parent %s has not completed" % name)
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
