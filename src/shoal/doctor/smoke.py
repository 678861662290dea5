"""`shoal doctor --fix --smoke`: run a corrected script for a few steps, and compare its world size with its GPUs.

The script runs as it is, as a Slurm job with a short time limit; job/launch/shoal_watch.py, which torch loads in each
process, reports the size of the process group after a few optimizer steps. The job is then cancelled. A program without
torch cannot be seen this way, and then nothing is proved.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from shoal.clusters import ask, scancel
from shoal.doctor.geometry import RequestGeometry
from shoal.doctor.repair import FixedScript
from shoal.errors import SchedulerError
from shoal.job import write_smoke_module
from shoal.kernel import slurm
from shoal.units import format_slurm_time, plural

SMOKE_STEPS = 3
SMOKE_TIME_S = 600
#: Queue and run together; a cluster that does not start the job by then has proved nothing.
PATIENCE_S = 1800.0
#: Ranks of one group take their steps together; after this, the missing ones are not coming.
_LAST_RANK_S = 20.0


class SmokeResult(NamedTuple):
    """What a smoke run showed. `passed`: the expected number of processes trained together."""

    job_id: str
    passed: bool
    sentence: str
    expected: int
    world: int | None = None
    log_tail: str = ""


class _Report(NamedTuple):
    rank: int
    world: int


def expected_world(geometry: RequestGeometry) -> int:
    """The processes that would use everything: one for each GPU, or for each task of a job without GPUs."""
    return geometry.gpus_total or geometry.tasks


def run_smoke(
    fixed: FixedScript,
    environ: Mapping[str, str],
    *,
    patience_s: float = PATIENCE_S,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> SmokeResult:
    """Submit the script, wait for the reports of its processes, and cancel the job.

    SchedulerError when Slurm refuses it.
    """
    geometry = fixed.check.script.geometry
    expected = expected_world(geometry)
    # Beside the script, because nodes see that place as well; /tmp is another one on each of them.
    folder = Path(tempfile.mkdtemp(prefix=".shoal-smoke-", dir=fixed.path.resolve().parent))
    job_id = ""
    try:
        write_smoke_module(str(folder / "python"), SMOKE_STEPS)
        job_id = _submit(fixed, folder, environ)
        reports = _wait(job_id, folder, expected, environ, now() + patience_s, now, sleep)
        return _judge(job_id, reports, expected, _tail(folder / "log"))
    finally:
        if job_id:
            scancel([job_id], environ)
        shutil.rmtree(folder, ignore_errors=True)


def _submit(fixed: FixedScript, folder: Path, environ: Mapping[str, str]) -> str:
    script = fixed.check.script
    limit_s = min(script.geometry.time_s or SMOKE_TIME_S, SMOKE_TIME_S)
    options = [f"--time={format_slurm_time(limit_s)}", f"--output={folder}/log", f"--error={folder}/log",
               "--mail-type=NONE", "--no-requeue"]  # fmt: skip
    if "array" in script.options:
        options.append(f"--array={(script.options['array'].value or '0').split('-')[0].split(',')[0].split('%')[0]}")
    path = os.pathsep.join(filter(None, [environ.get("PYTHONPATH", ""), str(folder / "python")]))
    env = {**environ, "PYTHONPATH": path, "WANDB_MODE": "offline"}
    answer = slurm.sbatch(options, fixed.path.read_bytes(), env)
    if answer.job_id is None:
        raise SchedulerError(f"sbatch refused the smoke run of {fixed.path}: {answer.message}")
    return answer.job_id


def _wait(
    job_id: str,
    folder: Path,
    expected: int,
    environ: Mapping[str, str],
    deadline: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[_Report]:
    reports: list[_Report] = []
    newest_s = now()
    while now() < deadline:
        before, reports = len(reports), _read_reports(folder)
        if len(reports) > before:
            newest_s = now()
        if len(reports) >= expected or (reports and now() - newest_s > _LAST_RANK_S):
            break
        state = ask(["squeue", "--noheader", "--jobs", job_id, "--format", "%T"], environ)
        if state is None or state.strip() in ("", "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "OUT_OF_MEMORY"):
            return _read_reports(folder)
        sleep(1.0)
    return reports


def _read_reports(folder: Path) -> list[_Report]:
    records = [json.loads(path.read_text()) for path in sorted((folder / "python").glob("*.json"))]
    return [_Report(record["rank"], record["world"]) for record in records]


def _judge(job_id: str, reports: list[_Report], expected: int, log_tail: str) -> SmokeResult:
    if not reports:
        sentence = f"no process did {SMOKE_STEPS} optimizer steps of torch, so the world size is not known"
        return SmokeResult(job_id, False, sentence, expected, None, log_tail)
    world = max(report.world for report in reports)
    ranks = {report.rank for report in reports if report.world == world}
    if world == expected and len(ranks) == expected:
        sentence = f"{SMOKE_STEPS} steps, world size {world} = {plural(expected, 'GPU')}"
        return SmokeResult(job_id, True, sentence, expected, world)
    if world == 1 and len(reports) > 1:
        sentence = f"{len(reports)} processes train, each alone: world size 1, and {plural(expected, 'GPU')}"
    else:
        sentence = f"world size {world}, and {plural(expected, 'GPU')}"
    return SmokeResult(job_id, False, sentence, expected, world, log_tail)


def _tail(path: Path, lines: int = 8) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
