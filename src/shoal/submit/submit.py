"""`shoal submit` and `shoal pack`: which files or commands, evaluated when, in which order, and the results."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from shoal import redaction
from shoal.describe import (
    FILE_SUFFIXES,
    Cluster,
    PlannedRun,
    Project,
    RequestedRun,
    StepCall,
    SweepNames,
    SweepOptions,
    command_sweep,
    read_command_file,
    read_experiment_file,
    read_sweeps,
    requested_run,
    seeds_in,
    with_flags,
)
from shoal.errors import InputError
from shoal.model import FAILED_STATES, SUCCESSFUL_STATES, Request
from shoal.names import parse_script_path
from shoal.plan import PackOptions, PlannedSubmission, choose_cluster
from shoal.submit import idempotency
from shoal.submit.cancel import cancel_runs, removed_runs
from shoal.submit.decide import CheckpointDecision, refuse_uncertain_resume
from shoal.submit.execute import execute_plan, run_smoke_locally, save_names
from shoal.submit.idempotency import IdempotentOrder
from shoal.submit.prepare import DEFAULT_OPTIONS, SubmissionPlan, SubmitOptions, SubmitResult, prepare_submission
from shoal.units import natural_sort_key, shorten_list


class SubmitListener(Protocol):
    """Who hears of results and remarks while they come, and may be asked before anything is sent.

    `chooses`: whether runs continue from their checkpoints; None where nobody can be asked. `is_sure`: whether a person
    wants that although their programs may start over.
    """

    def __call__(self, result: SubmitResult) -> None: ...
    def note(self, text: str) -> None: ...
    def agrees(self, order: SubmissionPlan, cluster: Cluster) -> bool: ...
    def chooses(self, found: Sequence[CheckpointDecision]) -> bool | None: ...
    def is_sure(self, found: Sequence[CheckpointDecision]) -> bool: ...


def find_scripts(paths: Sequence[Path], project: Project) -> list[Path]:
    """The experiment scripts that paths stand for, folders in the order of their numbers; checks every name first."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = _scripts_in(path, "*") or _scripts_in(path, "*/*")
            if not inside:
                raise InputError(f"there is no experiment script in {path}", hint=f"ls {path}")
            found += inside
        elif path.suffix not in FILE_SUFFIXES:
            raise InputError(
                f"{path} is not an experiment script", hint="a file ending in .sh, .toml or .py, or a folder of them"
            )
        elif not path.is_file():
            raise InputError(f"there is no file {path}", hint="ls experiments/*")
        else:
            found.append(path)
    for path in found:
        if path.suffix != ".py":  # a Python file names its experiment itself
            parse_script_path(path, project.root)
    return list(dict.fromkeys(found))


def _scripts_in(folder: Path, pattern: str) -> list[Path]:
    return sorted((path for suffix in FILE_SUFFIXES for path in folder.glob(pattern + suffix)), key=natural_sort_key)


class ScriptRuns(NamedTuple):
    """Everything that files ask for, and what the names of sweeps rest on."""

    asked: list[RequestedRun]
    grown: list[SweepNames]


def read_scripts(
    paths: Sequence[Path], project: Project, environ: Mapping[str, str], wish: SweepOptions | None = None
) -> ScriptRuns:
    """Read every file; a mistake in any of them is raised."""
    read = ScriptRuns([], [])
    for path in find_scripts(paths, project):
        found = read_experiment_file(path, project, environ, wish or SweepOptions())
        read.asked.extend(found.asked)
        read.grown.extend(found.grown)
    return read


def submit_scripts(
    paths: Sequence[Path],
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
    *,
    tell: SubmitListener,
    follow: bool,
    wish: SweepOptions | None = None,
    how: SubmitOptions = DEFAULT_OPTIONS,
    prune: bool = False,
    on: str | None = None,
    request_id: str | None = None,
) -> list[SubmitResult]:
    """Submit scripts in order. All are read first, so that a mistake in the last one stops the first.

    With `prune`, live runs that a sweep no longer describes are cancelled.
    """
    asked, grown = read_scripts(paths, project, environ, wish)
    cluster = cluster_of_scripts(asked, project, cluster, environ, on)
    if prune and not grown:
        raise InputError("--prune has no effect: none of these files is a sweep", hint="remove --prune")
    report_secrets(environ, cluster, tell)
    return submit_runs(
        asked,
        project,
        cluster,
        environ,
        tell=tell,
        follow=follow,
        how=how,
        request_id=request_id,
        grown=grown,
        prune=prune,
    )


def cluster_of_scripts(
    asked: Sequence[RequestedRun], project: Project, cluster: Cluster, environ: Mapping[str, str], on: str | None
) -> Cluster:
    """The cluster that the scripts themselves name, unless the command line named one (`on`) or they name none."""
    named = {one.on for one in asked}
    if on or named <= {None}:
        return cluster
    if len(named) > 1:
        words = " and ".join(sorted(name or "no cluster" for name in named))
        raise InputError(f"these scripts do not agree where to run: {words}", hint="choose for all of them: --on NAME")
    return choose_cluster(project, named.pop(), environ)


def _handle_removed(
    project: Project,
    grown: Sequence[SweepNames],
    asked: Sequence[RequestedRun],
    environ: Mapping[str, str],
    tell: SubmitListener,
    prune: bool,
) -> None:
    """Say which live runs a sweep no longer has, and cancel them if that was asked for."""
    home = str(project.home)
    gone = removed_runs(home, grown, [one.run.spec.name for one in asked], environ)
    if prune and gone:
        cancel_runs(home, gone, environ)
        for view in gone:
            tell(SubmitResult(view.name, "cancelled", "cancelled", "no longer described", view.job_id, view.output_dir))
    elif gone:
        names = shorten_list([view.name for view in gone], 3)
        tell.note(f"{len(gone)} live runs are no longer described ({names}); --prune cancels them")


def submit_call(
    calls: Sequence[StepCall],
    project: Project,
    environ: Mapping[str, str],
    *,
    secret: Sequence[str],
    tell: SubmitListener,
) -> list[SubmitResult]:
    """What one script asked for when a person ran it with bash."""
    asked = [requested_run(call, project) for one in calls for call in _call_per_seed(one)]
    cluster = choose_cluster(project, asked[0].on, environ)
    if secret:
        tell.note(f"{', '.join(secret)} looks secret and is not kept with the run")
    report_secrets(environ, cluster, tell)
    return submit_runs(asked, project, cluster, environ, tell=tell, dry_run=asked[0].dry_run)


def _call_per_seed(call: StepCall) -> list[StepCall]:
    """A call that names its seeds, once for each. The script has run already, so it cannot have used them itself."""
    seeds = seeds_in(call)
    if seeds is None:
        return [call]
    if "SHOAL_SEED" in Path(call.script).read_text("utf-8", "replace"):
        raise InputError(f"{call.script} uses $SHOAL_SEED and names several seeds", hint=f"shoal submit {call.script}")
    return [call._replace(seed=seed) for seed in seeds]


def report_secrets(environ: Mapping[str, str], cluster: Cluster, tell: SubmitListener) -> None:
    """Say what stays behind: a job on another machine does not get this environment's secrets from us."""
    if cluster.is_local:
        return
    _, names = redaction.split_environment(environ)
    from shoal.job import read_secrets

    missing = [name for name in names if name not in read_secrets(environ) and not name.startswith("SHOAL_")]
    if missing:
        tell.note(
            f"{', '.join(missing)} stays on this machine; to give it to jobs: {redaction.secrets_file_hint(missing[0])}"
        )


def submit_runs(
    asked: Sequence[RequestedRun],
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
    *,
    tell: SubmitListener,
    follow: bool = True,
    how: SubmitOptions = DEFAULT_OPTIONS,
    dry_run: bool = False,
    given: IdempotentOrder | None = None,
    request_id: str | None = None,
    grown: Sequence[SweepNames] = (),
    prune: bool = False,
) -> list[SubmitResult]:
    """Check what is asked for and carry it out; with `dry_run`, say what would be done.

    `given` is the order that this is part of, where the caller knows more about what it means than the runs and
    `how`; `request_id` is what a person called it. `grown` is what the names of sweeps among them rest on; with
    `prune`, live runs that those no longer describe are cancelled. Neither happens before everything was checked.
    """
    home, again, described = str(project.home), how.again or any(one.again for one in asked), asked
    if given is None and not dry_run and (again or request_id):
        meaning = (how, [(one.run.spec.name, one.run.spec.digest, one.again) for one in asked])
        names = [one.run.spec.name for one in asked]
        given = idempotency.find_order(home, "submit", names, meaning, request_id, environ)
    before: list[SubmitResult] = []
    if given is not None and given.record is not None:
        tell.note(given.told())
        before = given.results()
        for result in before:
            tell(result)
        asked = [] if given.is_done else idempotency.remaining_runs(asked, given, again=how.again)
        how = how._replace(again=False)
        if not asked:
            idempotency.finish_order(home, given)
            return before
    order = prepare_submission(asked, project, cluster, environ, how)
    if not dry_run:
        open_ones = [one for one in order.continuations if one.is_open]
        wish = tell.chooses(open_ones) if open_ones else None
        order = (
            order if wish is None else prepare_submission(asked, project, cluster, environ, how._replace(resume=wish))
        )
        sure = {one.run.spec.name for one in asked if how.sure or one.sure}
        doubtful = [one for one in order.continuations if one.is_uncertain and one.name not in sure]
        if doubtful and not tell.is_sure(doubtful):
            refuse_uncertain_resume(doubtful)
    if not dry_run and not tell.agrees(order, cluster):
        return []
    if not dry_run:
        save_names(project, grown)
    if how.runs_smoke_locally(cluster) and not dry_run:
        smoked = run_smoke_locally(order, project, environ, tell=tell, follow=follow)
        if any(result.did != "ran" or result.state != "done" for result in smoked):
            return smoked
    for note in order.notes:
        tell.note(note)
    if not dry_run:
        _handle_removed(project, grown, described, environ, tell, prune)
        return before + execute_plan(
            order,
            project,
            cluster,
            environ,
            follow=follow,
            tell=tell,
            snapshot=how.snapshot,
            given=given,
            note=tell.note,
        )
    for result in order.left_alone:
        tell(result)
    for planned in order.submissions:
        for run in planned.runs:
            tell(SubmitResult(run.spec.name, "would submit", "new", f"{planned.shape} on {cluster.name}"))
    return []


#: What a command line says about its parameters: --set, --zip, --seeds.
SweepFlags = tuple[Sequence[str], Sequence[str], str | None]


class PackResult(NamedTuple):
    """What became of a pack. `planned` is None when nothing was left to do; `local` when it ran here, to the end;
    `began` is when the command did: runs may have been tried before.
    """

    home: str
    names: list[str]
    results: list[SubmitResult]
    planned: PlannedSubmission | None
    local: bool
    dry_run: bool
    began: float

    @property
    def exit_code(self) -> int:
        """0 all done (or submitted), 4 some not; 130 or 143 if it was interrupted."""
        if self.dry_run or not self.local:
            return 0
        unfinished = [result for result in self.results if result.state not in SUCCESSFUL_STATES]
        codes = [result.exit_code for result in unfinished if result.exit_code and result.exit_code > 128]
        if codes and not any(result.state in FAILED_STATES for result in unfinished):
            return codes[0]
        return 4 if unfinished else 0


def submit_pack(
    words: Sequence[str],
    project: Project,
    cluster: Cluster,
    environ: Mapping[str, str],
    *,
    sweep: SweepFlags,
    options: PackOptions,
    cost: str | None,
    name: str | None,
    again: bool,
    dry_run: bool,
    follow: bool,
    note: Callable[[str], None],
    request_id: str | None = None,
) -> PackResult:
    """Read the commands, lay them out as one queue, and work through it or submit it."""
    began = time.time()
    request = Request()
    if not words:
        raise InputError("there is no command to run", hint="shoal pack --slots 4 -- python train.py")
    path = Path(words[0])
    if len(words) == 1 and cluster.is_local and not path.exists() and shutil.which(words[0]) is None:
        raise InputError(f"{path} is no file of commands, and no program", hint="shoal pack --slots 4 commands.txt")
    if len(words) == 1 and path.is_file() and not path.stat().st_mode & 0o111:
        if any(sweep) or cost:
            raise InputError("a file of commands has no parameters", hint="leave --set and --cost out", place=str(path))
        asked = [RequestedRun(PlannedRun(spec)) for spec in read_command_file(path, project, name, request)]
        grown: list[SweepNames] = []
    else:
        whole = command_sweep(words, name, cost, request)
        whole = whole._replace(blocks=tuple(with_flags(block, *sweep) for block in whole.blocks))
        asked, grown = read_sweeps([whole], project)
    names = [one.run.spec.name for one in asked]
    given = None
    before: list[SubmitResult] = []
    if (again or request_id) and not dry_run:
        meaning = (cluster.name, options, [(one.run.spec.name, one.run.spec.digest) for one in asked])
        given = idempotency.find_order(str(project.home), "pack", names, meaning, request_id, environ)
    if given is not None and given.record is not None:
        note(given.told())
        before = given.results()
        asked = [] if given.is_done else idempotency.remaining_runs(asked, given, again=again)
        again = False
    order = prepare_submission(asked, project, cluster, environ, SubmitOptions("pack", again, pack=options))
    for text in order.notes:
        note(text)
    planned = order.submissions[0] if order.submissions else None
    if dry_run:
        return PackResult(str(project.home), names, order.left_alone, planned, cluster.is_local, True, began)
    save_names(project, grown)
    results = before + execute_plan(order, project, cluster, environ, follow=follow, given=given, note=note)
    return PackResult(str(project.home), names, results, planned, cluster.is_local, False, began)
