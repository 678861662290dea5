"""The guard of a real run on this machine: what it stops, what it kills, and what it lets go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from project import Project
from shoal.kernel import lease, processes
from waiting import wait_until

pytestmark = pytest.mark.slow

RUN = "001_a/000_train_0"
#: Appends to a file ten times a second; so does a child that has left its session, its group and its parent.
TICKER = """
import os, sys, time
out = os.environ["SHOAL_OUTPUT_DIR"]
def tick(name):
    while not os.path.exists(os.path.join(ROOT, "go")):
        with open(os.path.join(ROOT, "ticks", name), "a") as file:
            file.write("%d\\n" % os.getpid())
        time.sleep(0.1)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        tick("orphan")
    os._exit(0)
tick("program")
"""


class Running:
    """A local run whose program ticks, with its guard, its agent and the command that started it."""

    def __init__(self, folder: Path, lease_s: float) -> None:
        self.project = Project(folder)
        (self.project.root / "ticks").mkdir()
        self.project.write("train.py", f"ROOT = {str(self.project.root)!r}\n{TICKER}")
        self.project.env["SHOAL_LEASE_S"] = str(lease_s)
        self.script = self.project.script("001_a/000_train_0.sh", "train")
        self.command = self.project.start("submit", self.script)
        for name in ("program", "orphan"):
            wait_until(partial(self.ticks, name), 60, f"the {name} ticks")
        self.start = self.project.records(RUN, "attempt.1.start")[0]
        self.guard, self.agent = self.start["pid"], self.start["agent_pid"]
        self.pids = [int((self.project.root / "ticks" / name).read_text().split()[0]) for name in ("program", "orphan")]

    def ticks(self, name: str = "program") -> int:
        path = self.project.root / "ticks" / name
        return path.stat().st_size if path.exists() else 0

    def state(self, pid: int) -> str:
        return processes.descendants(self.guard).get(pid, "")

    def stand_still(self) -> bool:
        return all(self.state(pid) == "T" for pid in self.pids)

    def gone(self) -> bool:
        return all(processes.process_start_time(pid) is None for pid in self.pids)

    def names(self) -> list[str]:
        return sorted(path.name for path in (self.project.home / "runs" / RUN).glob("attempt.1.*"))

    def end(self) -> None:
        for pid in (self.guard, self.agent, *self.pids):
            for number in (signal.SIGCONT, signal.SIGKILL):
                processes.send_signal(pid, number)
        self.command.communicate(timeout=300)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path, lease_s=3)
    try:
        yield found
    finally:
        found.end()


def test_a_program_stands_still_while_its_agent_renews_nothing_and_goes_on_when_it_does(running: Running) -> None:
    os.kill(running.agent, signal.SIGSTOP)
    wait_until(running.stand_still, 30, "program and orphan are stopped")
    before = running.ticks(), running.ticks("orphan")
    assert running.project.status()[RUN]["state"] == "running"
    os.kill(running.agent, signal.SIGCONT)
    wait_until(lambda: running.ticks() > before[0] and running.ticks("orphan") > before[1], 30, "both go on")
    running.project.write("go", "")
    assert running.command.wait(300) == 0
    assert running.project.status()[RUN]["state"] == "completed"


def test_a_program_whose_lease_was_closed_meanwhile_is_killed_when_its_agent_wakes_up(running: Running) -> None:
    os.kill(running.agent, signal.SIGSTOP)
    wait_until(running.stand_still, 30, "program and orphan are stopped")
    (live,) = (name for name in running.names() if ".live." in name)
    assert lease.close_lease(str(running.project.home / "runs" / RUN), 1, int(live[-6:]))
    os.kill(running.agent, signal.SIGCONT)
    wait_until(running.gone, 30, "nothing of it is left")
    _, err = running.command.communicate(timeout=300)
    assert running.command.returncode != 0 and "closed attempt 1" in err
    assert not [name for name in running.names() if name.endswith(".end")], "its end counts nothing"


@pytest.mark.parametrize("who", ["agent", "guard"])
def test_when_the_agent_or_the_guard_is_killed_nothing_of_the_run_is_left_and_the_next_submit_runs_it(
    running: Running, who: str
) -> None:
    os.kill(getattr(running, who), signal.SIGKILL)
    wait_until(running.gone, 30, "program and orphan are killed")
    running.command.communicate(timeout=300)
    wait_until(lambda: [name for name in running.names() if ".lost." in name], 30, "its attempt is closed")
    assert running.project.status()[RUN]["state"] == "lost"
    running.project.write("go", "")
    running.project.shoal("submit", running.script)
    assert running.project.status()[RUN]["attempt"] == 2


def test_when_both_are_killed_what_is_left_counts_as_running_and_can_be_cancelled(running: Running) -> None:
    for pid in (running.agent, running.guard):
        os.kill(pid, signal.SIGSTOP)
    for pid in (running.guard, running.agent):
        os.kill(pid, signal.SIGKILL)
    running.command.communicate(timeout=300)
    # The program dies with its agent; what has left its tree is found by the mark in its environment.
    assert (
        processes.process_start_time(running.pids[1]) is not None
        and running.project.status()[RUN]["state"] == "running"
    )
    running.project.shoal("cancel", RUN)
    wait_until(running.gone, 30, "nothing of it is left")


def test_a_signal_that_comes_after_the_program_has_ended_changes_nothing(running: Running) -> None:
    os.kill(running.agent, signal.SIGSTOP)
    running.project.write("go", "")
    wait_until(lambda: running.state(running.pids[0]) == "Z", 30, "the program has ended, and nobody has looked")
    os.kill(running.guard, signal.SIGTERM)
    os.kill(running.agent, signal.SIGCONT)
    assert running.command.wait(300) == 0
    assert running.project.status()[RUN]["state"] == "completed"


def test_everything_below_a_process_is_stopped_though_it_forks_all_the_time() -> None:
    bomb = "import os, time\nwhile True:\n    pid = os.fork()\n    if pid: os.waitpid(pid, 0)\n    else: os._exit(0)\n"
    child = subprocess.Popen([sys.executable, "-c", bomb])
    try:

        def look() -> dict[int, str]:
            return processes.with_descendants([child.pid])

        wait_until(lambda: len(look()) > 1, 10, "it forks")
        processes.stop_processes(look, 9.0)
        assert look()[child.pid] == "T" and set(look().values()) <= {"T", "Z"}
    finally:
        for number in (signal.SIGCONT, signal.SIGKILL):
            processes.send_signal(child.pid, number)
        child.wait()
