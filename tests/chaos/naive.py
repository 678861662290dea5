"""A launcher as many people write it: a loop over sbatch, a file with the job's id, a marker when the run completed.

python naive.py FOLDER CONFIG submit|status|cancel [RUN]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED")


def main() -> None:
    folder, config, word = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), sys.argv[3]
    if word == "status":
        print(json.dumps({run: state_of(folder, run, live_jobs()) for run in config["runs"]}))
    elif word == "cancel":
        subprocess.run(["scancel", read(folder / slug(sys.argv[4])) or "0"], check=False)
    else:
        for run in config["runs"]:
            if state_of(folder, run, live_jobs())[0] not in ("completed", "running"):
                submit(folder, run, config)


def submit(folder: Path, run: str, config: dict[str, object]) -> None:
    env = " ".join(f"{name}={value}" for name, value in dict(config["env"]).items())  # type: ignore[call-overload]
    work = f"env {env} RUN_NAME={run} {config['python']} -S {config['program']} plan"
    script = f"#!/bin/sh\n{work}\ncode=$?\necho $code > {folder}/{slug(run)}.code\nexit $code\n"
    for _ in range(3):  # the controller may be busy
        argv = ["sbatch", "--parsable", "--mem=50M", "--time=5", "-o", "/dev/null", f"--job-name={slug(run)}"]
        done = subprocess.run(argv, input=script, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            (folder / slug(run)).write_text(done.stdout.strip())
            return


def state_of(folder: Path, run: str, live: set[str]) -> tuple[str, int | None]:
    job = read(folder / slug(run))
    if job in live:
        return "running", None
    if code := read(folder / f"{slug(run)}.code"):
        return ("completed" if code == "0" else "failed"), int(code)
    return ("lost" if job else "new"), None


def live_jobs() -> set[str]:
    done = subprocess.run(["squeue", "-h", "-o", "%A|%T"], capture_output=True, text=True, check=False)
    rows = (line.split("|") for line in done.stdout.splitlines())
    return {job for job, state in rows if state in LIVE}


def slug(run: str) -> str:
    return run.replace("/", ".")


def read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    main()
