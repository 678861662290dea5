"""Carry out a plan, on Slurm or on this machine, and report on each run.

On this machine a run, or the engine of a pack, is a process that executes the same script as a job would.
"""

from __future__ import annotations

import functools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from shoal.actions import idempotency
from shoal.actions.budget import BudgetAdmission, admit_waiting, enqueue, enter_queue
from shoal.actions.idempotency import UserCommand
from shoal.actions.pending_follow_ups import observe_and_follow_up
from shoal.actions.prepare import SubmissionPlan, SubmitResult, SubmitTarget, add_smoke_runs
from shoal.actions.snapshot import CodeSnapshot, delivered_snapshot, is_in_git, take_snapshot
from shoal.actions.transaction import Claimant, ClaimedSubmission, StartedRun, claim_runs, send_submission
from shoal.clusters import ClusterAnswers
from shoal.describe import LOCAL, Cluster, Project, SweepNames, save_sweep_names
from shoal.errors import DiskError, InputError, InterruptError, SchedulerError, ShoalError
from shoal.job import CLAIMED_FILE, job_constraints
from shoal.kernel import accept_locally, files, ignoring_hangup, processes, refuse_untrusted, submission
from shoal.observe import RunView, as_disk_error, observe, run_writer
from shoal.plan import PlannedSubmission, plan_submissions
from shoal.units import shorten_list


def run_locally(claimed: ClaimedSubmission, project: Project, environ: Mapping[str, str], *, follow: bool) -> int:
    """Execute the only run of a claimed submission and return its exit code; Ctrl-C and SIGTERM reach the run.

    With `follow` its output appears on ours as well as in its log; it goes to standard error, because standard output
    belongs to what the command itself reports.
    """
    accept_locally(str(project.home), claimed.token)
    env = {**environ, "SHOAL_TOKEN": claimed.token, "SHOAL_FOLLOW": "1" if follow else "0"}
    script = os.path.join(claimed.folder, "script.sh")
    refuse_untrusted(script)
    agent: subprocess.Popen[bytes] | None = None

    def end(number: int, frame: object) -> None:
        if agent is not None:
            agent.terminate()

    # The terminal sends Ctrl-C to the agent as well, which passes it on to the program; we only wait for both.
    handlers = {signal.SIGINT: lambda *_: None, signal.SIGTERM: end}
    # What comes while it is started is heard when there is somebody to tell.
    signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    unblock = functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, handlers)
    try:
        agent = subprocess.Popen(["bash", script], env=env, cwd=project.root, stdout=sys.stderr, preexec_fn=unblock)
        unblock()
        return agent.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        unblock()


class LocalPackEngine:
    """An engine that begins as soon as the queue can be read, while its runs are still being claimed; `wait` returns
    its exit code.

    Ctrl-C reaches the engine from the terminal; SIGTERM and SIGHUP are passed on; if this command is killed the engine
    hears of it and stops. If the engine is killed, its runs' processes come to us and are killed too.
    """

    def __init__(self, project: Project, environ: Mapping[str, str], *, follow: bool) -> None:
        self._project, self._environ, self._follow = project, environ, follow
        self._engine: subprocess.Popen[bytes] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._folder = ""

    def begin(self, token: str, folder: str) -> None:
        processes.become_subreaper()
        own = {"SHOAL_TOKEN": token, "SHOAL_FOLLOW": "1" if self._follow else "0", "SHOAL_CLAIMING": "1"}
        env = {**self._environ, **own, "SHOAL_PARENT": str(os.getpid())}
        self._folder = folder
        argv = ["bash", os.path.join(folder, "script.sh")]
        files.refuse_untrusted(argv[1])
        engine = subprocess.Popen(argv, env=env, cwd=self._project.root, stdout=sys.stderr)
        self._before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, lambda number, _: engine.send_signal(number))
        self._engine = engine

    def wait(self) -> int:
        """Every run is claimed by now, or somebody else's."""
        if self._engine is None:
            return 0
        files.create_exclusive(os.path.join(self._folder, CLAIMED_FILE), b"", sync=False)
        code = self._engine.wait()
        processes.kill_descendants()
        return processes.shell_exit_code(code)

    def __enter__(self) -> LocalPackEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is not None and self._engine is not None and self._engine.poll() is None:
            self._engine.terminate()
            self._engine.wait()
            processes.kill_descendants()
        for number, handler in self._before.items():
            signal.signal(number, handler)


#: Code of this size is told: each run copies it.
_LARGE_SNAPSHOT_BYTES = 1 << 30


def execute_plan(
    plan: SubmissionPlan,
    target: SubmitTarget,
    *,
    follow: bool = True,
    tell: Callable[[SubmitResult], None] = lambda result: None,
    note: Callable[[str], None] = lambda text: None,
    snapshot: bool = True,
    user_command: UserCommand | None = None,
    claimed: Callable[[], None] | None = None,
) -> list[SubmitResult]:
    """Submit, or run here, everything in the plan; `tell` hears of each run as soon as its fate is known.

    After an error the same command can be given again: with a `user_command` that is written down, as the same one. The
    error says which runs are missing. A terminal that hangs up does not end it in the middle.
    """
    project, home = target.project, target.home
    user_command = user_command or idempotency.unrecorded_command()
    execution = _Execution(plan, target, follow, tell, user_command.id)
    execution.claimed = claimed or execution.claimed
    names = [run.spec.name for planned in plan.submissions for run in planned.runs]
    if names or user_command.is_written:
        run_writer.open_state_dir(project.home, project.shared_by)
        idempotency.record_command(home, user_command, {name: plan.views[name].claims for name in names})
    try:
        copied = any(not run.spec.in_place for planned in plan.submissions for run in planned.runs)
        if copied and snapshot and project.snapshot:
            execution.code = _take_snapshot(project, target.environ, note)
        if target.cluster.is_local:
            for left in plan.left_alone:
                execution.note(left)
            execution.run_all(plan.submissions)
        else:
            with ignoring_hangup():
                _finish_pending_follow_ups(home, plan, target.environ, note)
                _submit_all(execution, plan, target)
    except (ShoalError, OSError, KeyboardInterrupt) as error:
        raise _partial_error(error, names, execution.results) from error
    if {result.name for result in execution.results} >= set(names):
        idempotency.finish_command(home, user_command)
    return execution.results


def _take_snapshot(project: Project, environ: Mapping[str, str], note: Callable[[str], None]) -> CodeSnapshot | None:
    """The code that the runs will execute, each in a directory of its own; None: in the project's folder itself, which
    is told."""
    if project.delivered:
        return delivered_snapshot(project.delivered, project.root, project.home, project.link)
    shared = "files that runs write by relative path overwrite each other"
    if project.toml is None and not is_in_git(project.root, environ):
        note(
            f"all runs work in {project.root}: {shared}. `git init` gives each run a directory of its own; or let them "
            "write to $SHOAL_OUTPUT_DIR"
        )
        return None
    code = take_snapshot(project.root, project.home, environ, project.link)
    if code is None:
        note(f"all runs work in {project.root}, because there is no git: {shared}; let them write to $SHOAL_OUTPUT_DIR")
        return None
    if code.secrets:
        note(f"not copied into the snapshot, because it may hold secrets, but linked: {', '.join(code.secrets)}")
    if code.size > _LARGE_SNAPSHOT_BYTES:
        note(
            f"each run gets a copy of {code.size / 1e9:.1f} GB of files that git tracks; to have all runs read the "
            'project\'s, name them in shoal.toml, as in link = ["data"]'
        )
    return code


def _finish_pending_follow_ups(
    home: str, plan: SubmissionPlan, environ: Mapping[str, str], note: Callable[[str], None]
) -> None:
    """Runs of the plan that wait for a job which an earlier command owes them."""
    names = [name for name, view in plan.views.items() if view.reason == submission.FOLLOW_UP_REASON]
    for sentence in observe_and_follow_up(home, names, environ=environ).sent if names else ():
        note(sentence)


def _submit_all(execution: _Execution, plan: SubmissionPlan, target: SubmitTarget) -> None:
    for left in plan.left_alone:
        execution.note(left)
    home = target.home
    admit_waiting(home)
    if not plan.submissions:
        return
    gate = enter_queue(home, target.cluster, plan.submissions, plan.facts, target.environ, target.project)
    now, later = (plan.submissions, []) if gate is None else gate.split(plan.submissions)
    waiting: list[SubmitResult] = []
    try:
        execution.send_all(now)
        waiting = [execution.put_off(planned, gate) for planned in later]
    finally:
        if gate is not None:
            gate.close()
    # Those of a higher priority, or of a scope that has room, go before others that wait.
    admitted = {name for result in (admit_waiting(home) if waiting else ()) for name in result.admitted}
    for result in waiting:
        execution.note(
            result._replace(did="submitted", state="pending", reason="") if result.name in admitted else result
        )


def _partial_error(error: BaseException, names: Sequence[str], results: Sequence[SubmitResult]) -> BaseException:
    """The same error, with the runs that were not submitted in its message."""
    handled = {result.name for result in results if result.did != "refused"}
    missing = [name for name in names if name not in handled]
    if isinstance(error, KeyboardInterrupt) and results:
        error = InterruptError("interrupted", hint="run the same command again to submit the rest")
    if isinstance(error, OSError):
        error = as_disk_error(error) or error
    if isinstance(error, ShoalError) and missing and len(names) > 1:
        some = f"{len(missing)} of {len(names)} runs were not submitted: {shorten_list(missing, 3)}"
        error.message = f"{error.message}; {some}"
    return error


def save_names(project: Project, grown: Sequence[SweepNames]) -> None:
    """Keep what the names of sweeps rest on; the state folder may not be there yet."""
    if grown:
        save_sweep_names(run_writer.open_state_dir(project.home, project.shared_by), grown)


def run_smoke_locally(
    plan: SubmissionPlan, target: SubmitTarget, *, tell: Callable[[SubmitResult], None], follow: bool
) -> list[SubmitResult]:
    """The smoke runs of what a plan starts, on this machine and now; the runs themselves are held if one fails."""
    here = target._replace(cluster=Cluster(name=LOCAL))
    starting = [run for planned in plan.submissions for run in planned.runs]
    smokes, left = add_smoke_runs(starting, plan.views, here)
    smokes = [run for run in smokes if run.spec.smoke]
    submissions = plan_submissions(smokes, here.project, here.cluster)
    results = execute_plan(SubmissionPlan(submissions, left, plan.views, []), here, follow=follow, tell=tell)
    bad = [result.name for result in results if result.state != "completed"]
    for run in starting if bad else ():
        results.append(SubmitResult(run.spec.name, "held", "new", f"{bad[0]} did not complete"))
        tell(results[-1])
    return results


class _Execution:
    """One plan on its way, and what has become of its runs so far."""

    def __init__(
        self,
        plan: SubmissionPlan,
        target: SubmitTarget,
        follow: bool,
        tell: Callable[[SubmitResult], None],
        command_id: str,
    ) -> None:
        self.plan, self.project, self.environ = plan, target.project, target.environ
        self.follow, self.tell, self.command_id = follow, tell, command_id
        self.code: CodeSnapshot | None = None
        self.claimed: Callable[[], None] = lambda: None
        self.results: list[SubmitResult] = []

    def note(self, result: SubmitResult) -> None:
        self.results.append(result)
        self.tell(result)

    def run_all(self, submissions: Sequence[PlannedSubmission]) -> None:
        """One after the other on this machine, until a person interrupts."""
        for planned in submissions:
            if self._is_held(planned, here=True):
                continue
            if planned.pack is not None:
                self._run_pack_locally(planned)
                continue
            claimed = self._claim(planned, "local")
            if claimed.indices:
                self.note(self._run_locally(claimed))
                if self.results[-1].exit_code in (130, 143):
                    break

    def send_all(self, submissions: Sequence[PlannedSubmission]) -> None:
        before: dict[str, str] = {}
        for planned in submissions:
            if self._is_held(planned, here=False):
                continue
            # A limit on how many run at once holds over all arrays together: the next one waits for the last. That of
            # a batch script's --array=0-9%2 holds for that script.
            script = planned.runs[0].spec.script
            limited = str(script["path"]) if planned.max_parallel == script.get("max_parallel", 0) else ""
            claimed = self._claim(planned, "slurm", after=before.get(limited) if planned.max_parallel else None)
            for started in send_submission(claimed, self.project):
                self.note(_slurm_result(started))
                before[limited] = (started.job_id or "").partition("_")[0] or before.get(limited, "")
            if claimed.indices:
                if self.results[-1].did == "refused":
                    ClusterAnswers(str(self.project.home), self.environ).forget()
                _stop_if_unanswered(self.results[-1])

    def put_off(self, planned: PlannedSubmission, gate: BudgetAdmission | None) -> SubmitResult:
        """What has no room now waits on disk, to be let in by a job that ends or by the next command."""
        claimed = self._claim(planned, "slurm", tell_lost=False, waits=gate is not None)
        if gate is not None and claimed.indices:
            enqueue(claimed, self.project, gate.queue)
        return _waiting_result(claimed, gate)

    def _is_held(self, planned: PlannedSubmission, *, here: bool) -> bool:
        """Whether runs wait in vain for what they build on; they are told."""
        needs = planned.needs
        if not needs:
            return False
        waits = job_constraints.dependency_option(str(self.project.home), needs)
        if waits.problem is None and (waits.completed or not here):
            return False
        for run in planned.runs:
            self.note(
                SubmitResult(
                    run.spec.name, "held", "new", waits.problem or "a run that it depends on has not completed"
                )
            )
        return True

    def _claim(
        self,
        planned: PlannedSubmission,
        backend: str,
        *,
        opened: Callable[[str, str], None] | None = None,
        tell_lost: bool = True,
        waits: bool = False,
        after: str | None = None,
    ) -> ClaimedSubmission:
        code = None if planned.runs[0].spec.in_place else self.code
        claimant = Claimant(
            self.project, self.environ, self.plan.views, time.time(), code, self.command_id, self.plan.facts
        )
        claimed = claim_runs(planned, claimant, backend=backend, opened=opened, waits=waits, after=after)
        won = set(claimed.indices)
        for index, run in enumerate(planned.runs):
            if tell_lost and index not in won:
                self.note(_lost_result(run.spec.name))
        return claimed

    def _run_locally(self, claimed: ClaimedSubmission) -> SubmitResult:
        name = claimed.planned.runs[0].spec.name
        code = run_locally(claimed, self.project, self.environ, follow=self.follow)
        view = observe(str(self.project.home), [name], environ=self.environ).views[name]
        exit_code = _exit_code(view) if view.exit_code is not None else code
        if view.state == "cancelled":
            exit_code = 130
        return SubmitResult(name, "ran", view.state, view.reason or "", None, view.output_dir, exit_code)

    def _run_pack_locally(self, planned: PlannedSubmission) -> None:
        """The engine begins with the first runs while the last ones are still being claimed."""
        with LocalPackEngine(self.project, self.environ, follow=self.follow) as engine:
            claimed = self._claim(planned, "local", opened=engine.begin)
            self.claimed()
            code = engine.wait()
        names = [planned.runs[index].spec.name for index in claimed.indices]
        interrupted = code if code > 128 else None
        for name, view in observe(str(self.project.home), names, environ=self.environ).views.items():
            exit_code = interrupted or _exit_code(view)
            self.note(SubmitResult(name, "ran", view.state, view.reason or "", None, view.output_dir, exit_code))
        if code == DiskError.exit_code:
            home = shlex.quote(str(self.project.home))
            raise DiskError(
                f"the disk under {home} is full and stayed so: not all runs were started, or their ends kept",
                hint=f"df -h {home}   # make room, then give the same command again: completed runs stay completed",
            )


def _lost_result(name: str) -> SubmitResult:
    return SubmitResult(name, "left alone", "waiting", "another command has just claimed it")


def _waiting_result(claimed: ClaimedSubmission, gate: BudgetAdmission | None) -> SubmitResult:
    name = claimed.planned.runs[0].spec.name
    if gate is None or not claimed.indices:
        return _lost_result(name)
    return SubmitResult(name, "waits", "waiting", gate.reason(claimed.planned), None, claimed.outputs[name])


def _exit_code(view: RunView) -> int | None:
    """A result check may find good what the program called a failure."""
    return 0 if view.state == "completed" else view.exit_code


def _slurm_result(started: StartedRun) -> SubmitResult:
    did = {"pending": "submitted", "unknown": "unclear", "new": "refused"}[started.state]
    return SubmitResult(started.name, did, started.state, started.message, started.job_id, started.output_dir)


def _stop_if_unanswered(last: SubmitResult) -> None:
    """A controller that does not answer will not answer the next hundred either; what was done stays done."""
    if last.did == "unclear":
        raise SchedulerError(
            f"Slurm's answer to the submission of {last.name} is not known: {last.reason}",
            hint="shoal status   # finds the job by its name, or says that there is none; nothing is submitted twice",
        )
    if last.did == "refused":
        down = "connect failure" in last.reason or "cannot run" in last.reason or "configuration source" in last.reason
        if down:
            raise SchedulerError(
                f"Slurm cannot be reached: {last.reason}", hint="scontrol ping   # is the controller up?"
            )
        raise InputError(
            f"Slurm refused {last.name}: {last.reason}", hint="shoal plan FILE   # shows the exact request"
        )
