"""`JobEnvironment`: what the code inside a job asks submitit for. A function is one process, so it is rank 0 of 1."""

from __future__ import annotations

import os
import socket

from shoal.functions import context


class JobEnvironment:
    """The job of this process; InputError outside of a run."""

    def __init__(self) -> None:
        self.run_name = context().name
        self.hostname = socket.gethostname()
        self.hostnames = [self.hostname]
        self.num_nodes = self.num_tasks = 1
        self.node = self.global_rank = self.local_rank = 0

    def __repr__(self) -> str:
        return f"JobEnvironment(job_id={self.job_id}, hostname={self.hostname}, global_rank=0/1)"

    @property
    def job_id(self) -> str:
        """Slurm's id, that of an array's task with its number; on this machine, the name of the run."""
        array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
        return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID") or self.run_name
