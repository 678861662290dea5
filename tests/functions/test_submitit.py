"""submitit's documented calls through shoal: its README's example, arrays, batches, errors and parameters."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from function_project import FunctionProject
from shoal.sandbox import Sandbox
from shoal.submitit import AutoExecutor, FailedJobError, UncompletedJobError
from waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FunctionProject:
    root = tmp_path / "project"
    root.mkdir()
    return FunctionProject(root, monkeypatch)


def test_the_readme_of_submitit_runs_with_another_import(project: FunctionProject) -> None:
    executor = AutoExecutor(folder="log_test")
    executor.update_parameters(timeout_min=1, mem_gb=1, name="sum")
    job = executor.submit(project.module.add, 5, 7)
    assert job.job_id == job.run.name and job.run.name.startswith("log_test/sum_") and executor.folder.is_dir()
    assert job.result() == {"sum": 12} and job.results() == [{"sum": 12}]
    assert (job.state, job.done(), job.stdout(), job.task(0)) == ("COMPLETED", True, "adding 5\n", job)
    assert asyncio.run(job.awaitable().result()) == {"sum": 12}
    jobs = executor.map_array(project.module.add, [1, 2], [10, 20])
    with executor.batch():
        batched = [executor.submit(project.module.fail, how) for how in ("raise", "_exit")]
        with pytest.raises(RuntimeError, match="not submitted before the end"):
            batched[0].result()
    assert [one.result() for one in jobs] == [{"sum": 11}, {"sum": 22}]
    with pytest.raises(FailedJobError, match="boom") as caught:
        batched[0].result()
    assert isinstance(caught.value.__cause__, ValueError)
    assert type(batched[1].exception()) is UncompletedJobError and batched[1].state == "FAILED"
    same = [executor.submit(project.module.note, str(project.root.parent / "marks")) for _ in range(2)]
    assert [one.result() for one in same] == [1, 1] and (project.root.parent / "marks").read_text() == "1\n1\n"


UNGUARDED = """\
import joblib, shoal, shoal.submitit as submitit
class Point:
    def __init__(self, x):
        self.x = x
def double(x):
    return Point(2 * x)
print("top level")
executor = submitit.AutoExecutor(folder="logs")
job = executor.submit(double, 5)
command = executor.submit(submitit.helpers.CommandFunction(["echo", "hello"]), "you")
print(job.result().x, command.result(), executor.cluster, job.paths.stdout.exists())
shoal.register_joblib()
with joblib.parallel_config("shoal", n_jobs=2):
    print([one.x for one in joblib.Parallel()(joblib.delayed(double)(x) for x in range(2))])
with shoal.Executor(2) as pool:
    print([one.x for one in pool.map(double, [3])])
"""


def test_a_script_without_a_main_guard_runs_as_with_submitit_and_joblib(project: FunctionProject) -> None:
    """Each call is a run of its own there, so that the function may travel by value."""
    script = project.root / "unguarded.py"
    script.write_text(UNGUARDED)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=project.root, check=False)
    assert done.stdout.splitlines() == ["top level", "10 hello you local True", "[0, 2]", "[6]"], done.stderr


def test_parameters_become_a_request_and_flags(project: FunctionProject) -> None:
    executor = AutoExecutor(folder="logs", cluster="slurm")
    executor.update_parameters(timeout_min=90, mem_gb=8, gpus_per_node=2, cpus_per_task=4, nodes=1)
    executor.update_parameters(slurm_partition="dev", slurm_array_parallelism=3, slurm_exclusive=True)
    options = executor._options()
    assert AutoExecutor(folder="logs/%j")._options().experiment == "logs"
    assert options.request == {"time": "90m", "memory": "8G", "gpus": 2, "cpus": 4, "nodes": 1}
    assert options.flags == ("--partition=dev", "--exclusive") and options.max_parallel == 3
    with pytest.raises(NameError, match="unknown parameters minutes"):
        executor.update_parameters(minutes=3)
    with pytest.raises(shoal.InputError, match="tasks_per_node=8"):
        executor.update_parameters(tasks_per_node=8)
    with pytest.raises(shoal.InputError, match="slurm_setup is not supported"):
        executor.update_parameters(slurm_setup=["module load cuda"])
    executor.update_parameters(slurm_signal_delay_s=120, slurm_additional_parameters={"qos": "high"}, slurm_name="x")
    options = AutoExecutor(folder="logs", slurm_max_num_timeout=7)._options()
    assert options.max_follow_ups == 7
    options = executor._options()
    assert options.flags[-1] == "--qos=high" and options.warn_before_s == 120 and options.name == "x"


COUNTING = """
import importlib, os, pathlib, threading, time
submitit = importlib.import_module(os.environ["TEST_SUBMITIT"])
if os.environ.get("TEST_WARNED_AT_IMPORT") and os.environ.get("SHOAL_ATTEMPT") == "1":
    os.kill(os.getpid(), 10)


class Counting(submitit.helpers.Checkpointable):
    def __init__(self, saves="self"):
        self.saves, self.attempts = saves, []

    def __call__(self, folder, steps=3):
        folder = pathlib.Path(folder)
        while len(self.attempts) < steps:
            self.attempts.append(int(os.environ["SHOAL_ATTEMPT"]))
            (folder / "pid").write_text(str(os.getpid()))
            (folder / f"step{len(self.attempts)}").touch()
            while not (folder / f"go{len(self.attempts)}").exists():
                time.sleep(0.02)
        return self.attempts

    def checkpoint(self, folder, steps=3):
        if self.saves == "nothing":
            return None
        if self.saves == "lock":
            self.lock = threading.Lock()
        return super().checkpoint(folder, steps=steps)
"""


def counting(project: FunctionProject, monkeypatch: pytest.MonkeyPatch, module: str = "shoal.submitit") -> type:
    monkeypatch.setenv("TEST_SUBMITIT", module)
    project.path.write_text(project.path.read_text() + COUNTING)
    project.change("nothing", "nothing")
    found: type = project.module.Counting
    return found


def test_a_callable_with_a_checkpoint_method_continues_with_what_it_returned(
    project: FunctionProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On this machine; the signals are those that the agent sends at a warning and at a time limit."""
    kind = counting(project, monkeypatch)
    executor = AutoExecutor(folder="log_test", slurm_max_num_timeout=2)
    folders = {name: tmp_path / name for name in ("self", "nothing", "lock")}
    for one in folders.values():
        one.mkdir()
    jobs = {name: executor.submit(kind(name), str(folder)) for name, folder in folders.items()}
    monkeypatch.setenv("TEST_WARNED_AT_IMPORT", "1")
    early = executor.submit(kind(), str(tmp_path), steps=0)
    for step, number in enumerate((signal.SIGTERM, signal.SIGUSR1), 1):
        for name, folder in folders.items():
            if step == 1 or name == "self":
                wait_until((folder / f"step{step}").exists, 60, f"{name} has begun step {step}")
                os.kill(int((folder / "pid").read_text()), number)
    wait_until((folders["self"] / "step3").exists, 60, "the third attempt has begun")
    (folders["self"] / "go3").touch()
    assert jobs["self"].result() == [1, 2, 3] and jobs["self"].run.refresh().attempts == 3
    assert "continuing with the call that an earlier attempt saved" in (jobs["self"].stdout() or "")
    assert early.result() == [] and early.run.refresh().attempts == 2, "warned before its call was known"
    with pytest.raises(UncompletedJobError):
        jobs["nothing"].result()
    assert "checkpoint() returned None" in (jobs["nothing"].stdout() or "")
    with pytest.raises(UncompletedJobError):
        jobs["lock"].result()
    assert "what checkpoint() returned cannot be pickled" in (jobs["lock"].stdout() or "")


@pytest.mark.slurm
@pytest.mark.parametrize("module", ["shoal.submitit", "submitit"])
def test_checkpoint_is_called_at_the_warning_of_slurm_and_a_follow_up_job_continues(
    project: FunctionProject,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    quiet_cluster: Sandbox,
    module: str,
) -> None:
    """Also for a class of submitit itself. The warning is the signal that Slurm sends before a time limit."""
    if module == "submitit":
        pytest.importorskip("submitit")
    for name, value in quiet_cluster.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHOAL_ON", "slurm")
    kind = counting(project, monkeypatch, module)
    executor = AutoExecutor(folder="log_test")
    executor.update_parameters(timeout_min=10, slurm_mem="100M", cpus_per_task=1)
    job = executor.submit(kind(), str(tmp_path), steps=2)
    wait_until((tmp_path / "step1").exists, 60, "the first attempt works")
    job._interrupt()
    wait_until((tmp_path / "step2").exists, 90, "a follow-up job continues with the second step")
    (tmp_path / "go2").touch()
    assert job.result() == [1, 2]
    assert job.run.refresh().attempts == 2


@pytest.mark.slurm
def test_a_time_limit_that_expires_ends_one_attempt_and_the_next_continues(
    project: FunctionProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quiet_cluster: Sandbox
) -> None:
    """Slurm's shortest limit, one minute. One job is warned by Slurm before it, one has only the SIGTERM at the limit,
    and one that is cancelled has the same SIGTERM, and is not continued."""
    for name, value in quiet_cluster.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHOAL_ON", "slurm")
    kind = counting(project, monkeypatch)
    jobs = {}
    for name, signals in {"warned": {"slurm_signal_delay_s": 20}, "expired": {}, "cancelled": {}}.items():
        executor = AutoExecutor(folder="log_test")
        executor.update_parameters(timeout_min=1, slurm_mem="100M", cpus_per_task=1, slurm_name=name, **signals)
        (tmp_path / name).mkdir()
        jobs[name] = executor.submit(kind(), str(tmp_path / name), steps=2)
    for name in jobs:
        wait_until((tmp_path / name / "step1").exists, 60, f"the first attempt of {name} works")
    quiet_cluster.run("scancel", jobs["cancelled"].job_id)
    expired = jobs["expired"].job_id
    for name in ("warned", "expired"):
        wait_until((tmp_path / name / "step2").exists, 240, f"a follow-up job of {name} continues with the second step")
        (tmp_path / name / "go2").touch()
        assert jobs[name].result() == [1, 2] and jobs[name].run.refresh().attempts == 2
    assert "JobState=TIMEOUT" in quiet_cluster.run("scontrol", "show", "job", expired).stdout
    for name, number in {"warned": "SIGUSR1", "expired": "SIGTERM", "cancelled": "SIGTERM"}.items():
        log = Path(jobs[name].run.view.output_dir or "", "attempt-1.out").read_text()
        assert f"shoal: {number}: calling checkpoint()" in log and "the call of the next attempt is saved" in log
    with pytest.raises(UncompletedJobError):
        jobs["cancelled"].result()
    assert jobs["cancelled"].state == "CANCELLED" and jobs["cancelled"].run.refresh().attempts == 1
