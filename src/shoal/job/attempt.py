"""One attempt of a run: its command and environment, its start, phases and stop, and its end record.

An attempt whose command cannot be prepared ends with the reason, before a process is started.
"""

import functools
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..kernel import (
    ALLOCATION_VARIABLE,
    Allocation,
    End,
    LeaseRenewer,
    Start,
    agent_path,
    checkpoints,
    fence,
    files,
    layout,
    lease,
    processes,
)
from . import allocation, environment, job_constraints, recovery, trackers, workdir
from .child_processes import Child
from .launch import container, launch_spec

if TYPE_CHECKING:
    from .launch.node_guards import NodeGuards


def use_code_snapshot(spec: Dict[str, Any], code: Optional[str]) -> Dict[str, Any]:
    """The spec, to be executed with the code as it was when the job was submitted, where that was kept."""
    if code and not os.path.isdir(code):
        return dict(spec, cannot_start="the snapshot of its code is gone: %s" % code)
    if code and not layout.is_own_snapshot(code):
        return dict(spec, cannot_start="the snapshot of its code is another user's, and is not executed: %s" % code)
    return dict(spec, cwd=code, root=spec["cwd"], code=code) if code else spec


def prepare_command(
    spec: Mapping[str, Any],
    claim: fence.Claim,
    number: int,
    resume_from: Optional[str],
    base: Mapping[str, str],
    log: str,
    here_only: bool,
) -> Tuple[List[str], Dict[str, str], Optional[str]]:
    """(arguments, environment, None), or a problem in words as the third. `here_only`: launch on this machine alone."""
    env = environment.run_environment(spec, claim, number, resume_from, base)
    values = environment.placeholder_values(spec, env)
    argv = environment.run_argv(spec, values)
    for key in ("not_needed", "cannot_start"):
        if spec.get(key):
            return argv, env, str(spec[key])
    if claim.resume and not resume_from:
        return argv, env, "no checkpoint %s in %s to resume from" % (spec.get("checkpoint"), claim.output_dir)
    if env["SHOAL_PARENTS"]:
        files.replace(env["SHOAL_PARENTS"], files.to_json(_parent_outputs(spec, claim)))
    if spec.get("script"):
        from . import batch_step  # other runs do without it

        return batch_step.prepare_script(spec, claim, argv, env)
    problem = container.container_problem(spec, env, bind_dirs(spec, claim), here_only)
    if problem is not None:
        return argv, env, problem
    one = container.resolve_container(spec, env)
    env.update(container.runtime_environment(env) if one else {})
    if spec.get("launch", "process") == "process" and not (one and one.by_srun):
        return argv, launch_spec.process_environment(env), None
    usage = os.path.join(claim.run_dir, layout.attempt_file(number, "use"))
    paths = launch_spec.AttemptPaths(log, claim.output_dir, usage, bind_dirs(spec, claim))
    argv, problem = launch_spec.prepare_launch(spec, number, values, env, paths, here_only)
    return argv, env, problem


def _parent_outputs(spec: Mapping[str, Any], claim: fence.Claim) -> Dict[str, Any]:
    """The runs that this one waited for, each with its newest output directory."""
    home = layout.state_dir_of(claim.run_dir)
    found = [(name, job_constraints.output_dirs(home, name)) for name in spec["parents"]]
    return {"schema": 1, "runs": [{"name": name, "output_dir": dirs[0] if dirs else None} for name, dirs in found]}


def bind_dirs(spec: Mapping[str, Any], claim: fence.Claim) -> List[str]:
    """Folders of this run that its program must see, wherever it runs."""
    return [spec.get("root", spec["cwd"]), layout.state_dir_of(claim.run_dir), claim.output_dir, claim.log_dir]


def wrap_in_container(
    spec: Mapping[str, Any], claim: fence.Claim, argv: List[str], env: Mapping[str, str]
) -> List[str]:
    """The command in its container, once its data is there; a launcher is outside and contains its processes itself."""
    if spec.get("launch", "process") != "process":
        return argv
    gpus = int(env.get("SHOAL_GPUS_PER_NODE") or 0) > 0
    seen = gpus and bool(env.get("SLURM_JOB_ID") or allocation.local_gpu_ids(env))
    return [*container.container_args(spec, env, bind_dirs(spec, claim), seen).around, *argv]


#: Nothing is due: no limit, no warning, no end of a grace time.
_NEVER = float("inf")
#: Ways to know that a program continues from its checkpoint that a person wrote down (describe/program_source.py).
_EXPLICIT_RESUME = frozenset(("resume_args", "{resume_from}", "SHOAL_RESUME_FROM"))
#: What is left of a warning for writing down the end and sending a follow-up job.
_WARNING_MARGIN_S = 15.0


def read_run_spec(home: str, claim: fence.Claim, code: Optional[str], environ: Mapping[str, str]) -> Dict[str, Any]:
    """What a run is: as it was claimed, in the code that was kept for it, with what its parents left."""
    spec = files.read_json(os.path.join(claim.run_dir, layout.spec_file(claim.revision)))
    if spec is None:
        raise ValueError("%s has no spec %d" % (claim.run_dir, claim.revision))
    spec = dict(spec, **claim.changes)
    return container.resolve_settings(
        use_code_snapshot(job_constraints.apply_parent_outputs(home, spec), code), environ
    )


def begin_attempt(
    claim: fence.Claim,
    number: int,
    me: Allocation,
    spec: Mapping[str, Any],
    has_earlier_attempt: bool,
    environ: Mapping[str, str],
    **more: Any,
) -> Optional[lease.Lease]:
    """Take attempt `number` of the run, with a record of who begins it; None if somebody else was faster.

    `has_earlier_attempt`: its checkpoints may be in the output folder. `more` is added to the record. It is
    there for everybody at once; the executor sees to it that it survives a power cut.
    """
    resume_from = None
    if spec.get("checkpoint") and (has_earlier_attempt or claim.resume):
        resume_from = checkpoints.newest_checkpoint(claim.output_dir, spec["checkpoint"])
    times, mine = lease.timing(environ), _agent_identity(os.getpid())
    env = dict(environ, **(spec.get("env") or {}))
    record = Start(
        **me._asdict(),
        agent_pid=mine["pid"],
        agent_started=mine["started"],
        mark=os.urandom(8).hex(),
        beat_s=times.beat_s,
        t=time.time(),
        attempt=number,
        generation=claim.generation,
        revision=claim.revision,
        token=claim.token,
        output_dir=claim.output_dir,
        log_dir=claim.log_dir,
        resume_from=resume_from,
        allocation=environ.get(ALLOCATION_VARIABLE, ""),
        python=environment.record_packages(layout.state_dir_of(claim.run_dir), spec["command"], env, spec["cwd"]),
        **more,
    )
    os.makedirs(claim.output_dir, exist_ok=True)
    if claim.log_dir != claim.output_dir:
        os.makedirs(claim.log_dir, exist_ok=True)
    return lease.create_lease(claim.run_dir, number, record, times, sync=False)


@functools.lru_cache(maxsize=1)
def _agent_identity(pid: int) -> Dict[str, Any]:
    """This process, looked up once for all runs of a pack."""
    return processes.process_identity(pid)


def kept_checkpoint_dir(attempt: int) -> str:
    """Where the checkpoint is kept, in the output folder, that was there before an attempt."""
    return "before-attempt-%d" % attempt


class Attempt:
    """An attempt that is ours, from its start to its end.

    `child` is what it waits for: its data, its program, or the check of its result, as `phase` says. `stopped_by` says
    who asked it to stop, if anybody did, and `stopped_words` why, if there is more to say. A replacement that takes its
    run over changes `claim` and `held` under way, holding `moving`: from then on this is an attempt of that run.
    """

    def __init__(self, claim: fence.Claim, held: lease.Lease, spec: Dict[str, Any]) -> None:
        #: Its own working directory, if its code was kept.
        self.workdir = workdir.workdir_of(spec, claim.output_dir)
        if self.workdir is not None:
            spec = dict(spec, cwd=self.workdir.cwd)
        if spec.get("subdir"):
            spec = dict(spec, cwd=os.path.join(spec["cwd"], spec["subdir"]))
        self.claim, self.held, self.spec = claim, held, spec
        self.moving = threading.RLock()
        self.resume_from: Optional[str] = held.start.resume_from
        self.log = layout.log_file(claim.log_dir, held.number)
        #: Where the program writes, if its output and its errors are not simply its log.
        self.streams: Optional[Tuple[str, str]] = None
        self.use_file = os.path.join(claim.run_dir, layout.attempt_file(held.number, "use"))
        #: Called with the old and the new use_file, when it goes on as an attempt of another run.
        self.move_samples: Callable[[str, str], None] = lambda old, new: None
        self.argv: List[str] = []
        self.env: Dict[str, str] = {}
        self.cpus: Sequence[int] = ()
        #: How long it has after it was asked to stop.
        self.grace_s = 30.0
        #: How long before its time is up the program is told, if it wants to be; 0: it does not.
        self.warn_s = 0.0
        #: Its own time limit, if it has one.
        self.limit_s: Optional[float] = None
        #: Whether a warning means that this attempt has to be stopped before its job is.
        self.stops_after_warning = False
        self.child, self.phase = Child(0), "data"
        self.began, self.clock = time.time(), time.monotonic()
        #: How its program ended, while the result is checked.
        self.ended: Optional[End] = None
        #: A trial that its search does not need any more is stopped before it starts (sampler.py).
        self.stopped_by: Optional[str] = "early_stopping" if spec.get("not_needed") else None
        self.stopped_words: Optional[str] = None
        self.is_noted = False
        self.warned = False
        self.oom_kills = 0
        #: Its end is decided; no replacement can take it over any more.
        self.is_closed = False
        #: Looks at it every few seconds while its program runs, in a thread.
        self.look: Optional[Callable[[Attempt], None]] = None
        #: From any thread: asks the executor to end this attempt.
        self.stop: Callable[[str], None] = lambda why: None
        #: Guards on its further nodes, if it has any.
        self.node_guards: "Optional[NodeGuards]" = None
        #: Renews its lease.
        self.keeper: Optional[LeaseRenewer] = None
        #: A replacement that has claimed this run: its token, the renewals first seen, and since when.
        self.rival: Optional[Tuple[str, int, fence.LeaseWatch]] = None
        #: Signals for the program that came before it.
        self._early: List[int] = []
        self._kill_at: Optional[float] = None
        self._limit_at: Optional[float] = None
        self._limit_why = "time limit"
        self._warn_at: Optional[float] = None

    @property
    def number(self) -> int:
        return self.held.number

    @property
    def times(self) -> lease.LeaseTiming:
        return lease.timing_of(self.held.start)

    @property
    def name(self) -> str:
        return layout.run_name_of(self.claim.run_dir)

    @property
    def identity(self) -> Tuple[str, str]:
        """What the environment of its processes says."""
        return (self.env.get("SHOAL_RUN", ""), self.env.get("SHOAL_ATTEMPT", ""))

    def prepare(self, base: Mapping[str, str], here_only: bool) -> Optional[str]:
        """Complete the command and the environment around it; why it cannot be started, or None."""
        self.argv, self.env, problem = prepare_command(
            self.spec, self.claim, self.number, self.resume_from, base, self.log, here_only
        )
        self.env[processes.LEASE_MARK_VARIABLE] = str(self.held.start.mark)
        if problem is None and trackers.continues_mlflow_run(self.env, self.number, self.spec["cwd"]):
            self._search_mlflow_first()
        return problem or self._keep_checkpoint()

    def _search_mlflow_first(self) -> None:
        """Let the run's own Python look for its MLflow run; that of a container is not reached from here."""
        python = environment.interpreter_of(self.spec["command"], self.env, self.spec["cwd"])
        if python is not None and not container.has_container(self.spec):
            # -B: a flag before the file keeps a warm start (pack/warm_starter.py) away from it.
            self.argv = [python, "-B", agent_path(), "mlflow", *self.argv]

    def keeps_checkpoint(self) -> bool:
        """Whether a copy of its checkpoint is kept: the program may start over and write over it, unless its step or
        its command says that it continues, or an earlier attempt was seen to. A file that names the variable is
        not enough."""
        if not self.resume_from or self.spec.get("smoke") or self.spec.get("replacement"):
            return False
        return self.spec.get("resumes") not in _EXPLICIT_RESUME and not checkpoints.newest_resumed_attempt(
            self.claim.run_dir
        )

    def _keep_checkpoint(self) -> Optional[str]:
        """Keep a copy of the checkpoint where it is needed. Why it cannot be started, or None."""
        checkpoint, folder = self.resume_from, self.claim.output_dir
        if not checkpoint or not self.keeps_checkpoint():
            return None
        inside = os.path.relpath(checkpoint, folder)
        kept = [os.path.join(folder, kept_checkpoint_dir(number), inside) for number in range(1, self.number + 1)]
        if any(checkpoints.is_unchanged_copy(path, checkpoint) for path in kept):
            return None
        try:
            if checkpoints.copy_checkpoint_file(checkpoint, kept[-1]):
                return None
            why = "it changes or cannot be read"
        except OSError as error:
            why = (error.strerror or str(error)).lower()
        return "cannot keep a copy of %s, which the program may write over: %s" % (checkpoint, why)

    def clear_workdir(self) -> Tuple[str, ...]:
        """Nothing of it runs any more: take its code away; returns what there is to tell.

        If somebody else may have gone on with the run by now, everything stays as it is.
        """
        place, self.workdir = self.workdir, None
        if place is None or self.stopped_by == "lost" or lease.boot_time_s() > self.held.held_until:
            return ()
        try:
            return tuple(place.clear())
        except OSError as error:
            return ("its code is left in %s: %s" % (place.cwd, error),)

    # -- phases --------------------------------------------------------------------------------------------------

    def begin_program(self, child: Child, left_s: Optional[float]) -> None:
        """The program runs, for as long as it may: its own limit, and what is left of the allocation's time."""
        early = self._warn_at is not None
        self.child, self.phase = child, "program"
        self.began, self.clock = time.time(), time.monotonic()
        self._limit_at = None if self.limit_s is None else self.clock + self.limit_s
        ends = [at for at in (self._limit_at, None if left_s is None else self.clock + left_s) if at is not None]
        if early:
            self._warn_at = self.clock
        elif self.warn_s and ends:
            self._warn_at = min(ends) - self.warn_s
        for number in self._early:
            child.signal(number)

    def begin_check(self, child: Child) -> None:
        self.child, self.phase = child, "check"
        self._limit_at, self._warn_at = time.monotonic() + recovery.CHECK_TIMEOUT_S, None

    @property
    def due_at(self) -> float:
        """When `tend` has something to do."""
        if self.stopped_by is not None:
            times: Tuple[Optional[float], ...] = (self._kill_at,)
        elif self.phase == "data":
            return _NEVER
        else:
            times = (self._limit_at, self._warn_at)
        return min((time for time in times if time is not None), default=_NEVER)

    def tend(self, now: float) -> None:
        """What the clock asks for: a warning, the run's time limit, the end of its grace time."""
        if self.stopped_by is None and self.phase == "program" and self._warn_at is not None and now >= self._warn_at:
            self.warn()
        if self.stopped_by is None and self._limit_at is not None and now >= self._limit_at:
            self._limit_at = None
            if self.phase == "check":
                self.child.signal(signal.SIGKILL)
            else:
                self.ask_to_stop(self._limit_why)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self.child.signal(signal.SIGKILL)

    # -- stopping ------------------------------------------------------------------------------------------------

    def warn(self) -> None:
        """Its time is nearly up: tell the program in the way that its step chose, once, as soon as it runs."""
        if self.phase == "data":
            self._warn_at = time.monotonic()
        if self.phase != "program":
            return
        self._warn_at = None
        if self.warned:
            return
        self.warned = True
        recovery.warn_program(self.env, lambda: self.child.signal(signal.SIGUSR1))
        if self.stops_after_warning:
            self._limit_why = "limit"
            self._limit_at = time.monotonic() + max(5.0, self.warn_s - self.grace_s - _WARNING_MARGIN_S)

    def pass_on(self, number: int) -> None:
        """A signal for the program. SIGUSR1 is the warning, where its step wants to be warned."""
        if number == signal.SIGUSR1 and self.warn_s:
            self.warn()
        elif self.phase == "program" and self.spec.get("script"):
            self.child.signal_leader(number)  # as Slurm does with --signal=B:USR1@60
        elif self.phase == "program":
            self.child.signal(number)
        elif self.phase == "data":
            self._early.append(number)

    def ask_to_stop(self, why: str, words: Optional[str] = None, number: int = signal.SIGTERM) -> None:
        """The first to ask is the one who is remembered; after the grace time it is killed."""
        if self.stopped_by is None:
            self.stopped_by, self.stopped_words = why, words
            self._kill_at = time.monotonic() + self.grace_s
            self.child.signal(number)

    def on_lease_lost(self) -> None:
        """Somebody else has closed the lease and may go on with the run: nothing of it may run here any more."""
        self.stopped_by = self.stopped_by or "lost"
        self.child.signal(signal.SIGKILL)

    # -- its end -------------------------------------------------------------------------------------------------

    def checkpoint_time(self) -> Optional[float]:
        """When the newest checkpoint was written that is there now: what came after it is lost."""
        pattern = self.spec.get("checkpoint")
        path = checkpoints.newest_checkpoint(self.claim.output_dir, pattern) if pattern else None
        try:
            return os.stat(path).st_mtime if path else None
        except OSError:
            return None

    def end_record(self, me: Allocation, oom: bool) -> End:
        """How it ended; whether that is good, `recovery.judge_end` decides."""
        code = self.child.code or 0
        return End(
            attempt=self.number,
            generation=self.claim.generation,
            revision=self.claim.revision,
            token=self.claim.token,
            output_dir=self.claim.output_dir,
            log_dir=self.claim.log_dir,
            host=me.host,
            nodes=self.held.start.place,
            job_id=me.job_id,
            job_label=me.job_label,
            held=self.held.start.held,
            exit_code=code if code >= 0 else 128 - code,
            signal=signal.Signals(-code).name if code < 0 else None,
            success=False,
            stopped_by=self.stopped_by,
            warned=self.warned,
            oom=oom,
            problem=self.child.problem or self.stopped_words,
            submitted=self.claim.t,
            began=self.began,
            ended=time.time(),
            duration_s=time.monotonic() - self.clock,
        )
