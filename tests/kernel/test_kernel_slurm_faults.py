"""Faults of a real Slurm that once broke exactly once: nodes cut off, replayed jobs, full disks, no controller.

D1, D2, D5, D6 and D11 of the table in docs/exactly-once.md; the user's program keeps its own ledger, outside shoal.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import MakeSandbox
from disks import empty, fill, small_disk
from ledger import Ledger, keeping_ledger, shoal_processes
from project import ENDED, Project
from shoal.sandbox import Sandbox
from waiting import wait_until

pytestmark = pytest.mark.slurm

RUN = "001_a/000_train_0"
TASKS = [f"001_a/000_train_{seed}" for seed in range(2)]
#: A controller or node that does not answer is noticed soon, and ended jobs are there to be counted.
QUICK = (("MessageTimeout", "2"), ("TCPTimeout", "1"), ("MinJobAge", "300"), ("SlurmdTimeout", "5"))
#: All timings of the lease and of owed actions, a tenth of what they are; inside jobs as well.
LEASE = '\n[clusters.here]\nmatch = { host = "*" }\nsetup = "export SHOAL_LEASE_S=9 SHOAL_OWED_S=6 SHOAL_GRACE_S=2"\n'
STEP = """
[steps.work]
command = ["{python}", "-S", "{program}", "{words}"]
request = {{ time = "5m", memory = "50M" }}
recovery = {{ max_follow_ups = 2, continue_exit_code = 85, max_retries = {{ failed = 1 }} }}
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger")
    yield made
    made.end_all()


@pytest.fixture
def pair(make_sandbox: MakeSandbox) -> Sandbox:
    return make_sandbox("pair", nodes=2, gpus=0, settings=QUICK)


@pytest.fixture
def single(make_sandbox: MakeSandbox) -> Sandbox:
    return make_sandbox("single", nodes=1, gpus=0, settings=QUICK)


def make(folder: Path, cluster: Sandbox, ledger: Ledger, words: str = "") -> Project:
    step = STEP.format(python=shutil.which("python3"), program=ledger.program, words=words)
    project = keeping_ledger(Project(folder, cluster, toml=LEASE + step), ledger)
    project.env.update(SHOAL_LEASE_S="9", SHOAL_OWED_S="6", SHOAL_ON="here")
    return project


def test_runs_of_a_node_that_slurm_gave_up_end_before_their_requeued_jobs_begin(
    tmp_path: Path, pair: Sandbox, ledger: Ledger
) -> None:
    first, second = pair.nodes
    project = make(tmp_path, pair, ledger)
    script = project.script("001_a/000_train.sh", "train --time=5 --mem=50 -- wait=go")
    _drain(pair, second)
    project.shoal("submit", script, "--seeds", "0-1")
    for name in TASKS:
        assert ledger.wait_begun(name).host == first
    _undrain(pair, second)
    pair.kill(first)
    for name in TASKS:
        assert ledger.wait_begun(name, 2, deadline_s=90).host == second
    wait_until(lambda: all(len(ledger.executions(name)[1].marks) > 20 for name in TASKS), 30, "both have run a while")
    ledger.release()
    _wait_done(project, ledger, script, *TASKS)


def test_runs_that_a_controller_replays_under_other_ids_are_never_told_to_be_over_while_they_run(
    tmp_path: Path, pair: Sandbox, ledger: Ledger
) -> None:
    first, second = pair.nodes
    project = make(tmp_path, pair, ledger)
    script = project.script("001_a/000_train.sh", "train --time=5 --mem=50 --hold -- wait=go")
    _drain(pair, first)
    project.shoal("submit", script, "--seeds", "0-1")
    job_id = str(project.status()[TASKS[0]]["job_id"]).partition("_")[0]
    pair.stop_daemon("slurmctld")
    shutil.copytree(pair.layout.save, tmp_path / "before")
    pair.start_daemon("slurmctld")
    _drain(pair, second)
    _undrain(pair, first)
    pair.run("scontrol", "release", job_id)
    for name in TASKS:
        assert ledger.wait_begun(name).host == first
    pair.freeze(first)  # so that it does not hear of a controller that knows nothing of these tasks
    pair.kill("slurmctld")
    shutil.rmtree(pair.layout.save)
    shutil.copytree(tmp_path / "before", pair.layout.save)
    pair.start_daemon("slurmctld")
    for _ in range(4):  # they take the ids that the tasks had
        pair.run("sbatch", "--hold", "--job-name=stranger", "-o", "/dev/null", "--wrap=true")
    pair.run("scontrol", "release", job_id)
    wait_until(lambda: _all_began_twice(project, ledger), 60, "the replayed jobs have taken over", poll_s=0.5)
    ledger.release()
    _wait_done(project, ledger, script, *TASKS)


def test_an_end_on_a_full_disk_is_recorded(tmp_path: Path, single: Sandbox, ledger: Ledger) -> None:
    with small_disk(tmp_path / "disk", "24m") as disk:
        project = make(disk, single, ledger)
        script = project.script("001_a/000_train_0.sh", "train --time=5 --mem=50 -- wait=go")
        project.shoal("submit", script)
        ledger.wait_begun(RUN)
        fill(disk)
        ledger.release()
        wait_until(lambda: ledger.ends(RUN) == 1, 30, "the program has ended")
        wait_until(lambda: not project.slurm("squeue", "-h", "-t", "PD,R,CG").strip(), 60, "the job has left")
        empty(disk)
        assert project.status()[RUN]["state"] == "completed"
        project.shoal("submit", script)
        assert project.status()[RUN]["state"] == "completed"
        assert len(ledger.executions(RUN)) == 1


@pytest.mark.parametrize("code", [85, 7])
def test_what_follows_an_end_is_done_although_the_controller_was_away(
    code: int, tmp_path: Path, single: Sandbox, ledger: Ledger
) -> None:
    """85 asks to be continued and 7 is retried once; nobody gives another command than `status`."""
    project, name = _begin(tmp_path, single, ledger, f"first_exit={code}")
    single.stop_daemon("slurmctld")
    ledger.release()
    wait_until(lambda: ledger.ends(name, code) == 1, 30, "the program has ended")
    wait_until(lambda: not shoal_processes(project), 90, "the agent has left")
    single.start_daemon("slurmctld")
    _wait_continued(project, ledger, name)
    assert len(project.submissions()) == 2


def test_a_follow_up_that_was_given_up_while_it_was_sent_is_sent_again(
    tmp_path: Path, single: Sandbox, ledger: Ledger
) -> None:
    """sbatch hangs inside the job; another command gives the submission up; then Slurm accepts it after all."""
    project, name = _begin(tmp_path, single, ledger, "first_exit=85", slow_sbatch=True)
    (tmp_path / "slow").touch()
    ledger.release()
    wait_until((tmp_path / "sending").exists, 60, "the follow-up is being sent")

    def given_up() -> bool:
        project.shoal("status", "--json", SHOAL_SUBMIT_GRACE_S="0.1")
        outcomes = (json.loads(path.read_text()) for path in project.home.glob("submissions/*/*outcome*"))
        return any(outcome.get("kind") == "void" for outcome in outcomes)

    wait_until(given_up, 30, "the submission is given up", poll_s=0.3)
    (tmp_path / "slow").unlink()
    _wait_continued(project, ledger, name)


def _begin(
    folder: Path, cluster: Sandbox, ledger: Ledger, words: str, *, slow_sbatch: bool = False
) -> tuple[Project, str]:
    """A run of the step `work` that waits for its release, and its name."""
    project = make(folder, cluster, ledger, words)
    if slow_sbatch:
        shim = folder / "bin" / "sbatch"
        shim.parent.mkdir()
        shim.write_text(
            f"#!/bin/sh\nif test -e {folder}/slow; then touch {folder}/sending; fi\n"
            f'while test -e {folder}/slow; do sleep 0.1; done\nexec {shutil.which("sbatch")} "$@"\n'
        )
        shim.chmod(0o755)
        project.env["PATH"] = f"{shim.parent}:{project.env['PATH']}"
    sweep_file = project.write("experiments/001_a/000_work.toml", 'step = "work"\nargs = ["wait=go"]\n')
    project.shoal("submit", sweep_file)
    ledger.wait_begun("001_a/000_work")
    return project, "001_a/000_work"


def _wait_continued(project: Project, ledger: Ledger, name: str) -> None:
    assert project.wait(name, "completed", deadline_s=60)["state"] == "completed"
    assert len(ledger.executions(name)) == 2 and ledger.ends(name) == 1
    assert ledger.overlap_s(name) == 0


def _all_began_twice(project: Project, ledger: Ledger) -> bool:
    for name, run in project.status().items():
        told_over = run["state"] in ENDED
        assert not told_over or not ledger.alive(name), f"{name} was told {run['state']} while its program runs"
    return all(len(ledger.executions(name)) == 2 for name in TASKS)


def _wait_done(project: Project, ledger: Ledger, script: Path, *names: str) -> None:
    """Submit what is over until all is done; then each has come to its end once and never ran beside itself."""

    def done() -> bool:
        states = {name: run["state"] for name, run in project.status().items()}
        if any(state in ("lost", "node_fail", "preempted") for state in states.values()):
            project.shoal("submit", script, "--seeds", "0-1", code=None)
        return set(states.values()) == {"completed"}

    wait_until(done, 90, "all completed", poll_s=0.5)
    assert [ledger.overlap_s(name) for name in names] == [0] * len(names)
    assert [ledger.ends(name) for name in names] == [1] * len(names)


def _drain(cluster: Sandbox, node: str) -> None:
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")


def _undrain(cluster: Sandbox, node: str) -> None:
    """A controller that has just started refuses it until the node has reported."""

    def resumed() -> bool:
        cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        return cluster.run("sinfo", "-h", "-n", node, "-o", "%t").stdout.split()[:1] == ["idle"]

    wait_until(resumed, 30, f"{node} is idle", poll_s=0.5)
