"""The same runs through submitit: a job's id is kept beside its run, its result is the pickle that the job writes.

python with_submitit.py FOLDER CONFIG submit|status|cancel [RUN]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import submitit
from submitit.core.utils import pickle_load


def work(argv: list[str], env: dict[str, str]) -> int:
    return subprocess.run(argv, env={**os.environ, **env}, check=False).returncode


def main() -> None:
    folder, config, word = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), sys.argv[3]
    if word == "status":
        print(json.dumps({run: state_of(folder, run) for run in config["runs"]}))
    elif word == "cancel" and (job := job_of(folder, sys.argv[4])) is not None:
        job.cancel()
    elif word == "submit":
        executor = submitit.SlurmExecutor(folder=folder / "jobs", python=sys.executable)
        executor.update_parameters(mem="50MB", time=5)
        for run in config["runs"]:
            if state_of(folder, run)[0] not in ("completed", "running"):
                argv = [config["python"], "-S", config["program"], "plan"]
                job = executor.submit(work, argv, {**config["env"], "RUN_NAME": run})
                (folder / run.replace("/", ".")).write_text(job.job_id)


def state_of(folder: Path, run: str) -> tuple[str, int | None]:
    job = job_of(folder, run)
    if job is None:
        return "new", None
    if job.paths.result_pickle.exists():
        outcome, result = pickle_load(job.paths.result_pickle)
        if outcome == "success":
            return ("completed" if result == 0 else "failed"), result
        return "lost", None
    return ("running" if _queued(job.job_id) else "lost"), None


def _queued(job_id: str) -> bool:
    """squeue, because sacct, which submitit asks, needs accounting."""
    argv = ["squeue", "-h", "-t", "PD,R,CG,CF,S,RQ", "-o", "%A"]
    return job_id in subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()


def job_of(folder: Path, run: str) -> submitit.SlurmJob | None:
    try:
        job_id = (folder / run.replace("/", ".")).read_text().strip()
    except FileNotFoundError:
        return None
    return submitit.SlurmJob(folder=folder / "jobs", job_id=job_id) if job_id else None


if __name__ == "__main__":
    main()
