"""Runs over two nodes of a real Slurm whose further node is cut off: its ranks end before the next attempt begins.

The user's program keeps its own ledger, outside shoal. Nodes are hosts of their own, so the guard of the first one sees
nothing of the second.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import MakeSandbox
from ledger import Execution, Ledger, guard_and_agent, keeping_ledger, overlap_s, shoal_processes
from project import Project
from shoal.kernel import fence, layout, lease
from shoal.sandbox import Sandbox, process
from waiting import wait_until

pytestmark = pytest.mark.slurm

RUN = "001_a/000_ranks_0"
#: Slurm gives a node up soon, and starts its job again on the others.
GIVES_UP = (("MessageTimeout", "2"), ("TCPTimeout", "1"), ("MinJobAge", "300"), ("SlurmdTimeout", "5"))
#: Slurm waits for a node that does not answer.
WAITS = (*GIVES_UP[:3], ("SlurmdTimeout", "300"))
TOML = """
[steps.ranks]
command = ["{python}", "-S", "{program}", "wait=go"]
launch = {{ mode = "srun", processes = 1 }}
request = {{ nodes = 2, cpus = 1, memory = "50M", time = "5m" }}

[clusters.here]
match = {{ host = "*" }}
setup = "export SHOAL_LEASE_S=9 SHOAL_GRACE_S=2"
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger")
    yield made
    made.end_all()


def begin(folder: Path, cluster: Sandbox, ledger: Ledger) -> tuple[Project, Execution, Execution]:
    """A run of two ranks that wait for their release: the project, and the ranks on its first and second node."""
    toml = TOML.format(python=os.path.realpath("/proc/self/exe"), program=ledger.program)
    project = keeping_ledger(Project(folder, cluster, toml=toml), ledger)
    project.env.update(SHOAL_LEASE_S="9", SHOAL_ON="here")
    project.shoal("submit", project.script("001_a/000_ranks_0.sh", "ranks"))
    ledger.wait_begun(RUN, 2)
    first, second = sorted(ledger.executions(RUN), key=lambda one: one.host)
    assert first.host != second.host
    return project, first, second


def names(project: Project) -> list[str]:
    return sorted(os.listdir(project.home / "runs" / RUN))


def of_nodes(project: Project) -> list[str]:
    return [name for name in names(project) if ".node" in name]


def overlap_of_attempts_s(ledger: Ledger) -> float:
    """Seconds in which a rank of the first attempt ran beside one of a later attempt."""
    began = ledger.executions(RUN)
    return sum(overlap_s([old, new]) for old in began[:2] for new in began[2:])


def test_a_run_over_two_nodes_leaves_no_name_of_its_further_node(
    tmp_path: Path, host_cluster: Sandbox, ledger: Ledger
) -> None:
    project, _, _ = begin(tmp_path, host_cluster, ledger)
    wait_until(lambda: "attempt.1.node1.live.000002" in of_nodes(project), 30, "the further node is renewed")
    assert "attempt.1.node1" in of_nodes(project)
    ledger.release()
    project.wait(RUN, "completed")
    assert of_nodes(project) == [] and len(names(project)) < 10
    wait_until(lambda: not shoal_processes(project), 30, "no guard is left")


def kill_slurmd(cluster: Sandbox, node: str, home: Path) -> Callable[[], None]:
    cluster.kill(node)
    return lambda: None


def freeze(cluster: Sandbox, node: str, home: Path) -> Callable[[], None]:
    """All of it, as when a machine hangs."""
    cluster.freeze(node)
    steps = process.slurmstepd_processes(cluster.layout.log(node))
    for step in steps:
        process.send_signal(step, signal.SIGSTOP)

    def thaw() -> None:
        for step in steps:
            process.send_signal(step, signal.SIGCONT)

    return thaw


def take_files_away(cluster: Sandbox, node: str, home: Path) -> Callable[[], None]:
    """Slurm and the file server are away for this node alone: renewals fail there."""
    cluster.kill(node)
    mounts = os.open(f"/proc/{process.slurmstepd_processes(cluster.layout.log(node))[0].pid}/ns/mnt", os.O_RDONLY)

    def mount(*words: str) -> None:
        argv = ["nsenter", f"--mount=/proc/self/fd/{mounts}", "--", *words, str(home / "runs")]
        subprocess.run(argv, pass_fds=[mounts], check=True, timeout=300)

    mount("mount", "--bind", str(home / "runs"))
    mount("mount", "-o", "remount,ro,bind")

    def undo() -> None:
        mount("umount")
        os.close(mounts)

    return undo


@pytest.mark.parametrize("fault", [kill_slurmd, freeze, take_files_away])
def test_a_requeued_job_begins_when_nothing_of_the_old_attempt_can_run_on_a_lost_node(
    tmp_path: Path, make_sandbox: MakeSandbox, ledger: Ledger, fault: Callable[..., Callable[[], None]]
) -> None:
    cluster = make_sandbox("lost", nodes=3, gpus=0, hosts=True, settings=GIVES_UP)
    project, _, second = begin(tmp_path, cluster, ledger)
    undo = fault(cluster, second.host, project.home)
    ledger.wait_begun(RUN, 4, deadline_s=90)
    again = ledger.executions(RUN)[2:]
    assert {one.host for one in again} == set(cluster.nodes) - {second.host}
    assert overlap_of_attempts_s(ledger) == 0
    wait_until(lambda: len(ledger.executions(RUN)[3].marks) > 20, 30, "the second attempt has run a while")
    assert overlap_of_attempts_s(ledger) == 0
    undo()
    wait_until(lambda: not _of_ledger(cluster, second.host, ledger), 30, "nothing is left on the lost node")
    ledger.release()
    project.wait(RUN, "completed", deadline_s=60)
    assert overlap_of_attempts_s(ledger) < 1, "a moment, where a frozen node wakes up"
    assert ledger.ends(RUN) == 2 and of_nodes(project) == []


def test_ranks_of_a_further_node_stop_when_agent_and_guard_of_the_first_are_killed(
    tmp_path: Path, make_sandbox: MakeSandbox, ledger: Ledger
) -> None:
    cluster = make_sandbox("gone", nodes=2, gpus=0, hosts=True, settings=WAITS)
    project, _, second = begin(tmp_path, cluster, ledger)
    cluster.kill(second.host)  # so that Slurm cannot end what is there
    guard, agent = guard_and_agent(project)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (guard, agent):
            os.kill(pid, number)
    killed_at = _uptime_s()

    def last_mark() -> float:
        return next(one.marks for one in ledger.executions(RUN) if one.host == second.host)[-1]

    wait_until(lambda: _uptime_s() - last_mark() > 3, 60, "the rank on the other node stands still")
    # HOLD after the guard there saw the last renewal, which is at most one beat after it; SHOAL_LEASE_S is 9.
    assert last_mark() - killed_at < 6 + 2 * 2.2 + 1
    run_dir, watch = str(project.home / "runs" / RUN), fence.LeaseWatch()
    found = lease.read_attempt(run_dir, layout.parse_names(names(project)), 1)
    start = found and found.start
    assert project.status()[RUN]["state"] == "running" and _of_ledger(cluster, second.host, ledger)

    def closed() -> bool:
        found = layout.parse_names(names(project))
        return fence.close_attempt(run_dir, found, 1, start, watch.is_silent(1, found.lease_names(1), start))

    wait_until(closed, 30, "another job closes the attempt")
    wait_until(lambda: not _of_ledger(cluster, second.host, ledger), 30, "then the rank is killed")
    assert of_nodes(project) == []


def test_a_guard_of_a_further_node_that_is_killed_with_its_step_is_started_again(
    tmp_path: Path, host_cluster: Sandbox, ledger: Ledger
) -> None:
    project, _, _ = begin(tmp_path, host_cluster, ledger)
    job = str(project.status()[RUN]["job_id"])
    steps = host_cluster.run("squeue", "--steps", "-h", "-j", job, "-o", "%i %j").stdout.split("\n")
    (step,) = [line.split()[0] for line in steps if line.endswith(" guard")]
    host_cluster.run("scancel", "--signal=KILL", step)
    before = [name for name in of_nodes(project) if ".live." in name]
    wait_until(lambda: not set(before) & set(of_nodes(project)), 30, "it is renewed again")
    assert project.status()[RUN]["state"] == "running" and len(ledger.executions(RUN)) == 2
    ledger.release()
    project.wait(RUN, "completed")
    assert of_nodes(project) == []


def _of_ledger(cluster: Sandbox, node: str, ledger: Ledger) -> list[int]:
    """Processes of the user's program on a node, in the pids of this machine."""
    found = []
    for step in process.slurmstepd_processes(cluster.layout.log(node)):
        try:
            if ledger.program.encode() in Path(f"/proc/{step.pid}/cmdline").read_bytes():
                found.append(step.pid)
        except OSError:
            continue
    return found


def _uptime_s() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])
