"""Claim, send, settle: at whatever point this command dies, no run is lost and none runs twice.

1. specs are recorded, and the intent with its script: nothing can be sent that is not on disk first (a full disk stops
   here);
2. each run's next generation is claimed by exclusive creation: of two commands one wins, the other leaves it alone;
3. the mark "sending" is set, then sbatch is called once, with the token in the job's name;
4. the answer becomes the outcome. An unclear answer stays open: the next look at the runs finds the job by its name, or
   gives the submission up when it can no longer turn into a job. It is never sent again blindly.

A pack on this machine does 3 before 2: its engine starts while runs are still being claimed, and takes each once it is.
"""

from __future__ import annotations

import functools
import getpass
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal import secrecy
from shoal.agent import admission, stages
from shoal.agent.shipping import ship
from shoal.backends.slurm.facts import cluster_name
from shoal.backends.slurm.query import scancel
from shoal.config.project import Project
from shoal.kernel import files, process
from shoal.kernel.files import names_in
from shoal.kernel.slurm import Answer, clean_environ, sbatch
from shoal.model import RunSpec
from shoal.names import new_token, slug, tracker_id
from shoal.plan.submissions import PlannedRun, PlannedSubmission, log_root, name_of, own_options, script_text
from shoal.store import writing
from shoal.store.fold import RunView
from shoal.store.records import Asked, Claim, Outcome, Submission
from shoal.submit import provenance
from shoal.submit.failpoints import reach
from shoal.submit.snapshot import Code


class Started(NamedTuple):
    """One run that this command put under way, or tried to. `state` is pending, unknown, or new if Slurm refused it."""

    name: str
    state: str
    job_id: str | None
    output_dir: str
    message: str = ""


class Claimed(NamedTuple):
    """A submission whose runs are ours: intent on disk, nothing sent yet. `indices` are the runs that we won."""

    token: str
    folder: str
    script: str
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
    code: Code | None = None,
    opened: Callable[[str, str], None] | None = None,
) -> Claimed:
    """Record specs and intent, and claim every run; runs that another command won meanwhile are left out.

    `code` is the snapshot that its jobs execute, if there is one. `opened` hears of the token and the folder as soon as
    the intent can be read: an engine on this machine begins while the intent gets to the disk and runs are still being
    claimed. Each run is recorded before it is claimed, and claimed before it can start.
    """
    root, home = str(project.root), writing.open_home(project.home, project.shared_by)
    reach("before-spec")
    ids = writing.project_id(home)
    writing.keep_notify(home, project.notify)
    specs = [run.spec for run in planned.runs]
    if opened is None:
        specs = writing.in_parallel(lambda run: _record(home, ids, run), list(planned.runs))
    reach("after-spec")
    token, agent = new_token(), ship(home)
    submission = _intent(planned, [spec.name for spec in specs], token, backend, environ, clock, code)
    folder = os.path.join(home, "submissions", token)
    script = script_text(planned, folder, agent, root, token, shared=files.is_shared(home))
    reach("before-submission")
    queue = planned.pack.record(local=backend == "local") if planned.pack is not None else None
    begin = (lambda: None) if opened is None else functools.partial(opened, token, folder)
    writing.open_submission(home, submission, script, queue, begin)
    if backend == "slurm":
        provenance.keep(folder, project.home, code, environ)
    reach("after-submission")
    if opened is not None:
        accept_here(home, token)
    logs = log_root(planned.resolved.cluster, root)
    stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(clock))
    outputs = {}

    def claim_one(index: int) -> bool:
        run = planned.runs[index]
        spec = specs[index] if opened is None else _record(home, ids, run)
        view = views[spec.name]
        output = run.resume_in or _free_folder(root, spec, stamp, view)
        outputs[spec.name] = output
        record = Claim(
            token=token,
            index=index,
            revision=spec.revision,
            output_dir=output,
            log_dir=output if logs is None else os.path.join(logs, spec.name, os.path.basename(output)),
            resume=run.resume_in is not None,
            t=clock,
        )
        # The next generation after those that were there when it was decided to start the run, and no later one:
        # whoever claimed in between has decided the same, and must win.
        won = writing.claim(home, spec.name, view.claims + 1, record)
        reach("between-claims")
        return won

    order = [job.place for job in planned.pack.jobs] if planned.pack is not None else list(range(len(specs)))
    won = writing.in_parallel(claim_one, order)
    reach("after-claims")
    indices = sorted(index for index, ours in zip(order, won, strict=True) if ours)
    if not indices:
        writing.settle(home, token, Outcome(kind="void", reason="another command claimed every run first"))
    return Claimed(token, folder, script, planned, indices, outputs)


def _intent(
    planned: PlannedSubmission,
    names: list[str],
    token: str,
    backend: str,
    environ: Mapping[str, str],
    clock: float,
    code: Code | None,
) -> Submission:
    """What is written down before anything is sent."""
    cluster, request, on_slurm = planned.resolved.cluster, planned.request, backend == "slurm"
    nodes = request.nodes or 1
    return Submission(
        token=token,
        backend=backend,
        cluster=cluster.name,
        slurm_cluster=cluster_name(environ) if on_slurm else None,
        job_name=name_of(planned, token),
        runs=names,
        t=clock,
        user=getpass.getuser(),
        time_limit_s=request.time_limit_s if on_slurm else None,
        queue=slug(cluster.name) if on_slurm else None,
        nodes=nodes,
        gpus=nodes * (request.gpus or 0),
        code=code.root if code else None,
        commit=code.commit if code else None,
        asked=_asked(planned),
        shape=planned.shape if planned.pack is not None else None,
        needs=planned.needs,
        **process.this_process(),
    )


def send(claimed: Claimed, project: Project, environ: Mapping[str, str], *, after: str | None = None) -> list[Started]:
    """Send a claimed submission to Slurm, once, and write down what came of it; `after` is a job that ends first."""
    home, planned = str(project.home), claimed.planned
    if not claimed.indices:
        return []
    travelling = secrecy.for_job(environ)
    options = [
        ("job-name", name_of(planned, claimed.token)),
        *planned.resolved.options,
        *own_options(planned, claimed.folder, str(project.root), claimed.indices),
    ]
    waits = [f"afterany:{after}"] if after else []
    needed = stages.dependency(home, planned.needs, any_end=planned.any_end)
    waits += [needed.waits] if needed.waits else []
    if waits:
        options.append(("dependency", ",".join(waits)))
    argv = [f"--{name}" if value is None else f"--{name}={value}" for name, value in options]
    keep_order(home, claimed.folder, "sent.json", argv, travelling)
    reach("before-sending")
    writing.mark_sending(home, claimed.token)
    reach("after-sending")
    answer = sbatch(argv, claimed.script, travelling)
    reach("after-sbatch")
    outcome = _outcome_of(answer)
    reach("before-outcome")
    if outcome is not None:
        held = writing.settle(home, claimed.token, outcome)
        if held.kind == "void" and outcome.kind == "accepted" and outcome.job_id:
            # Somebody gave this submission up while we were stopped: its job would only meet the fence.
            scancel([outcome.job_id], environ)
            outcome = held
    reach("after-outcome")
    return _report(claimed, answer, outcome)


def accept_here(home: str, token: str) -> None:
    """This machine takes what it is asked to run, and says so as Slurm does."""
    reach("before-sending")
    writing.mark_sending(home, token)
    reach("after-sending")
    writing.settle(home, token, Outcome(kind="accepted"))
    reach("after-outcome")


def keep_order(
    home: str,
    folder: str,
    name: str,
    argv: Sequence[str],
    environ: Mapping[str, str],
    needs: Sequence[str] = (),
    any_end: bool = False,
) -> None:
    """Write down how a submission is sent, so that a job can send its own follow-up, or a waiting one be sent later."""
    kept = admission.keep_environment(home, clean_environ(environ))
    record = {"schema": 1, "argv": list(argv), "environment": kept, "needs": list(needs), "any_end": any_end}
    files.create_exclusive(os.path.join(folder, name), files.to_json(record))


def _outcome_of(answer: Answer) -> Outcome | None:
    if answer.kind == "accepted":
        return Outcome(kind="accepted", job_id=answer.job_id)
    if answer.kind in ("refused", "unreached"):
        return Outcome(kind="void", reason=answer.message)
    return None


def _report(claimed: Claimed, answer: Answer, outcome: Outcome | None) -> list[Started]:
    accepted = outcome is not None and outcome.kind == "accepted"
    state = "pending" if accepted else ("unknown" if outcome is None else "new")
    array = claimed.planned.shape == "array"
    reach("before-report")
    started = []
    for index in claimed.indices:
        name = claimed.planned.runs[index].spec.name
        job = answer.job_id if accepted else None
        label = f"{job}_{index}" if job and array else job
        started.append(Started(name, state, label, claimed.outputs[name], answer.message))
    return started


def _asked(planned: PlannedSubmission) -> Asked:
    request = planned.request
    return Asked(
        nodes=request.nodes or 1,
        gpus=request.gpus or 0,
        gpu_type=request.gpu_type,
        cpus=request.cpus,
        memory_mb=request.memory_mb,
        partition=planned.resolved.get("partition"),
    )


def _record(home: str, project: str, run: PlannedRun) -> RunSpec:
    spec = run.spec
    named = msgspec.structs.replace(spec, tracker_id=tracker_id(project, spec.name, spec.revision))
    return writing.record_spec(home, named)


def _free_folder(root: str, spec: RunSpec, stamp: str, view: RunView) -> str:
    """outputs/<kind>/<experiment>/<stem>/<stamp>, a second later for as long as that folder was used before."""
    parent = os.path.join(root, "outputs", spec.output, spec.experiment, spec.stem)
    used = {*names_in(parent), os.path.basename(view.output_dir or "")}
    moment = time.mktime(time.strptime(stamp, "%Y%m%d_%H%M%S"))
    while (name := time.strftime("%Y%m%d_%H%M%S", time.localtime(moment))) in used:
        moment += 1
    return os.path.join(parent, name)


def refused(started: Sequence[Started]) -> list[Started]:
    return [run for run in started if run.state == "new"]
