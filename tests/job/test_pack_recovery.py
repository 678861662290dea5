"""A run in a pack recovers as any other does: retries by cause, checks, warnings, checkpoints, stages, data."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_sets import make_data, with_data
from made_up import END
from project import Done, Project, project_here
from shoal.job import cache, dataset_copy
from shoal.job.pack.attempts import PackRetry, plan_retry
from shoal.job.pack.queue import PackSettings
from shoal.job.pack.run_status import QueuedRunStatus
from waiting import wait_until

pytestmark = pytest.mark.slow

PROGRAM = """\
import os, signal, sys, time
how, out, attempt = sys.argv[1], os.environ["SHOAL_OUTPUT_DIR"], int(os.environ["SHOAL_ATTEMPT"])
def save(*_):
    with open(os.path.join(out, "model_1.pth"), "w") as file:
        file.write("weights")
if how == "fails":
    sys.exit(3 if attempt < 3 else 0)
elif how == "result":
    with open(os.path.join(out, "score"), "w") as file:
        file.write(str(attempt))
    sys.exit(1)
elif how in ("hangs", "signal", "file") and not os.environ["SHOAL_RESUME_FROM"]:
    if how == "signal":
        signal.signal(signal.SIGUSR1, lambda *_: (save(), sys.exit(0)))
    elif how == "hangs":
        save()
    while how != "file" or not os.path.exists(os.environ["SHOAL_STOP_FILE"]):
        time.sleep(0.02)
    save()
"""
STEP = """
[steps.work]
command = [{python}, "-S", "program.py"]
checkpoint = "model_*.pth"
[steps.work.recovery]
{policy}
"""
RUN = "001_a/000_work"


def make(folder: Path, how: str, policy: str) -> Project:
    project = Project(folder, toml=STEP.format(python=json.dumps(sys.executable), policy=policy))
    project.env["SHOAL_ON"] = "local"
    project.write("program.py", PROGRAM)
    project.write("experiments/001_a/000_work.toml", f'step = "work"\nargs = ["{how}"]\n')
    return project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    yield project_here(tmp_path)


def submit(project: Project, *words: object, code: int | None = 0) -> Done:
    return project.shoal("submit", "experiments/001_a", "--layout", "pack", "--slots", 2, *words, code=code)


def ends(project: Project, name: str = RUN) -> list[dict[str, Any]]:
    return project.records(name, "attempt.*.end")


def test_a_failure_is_retried_as_its_step_says_and_each_time_later(tmp_path: Path) -> None:
    project = make(tmp_path, "fails", 'max_retries = { failed = 2 }\nbackoff = "1s"')
    submit(project)
    assert [end["cause"] for end in ends(project)] == ["failed", "failed", None]
    starts = [start["t"] for start in project.records(RUN, "attempt.*.start")]
    waited = [start - end["ended"] for start, end in zip(starts[1:], ends(project), strict=False)]
    assert waited[0] >= 1 and waited[1] >= 2
    other = make(tmp_path / "other", "fails", "max_retries = { failed = 1 }")
    submit(other, code=3)
    assert [end["cause"] for end in ends(other)] == ["failed", "failed"], "the cap holds"


def test_the_result_check_decides_and_a_bad_result_is_tried_again(tmp_path: Path) -> None:
    project = make(
        tmp_path, "result", 'result_check = ["grep", "-q", "2", "{output_dir}/score"]\nmax_retries = { bad_result = 1 }'
    )
    submit(project)
    assert [(end["cause"], end["check_exit"]) for end in ends(project)] == [("bad_result", 1), (None, 0)]


def test_a_run_that_reaches_its_limit_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    project = make(tmp_path, "hangs", "max_follow_ups = 1")
    submit(project, "--run-time", "8s")
    assert [end["cause"] for end in ends(project)] == ["limit", None]
    first, second = project.records(RUN, "attempt.*.start")
    assert first["resume_from"] is None and second["resume_from"].endswith("model_1.pth")


@pytest.mark.parametrize(("tell", "limit"), [("signal", "68s"), ("file", "61s")])
def test_a_run_is_warned_in_the_way_that_its_step_chose(tmp_path: Path, tell: str, limit: str) -> None:
    project = make(tmp_path, tell, f'warn_before = "60s"\nwarn_with = "{tell}"')
    submit(project, "--run-time", limit)  # a program needs a while until it can hear a signal
    assert [(end["cause"], end["warned"], end["exit_code"]) for end in ends(project)] == [
        ("limit", True, 0),
        (None, False, 0),
    ]


def test_what_is_tried_again_is_decided_by_cause() -> None:
    def after(cause: str, times: int, stopped_by: str | None = None, **policy: object) -> PackRetry | None:
        end = END._replace(success=False, cause=cause, stopped_by=stopped_by)
        return plan_retry(
            QueuedRunStatus("ended", end=end, attempts=times, causes={cause: times}), PackSettings(), policy, slots=4
        )

    assert after("failed", 1) is None
    assert after("failed", 1, max_retries={"failed": 1}) == PackRetry()
    assert after("failed", 2, max_retries={"failed": 1}) is None
    assert after("failed", 3, max_retries={"failed": 9}, backoff_s=60) == PackRetry(240)
    assert after("oom", 1, max_retries={"oom": 2}, memory_factor=2.0) == PackRetry(slots=2), (
        "an empty slot is twice the memory"
    )
    assert after("oom", 2, max_retries={"oom": 2}, memory_factor=2.0) == PackRetry(slots=4)
    assert after("oom", 3, max_retries={"oom": 9}, memory_factor=2.0) is None, "it had the whole node"
    assert after("SIGTERM", 1, "SIGTERM") == PackRetry()
    assert after("cancelled", 1, "cancelled", max_retries={"cancelled": 3}) is None


def test_stages_share_a_pack_and_a_child_starts_when_its_parent_is_done(project: Project) -> None:
    project.write(
        "experiments/001_a/000_train.toml", 'step = "train"\nseeds = "0-2"\nargs = ["save=7", "exit={seed}"]\n'
    )
    evaluate = 'step = "evaluate"\nseeds = "0-2"\nstart_from = "000_train_{seed}"\n'
    project.write("experiments/001_a/010_evaluate.toml", evaluate)
    done = submit(project, code=4)
    states = {name: run["state"] for name, run in project.status().items()}
    assert states["001_a/000_train_0"] == states["001_a/010_evaluate_0"] == "completed"
    assert states["001_a/000_train_1"] == "failed" and states["001_a/010_evaluate_1"] == "new"
    assert "001_a/010_evaluate_1 was not started: it builds on 001_a/000_train_1" in done.err
    (mark,) = project.marks("001_a/010_evaluate_0")
    assert mark["env"]["SHOAL_START_FROM"].endswith("model_7.pth")
    project.write("experiments/001_a/000_train.toml", 'step = "train"\nseeds = "0-2"\nargs = ["save=7", "exit=0"]\n')
    submit(project, "--rerun")
    assert {run["state"] for run in project.status().values()} == {"completed"}


def held_data(folder: Path, project: Project) -> cache.FileLock:
    """Data that does not arrive for as long as this lock, which belongs to another job's copy of it, is held."""
    data = make_data(folder)
    with_data(project, 'data = { images = { path = "../data", wait = "all" } }')
    (folder / "scratch").mkdir()
    project.env["SHOAL_SCRATCH"] = str(folder / "scratch")
    root, _ = cache.find_root(project.env, None)
    assert root is not None
    lock = cache.FileLock(root.folder("locks", dataset_copy.read_source(str(data)).id))
    assert lock.take(True)
    return lock


def test_data_that_is_on_its_way_holds_nobody_else_up(tmp_path: Path, project: Project) -> None:
    lock = held_data(tmp_path, project)
    project.script("001_a/000_train_0.sh", "train")
    project.script("001_a/010_evaluate_0.sh", "evaluate")
    begun = project.start("submit", "experiments/001_a", "--layout", "pack", "--slots", 2)
    other = "001_a/010_evaluate_0"
    wait_until(lambda: project.records(other, "attempt.*.end"), 60, "the run without data completed")
    assert project.records("001_a/000_train_0", "attempt.*.start") and not project.marks("001_a/000_train_0")
    lock.close()
    _, said = begun.communicate(timeout=300)
    assert begun.returncode == 0, said
    assert project.marks("001_a/000_train_0")[0]["env"]["SHOAL_DATA_IMAGES"].startswith(project.env["SHOAL_SCRATCH"])


def test_a_pack_that_waits_for_data_can_be_stopped(tmp_path: Path, project: Project) -> None:
    lock = held_data(tmp_path, project)
    project.script("001_a/000_train_0.sh", "train")
    begun = project.start("submit", "experiments/001_a", "--layout", "pack", "--slots", 1)
    wait_until(lambda: project.records("001_a/000_train_0", "attempt.*.start"), 60, "the run has begun")
    begun.send_signal(signal.SIGTERM)
    _, said = begun.communicate(timeout=300)
    assert begun.returncode == 130, said
    (end,) = ends(project, "001_a/000_train_0")
    assert end["stopped_by"] == "SIGTERM" and not project.marks("001_a/000_train_0")
    os.close(lock.fd)
