"""Write down what Slurm says about an adopted job, because nothing inside the job does (shoal.kernel.adopted).

If the row of squeue says nothing new, Slurm is asked nothing else. A start, an end or a requeue costs one `scontrol
show job`, and a job that squeue no longer shows one question to accounting; then the records have it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from shoal.kernel import SLURM_ACTIVE_STATES, SLURM_ENDED_STATES, Claim, JobDescription, JobRow, adopted, layout
from shoal.observe import run_writer
from shoal.observe.run_files import RunFiles, Verdict
from shoal.observe.run_state import FORGOTTEN_WORD, is_lease_live

_NO_RECORD = (
    "it has ended, and no record tells how: Slurm has forgotten the job, and this cluster keeps no accounts of it"
)


def catch_up(home: str, files: RunFiles, row: JobRow | None, environ: Mapping[str, str], now: float) -> bool:
    """Bring the records of an adopted run up to date with `row`; True if its files have changed.

    Slurm has just answered; without a row it does not show the job. Nothing changes if the state directory cannot be
    written, or if Slurm does not answer this time.
    """
    claim, folder = files.claim, layout.submission_dir(home, files.claim.token if files.claim else "")
    if claim is None or files.verdict is not None or (row is not None and not _is_news(files, row)):
        return False
    with contextlib.suppress(OSError):
        known = adopted.kept_description(folder)
        if known is None:
            return False
        held = Claim(
            layout.run_dir(home, files.name),
            files.generation,
            claim.revision,
            claim.token,
            claim.output_dir,
            claim.log_dir,
            claim.resume,
        )
        answer = adopted.find_job(known, environ)
        if answer.job is not None:
            return _write(home, files, held, answer.job, now)
        if row is not None:
            return _write(home, files, held, _from_row(known, row), now)
        if answer.is_known_to_be_gone:
            adopted.write_forgotten(held, _NO_RECORD)
            run_writer.write_verdict(home, _renamed(home, files), Verdict(word=FORGOTTEN_WORD, reason=_NO_RECORD))
            return True
    return False


def _write(home: str, files: RunFiles, claim: Claim, job: JobDescription, now: float) -> bool:
    is_news = adopted.write_attempts(claim, job, now)
    if job.word in SLURM_ENDED_STATES:
        verdict = Verdict(
            word=job.word,
            exit_code=job.exit_code,
            signal=job.signal,
            by=job.by,
            node=job.node_list,
            reason=job.reason,
        )
        run_writer.write_verdict(home, _renamed(home, files), verdict)
        return True
    return is_news


def _renamed(home: str, files: RunFiles) -> RunFiles:
    """The files with their names as they are now: a verdict is about the newest attempt."""
    folder = layout.run_dir(home, files.name)
    return files._replace(names=layout.parse_names(os.listdir(folder)))


def _is_news(files: RunFiles, row: JobRow) -> bool:
    """Whether a row says something that the records do not: a start, an end, or that the job waits again."""
    start = files.start if files.start is not None and files.start.generation == files.generation else None
    is_live = start is not None and is_lease_live(files)
    if row.word in SLURM_ENDED_STATES:
        return True
    if row.word == "COMPLETING":
        return False
    if SLURM_ACTIVE_STATES.get(row.word) != "running":
        return is_live and SLURM_ACTIVE_STATES.get(row.word) is not None
    return start is None or not adopted.is_same_start(start, row.started)


def _from_row(known: JobDescription, row: JobRow) -> JobDescription:
    """What squeue alone tells; the job was forgotten while we asked."""
    return known._replace(
        word=row.word,
        started=row.started if row.node else None,
        ended=row.ended,
        exit_code=row.exit_code if row.exit_code is not None or row.word != "COMPLETED" else 0,
        signal=row.signal,
        by=row.by,
        reason=row.reason,
        node_list=row.node,
        batch_host=row.node,
    )
