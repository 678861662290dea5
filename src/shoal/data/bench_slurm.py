"""The readers of a bench as the tasks of a Slurm job array, so that the storage meets real nodes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence

from shoal.backends.slurm.commands import run
from shoal.errors import SchedulerError


def launcher(flags: Sequence[str], environ: Mapping[str, str]) -> Callable[[str, int], Callable[[], None]]:
    """How `bench` starts its readers on Slurm; `flags` are sbatch's, such as --partition=..."""

    def launch(room: str, number: int) -> Callable[[], None]:
        script = os.path.join(room, "bench.sh")
        with open(script, "w") as file:
            file.write(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -m shoal.data.benching {shlex.quote(room)}\n")
        argv = ["sbatch", "--parsable", f"--array=0-{number - 1}", "--job-name=shoal-bench"]
        argv += ["--output", os.path.join(room, "slurm-%a.out"), *flags, script]
        answer = run(argv, timeout_s=60, environ=environ)
        if answer.returncode != 0:
            raise SchedulerError(f"Slurm refused the bench: {answer.stderr.strip()}", hint="shoal clusters test")
        job = answer.stdout.strip().split(";")[0]

        def end() -> None:
            run(["scancel", "--quiet", job], timeout_s=60, environ=environ)

        return end

    return launch
