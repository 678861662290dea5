"""What a command adds to the submission transaction (kernel/submission.py): specs, directories, scripts, a report.

A pack on this machine is accepted before its runs are claimed: its engine starts meanwhile, and takes each claimed run.
"""

from __future__ import annotations

import functools
import getpass
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from shoal import __version__, redaction
from shoal.actions.snapshot import CodeSnapshot
from shoal.clusters import UNKNOWN, ClusterFacts, cluster_name
from shoal.describe import PlannedRun, Project
from shoal.errors import InputError
from shoal.job import admission, environment, fill_placeholders, job_constraints, write_agent_zip
from shoal.kernel import (
    Provenance,
    clean_environ,
    failpoint,
    files,
    layout,
    list_names,
    processes,
    records,
    submission,
)
from shoal.model import RunSpec
from shoal.names import make_slug, tracker_id
from shoal.observe import ClaimRecord, Outcome, RequestedResources, RunView, Submission, run_writer
from shoal.plan import PlannedSubmission, log_root, shoal_options, slurm_job_name, submission_script

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
    """A submission whose runs are ours: intent on disk, nothing sent yet. `indices` are the runs that we won;
    `environment` is that of the job."""

    token: str
    folder: str
    planned: PlannedSubmission
    indices: list[int]
    outputs: dict[str, str]
    environment: Mapping[str, str]


class Claimant(NamedTuple):
    """Who claims runs: a command over a project, with the state of the runs that it has seen. `code` is the snapshot
    that jobs execute, if there is one; `command_id` names the user's command; `facts` are what the cluster told."""

    project: Project
    environ: Mapping[str, str]
    views: Mapping[str, RunView]
    clock: float
    code: CodeSnapshot | None = None
    command_id: str | None = None
    facts: ClusterFacts = UNKNOWN


def claim_runs(
    planned: PlannedSubmission,
    claimant: Claimant,
    *,
    backend: str,
    opened: Callable[[str, str], None] | None = None,
    waits: bool = False,
    after: str | None = None,
) -> ClaimedSubmission:
    """Record specs and intent, and claim every run; runs that another command won meanwhile are left out.

    It starts when the job `after` has ended, or with `waits` is sent when there is room. `opened` hears of the token
    and the folder as soon as the intent can be read: an engine on this machine begins while the intent gets to the disk
    and runs are still being claimed. Each run is recorded before it is claimed, and claimed before it can start.
    """
    project, home = claimant.project, str(claimant.project.home)
    token = submission.new_token()
    folder = layout.submission_dir(home, token)
    intent = _submission_intent(planned, claimant, token, backend)
    job_environ: Mapping[str, str] = {}
    if backend == "slurm":
        # No secrets, nothing of ours, and no options of Slurm in disguise.
        job_environ = clean_environ(redaction.job_environment(claimant.environ))
        argv = _argv(planned, intent.job_name, folder, str(project.root), range(len(planned.runs)))
        intent = intent._replace(
            provenance=_provenance(home, claimant.code, claimant.environ),
            argv=argv if waits else _with_dependencies(argv, _dependency_option(home, planned, after)),
            environment=admission.store_environment(home, job_environ),
            waits=waits,
        )
    agent, shared = write_agent_zip(home), files.is_shared(home)
    for run in planned.runs:
        _keep_script(home, run.spec)
    script = submission_script(planned, folder, agent, str(project.root), token, shared=shared)
    # Only now: what cannot be sent leaves no run behind.
    failpoint("before-spec")
    ids = run_writer.project_id(home)
    run_writer.write_notify_settings(home, project.notify)
    specs: list[RunSpec] | None = None
    if opened is None:
        specs = run_writer.map_in_threads(lambda run: _record_spec(home, ids, run), list(planned.runs))
    failpoint("before-submission")
    queue = planned.pack.record(local=backend == "local") if planned.pack is not None else None
    begin = (lambda: None) if opened is None else functools.partial(opened, token, folder)
    submission.write_intent(home, intent, script.encode("utf-8", "surrogateescape"), queue, begin)
    failpoint("after-submission")
    if opened is not None:
        submission.accept_locally(home, token)
    outputs: dict[str, str] = {}

    def claim_one(index: int) -> bool:
        run = planned.runs[index]
        spec = specs[index] if specs is not None else _record_spec(home, ids, run)
        view = claimant.views[run.spec.name]
        record = _claim_record(planned, index, spec, claimant, token, view)
        outputs[view.name] = record.output_dir
        won = submission.claim_generation(home, view.name, view.claims + 1, record)
        failpoint("between-claims")
        return won

    places = [job.place for job in planned.pack.jobs] if planned.pack is not None else list(range(len(planned.runs)))
    won = run_writer.map_in_threads(claim_one, places)
    failpoint("after-claims")
    indices = sorted(index for index, ours in zip(places, won, strict=True) if ours)
    if not indices:
        submission.write_outcome(home, token, Outcome(kind="void", reason="another command claimed every run first"))
    return ClaimedSubmission(token, folder, planned, indices, outputs, job_environ)


def _claim_record(
    planned: PlannedSubmission, index: int, spec: RunSpec, claimant: Claimant, token: str, view: RunView
) -> ClaimRecord:
    """`spec` is the run's as it is on disk; what its step says differently now are the claim's changes."""
    run, root = planned.runs[index], str(claimant.project.root)
    logs = log_root(planned.resolved.cluster, root)
    stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(claimant.clock))
    output = run.resume_in or _new_output_directory(root, spec, stamp, view)
    fields = {name: getattr(run.spec, name) for name in _UPDATABLE_FIELDS}
    return ClaimRecord(
        token=token,
        index=index,
        revision=spec.revision,
        output_dir=output,
        log_dir=output if logs is None else os.path.join(logs, view.name, os.path.basename(output)),
        resume=run.resume_in is not None,
        t=claimant.clock,
        command_id=claimant.command_id,
        changes={name: value for name, value in fields.items() if value != getattr(spec, name)},
    )


def _keep_script(home: str, spec: RunSpec) -> None:
    """Keep a batch script as it was described; its jobs execute that copy."""
    if not spec.script:
        return
    path = layout.kept_script(home, spec.script["digest"], spec.script["file"], files.is_shared(home))
    if os.path.exists(path):
        return
    source = os.path.join(spec.cwd, fill_placeholders(spec.command[spec.script["word"]], {}))
    data = Path(source).read_bytes()
    if hashlib.sha256(data).hexdigest()[:16] != spec.script["digest"]:
        raise InputError(f"{source} was changed while it was submitted", hint="run the same command again")
    files.make_dir(os.path.dirname(path))
    files.create_exclusive(path, data, executable=True)


def _submission_intent(planned: PlannedSubmission, claimant: Claimant, token: str, backend: str) -> Submission:
    """What is written down before anything is sent, whether Slurm or this machine gets it."""
    cluster, request, on_slurm = planned.resolved.cluster, planned.request, backend == "slurm"
    nodes, code, partition = request.nodes or 1, claimant.code, planned.resolved.get("partition")
    return Submission(
        token=token,
        backend=backend,
        cluster=cluster.name,
        slurm_cluster=cluster_name(claimant.environ) if on_slurm else None,
        job_name=slurm_job_name(planned, token),
        runs=[run.spec.name for run in planned.runs],
        t=claimant.clock,
        user=getpass.getuser(),
        # In a pack on this machine each run has its own limit.
        time_limit_s=request.time_limit_s if on_slurm or planned.pack is None else None,
        queue=make_slug(cluster.name) if on_slurm else None,
        nodes=nodes,
        gpus=nodes * (request.gpus or 0),
        code=code.root if code else None,
        commit=code.commit if code else None,
        asked=RequestedResources(
            nodes=nodes,
            gpus=request.gpus or 0,
            gpu_type=request.gpu_type,
            cpus=request.cpus,
            memory_mb=request.memory_mb,
            partition=partition,
        ),
        layout=planned.layout if planned.pack is not None else None,
        needs=planned.needs,
        any_end=on_slurm and planned.any_end,
        step=planned.runs[0].spec.step_kind,
        cluster_gpus=claimant.facts.total_gpus(partition) or None,
        **processes.own_identity(),
    )


def send_submission(claimed: ClaimedSubmission, project: Project) -> list[StartedRun]:
    """Send a claimed submission to Slurm, once, and write down what came of it."""
    home, planned, record = str(project.home), claimed.planned, None
    if not claimed.indices:
        return []
    intent = submission.last_send(home, claimed.token)
    if intent is not None and planned.layout == "array" and len(claimed.indices) < len(planned.runs):
        # Other commands have won some of the tasks.
        name = slurm_job_name(planned, claimed.token)
        own = _argv(planned, name, claimed.folder, str(project.root), claimed.indices)
        kept = [word for word in intent.argv if word.startswith("--dependency=")]
        record = records.new_send([*own, *kept], intent.environment, time.time())
    return _report(claimed, submission.send(home, claimed.token, record, environ=claimed.environment))


def _with_dependencies(argv: list[str], added: list[str]) -> list[str]:
    """The options with those dependencies beside the ones that a user asked for; of two options sbatch reads one."""
    own = [word.partition("=")[2] for word in argv if word.startswith("--dependency=")]
    if not added or not own:
        return [*argv, *added]
    rest = [word for word in argv if not word.startswith("--dependency=")]
    return [*rest, f"--dependency={','.join([*own, *(word.partition('=')[2] for word in added)])}"]


def _dependency_option(home: str, planned: PlannedSubmission, after: str | None) -> list[str]:
    """What the job has to wait for: one that ends first, and what its runs build on."""
    waits = [f"afterany:{after}"] if after else []
    if needs := planned.needs:
        needed = job_constraints.dependency_option(home, needs, any_end=planned.any_end)
        waits += [needed.waits] if needed.waits else []
    return [f"--dependency={','.join(waits)}"] if waits else []


def _argv(planned: PlannedSubmission, name: str, folder: str, root: str, indices: Sequence[int]) -> list[str]:
    """All that is asked of sbatch but what the job has to wait for."""
    options = [
        ("job-name", name),
        *planned.resolved.options,
        *shoal_options(planned, folder, root, indices),
    ]
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in options]


def _report(claimed: ClaimedSubmission, sent: submission.SendResult) -> list[StartedRun]:
    state = {"accepted": "pending", "unclear": "unknown"}.get(sent.kind, "new")
    array = claimed.planned.layout == "array"
    failpoint("before-report")
    started = []
    for index in claimed.indices:
        name = claimed.planned.runs[index].spec.name
        label = f"{sent.job_id}_{index}" if sent.job_id and array else sent.job_id
        started.append(StartedRun(name, state, label, claimed.outputs[name], sent.message))
    return started


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


def _provenance(home: str, code: CodeSnapshot | None, environ: Mapping[str, str]) -> Provenance:
    """What surrounds the submission: shoal's version, the shell's Python and its packages.

    The Python of the job may be another one; what an attempt was really started with stands in its start record.
    """
    found = environment.record_packages(home, ["python"], environ, "/") or {}
    changed = code.changed if code else None
    return Provenance(__version__, changed, found.get("version"), found.get("packages"))
