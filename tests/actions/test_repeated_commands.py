"""Commands are whole: a closed output does not end one (D9); given again, it continues and repeats nothing (D10)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from conftest import cancel_all
from project import ENDED, SHOAL, Project, assert_clear_error, end_process
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slow

RUNS = [f"001_a/{number:03}_train_0" for number in range(6)]
JOBS = ("submit", "experiments/001_a", "--layout", "job")


@pytest.fixture
def slurm(cluster: Sandbox) -> Iterator[Sandbox]:
    yield cluster
    cancel_all(cluster)


def make(folder: Path, cluster: Sandbox | None, words: str = "", count: int = len(RUNS)) -> Project:
    project = Project(folder, cluster)
    for number in range(count):
        project.script(f"001_a/{number:03}_train_0.sh", f"train --time=5 --mem=50 -- {words}")
    return project


def starts(project: Project) -> list[int]:
    return [len(project.marks(name)) for name in sorted(project.status())]


def wait_ended(project: Project, times: int) -> None:
    """Every run has ended that often, and nothing is on its way."""

    def has_ended(name: str) -> bool:
        return len(project.marks(name, "end")) >= times

    for name in project.status():
        wait_until(partial(has_ended, name), 90, f"{name} ended {times} times")
    wait_until(lambda: {run["state"] for run in project.status().values()} <= set(ENDED), 60, "all have ended")


@pytest.mark.slurm
@pytest.mark.parametrize("redirect", ["", "2>&1"])
def test_a_reader_that_leaves_does_not_end_a_submission(tmp_path: Path, slurm: Sandbox, redirect: str) -> None:
    """D9: 2 of 20 runs were submitted, and the exit code was 0."""
    project = make(tmp_path, slurm)
    done = project.bash("-c", f"set -o pipefail; {SHOAL} {' '.join(JOBS)} {redirect} | head -1")
    assert done.out.count("\n") == 1
    wait_ended(project, 1)
    project.assert_ran_once(*RUNS)


@pytest.mark.parametrize("redirect", ["", "2>&1"])
def test_a_reader_that_leaves_does_not_end_what_runs_here(tmp_path: Path, redirect: str) -> None:
    project = make(tmp_path, None, "print=hello", count=3)
    project.bash("-c", f"set -o pipefail; {SHOAL} submit experiments/001_a --on local {redirect} | head -1")
    assert {run["state"] for run in project.status().values()} == {"completed"}
    project.assert_ran_once(*RUNS[:3])


def test_a_reader_that_leaves_does_not_end_a_pack(tmp_path: Path) -> None:
    project = Project(tmp_path)
    words = f"{SHOAL} pack --slots 2 --set n=0:5:1 -- sh -c 'echo {{n}} >> ran; echo {{n}}'"
    project.bash("-c", f"set -o pipefail; {words} 2>&1 | head -1", code=None)
    assert sorted((project.root / "ran").read_text().split()) == [str(number) for number in range(6)]
    assert {run["state"] for run in project.status().values()} == {"completed"}


@pytest.mark.slurm
def test_a_terminal_that_hangs_up_does_not_end_a_submission(tmp_path: Path, slurm: Sandbox) -> None:
    project = make(tmp_path, slurm)
    command = project.start(*JOBS)
    try:
        assert command.stdout is not None and command.stdout.readline().startswith("submitted")
        command.stdout.close()
        command.send_signal(signal.SIGHUP)
        assert command.wait(300) == 0
    finally:
        end_process(command)
    wait_ended(project, 1)
    project.assert_ran_once(*RUNS)


@pytest.mark.slurm
@pytest.mark.parametrize("point", ["between-claims", "after-sending", "after-sbatch", "after-outcome"])
def test_again_after_a_crash_continues_and_repeats_nothing(tmp_path: Path, slurm: Sandbox, point: str) -> None:
    """D10: of 80 runs 39 ran twice, and the hint would have cancelled the good one."""
    project = make(tmp_path, slurm)
    project.shoal(*JOBS)
    wait_ended(project, 1)
    project.shoal(*JOBS, "--rerun", code=-9, SHOAL_FAILPOINT=point)
    wait_until(lambda: not project.queue("%i", "-t", "PD,R,CG"), 60, "what was submitted has ended")
    wait_until(
        lambda: project.status()[RUNS[0]]["state"] not in ("unknown", "waiting"), 60, "it is known what was sent"
    )
    told = project.shoal(*JOBS, "--rerun")
    wait_ended(project, 2)
    assert starts(project) == [2] * len(RUNS)
    assert "continues the unfinished command" in told.err
    project.shoal(*JOBS, "--rerun")  # that one was whole: this is a new command
    wait_ended(project, 3)
    assert starts(project) == [3] * len(RUNS)


@pytest.mark.slurm
def test_a_retry_after_a_crash_does_not_try_twice_what_failed_again(tmp_path: Path, slurm: Sandbox) -> None:
    project = make(tmp_path, slurm, "exit=7")
    project.shoal(*JOBS)
    wait_ended(project, 1)
    project.shoal("retry", "001_a", code=-9, SHOAL_FAILPOINT="after-outcome")
    wait_ended(project, 2)
    told = project.shoal("retry", "001_a")
    wait_until(lambda: not project.queue("%i", "-t", "PD,R,CG"), 60, "nothing is on its way")
    assert starts(project) == [2] * len(RUNS)
    assert "6 of 6 runs were submitted already" in told.err
    project.shoal("retry", "001_a")
    wait_ended(project, 3)


@pytest.mark.slurm
def test_a_resume_that_was_killed_when_its_job_was_in_the_queue_is_not_repeated(tmp_path: Path, slurm: Sandbox) -> None:
    project = make(tmp_path, slurm, "save=1 exit=7", count=1)
    project.shoal(*JOBS)
    wait_ended(project, 1)
    project.shoal("resume", RUNS[0], code=-9, SHOAL_FAILPOINT="before-report")
    wait_ended(project, 2)
    told = project.shoal("resume", RUNS[0])
    wait_until(lambda: not project.queue("%i", "-t", "PD,R,CG"), 60, "nothing is on its way")
    assert starts(project) == [2] and "1 of 1 runs were submitted already" in told.err


@pytest.mark.slurm
def test_a_named_order_is_carried_out_once(tmp_path: Path, slurm: Sandbox) -> None:
    project = make(tmp_path, slurm, count=2)
    project.shoal(*JOBS)
    wait_ended(project, 1)
    for _ in range(2):
        project.shoal(*JOBS, "--rerun", "--command-id", "nightly-1")
        wait_ended(project, 2)
    assert starts(project) == [2, 2]
    told = project.shoal(*JOBS, "--rerun", "--command-id", "nightly-1", "--json").json["runs"]
    assert [run["did"] for run in told] == ["submitted"] * 2
    claims = project.records(RUNS[0], "submit.*.claim")
    assert claims[1]["command_id"] == "nightly-1" and claims[0]["command_id"] != "nightly-1"
    another = project.shoal("submit", "experiments/001_a/000_train_0.sh", "--command-id", "nightly-1", code=None)
    assert_clear_error(another, 2, "--command-id nightly-1 was used for another command (submit, 2 runs)")
    assert_clear_error(project.shoal(*JOBS, "--command-id", "../x", code=None), 2, "invalid --command-id '../x'")


def test_what_runs_here_and_was_cut_off_goes_on_when_the_order_is_given_again(tmp_path: Path) -> None:
    project = make(tmp_path, None, count=3)
    here = ("submit", "experiments/001_a")
    project.shoal(*here)
    project.shoal(*here, "--rerun", code=-9, SHOAL_FAILPOINT="after-outcome")
    assert "continues the unfinished command" in project.shoal(*here, "--rerun").err
    assert starts(project) == [2] * 3
    assert {run["state"] for run in project.status().values()} == {"completed"}


def test_a_named_order_that_found_nothing_to_do_is_complete(tmp_path: Path) -> None:
    project = make(tmp_path, None, "exit=3", count=1)
    project.shoal("submit", "experiments/001_a", code=3)
    for _ in range(2):
        project.shoal("submit", "experiments/001_a", "--command-id", "once", code=None)
    assert starts(project) == [2], "without the name, submit would start the failed run each time"
    project.shoal("retry", "001_b", code=None)
    (project.home / "commands" / "torn.json").write_text("{")
    project.shoal("retry", "001_a", code=3)
    assert starts(project) == [3]
    (tmp_path / "other").mkdir()
    done = make(tmp_path / "other", None, count=1)
    done.shoal("submit", "experiments/001_a")
    done.shoal("submit", "experiments/001_a", "--command-id", "nothing")
    assert "is complete: 0 of 0 runs" in done.shoal("submit", "experiments/001_a", "--command-id", "nothing").err


@pytest.mark.slurm
def test_an_order_that_is_not_whole_says_what_is_missing(tmp_path: Path, slurm: Sandbox) -> None:
    project = make(tmp_path, slurm)
    real, broken = project.slurm("which", "sbatch").strip(), project.root / "bin" / "sbatch"
    broken.parent.mkdir()
    text = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
    broken.write_text(f"""#!/bin/sh
case "$*" in *--test-only*) exec {real} "$@";; esac
[ -e "{project.root}/first" ] && {{ echo '{text}' >&2; exit 1; }}
touch "{project.root}/first"
exec {real} "$@"
""")
    broken.chmod(0o755)
    path = f"{broken.parent}:{project.env['PATH']}"
    told = project.shoal(*JOBS, code=None, PATH=path)
    assert_clear_error(told, 5, "5 of 6 runs were not submitted: 001_a/001_train_0, 001_a/002_train_0")
    project.shoal(*JOBS)
    wait_ended(project, 1)
    project.assert_ran_once(*RUNS)
