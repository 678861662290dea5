"""`AutoExecutor` and `Job` as submitit has them: parameters become a request and flags of sbatch, calls become runs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import InputError, RunFailed
from shoal.functions import Call, CallOptions, Run, submit_calls
from shoal.kernel import layout, new_token, slurm
from shoal.model import ENDED_STATES

#: submitit's names of a request, and how a value becomes one of ours.
_REQUEST: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "timeout_min": ("time", lambda value: f"{value}m"),
    "slurm_time": ("time", lambda value: f"{value}m" if isinstance(value, int) else value),
    "mem_gb": ("memory", lambda value: f"{value}G"),
    "slurm_mem": ("memory", lambda value: value),
    "nodes": ("nodes", int),
    "slurm_nodes": ("nodes", int),
    "cpus_per_task": ("cpus", int),
    "slurm_cpus_per_task": ("cpus", int),
    "gpus_per_node": ("gpus", int),
    "slurm_gpus_per_node": ("gpus", int),
}
#: Accepted and without effect: shoal writes one log with output and errors, and starts one process itself.
_WITHOUT_EFFECT = ("stderr_to_stdout", "slurm_stderr_to_stdout", "slurm_use_srun")
#: Of the executor, not flags of sbatch.
_NAMES = ("slurm_job_name", "slurm_name", "name")
_OWN = ("slurm_array_parallelism", "slurm_signal_delay_s", "slurm_additional_parameters", *_NAMES)
#: What a job cannot have, and where it is set instead.
_REFUSED = {
    "slurm_setup": "set_up in [clusters.NAME] of shoal.toml (docs/clusters.md)",
    "slurm_srun_args": 'a step with launch = "srun" (docs/launch.md)',
    "slurm_python": "submit with that Python: a job uses the Python that submits it",
}
_STATES = {"completed": "COMPLETED", "running": "RUNNING", "cancelled": "CANCELLED", "timeout": "TIMEOUT"}


class UncompletedJobError(RuntimeError):
    """The job ended without a result."""


class FailedJobError(UncompletedJobError):
    """The function of the job raised; `__cause__` is its exception, where that can be rebuilt."""


class JobPaths(NamedTuple):
    """Where a job writes."""

    folder: Path
    stdout: Path
    stderr: Path


class Job:
    """A run as submitit shows it; inside `executor.batch()` it has a run only when the block has ended."""

    def __init__(self) -> None:
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        """The run of shoal behind it."""
        if self._run is None:
            raise RuntimeError("the job is not submitted before the end of executor.batch()")
        return self._run

    def __repr__(self) -> str:
        return "Job<not submitted>" if self._run is None else f"Job<{self.job_id}, {self.run.name}, {self.state}>"

    @property
    def job_id(self) -> str:
        """Slurm's id; on this machine, the name of the run."""
        return self.run.view.job_id or self.run.name

    @property
    def num_tasks(self) -> int:
        return 1

    @property
    def state(self) -> str:
        state = self.run.refresh().state
        return _STATES.get(state, "FAILED" if state in ENDED_STATES else "PENDING")

    def result(self) -> Any:
        error = self.exception()
        if error is not None:
            raise error
        return self.run.result()

    def results(self) -> list[Any]:
        return [self.result()]

    def exception(self) -> UncompletedJobError | None:
        """Waits for the end; the error that `result` would raise."""
        failed = self.run.exception()
        if not isinstance(failed, RunFailed):
            return None
        kind = FailedJobError if failed.__cause__ is not None else UncompletedJobError
        error = kind("\n".join([failed.message, *getattr(failed, "__notes__", ())]))
        error.__cause__ = failed.__cause__ or failed
        return error

    def done(self, force_check: bool = False) -> bool:
        return self.run.done()

    def wait(self) -> None:
        self.run.wait()

    def cancel(self, check: bool = True) -> None:
        self.run.cancel()

    def stdout(self) -> str | None:
        """What it printed, errors among it; None before it started."""
        return self.run.logs(tail=0) if self.run.refresh().attempts else None

    def stderr(self) -> str | None:
        return self.stdout()

    @property
    def paths(self) -> JobPaths:
        """Its output directory and its log; errors are in the log too."""
        view = self.run.refresh().view
        log = Path(layout.log_file(view.log_dir or "", max(1, view.attempt)))
        return JobPaths(Path(view.output_dir or ""), log, log)

    def _interrupt(self, timeout: bool = False) -> None:
        """Warn the job as Slurm does before its time limit; for tries, as in submitit's example."""
        job = self.run.refresh().view.job_id
        if job is None:
            raise InputError(f"{self.run.name} has no job of Slurm that could be warned", hint="use a Slurm cluster")
        slurm.run_command(["scancel", "--signal=USR1", "--batch", job], slurm.QUERY_TIMEOUT_S, os.environ)

    def get_info(self) -> dict[str, str]:
        """State, node and times, by the words of sacct."""
        view = self.run.refresh().view
        return {"JobID": self.job_id, "State": self.state, "NodeList": view.node or "", "JobName": self.run.name}

    def task(self, task_id: int) -> Job:
        if task_id != 0:
            raise ValueError(f"a run has one task (got task_id={task_id})")
        return self

    def awaitable(self) -> _AwaitableJob:
        return _AwaitableJob(self)


class _AwaitableJob:
    def __init__(self, job: Job) -> None:
        self._job = job

    async def wait(self, poll_interval: float = 1) -> None:
        with contextlib.suppress(RunFailed):
            await asyncio.wrap_future(self._job.run.future())

    async def result(self, poll_interval: float = 1) -> Any:
        await self.wait()
        return self._job.result()


class AutoExecutor:
    """Submits calls to Slurm where there is one, else to this machine; `cluster="local"` to this machine."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        cluster: str | None = None,
        slurm_max_num_timeout: int | None = None,
        **_: Any,
    ) -> None:
        self.folder = Path(folder).expanduser().absolute()
        # "logs/%j" is a directory for each job in submitit; here runs have their own output directories.
        while "%" in self.folder.name:
            self.folder = self.folder.parent
        self._max_follow_ups = slurm_max_num_timeout
        self._on = "local" if cluster in ("local", "debug") else None
        has_slurm = shutil.which("sbatch") is not None and os.environ.get("SHOAL_ON") != "local"
        self.cluster = cluster or ("slurm" if has_slurm else "local")
        self.parameters: dict[str, Any] = {}
        self._serial, self._session = itertools.count(), new_token()[:6]
        self._batch: list[tuple[Callable[..., Any], Call, Job]] | None = None

    def update_parameters(self, **parameters: Any) -> None:
        """Set parameters by submitit's names; an unknown one is a NameError that lists those that exist."""
        known = [*_REQUEST, "tasks_per_node", *_OWN, *_WITHOUT_EFFECT]
        wrong = [name for name in parameters if name not in known and not name.startswith(("slurm_", "local_"))]
        if wrong:
            raise NameError(f"unknown parameters {', '.join(wrong)}: expected {', '.join(sorted(known))}, or slurm_*")
        for name in ("tasks_per_node", "slurm_ntasks_per_node"):
            if parameters.get(name, 1) != 1:
                raise InputError(
                    f"{name}={parameters[name]} is not supported: a function is one process",
                    hint='a step with launch = "srun" or "torchrun" starts several (docs/launch.md)',
                )
        for name in parameters:
            if name in _REFUSED:
                raise InputError(f"{name} is not supported", hint=_REFUSED[name])
        self.parameters.update(parameters)

    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Job:
        return self._submit([(fn, Call(args, kwargs))])[0]

    def submit_array(self, fns: Sequence[Callable[[], Any]]) -> list[Job]:
        return self._submit([(fn, Call((), {})) for fn in fns])

    def map_array(self, fn: Callable[..., Any], *iterables: Any) -> list[Job]:
        """`fn` over zipped iterables, as one array."""
        return self._submit([(fn, Call(args, {})) for args in zip(*iterables, strict=False)])

    @contextlib.contextmanager
    def batch(self, allow_implicit_submissions: bool = False) -> Iterator[None]:
        """Submit everything of the block together at its end; an error in the block submits nothing."""
        if self._batch is not None:
            raise RuntimeError("executor.batch() cannot be nested")
        self._batch = []
        try:
            yield
            queued = self._batch
        finally:
            self._batch = None
        self._send(queued)

    def _submit(self, calls: Sequence[tuple[Callable[..., Any], Call]]) -> list[Job]:
        queued = [(fn, call, Job()) for fn, call in calls]
        if self._batch is not None:
            self._batch += queued
        else:
            self._send(queued)
        return [job for *_, job in queued]

    def _send(self, queued: list[tuple[Callable[..., Any], Call, Job]]) -> None:
        """One submission for the calls of each function."""
        self.folder.mkdir(parents=True, exist_ok=True)  # programs write into it
        groups: dict[int, list[tuple[Callable[..., Any], Call, Job]]] = {}
        for one in queued:
            groups.setdefault(id(one[0]), []).append(one)
        for group in groups.values():
            serials = [f"{self._session}-{next(self._serial)}" for _ in group]
            runs = submit_calls(group[0][0], [call for _, call, _ in group], self._options(), serials)
            for (*_, job), run in zip(group, runs, strict=True):
                job._run = run

    def _options(self) -> CallOptions:
        request: dict[str, Any] = {}
        flags: list[str] = []
        for name, value in self.parameters.items():
            if name in _REQUEST:
                key, convert = _REQUEST[name]
                request[key] = convert(value)
            elif name.startswith("slurm_") and name not in (*_WITHOUT_EFFECT, *_OWN, "slurm_ntasks_per_node"):
                flags.append(_flag(name.removeprefix("slurm_"), value))
        more = self.parameters.get("slurm_additional_parameters") or {}
        flags += [_flag(name, value) for name, value in more.items()]
        return CallOptions(
            request=request or None,
            experiment=self.folder.name,
            name=next((self.parameters[key] for key in _NAMES if key in self.parameters), None),
            on=self._on,
            flags=tuple(flags),
            max_parallel=self.parameters.get("slurm_array_parallelism"),
            warn_before_s=self.parameters.get("slurm_signal_delay_s"),
            max_follow_ups=self._max_follow_ups,
        )


def _flag(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag}={value}"
