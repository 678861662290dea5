"""Preemption with a grace time: Slurm tells the steps of a job at once, and the batch script only when the time is up.

So ranks and engines that srun started save and leave while the batch script has heard nothing (measured with Slurm
22.05). What they did is a stop and not an end (`failures.told_to_stop`); and the job comes again only if Slurm ends it.
"""

import signal
import time
from typing import Mapping

from .launch import family
from .launch.steps import slurm

_LOOK_S = 5.0


def wait_for_slurm(environ: Mapping[str, str]) -> None:
    """While Slurm is taking this job's place: wait until it ends us, which is what makes it start the job again."""
    for number in family.STOPPING:
        signal.signal(number, signal.SIG_DFL)
    while _is_in_grace_time(environ.get("SLURM_JOB_ID", "")):
        time.sleep(_LOOK_S)


def _is_in_grace_time(job: str) -> bool:
    """Also no when Slurm does not answer: there is nothing to wait for then."""
    told = slurm(["squeue", "--noheader", "--states=RUNNING", "--jobs=%s" % job, "--Format=PreemptTime"])
    return told is not None and told.strip() not in ("", "N/A", "None")
