"""The readers of a bench as the tasks of a Slurm job array, so that the storage meets real nodes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence

from shoal.errors import SchedulerError
from shoal.kernel import slurm


def slurm_launcher(flags: Sequence[str], environ: Mapping[str, str]) -> Callable[[str, int], Callable[[], None]]:
    """How `bench` starts its readers on Slurm; `flags` are sbatch's, such as --partition=..."""

    def launch(room: str, number: int) -> Callable[[], None]:
        script = f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -m shoal.data.benching {shlex.quote(room)}\n"
        options = [f"--array=0-{number - 1}", "--job-name=shoal-bench"]
        options += ["--output", os.path.join(room, "slurm-%a.out"), *flags]
        answer = slurm.sbatch(options, script, environ)
        job = answer.job_id
        if answer.kind != "accepted" or job is None:
            raise SchedulerError(f"cannot submit the bench to Slurm: {answer.message}", hint="shoal clusters test")

        def end() -> None:
            slurm.scancel([job], environ)

        return end

    return launch
