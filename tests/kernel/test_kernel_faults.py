"""Faults on this machine that once broke the promise of exactly once: agents killed and frozen, output closed early.

D7, D8 and D9 of the table in docs/exactly-once.md; the user's program keeps its own ledger, outside shoal.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger import Ledger, guard_and_agent, keeping_ledger, shoal_processes
from project import ENDED, SHOAL, Project, end_process, project_here
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slow

RUN = "001_a/000_train_0"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger")
    yield made
    made.end_all()


@pytest.fixture
def here(tmp_path: Path, ledger: Ledger) -> Iterator[Project]:
    project = keeping_ledger(project_here(tmp_path, SHOAL_LEASE_S="9"), ledger)
    yield project
    for pid, _ in shoal_processes(project):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("victim", ["agent", "guard"])
def test_killing_the_agent_or_its_guard_leaves_no_program_and_the_run_goes_on_once(
    victim: str, here: Project, ledger: Ledger
) -> None:
    script = here.script("001_a/000_train_0.sh", "train -- fork wait=go")
    command = here.start("submit", script)
    try:
        ledger.wait_begun(RUN)
        guard, agent = guard_and_agent(here)
        os.kill(agent if victim == "agent" else guard, signal.SIGKILL)
        command.communicate(timeout=300)
    finally:
        end_process(command)
    wait_over(here, ledger, "lost")
    ledger.release()
    here.shoal("submit", script)
    assert here.status()[RUN]["state"] == "completed"
    assert len(ledger.executions(RUN)) == 2 and ledger.ends(RUN) == 1
    assert ledger.overlap_s(RUN) == 0


def test_a_program_that_ended_well_is_done_although_its_frozen_agent_is_told_to_stop_afterwards(
    here: Project, ledger: Ledger
) -> None:
    script = here.script("001_a/000_train_0.sh", "train -- wait=go")
    command = here.start("submit", script)
    try:
        program = ledger.wait_begun(RUN)
        guard, agent = guard_and_agent(here)
        os.kill(agent, signal.SIGSTOP)
        wait_until(lambda: _state_of(agent) in "Tt", 10, "the agent is frozen")
        ledger.release()
        wait_until(lambda: ledger.ends(RUN) == 1 and not program.lives(ledger.program), 20, "the program has ended")
        for pid in dict.fromkeys((guard, agent)):
            os.kill(pid, signal.SIGTERM)
        os.kill(agent, signal.SIGCONT)
        command.communicate(timeout=300)
    finally:
        end_process(command)
    wait_over(here, ledger, "completed")
    here.shoal("submit", script)
    assert len(ledger.executions(RUN)) == 1


def test_a_run_whose_process_cannot_be_seen_is_not_lost_and_not_started_again(here: Project, ledger: Ledger) -> None:
    """As with hidepid, or from a container: /proc of who looks does not show the process that holds the run."""
    script = here.script("001_a/000_train_0.sh", "train -- wait=go")
    command = here.start("submit", script)
    elsewhere = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", SHOAL]
    try:
        ledger.wait_begun(RUN)
        seen = here.run([*elsewhere, "status", "--json"]).json["runs"]
        assert [run["state"] for run in seen] == ["running"]
        here.run([*elsewhere, "submit", script], code=None, timeout_s=60)
        assert ledger.overlap_s(RUN) == 0 and len(ledger.executions(RUN)) == 1
        ledger.release()
        command.communicate(timeout=300)
    finally:
        end_process(command)
    assert here.status()[RUN]["state"] == "completed" and ledger.ends(RUN) == 1


@pytest.mark.slurm
def test_output_closed_after_the_first_line_does_not_end_an_order(
    tmp_path: Path, ledger: Ledger, quiet_cluster: Sandbox
) -> None:
    project = keeping_ledger(Project(tmp_path, quiet_cluster), ledger)
    names = [f"001_a/{number:03}_train_0" for number in range(20)]
    for name in names:
        project.script(f"{name}.sh", "train --time=5 --mem=50")
    command = project.start("submit", "experiments/001_a", "--layout", "job")
    assert command.stdout is not None
    try:
        command.stdout.readline()
        command.stdout.close()
        command.wait(timeout=300)
    finally:
        end_process(command)
    states = {name: run["state"] for name, run in project.status().items()}
    assert sorted(states) == names and "new" not in states.values() and "waiting" not in states.values()
    wait_until(lambda: all(ledger.ends(name) for name in names), 90, "every run has ended")
    assert [len(ledger.executions(name)) for name in names] == [1] * 20


def test_an_order_on_this_machine_is_carried_out_although_nobody_reads_its_output(
    here: Project, ledger: Ledger
) -> None:
    """As after a dropped connection: both pipes are closed, and every write to them fails."""
    names = [f"001_a/{number:03}_train_0" for number in range(4)]
    for name in names:
        here.script(f"{name}.sh", "train")
    read_end, write_end = os.pipe()
    os.close(read_end)
    argv: list[str | Path] = [SHOAL, "submit", "experiments/001_a"]
    command = subprocess.Popen(
        argv, cwd=here.root, env=here.env, stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end
    )
    os.close(write_end)
    try:
        command.wait(timeout=300)
    finally:
        end_process(command)
    states = {name: run["state"] for name, run in here.status().items()}
    assert states == dict.fromkeys(names, "completed")
    assert [len(ledger.executions(name)) for name in names] == [1] * 4


def wait_over(project: Project, ledger: Ledger, state: str) -> None:
    """Wait for this state of the run; that any end is told while its program runs is a lie."""

    def look() -> bool:
        told = str(project.status()[RUN]["state"])
        assert told not in ENDED or not ledger.alive(RUN), f"{told} was told while the program runs"
        assert told == state or told not in ENDED, f"{told} instead of {state}"
        return told == state

    wait_until(look, 30, f"{RUN} is {state}", poll_s=0.2)


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
