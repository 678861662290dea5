"""What a command adds to the submission transaction (kernel/submission.py): specs, directories, scripts, a report.

A pack on this machine is accepted before its runs are claimed: its engine starts meanwhile, and takes each claimed run.
"""

from __future__ import annotations

import functools
import getpass
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal import __version__, redaction
from shoal.clusters import cluster_name
from shoal.describe import PlannedRun, Project
from shoal.job import admission, environment, job_constraints, write_agent_zip
from shoal.kernel import Provenance, clean_environ, failpoint, files, list_names, processes, records, submission
from shoal.model import RunSpec
from shoal.names import make_slug, tracker_id
from shoal.observe import ClaimRecord, Outcome, RequestedResources, RunView, Submission, run_writer
from shoal.plan import PlannedSubmission, log_root, shoal_options, slurm_job_name, submission_script
from shoal.submit.snapshot import CodeSnapshot

#: What a step may say after a run was described, for its later attempts.
_UPDATABLE_FIELDS = ("checkpoint", "resume_args", "resumes")


class StartedRun(NamedTuple):
    """One run that this command put under way, or tried to. `state` is pending, unknown, or new if Slurm refused it."""

    name: str
    state: str
    job_id: str | None
    output_dir: str
    message: str = ""


class ClaimedSubmission(NamedTuple):
    """A submission whose runs are ours: intent on disk, nothing sent yet. `indices` are the runs that we won."""

    token: str
    folder: str
    planned: PlannedSubmission
    indices: list[int]
    outputs: dict[str, str]


def claim_runs(
    planned: PlannedSubmission,
    views: Mapping[str, RunView],
    project: Project,
    *,
    backend: str,
    environ: Mapping[str, str],
    clock: float,
    code: CodeSnapshot | None = None,
    opened: Callable[[str, str], None] | None = None,
    request: str | None = None,
    waits: bool = False,
    after: str | None = None,
) -> ClaimedSubmission:
    """Record specs and intent, and claim every run; runs that another command won meanwhile are left out.

    `code` is the snapshot that its jobs execute, if there is one. `request` is the order that this belongs to. It
    starts when the job `after` has ended, or with `waits` is sent when there is room. `opened` hears of the token and
    the folder as soon as the intent can be read: an engine on this machine begins while the intent gets to the disk and
    runs are still being claimed. Each run is recorded before it is claimed, and claimed before it can start.
    """
    root, home = str(project.root), run_writer.open_state_dir(project.home, project.shared_by)
    specs = [run.spec for run in planned.runs]
    token, agent = submission.new_token(), write_agent_zip(home)
    folder = os.path.join(home, "submissions", token)
    intent = _submission_intent(planned, [spec.name for spec in specs], token, backend, environ, clock, code)
    if backend == "slurm":
        argv = _argv(planned, token, folder, root, range(len(specs)))
        intent = intent._replace(
            provenance=_provenance(project.home, code, environ),
            argv=argv if waits else [*argv, *_dependency_option(home, planned, after)],
            environment=admission.store_environment(home, _job_environment(environ)),
            waits=waits,
            any_end=planned.any_end,
        )
    script = submission_script(planned, folder, agent, root, token, shared=files.is_shared(home))
    # Only now: what cannot be sent leaves no run behind.
    failpoint("before-spec")
    ids = run_writer.project_id(home)
    run_writer.write_notify_settings(home, project.notify)
    if opened is None:
        specs = run_writer.map_in_threads(lambda run: _record_spec(home, ids, run), list(planned.runs))
    failpoint("after-spec")
    failpoint("before-submission")
    queue = planned.pack.record(local=backend == "local") if planned.pack is not None else None
    begin = (lambda: None) if opened is None else functools.partial(opened, token, folder)
    submission.write_intent(home, intent, script.encode("utf-8", "surrogateescape"), queue, begin)
    failpoint("after-submission")
    if opened is not None:
        submission.accept_locally(home, token)
    logs = log_root(planned.resolved.cluster, root)
    stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(clock))
    outputs = {}

    def claim_one(index: int) -> bool:
        run = planned.runs[index]
        spec = specs[index] if opened is None else _record_spec(home, ids, run)
        view = views[spec.name]
        output = run.resume_in or _new_output_directory(root, spec, stamp, view)
        outputs[spec.name] = output
        record = ClaimRecord(
            token=token,
            index=index,
            revision=spec.revision,
            output_dir=output,
            log_dir=output if logs is None else os.path.join(logs, spec.name, os.path.basename(output)),
            resume=run.resume_in is not None,
            t=clock,
            request=request,
            changes={
                name: getattr(run.spec, name)
                for name in _UPDATABLE_FIELDS
                if getattr(run.spec, name) != getattr(spec, name)
            },
        )
        won = submission.claim_generation(home, spec.name, view.claims + 1, record)
        failpoint("between-claims")
        return won

    order = [job.place for job in planned.pack.jobs] if planned.pack is not None else list(range(len(specs)))
    won = run_writer.map_in_threads(claim_one, order)
    failpoint("after-claims")
    indices = sorted(index for index, ours in zip(order, won, strict=True) if ours)
    if not indices:
        submission.write_outcome(home, token, Outcome(kind="void", reason="another command claimed every run first"))
    return ClaimedSubmission(token, folder, planned, indices, outputs)


def _submission_intent(
    planned: PlannedSubmission,
    names: list[str],
    token: str,
    backend: str,
    environ: Mapping[str, str],
    clock: float,
    code: CodeSnapshot | None,
) -> Submission:
    """What is written down before anything is sent."""
    cluster, request, on_slurm = planned.resolved.cluster, planned.request, backend == "slurm"
    nodes = request.nodes or 1
    return Submission(
        token=token,
        backend=backend,
        cluster=cluster.name,
        slurm_cluster=cluster_name(environ) if on_slurm else None,
        job_name=slurm_job_name(planned, token),
        runs=names,
        t=clock,
        user=getpass.getuser(),
        time_limit_s=request.time_limit_s if on_slurm else None,
        queue=make_slug(cluster.name) if on_slurm else None,
        nodes=nodes,
        gpus=nodes * (request.gpus or 0),
        code=code.root if code else None,
        commit=code.commit if code else None,
        asked=_requested_resources(planned),
        shape=planned.shape if planned.pack is not None else None,
        needs=list(planned.needs),
        **processes.own_identity(),
    )


def send_submission(claimed: ClaimedSubmission, project: Project, environ: Mapping[str, str]) -> list[StartedRun]:
    """Send a claimed submission to Slurm, once, and write down what came of it."""
    home, planned, order = str(project.home), claimed.planned, None
    if not claimed.indices:
        return []
    intent = submission.last_send(home, claimed.token)
    if intent is not None and planned.shape == "array" and len(claimed.indices) < len(planned.runs):
        # Other commands have won some of the tasks.
        own = _argv(planned, claimed.token, claimed.folder, str(project.root), claimed.indices)
        kept = [word for word in intent.argv if word.startswith("--dependency=")]
        order = records.new_send([*own, *kept], intent.environment, time.time())
    return _report(claimed, submission.send(home, claimed.token, order, environ=_job_environment(environ)))


def _dependency_option(home: str, planned: PlannedSubmission, after: str | None) -> list[str]:
    """What the job has to wait for: one that ends first, and what its runs build on."""
    needed = job_constraints.dependency_option(home, list(planned.needs), any_end=planned.any_end)
    waits = [*([f"afterany:{after}"] if after else []), *([needed.waits] if needed.waits else [])]
    return [f"--dependency={','.join(waits)}"] if waits else []


def _argv(planned: PlannedSubmission, token: str, folder: str, root: str, indices: Sequence[int]) -> list[str]:
    """All that is asked of sbatch but what the job has to wait for."""
    options = [
        ("job-name", slurm_job_name(planned, token)),
        *planned.resolved.options,
        *shoal_options(planned, folder, root, indices),
    ]
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in options]


def _job_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a job gets of this environment: no secrets, nothing of ours, and no options of Slurm in disguise."""
    return clean_environ(redaction.job_environment(environ))


def _report(claimed: ClaimedSubmission, sent: submission.SendResult) -> list[StartedRun]:
    state = {"accepted": "pending", "unclear": "unknown"}.get(sent.kind, "new")
    array = claimed.planned.shape == "array"
    failpoint("before-report")
    started = []
    for index in claimed.indices:
        name = claimed.planned.runs[index].spec.name
        label = f"{sent.job_id}_{index}" if sent.job_id and array else sent.job_id
        started.append(StartedRun(name, state, label, claimed.outputs[name], sent.message))
    return started


def _requested_resources(planned: PlannedSubmission) -> RequestedResources:
    request = planned.request
    return RequestedResources(
        nodes=request.nodes or 1,
        gpus=request.gpus or 0,
        gpu_type=request.gpu_type,
        cpus=request.cpus,
        memory_mb=request.memory_mb,
        partition=planned.resolved.get("partition"),
    )


def _record_spec(home: str, project: str, run: PlannedRun) -> RunSpec:
    spec = run.spec
    named = msgspec.structs.replace(spec, tracker_id=tracker_id(project, spec.name, spec.revision))
    return run_writer.write_spec(home, named)


def _new_output_directory(root: str, spec: RunSpec, stamp: str, view: RunView) -> str:
    """outputs/<kind>/<experiment>/<stem>/<stamp>, a second later for as long as that folder was used before."""
    parent = os.path.join(root, "outputs", spec.output, spec.experiment, spec.stem)
    used = {*list_names(parent), os.path.basename(view.output_dir or "")}
    moment = time.mktime(time.strptime(stamp, "%Y%m%d_%H%M%S"))
    while (name := time.strftime("%Y%m%d_%H%M%S", time.localtime(moment))) in used:
        moment += 1
    return os.path.join(parent, name)


def refusal_error(started: Sequence[StartedRun]) -> list[StartedRun]:
    return [run for run in started if run.state == "new"]


def _provenance(home: Path, code: CodeSnapshot | None, environ: Mapping[str, str]) -> Provenance:
    """What surrounds the submission: shoal's version, the shell's Python and its packages.

    The Python of the job may be another one; what an attempt was really started with stands in its start record.
    """
    found = environment.record_packages(str(home), ["python"], environ, "/") or {}
    changed = code.changed if code else None
    return Provenance(__version__, changed, found.get("version"), found.get("packages"))
