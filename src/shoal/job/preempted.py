"""Preemption with a grace time: Slurm tells the steps of a job at once, and the batch script only when the time is up.

So ranks and engines that srun started save and leave while the batch script has heard nothing (measured with Slurm
22.05). What they did is a stop and not an end, and the job comes again only if it is Slurm that ends it.
"""

import os
import select
import signal
import time
from typing import Mapping, Optional

from ..kernel import guard, slurm
from .launch import family, steps

_LOOK_S = 5.0
#: A busy controller may be silent so long before we give up waiting for it.
_SILENT_S = 300.0


def steps_were_ended(launch_folder: str) -> bool:
    """Whether the launcher found that Slurm had told its steps to end."""
    return os.path.exists(os.path.join(launch_folder, steps.ENDED_BY_SLURM))


def wait_for_slurm(environ: Mapping[str, str], link: Optional[guard.Link] = None) -> None:
    """While this job is in its grace time: wait until Slurm ends us, which is what makes it start the job again.

    Under a guard signals come through `link`; else the next one ends this process.
    """
    for number in family.STOPPING if link is None else ():
        signal.signal(number, signal.SIG_DFL)
    answered: Optional[float] = None
    while True:
        state = slurm.job_state(environ["SLURM_JOB_ID"], environ)
        if state is not None and not (state.preempted and state.word == "RUNNING"):
            return
        if state is not None:
            answered = time.monotonic()
        elif answered is None or time.monotonic() - answered > _SILENT_S:
            return
        if link is None:
            time.sleep(_LOOK_S)
        elif select.select([link.fd], [], [], _LOOK_S)[0]:
            return
