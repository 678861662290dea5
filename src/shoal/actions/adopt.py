"""`shoal adopt`: jobs that were there before shoal knew of them, as runs. Nothing about the job is changed.

The records are those of any run, in its ordinary directory; the attempts are written by each command that looks
(shoal.kernel.adopted). The token follows from the job, so a job that is adopted twice, or by two commands at once, is
one run, and a command that was killed is completed by the next. `job_as_run` does the same in a temporary state
directory, for commands that look at a job which is not a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal.actions.job_lookup import describe_jobs, refuse_foreign
from shoal.batch import parse_option_words
from shoal.clusters import cluster_name
from shoal.describe import Project
from shoal.errors import InputError
from shoal.kernel import (
    TOKEN_LENGTH,
    TOKEN_LETTERS,
    ClaimRecord,
    JobDescription,
    Outcome,
    RequestedResources,
    Submission,
    adopted,
    fence,
    files,
    layout,
    processes,
    records,
    slurm,
    slurm_job,
    submission,
)
from shoal.model import Request, RunSpec
from shoal.names import MAX_COMPONENT, check_length, make_slug, token_of_job, tracker_id
from shoal.observe import RunReader, run_names, run_writer
from shoal.plan import choose_cluster
from shoal.units import format_memory, format_slurm_time

ADOPTED = "adopted"


#: $1, $@, "${2}" and the like.
_USES_ARGUMENTS = re.compile(r"\$(?:[1-9@*]|\{[1-9@*])")


class AdoptedJob(NamedTuple):
    """A job and the run that it is. `did`: adopted, known (adopted before) or own (shoal submitted it)."""

    job: JobDescription
    name: str
    did: str
    notes: Sequence[str] = ()


def adopt_jobs(
    jobs: Sequence[JobDescription],
    project: Project,
    environ: Mapping[str, str],
    *,
    name: str | None = None,
    dry_run: bool = False,
) -> list[AdoptedJob]:
    """Make each job a run, or say which run it is. InputError, and nothing written, if one of them cannot be one."""
    home, here = str(project.home), cluster_name(environ)
    found = [_known_run(home, job, here) or AdoptedJob(job, "", "adopted") for job in jobs]
    new = [one for one in found if one.did == "adopted"]
    if name is not None and len(new) > 1:
        raise InputError(f"--name names one run, and these are {len(new)} jobs", hint="leave --name out")
    names = {one.job.label: _run_name(home, one.job, name, here) for one in new}
    for one in new:
        refuse_foreign(one.job)
    if not dry_run and new:
        run_writer.open_state_dir(project.home, project.shared_by)
    profile = choose_cluster(project, None, environ, inside_job=False).name if new else ""
    scripts: dict[str, str | None] = {}
    results = []
    for one in found:
        if one.did != "adopted":
            results.append(one)
            continue
        job = one.job._replace(cluster=here)
        kept = names[job.label]
        if not dry_run:
            base = job.array_job_id or job.job_id
            if base not in scripts:
                scripts[base] = slurm.batch_script(base, environ) if job.is_batch else None
            kept = write_run(home, job, kept, profile, scripts[base])
        results.append(AdoptedJob(job, kept, "adopted", _notes(job, scripts.get(job.array_job_id or job.job_id))))
    return results


def _known_run(home: str, job: JobDescription, here: str | None) -> AdoptedJob | None:
    """The run that a job is already; InputError for a job of another project of shoal."""
    token = token_of_job(job.name)
    if token is None:
        record = submission.read_submission_record(home, job_token(job, here))
        if record is None or submission.outcome_of(home, record.token) is None:
            return None
        _look_again(home, record, job)
        return AdoptedJob(job, record.runs[0], "known")
    record = submission.read_submission_record(home, token)
    if record is None:
        raise InputError(
            f"job {job.label} was submitted by shoal in another directory",
            hint=f"cd {job.work_dir} && shoal status" if job.work_dir else "shoal status",
        )
    index = job.task if record.is_array and job.task is not None else 0
    return AdoptedJob(job, record.runs[min(index, len(record.runs) - 1)], "own")


def _look_again(home: str, record: Submission, job: JobDescription) -> None:
    """A job that has ended for the records may be under way once more: people requeue."""
    claim = fence.read_claim(layout.run_dir(home, record.runs[0]), 1)
    if claim is not None and claim.token == record.token:
        adopted.write_attempts(claim, job, time.time())


def job_token(job: JobDescription, here: str | None) -> str:
    """The same for the same job: its id, its owner and its name, on its cluster."""
    text = "\n".join((here or "", job.label, str(job.uid), job.name))
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
    return "".join(TOKEN_LETTERS[byte % 32] for byte in digest[:TOKEN_LENGTH])


def _run_name(home: str, job: JobDescription, asked: str | None, here: str | None) -> str:
    """adopted/<job name>-<job id>, or as asked; InputError for a name that another run has."""
    if asked is not None:
        experiment, slash, stem = asked.partition("/")
        if not slash or make_slug(experiment) != experiment or make_slug(stem) != stem:
            raise InputError(f"{asked!r} is not EXPERIMENT/RUN", hint="--name adopted/baseline", place="--name")
    else:
        experiment, stem = ADOPTED, f"{_safe_name(job.name)[: MAX_COMPONENT - 20]}-{job.label}"
    check_length(experiment, stem)
    name = f"{experiment}/{stem}"
    claim = fence.read_claim(layout.run_dir(home, name), 1)
    if claim is not None and claim.token != job_token(job, here):
        raise InputError(f"{name} is another run already", hint=f"shoal adopt {job.label} --name {ADOPTED}/NAME")
    return name


def _safe_name(name: str) -> str:
    try:
        return make_slug(name)
    except InputError:
        return "job"


def write_run(home: str, job: JobDescription, name: str, profile: str, script: str | None) -> str:
    """Write the records of an adopted job; each file once, so that whoever comes second completes or repeats nothing.

    Returns the name that holds, which another command may have chosen a moment before.
    """
    token = job_token(job, job.cluster)
    folder = layout.submission_dir(home, token)
    files.make_dir(folder)
    adopted.keep_description(folder, job)
    if script is not None:
        data = script.encode("utf-8", "surrogateescape")
        files.create_exclusive(os.path.join(folder, "script.sh"), data, executable=True)
    intent = _submission(job, token, name, profile)
    if not files.create_exclusive(os.path.join(folder, "submission.json"), records.encode_record(intent)):
        intent = submission.read_submission_record(home, token) or intent
    name = intent.runs[0]
    spec = run_spec(job, name, folder if script is not None else None)
    named = msgspec.structs.replace(spec, tracker_id=tracker_id(run_writer.project_id(home), name, 1))
    run_writer.write_spec(home, named)
    claim = ClaimRecord(token, 1, folder, folder, t=job.submitted or time.time())
    if not submission.claim_generation(home, name, 1, claim):
        first = fence.read_claim(layout.run_dir(home, name), 1)
        if first is None or first.token != token:
            raise InputError(
                f"another command has just made {name}", hint=f"shoal adopt {job.label} --name {ADOPTED}/NAME"
            )
    submission.write_outcome(home, token, Outcome("accepted", job_id=job.label))
    held = fence.find_claim(layout.run_dir(home, name), token)
    adopted.write_attempts(held, job, time.time())
    return name


def _submission(job: JobDescription, token: str, name: str, profile: str) -> Submission:
    return Submission(
        token=token,
        backend="slurm",
        cluster=profile,
        slurm_cluster=job.cluster,
        job_name=job.name,
        runs=[name],
        t=time.time(),
        user=job.user,
        time_limit_s=job.time_limit_s,
        nodes=job.nodes,
        gpus=job.nodes * job.gpus,
        asked=RequestedResources(job.nodes, job.gpus, job.gpu_type, job.cpus, job.memory_mb, job.partition),
        argv=[f"--mem={job.memory_mb}M"] if job.memory_mb else [],
        adopted=True,
        **{**processes.own_identity(), "uid": job.uid},
    )


def run_spec(job: JobDescription, name: str, folder: str | None) -> RunSpec:
    """The run as a description: its command is the job's script, as Slurm has it; its request what the job has."""
    experiment, _, stem = name.partition("/")
    script = [] if folder is None else ["bash", os.path.join(folder, "script.sh")]
    return RunSpec(
        experiment=experiment,
        stem=stem,
        number=None,
        step=ADOPTED,
        step_kind=ADOPTED,
        seed=None,
        command=script,
        args=script_arguments(job),
        cwd=job.work_dir or "/",
        output=ADOPTED,
        request=Request(
            nodes=job.nodes,
            gpus=job.gpus or None,
            gpu_type=job.gpu_type,
            cpus=job.cpus,
            memory=format_memory(job.memory_mb) if job.memory_mb else None,
            time=format_slurm_time(job.time_limit_s) if job.time_limit_s else None,
        ),
        flags=_flags(job),
        env=_array_variables(job),
        adopted=True,
    )


def _array_variables(job: JobDescription) -> dict[str, str]:
    """What a script of an array finds its task by, and often names its checkpoints after."""
    if job.task is None:
        return {}
    return {"SLURM_ARRAY_TASK_ID": str(job.task), "SLURM_ARRAY_JOB_ID": job.array_job_id or ""}


def _flags(job: JobDescription) -> list[str]:
    """Where it runs, and its tasks, which Slurm gives the srun inside of it."""
    places = {"partition": job.partition, "account": job.account, "qos": job.qos}
    flags = [f"--{name}={value}" for name, value in places.items() if value]
    if job.ntasks and job.ntasks > job.nodes and job.ntasks % job.nodes == 0:
        flags += [f"--ntasks-per-node={job.ntasks // job.nodes}", f"--cpus-per-task={job.cpus_per_task or 1}"]
    return flags


def script_arguments(job: JobDescription) -> list[str]:
    """The words after the script. Slurm joins them with blanks, so one that holds a blank comes back as several.

    Up to 24.11 they are in scontrol's Command, in 26.05 only in its SubmitLine.
    """
    if job.command is not None and job.submit_line is not None:
        typed = job.submit_line.split(" ")
        for at, word in enumerate(typed[1:], start=1):
            if os.path.basename(word) == os.path.basename(job.command) and parse_option_words(typed[1 : at + 1])[1] == [
                word
            ]:
                return typed[at + 1 :]
    words = (job.command or "").split(" ")
    for size in range(1, len(words)):
        if os.path.isfile(" ".join(words[:size])):
            return words[size:]
    return [] if os.path.isfile(job.command or "") else words[1:]


def _notes(job: JobDescription, script: str | None) -> list[str]:
    """What of the job cannot be read, a sentence each."""
    notes = []
    if not job.is_batch:
        notes.append(f"job {job.label} is interactive: it has no script and no log")
    if job.submit_line is None and _USES_ARGUMENTS.search(script or "") and not script_arguments(job):
        # None were given, or it is Slurm 24.11: scontrol has neither arguments in Command nor a SubmitLine.
        notes.append(f"the script of job {job.label} uses arguments, and Slurm names none: shoal retry runs it without")
    for path in dict.fromkeys(slurm_job.log_path(job, pattern) for pattern in (job.stdout, job.stderr)):
        if path is not None and os.path.lexists(path) and not os.access(path, os.R_OK):
            notes.append(f"the log of job {job.label} cannot be read: {path}")
    return notes


def find_run_of_job(home: str, label: str) -> str | None:
    """The run whose newest submission is this job, for jobs that Slurm has forgotten; reads every run."""
    reader = RunReader(home)
    for name in run_names(home):
        run = reader.run(name)
        outcome = run.origin.outcome if run.origin else None
        if run.start is not None and label in (run.start.job_label, run.start.job_id):
            return name
        if run.end is not None and label in (run.end.job_label, run.end.job_id):
            return name
        if outcome is not None and outcome.job_id == label:
            return name
    return None


class LookedUpJob(NamedTuple):
    """A run to look at, in a state directory that may last only as long as the look; `job` is None for a run of one's
    own project."""

    home: str
    name: str
    job: JobDescription | None = None


@contextlib.contextmanager
def job_as_run(home: str, word: str, environ: Mapping[str, str], command: str) -> Iterator[LookedUpJob]:
    """A job id as a run: the one that it is in this project, or one in a temporary directory, gone afterwards.

    `command` is what a hint tells to type for one task of an array.
    """
    found = _find_one(home, word, environ, command)
    if isinstance(found, LookedUpJob):
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="shoal-job-") as temporary:
        name = f"{ADOPTED}/{found.label.replace('+', '-')}"
        script = slurm.batch_script(found.array_job_id or found.job_id, environ) if found.is_batch else None
        for part in ("runs", "submissions"):
            files.make_dir(os.path.join(temporary, part))
        yield LookedUpJob(temporary, write_run(temporary, found, name, "slurm", script), found)


def _find_one(home: str, word: str, environ: Mapping[str, str], command: str) -> LookedUpJob | JobDescription:
    label, here = word.partition(";")[0], cluster_name(environ)
    try:
        jobs = describe_jobs(word, environ)
    except InputError:
        known = find_run_of_job(home, label)
        if known is None:
            raise
        return LookedUpJob(home, known)
    job = next((one for one in jobs if one.label == label), jobs[0])._replace(cluster=here)
    if len(jobs) > 1 and job.label != label and not job.is_heterogeneous:
        tasks = f"{jobs[0].label} to {jobs[-1].label}"
        raise InputError(f"job {label} is an array with the tasks {tasks}", hint=f"{command} {jobs[0].label}")
    with contextlib.suppress(InputError):  # a job of another project of shoal is looked at like any other
        run = _known_run(home, job, here)
        if run is not None:
            return LookedUpJob(home, run.name)
    return job
