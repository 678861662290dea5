"""Ten watchers cost the controller no more than one: the shared answer, alone and on a real Slurm."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from project import Project
from shoal.clusters import QueueState
from shoal.kernel.slurm_text import JobRow
from shoal.observe.queue_cache import QueueCache, poll_interval
from shoal.sandbox import Sandbox
from waiting import wait_until

TOKEN = "abcdefghjkmn"
ROW = JobRow("7", "RUNNING", f"e.s.{TOKEN}")


class Slurm:
    """Counts the questions; answers one row, or a problem."""

    def __init__(self) -> None:
        self.asked = 0
        self.now = 1000.0
        self.problem: str | None = None

    def query(self, environ: Mapping[str, str]) -> QueueState:
        self.asked += 1
        return QueueState({}, self.problem) if self.problem else QueueState({(TOKEN, None): [ROW]}, t=self.now)

    def watcher(self, home: Path) -> QueueCache:
        return QueueCache(str(home), 10.0, query=self.query, clock=lambda: self.now, sleep=lambda s: None)


def test_ten_watchers_ask_once_per_interval(tmp_path: Path) -> None:
    slurm = Slurm()
    watchers = [slurm.watcher(tmp_path) for _ in range(10)]
    for _ in range(30):
        for watcher in watchers:
            assert watcher({}, 0.0).row(TOKEN, 0, 1) == ROW
        slurm.now += 1
    assert slurm.asked == 3


def test_a_run_that_was_submitted_after_the_answer_is_asked_about(tmp_path: Path) -> None:
    slurm = Slurm()
    slurm.watcher(tmp_path)({}, 0.0)
    slurm.now += 3
    slurm.watcher(tmp_path)({}, slurm.now - 2.5)
    assert slurm.asked == 2
    slurm.watcher(tmp_path)({}, slurm.now - 2.5)
    assert slurm.asked == 2


def test_a_silent_controller_is_asked_ever_more_seldom_and_the_last_answer_is_kept(tmp_path: Path) -> None:
    slurm = Slurm()
    slurm.watcher(tmp_path)({}, 0.0)
    slurm.problem = "Unable to contact slurm controller"
    for _ in range(300):
        slurm.now += 1
        found = slurm.watcher(tmp_path)({}, 0.0)
    assert found.problem == slurm.problem and found.row(TOKEN, 0, 1) == ROW and found.t == 1000.0
    assert slurm.asked <= 7
    slurm.problem = None
    slurm.now += 1000
    assert slurm.watcher(tmp_path)({}, 0.0).problem is None


def test_the_mark_of_a_watcher_that_was_killed_while_asking_does_not_silence_the_others(tmp_path: Path) -> None:
    slurm = Slurm()
    slurm.watcher(tmp_path)({}, 0.0)
    mark = next((tmp_path / "cache").glob("*.json")).with_suffix(".json.asking")
    mark.touch()
    slurm.now += 20
    slurm.watcher(tmp_path)({}, 0.0)
    assert slurm.asked == 1  # somebody is asking; the old answer has to do
    os.utime(mark, (1, 1))
    slurm.watcher(tmp_path)({}, 0.0)
    assert slurm.asked == 2 and not mark.exists()


def test_an_answer_that_takes_its_time_is_waited_for(tmp_path: Path) -> None:
    slurm = Slurm()
    mark = tmp_path / "cache" / f"squeue-{os.getuid()}.json.asking"
    mark.parent.mkdir()
    mark.touch()  # somebody is asking
    naps = 0

    def nap(seconds: float) -> None:
        nonlocal naps
        naps += 1
        if naps == 100:
            mark.unlink()
            slurm.watcher(tmp_path)({}, 0.0)  # has the answer

    waiter = QueueCache(str(tmp_path), 10.0, query=slurm.query, clock=lambda: slurm.now, sleep=nap)
    assert waiter({}, 0.0).row(TOKEN, 0, 1) == ROW
    assert naps == 100 and slurm.asked == 1, "after ten seconds it had not asked for itself"


def test_another_cluster_or_a_damaged_file_is_no_answer(tmp_path: Path) -> None:
    slurm = Slurm()
    slurm.watcher(tmp_path)({"SLURM_CONF": "/a"}, 0.0)
    slurm.watcher(tmp_path)({"SLURM_CONF": "/b"}, 0.0)
    assert slurm.asked == 2
    next((tmp_path / "cache").glob("*.json")).write_text("{broken")
    slurm.watcher(tmp_path)({"SLURM_CONF": "/b"}, 0.0)
    assert slurm.asked == 3
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_where_nothing_can_be_written_each_asks_for_itself_at_the_same_interval(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    slurm = Slurm()
    watcher = slurm.watcher(tmp_path)
    for _ in range(20):
        assert watcher({}, 0.0).problem is None
        slurm.now += 1
    assert slurm.asked == 2


def test_threads_that_come_at_the_same_moment_share_one_question(tmp_path: Path) -> None:
    asked, gate = [], threading.Barrier(8)

    def query(environ: Mapping[str, str]) -> QueueState:
        asked.append(1)
        return QueueState({}, t=time.time())

    def look() -> None:
        watcher = QueueCache(str(tmp_path), 10.0, query=query)
        gate.wait()
        watcher({}, 0.0)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(asked) == 1


def test_the_interval_is_never_shorter_than_a_second() -> None:
    assert [poll_interval({"SHOAL_POLL_S": text}) for text in ("0.01", "30", "often", "")] == [1.0, 30.0, 10.0, 10.0]


@pytest.fixture
def counted(tmp_path: Path, quiet_cluster: Sandbox) -> Iterator[tuple[Project, Path]]:
    """A project whose Slurm programs write a line for each call before they do their work."""
    project = Project(tmp_path, quiet_cluster)
    calls, shims = tmp_path / "calls", tmp_path / "shims"
    shims.mkdir()
    for program in ("squeue", "sinfo", "scontrol", "sacct", "sbatch"):
        real = subprocess.run(["which", program], capture_output=True, text=True, check=True).stdout.strip()
        shim = shims / program
        shim.write_text(f'#!/bin/sh\necho "{program} $*" >> "{calls}"\nexec {real} "$@"\n')
        shim.chmod(0o755)
    project.env["PATH"] = f"{shims}{os.pathsep}{project.env['PATH']}"
    yield project, calls
    (project.root / "go").touch()


@pytest.mark.slurm
def test_ten_real_watchers_ask_a_real_controller_as_often_as_one(counted: tuple[Project, Path]) -> None:
    project, calls = counted
    project.script("001_watch/000_train_0.sh", "train --time=5 --mem=50M --gres=gpu:1 -- wait=go")
    project.script("001_watch/000_train_1.sh", "train --time=5 --mem=50M -- wait=go exit=3")
    project.shoal("submit", "experiments/001_watch")
    wait_until(lambda: project.shoal("status", "--json").json["counts"] == {"running": 2}, 60, "both run")
    status = project.shoal("status", "--json").json
    assert status["gpus_allocated"] == 1 and status["slurm_time"] is not None and status["slurm_problem"] is None
    calls.write_text("")
    begin = time.monotonic()
    env = {**project.env, "SHOAL_POLL_S": "2", "SHOAL_LOOK_S": "0.2"}
    words = [str(Path(sys.executable).with_name("shoal")), "watch", "001_watch", "--json", "--exit-status"]
    watchers = [
        subprocess.Popen(words, cwd=project.root, env=env, stdout=subprocess.PIPE, text=True) for _ in range(10)
    ]
    try:
        wait_until(lambda: calls.read_text().count("squeue") >= 4, 60, "the controller was asked four times")
        asked = calls.read_text().count("squeue")
        waited = time.monotonic() - begin
        assert asked <= waited / 2 + 2, f"{asked} questions in {waited:.1f} s by ten watchers"
        (project.root / "go").touch()
        ends = [watcher.communicate(timeout=300)[0].splitlines() for watcher in watchers]
    finally:
        for watcher in watchers:
            watcher.kill()
            watcher.wait()
    assert [watcher.returncode for watcher in watchers] == [4] * 10
    for lines in ends:
        assert json.loads(lines[-1])["counts"] == {"completed": 1, "failed": 1}
    # An end is on record before the job asks and has left.
    wait_until(lambda: not project.queue("%i", "-t", "R,CG"), 60, "both jobs are over for Slurm")
    told = [line for line in calls.read_text().splitlines() if line.split()[0] not in ("squeue", "sacct")]
    assert all(line.startswith("scontrol show job ") for line in told), told
    assert len(set(told)) == len(told) == 2, "each job asks about itself once, at its end"


@pytest.mark.slurm
def test_why_tells_what_a_real_pending_job_waits_for_and_when_it_starts(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = Project(tmp_path, quiet_cluster)
    project.script("001_wait/000_train_0.sh", "train --time=2:00:00 --nodes=4 --gres=gpu:4 --mem=50M -- wait=go")
    project.script("001_wait/000_train_1.sh", "train --time=2:00:00 --nodes=4 --gres=gpu:4 --mem=50M -- wait=go")
    project.script("001_wait/000_train_2.sh", "train --time=10 --mem=50M --hold -- wait=go")
    project.shoal("submit", "experiments/001_wait", "--layout", "job")
    wait_until(
        lambda: project.shoal("why", "000_train_1", "--json").json["slurm_reason"] == "Resources", 60, "it waits"
    )
    told = project.shoal("why", "000_train_1", "--json").json
    assert told["state"] == "pending" and "waits until enough" in told["headline"]
    assert any("nodes of main" in line for line in told["evidence"]) and any(
        "before it" in line for line in told["evidence"]
    )
    shown = project.shoal("why", "000_train_1").out
    assert "Slurm estimates its start at" in shown or "Slurm gives no estimate" in shown
    held = project.shoal("why", "000_train_2", "--json").json
    assert held["state"] == "blocked" and "hold" in held["headline"] and held["next"][0].startswith("scontrol release ")
    running = project.shoal("why", "000_train_0", "--json").json
    assert running["state"] == "running" and "it is running" in running["headline"]
    (project.root / "go").touch()


@pytest.mark.slurm
def test_without_an_answer_the_last_known_states_are_shown_and_said_to_be_old(
    tmp_path: Path, quiet_cluster: Sandbox
) -> None:
    project = Project(tmp_path, quiet_cluster)
    project.script("001_dead/000_train_0.sh", "train --time=5 --mem=50M -- wait=go")
    project.shoal("submit", "experiments/001_dead")
    wait_until(lambda: project.shoal("status", "--json").json["counts"] == {"running": 1}, 60, "it runs")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "squeue").write_text(
        "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n"
    )
    (shims / "squeue").chmod(0o755)
    path = f"{shims}{os.pathsep}{project.env['PATH']}"
    shown = project.shoal("status", PATH=path)
    assert "running" in shown.out and "Slurm does not answer, these are last known states" in shown.err
    found = project.shoal("status", "--json", PATH=path).json
    assert "Unable to contact" in found["slurm_problem"] and found["runs"][0]["state"] == "running"
    (project.root / "go").touch()


@pytest.mark.slurm
def test_the_last_task_of_an_array_has_the_others_before_it(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    """Each task takes all nodes, so that one runs and seven wait."""
    project = Project(tmp_path, quiet_cluster)
    script = project.script("001_array/000_train.sh", "train --time=10 --nodes=4 --gres=gpu:4 --mem=50M -- wait=go")
    project.shoal("submit", script, "--seeds", "0-7")
    project.wait("001_array/000_train_0", "running")

    def before_the_last() -> list[str]:
        told = project.shoal("why", "001_array/000_train_7", "--json").json
        return [line for line in told["evidence"] if "before it" in line]

    wait_until(before_the_last, 60, "the queue tells")
    expected = "6 pending jobs of the partition are before it, 6 of them tasks of its array"
    wait_until(lambda: before_the_last() == [expected], 60, f"{expected}, not {before_the_last()}")
    (project.root / "go").touch()
