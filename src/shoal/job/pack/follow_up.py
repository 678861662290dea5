"""The follow-up job of a pack for what the time limit left: the same script, the same queue, a limited number of jobs.

The engine's end record says that a job is to follow (`next`), and from then on it is owed: the engine sends it, or the
next command that looks at the pack if Slurm did not answer. It is send.<i> of the same submission, so that only one of
them sends it.
"""

import os
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ...kernel import Allocation, Outcome, files, records, slurm, submission
from .. import job_constraints


def pending_after(me: Allocation, limit: int, environ: Mapping[str, str]) -> Optional[Dict[str, Any]]:
    """What the end record of an engine says about the job that continues its queue; None if none was asked for."""
    if not me.job_id or limit <= 0:
        return None
    array = me.array_job_id
    return {
        "follows": "%s.%s" % (me.job_id, me.life or 0),
        "job": str(me.job_id),
        "array": array,
        "task": environ.get("SLURM_ARRAY_TASK_ID") if array else None,
        "limit": limit,
        "t": time.time(),
    }


def pending_follow_ups(folder: str) -> List[Dict[str, Any]]:
    """What engines of a queue left to be followed, and nobody has sent, by their end records."""
    ends = [_read_record(folder, name) for name in files.list_names(folder) if _is_end_record(name)]
    wanted = [end["next"] for end in ends if end.get("next")]
    if not wanted:
        return []
    sent = submission.read_sends(folder)[1:]
    good = [record.follows for _, record, outcome in sent if outcome is None or outcome.kind != "void"]
    refused = [record.follows for _, record, outcome in sent if outcome is not None and outcome.refused]
    return [one for one in wanted if one["follows"] not in good + refused and len(good) < int(one["limit"])]


def submit_queue_follow_up(folder: str, following: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Send one job that continues the queue; what happened, in words. At most one for each job and its `limit` for the
    whole queue, by exclusive creation."""
    home, token = os.path.dirname(os.path.dirname(folder)), os.path.basename(folder)
    sent = submission.read_sends(folder)
    intent, first = submission.read_submission_record(home, token), submission.last_send(home, token)
    if intent is None or first is None:
        return "nothing says how the pack was submitted"
    good = [record.follows for _, record, outcome in sent[1:] if outcome is None or outcome.kind != "void"]
    if following["follows"] in good:
        return "a follow-up job was submitted already"
    if len(good) >= int(following["limit"]):
        return "%d follow-up jobs were the limit" % int(following["limit"])
    index = max([number for number, _, _ in sent], default=0) + 1
    argv = ["--job-name=%s-%d" % (intent.job_name, index), *slurm.after_current_job(str(following["job"]), environ)]
    if following.get("task") is not None:
        argv.append("--array=%s" % following["task"])
    elsewhere, avoided = _exclude_failed_nodes(folder, list(first.argv), job_constraints.ask_slurm(environ))
    record = records.new_send([*argv, *elsewhere], first.environment, time.time(), str(following["follows"]))
    answer = submission.send(home, token, record, index)
    if answer.kind == "taken":
        return "another job or command sends the follow-up job"
    if answer.kind != "accepted":
        return answer.message
    # The other tasks of an array may still work: whoever waits for it now waits for both.
    array = str(following.get("array") or "")
    job_constraints.move_dependents(
        array or str(following["job"]), "%s:%s" % (array, answer.job_id) if array else str(answer.job_id)
    )
    return "job %s continues%s" % (answer.job_id, ", and " + avoided if avoided else "")


def settle_send(folder: str, me: Allocation, job_name: str) -> Optional[Outcome]:
    """A later job of a queue has begun: that is the best answer to its send, and the first writer decides. None for
    the first job, whose send everybody settles in the same way."""
    home, token = os.path.dirname(os.path.dirname(folder)), os.path.basename(folder)
    end = job_name.rpartition("%s-" % token)[2]
    if not end.isdigit() or end == job_name:
        return None
    job_id = me.array_job_id or me.job_id
    return submission.write_outcome(home, token, Outcome("accepted", job_id=job_id, adopted=True), int(end))


def _exclude_failed_nodes(folder: str, argv: List[str], ask: job_constraints.AskSlurm) -> Tuple[List[str], str]:
    """What keeps the next job from nodes that failed under this queue, as its engines have noted; and that in words."""
    bad = {node: True for name in files.list_names(folder) for node in _failed_nodes(folder, name)}
    argv, words = job_constraints.exclude_nodes(argv, list(bad), ask)
    return [word for word in argv if word.startswith("--exclude=")], words


def _failed_nodes(folder: str, name: str) -> List[str]:
    return list(_read_record(folder, name).get("failed_nodes") or []) if _is_end_record(name) else []


def _is_end_record(name: str) -> bool:
    return name.startswith("engine.") and name.endswith(".end")


def _read_record(folder: str, name: str) -> Dict[str, Any]:
    try:
        return files.read_json(os.path.join(folder, name)) or {}
    except (OSError, ValueError):  # The engine's node died while it was written.
        return {}


def cancel_pending_tasks(me: Allocation, environ: Mapping[str, str]) -> None:
    """The queue is empty: tasks of our array that have not started yet would only find that out."""
    array = me.array_job_id
    if array:
        # If Slurm does not answer they will end by themselves, a second after they start.
        slurm.scancel([str(array)], environ, state="PENDING")
