"""What the time limit left over continues in a follow-up job: the same script, the same queue, a bounded number."""

import os
import subprocess
import time
from typing import Any, Dict, Mapping, Optional, Tuple

from .. import files, stages

_SBATCH_S = 120.0


def submit_follow_up(
    folder: str, job_name: str, me: Mapping[str, Any], most: int, environ: Mapping[str, str]
) -> Tuple[Optional[str], str]:
    """(job id, what happened). At most one for each job and `most` for the whole queue, by exclusive creation.

    An answer that does not come is not asked for again: a second job would only find the queue taken, but it would
    wait in Slurm's queue for nothing. The next `shoal submit` continues in any case.
    """
    job = me.get("job_id")
    made = [name for name in files.names_in(folder) if name.startswith("follow.")]
    if not job or most <= 0:
        return None, "no follow-up job was asked for"
    if len(made) >= most:
        return None, "%d follow-up jobs were the limit" % most
    note = {"t": time.time(), "job_id": job}
    if not files.create_exclusive(os.path.join(folder, "follow.%s.%s" % (job, me.get("life", 0))), files.to_json(note)):
        return None, "a follow-up job was submitted already"
    task = environ.get("SLURM_ARRAY_TASK_ID") if me.get("array_job_id") else None
    argv = ["sbatch", "--parsable", "--job-name=%s" % job_name, "--dependency=afterany:%s" % job]
    argv += ["--array=%s" % task] if task else []
    env = _clean(environ)
    try:
        done = subprocess.run(
            [*argv, os.path.join(folder, "script.sh")],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=_SBATCH_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, "sbatch did not answer: %s" % error
    if done.returncode != 0:
        return None, " ".join(done.stderr.decode("utf-8", "replace").split()) or "sbatch refused"
    new = done.stdout.decode().split(";")[0].strip()
    # The other tasks of an array may still work: whoever waits for it now waits for both.
    array = str(me.get("array_job_id") or "")
    stages.move_children(array or str(job), "%s:%s" % (array, new) if array else new)
    return new, "submitted"


def cancel_waiting(me: Mapping[str, Any]) -> None:
    """The queue is empty: tasks of our array that have not started yet would only find that out."""
    array = me.get("array_job_id")
    if array:
        try:
            argv = ["scancel", "--state=PENDING", str(array)]
            subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            pass  # They will end by themselves, a second after they start.


def _clean(environ: Mapping[str, str]) -> Dict[str, str]:
    """This job's own variables would look like options or like the next job's own."""
    return {
        name: value
        for name, value in environ.items()
        if name == "SLURM_CONF" or not name.startswith(("SLURM", "SBATCH_", "SHOAL_"))
    }
