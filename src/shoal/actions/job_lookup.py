"""Which Slurm jobs a person means: ids, tasks of arrays, names, or all of theirs. Asks Slurm; changes nothing.

A word is a job id (265438), a task (123_4), an array as a whole (123), either with its cluster as `sbatch --parsable`
prints it (265438;lab), or the name of a job in the queue. What cannot be adopted is an InputError of one sentence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from shoal.clusters import cluster_name
from shoal.errors import InputError, SchedulerError
from shoal.kernel import JobDescription, JobRow, slurm
from shoal.names import token_of_job
from shoal.units import natural_sort_key, shorten_list

_JOB_ID = re.compile(r"(\d+)(?:_(\d+)|\+\d+)?(?:;(\S+))?", re.ASCII)
_PING_HINT = "scontrol ping  # is the controller up?"


def is_job_id(word: str) -> bool:
    return _JOB_ID.fullmatch(word) is not None


def find_jobs(words: Sequence[str], environ: Mapping[str, str]) -> list[JobDescription]:
    """The jobs that words mean, a task of an array each by itself. InputError for a word that means none."""
    found: dict[str, JobDescription] = {}
    for word in words:
        jobs = describe_jobs(word, environ) if is_job_id(word) else list(_jobs_called(word, environ))
        found.update((job.label, job) for job in jobs)
    return list(found.values())


def own_jobs(environ: Mapping[str, str]) -> list[JobDescription]:
    """Every job of this user that is in the queue, without those that shoal submitted."""
    labels = [row.label for row in _queue(environ) if not row.has_ended and token_of_job(row.name) is None]
    return _by_id(_described(labels, environ))


def _by_id(jobs: Iterable[JobDescription]) -> list[JobDescription]:
    return sorted(jobs, key=lambda job: natural_sort_key(job.label))


def describe_jobs(word: str, environ: Mapping[str, str]) -> list[JobDescription]:
    """What Slurm, or else accounting, says about a job id; InputError if neither knows it on this cluster."""
    match = _JOB_ID.fullmatch(word)
    if match is None:
        raise InputError(f"{word!r} is not a job id", hint="squeue --me")
    here, named = cluster_name(environ), match[3]
    if named is not None and here is not None and named.lower() != here.lower():
        raise _other_cluster(word.partition(";")[0], named, here)
    job_id = word.partition(";")[0]
    shown = slurm.show_job(job_id, environ)
    if shown is None:
        raise SchedulerError(f"Slurm does not answer: job {job_id} cannot be looked up", hint=_PING_HINT)
    if shown:
        return _by_id(_tasks(job_id, shown, environ))
    return _accounted(job_id, here, environ)


def _accounted(job_id: str, here: str | None, environ: Mapping[str, str]) -> list[JobDescription]:
    """Jobs that Slurm has forgotten; of one that was requeued, its last time."""
    rows = slurm.accounted_jobs([job_id], environ)
    if rows is None:
        raise SchedulerError(
            f"Slurm has forgotten job {job_id}, and its accounting does not answer", hint=f"sacct -j {job_id}"
        )
    # sacct answers for an array with its tasks, and for the job that happens to have a task's number as well.
    rows = [row for row in rows if job_id in (row.label, row.array_job_id, row.label.partition("+")[0])]
    last = {row.label: row for row in rows if row.cluster in (None, here)}
    if last:
        return _by_id(last.values())
    if rows:
        raise _other_cluster(job_id, str(rows[-1].cluster), here)
    where = f" on cluster {here}" if here else ""
    raise InputError(
        f"Slurm does not know job {job_id}{where}: it ended too long ago, or belongs to another cluster",
        hint="squeue --me   # your jobs that Slurm knows",
    )


def _other_cluster(job_id: str, there: str, here: str | None) -> InputError:
    return InputError(
        f"job {job_id} belongs to cluster {there}, and this is cluster {here}", hint=f"sacct -M {there} -j {job_id}"
    )


def _tasks(job_id: str, shown: Sequence[JobDescription], environ: Mapping[str, str]) -> Iterator[JobDescription]:
    """The jobs as they are; tasks of an array that wait together, each by itself."""
    yield from (job for job in shown if not job.tasks)
    waiting = [job for job in shown if job.tasks]
    known = {job.label for job in shown}
    if not waiting:
        return
    rows, problem = slurm.squeue(environ, job=job_id)
    if problem is not None:
        raise SchedulerError(f"Slurm does not answer: {problem}", hint=_PING_HINT)
    for row in rows:
        if row.task is not None and row.label not in known:
            yield waiting[0]._replace(label=row.label, task=row.task, tasks="")


def _jobs_called(name: str, environ: Mapping[str, str]) -> Iterator[JobDescription]:
    rows = _queue(environ)
    labels = [row.label for row in rows if row.name == name and not row.has_ended]
    labels = labels or [row.label for row in rows if row.name == name]
    if not labels:
        names = sorted({row.name for row in rows if not row.has_ended})
        there = f"; they are called {shorten_list(names, 4)}" if names else ""
        raise InputError(f"none of your jobs in the queue is called {name!r}{there}", hint="squeue --me")
    yield from _described(labels, environ)


def _described(labels: Sequence[str], environ: Mapping[str, str]) -> Iterator[JobDescription]:
    """Each array is asked about once. A job that ends meanwhile may be forgotten, and is left out."""
    wanted = set(labels)
    for job_id in dict.fromkeys(label.partition("_")[0] for label in labels):
        shown = slurm.show_job(job_id, environ)
        yield from (job for job in _tasks(job_id, shown or (), environ) if job.label in wanted)


def _queue(environ: Mapping[str, str]) -> list[JobRow]:
    rows, problem = slurm.squeue(environ)
    if problem is not None:
        raise SchedulerError(f"Slurm does not answer: {problem}", hint=_PING_HINT)
    return rows


def refuse_foreign(job: JobDescription) -> None:
    """Only one's own jobs, each of one part, can be adopted."""
    if job.uid is not None and job.uid != os.getuid():
        raise InputError(f"job {job.label} is a job of {job.user}, not yours", hint=f"shoal why {job.label}")
    if job.is_heterogeneous:
        raise InputError(
            f"job {job.label} is a heterogeneous job, which cannot be one run",
            hint=f"shoal logs {job.label.partition('+')[0]}",
        )
