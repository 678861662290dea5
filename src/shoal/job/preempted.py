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

_PREEMPTION_POLL_S = 5.0
#: A busy controller may be silent so long before we give up waiting for it.
_MAX_SILENCE_S = 300.0


def were_steps_ended(launch_folder: str) -> bool:
    """Whether the launcher found that Slurm had told its steps to end."""
    return os.path.exists(os.path.join(launch_folder, steps.ENDED_BY_SLURM_FILE))


def wait_for_preemption(environ: Mapping[str, str], link: Optional[guard.GuardLink] = None) -> None:
    """While this job is in its grace time: wait until Slurm ends us, which is what makes it start the job again.

    Under a guard signals come through `link`; else the next one ends this process.
    """
    for number in family.STOP_SIGNALS if link is None else ():
        signal.signal(number, signal.SIG_DFL)
    answered: Optional[float] = None
    while True:
        state = slurm.job_state(environ["SLURM_JOB_ID"], environ)
        if state is not None and not (state.preempted and state.word == "RUNNING"):
            return
        if state is not None:
            answered = time.monotonic()
        elif answered is None or time.monotonic() - answered > _MAX_SILENCE_S:
            return
        if link is None:
            time.sleep(_PREEMPTION_POLL_S)
        elif select.select([link.fd], [], [], _PREEMPTION_POLL_S)[0]:
            return
