"""What the time limit left over continues in a follow-up job: the same script, the same queue, a bounded number."""

import os
import time
from typing import Any, List, Mapping, Tuple

from ...kernel import files, slurm
from .. import nodes, stages


def submit_follow_up(folder: str, job_name: str, me: Mapping[str, Any], most: int, environ: Mapping[str, str]) -> str:
    """What happened, in words. At most one for each job and `most` for the whole queue, by exclusive creation.

    An answer that does not come is not asked for again: a second job would only find the queue taken, but it would
    wait in Slurm's queue for nothing. The next `shoal submit` continues in any case.
    """
    job = me.get("job_id")
    made = [name for name in files.names_in(folder) if name.startswith("follow.")]
    if not job or most <= 0:
        return "no follow-up job was asked for"
    if len(made) >= most:
        return "%d follow-up jobs were the limit" % most
    note = {"t": time.time(), "job_id": job}
    if not files.create_exclusive(os.path.join(folder, "follow.%s.%s" % (job, me.get("life", 0))), files.to_json(note)):
        return "a follow-up job was submitted already"
    argv = ["--job-name=%s" % job_name, "--dependency=afterany:%s" % job]
    if me.get("array_job_id"):
        argv.append("--array=%s" % environ["SLURM_ARRAY_TASK_ID"])
    elsewhere, avoided = _avoid(folder, nodes.ask_slurm(environ))
    script = files.read_own(os.path.join(folder, "script.sh"))
    answer = slurm.sbatch([*argv, *elsewhere], script, environ)
    if answer.kind != "accepted":
        return answer.message
    # The other tasks of an array may still work: whoever waits for it now waits for both.
    array = str(me.get("array_job_id") or "")
    stages.move_children(array or str(job), "%s:%s" % (array, answer.job_id) if array else str(answer.job_id))
    return "job %s continues%s" % (answer.job_id, ", and " + avoided if avoided else "")


def _avoid(folder: str, ask: nodes.Ask) -> Tuple[List[str], str]:
    """What keeps the next job from nodes that failed under this queue, as its engines have noted; and that in words."""
    bad = {node: True for name in files.names_in(folder) for node in _failed_nodes(os.path.join(folder, name))}
    sent = files.read_json(os.path.join(folder, "sent.json")) or {}
    argv, words = nodes.avoid(sent.get("argv") or [], list(bad), ask)
    return [word for word in argv if word.startswith("--exclude=")], words


def _failed_nodes(path: str) -> List[str]:
    name = os.path.basename(path)
    if not name.startswith("engine.") or not name.endswith(".end"):
        return []
    try:
        return list((files.read_json(path) or {}).get("failed_nodes") or [])
    except (OSError, ValueError):  # The engine's node died while it was written.
        return []


def cancel_waiting(me: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """The queue is empty: tasks of our array that have not started yet would only find that out."""
    array = me.get("array_job_id")
    if array:
        # If Slurm does not answer they will end by themselves, a second after they start.
        slurm.scancel([str(array)], environ, state="PENDING")
