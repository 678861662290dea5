"""The guard of a further node, as a process on this machine: what it renews, what it stops, what it kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from made_up import END, START
from shoal.kernel import fence, layout, lease, processes
from waiting import wait_until

TIMES = lease.timing({lease.LEASE_VARIABLE: "3"})
MAIN = "import sys; from shoal.job.launch.node_guards import main; sys.exit(main(sys.argv[1:]))"
#: A process of the attempt that has a child without its environment.
PROGRAM = """
import subprocess
child = subprocess.Popen(["sleep", "600"], env={})
print(child.pid, flush=True)
child.wait()
"""


def begin(folder: Path, number: int = 1, nodes: int = 1) -> lease.Lease:
    folder.mkdir(exist_ok=True)
    start = START._replace(attempt=number, mark=f"mark of {folder}", beat_s=TIMES.beat_s, host="elsewhere")
    held = lease.create_lease(str(folder), number, start, TIMES)
    assert held is not None
    lease.create_node_leases(held, nodes)
    return held


def names_in(folder: Path) -> layout.RunNames:
    return layout.parse_names(os.listdir(folder))


class Node:
    """A guard with its renewer, and a process of the attempt with its child, as if on a node of their own."""

    def __init__(self, held: lease.Lease) -> None:
        self.folder, mark = Path(held.run_dir), held.mark
        self.guard = subprocess.Popen(
            [sys.executable, "-c", MAIN, held.run_dir, str(held.number), mark, str(TIMES.beat_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "SLURM_NODEID": "0"},
        )
        env = {**os.environ, processes.LEASE_MARK_VARIABLE: mark}
        self.program = subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stdout=subprocess.PIPE, text=True)
        assert self.program.stdout is not None and self.guard.stdout is not None
        self.pids = [self.program.pid, int(self.program.stdout.readline())]
        assert self.guard.stdout.readline() == b"%d 1\n" % held.number, "it says that it has begun"

    @property
    def renewals(self) -> int | None:
        return names_in(self.folder).nodes.get(1, {}).get(1)

    def tell(self, **message: object) -> None:
        assert self.guard.stdin is not None
        self.guard.stdin.write(json.dumps(message).encode() + b"\n")
        self.guard.stdin.flush()

    def is_stopped(self) -> bool:
        states = processes.with_descendants(self.pids)
        return all(states.get(pid) == "T" for pid in self.pids)

    def is_running(self) -> bool:
        states = processes.with_descendants(self.pids)
        return all(states.get(pid, "") in ("S", "R", "D") for pid in self.pids)

    def is_gone(self) -> bool:
        return all(processes.process_start_time(pid) is None for pid in self.pids)

    def end(self) -> None:
        for pid in [*processes.with_descendants([self.guard.pid]), *self.pids]:
            processes.send_signal(pid, signal.SIGKILL)
        for one in (self.guard, self.program):
            one.wait()
            for stream in (one.stdin, one.stdout):
                if stream is not None:
                    stream.close()


@pytest.fixture
def held(tmp_path: Path) -> lease.Lease:
    return begin(tmp_path / "run")


@pytest.fixture
def node(held: lease.Lease) -> Iterator[Node]:
    made = Node(held)
    try:
        yield made
    finally:
        made.end()


def renew_until(held: lease.Lease, condition: Callable[[], bool]) -> None:
    wait_until(lambda: held.renew() == "held" and condition(), 10, "the first node renews", poll_s=TIMES.beat_s)


def test_names_of_a_node_take_no_inode_and_are_read_from_a_listing(held: lease.Lease) -> None:
    folder = Path(held.run_dir)
    assert {path.name for path in folder.iterdir()} == {
        "attempt.1.start",
        "attempt.1.live.000000",
        "attempt.1.node1",
        "attempt.1.node1.live.000000",
    }
    assert len({path.stat().st_ino for path in folder.iterdir()}) == 1
    assert names_in(folder).nodes == {1: {1: 0}}


@pytest.mark.parametrize(
    ("names", "state", "may_run"),
    [
        (["attempt.1.start", "attempt.1.lost.000003", "attempt.1.node1"], "live", True),
        (["attempt.1.start", "attempt.1.lost.000003", "attempt.1.node1", "attempt.1.node1.live.000002"], "live", True),
        (["attempt.1.start", "attempt.1.end", "attempt.1.node2", "attempt.1.node2.live.000002"], "end", True),
        (["attempt.1.start", "attempt.1.end"], "end", False),
        (["attempt.1.start", "attempt.1.lost.000003"], "lost", False),
        (["attempt.1.start", "attempt.2.start", "attempt.2.end", "attempt.1.node1"], "end", False),
    ],
)
def test_an_attempt_is_not_over_while_a_further_node_may_run_it(names: list[str], state: str, may_run: bool) -> None:
    found = layout.parse_names(names)
    assert (found.state(found.attempt), found.may_run(found.attempt)) == (state, may_run)


@pytest.mark.slow
def test_an_attempt_is_closed_only_when_none_of_its_leases_was_renewed(held: lease.Lease) -> None:
    folder, start = Path(held.run_dir), held.start
    watch, further = fence.LeaseWatch(), lease.NodeLease(held.run_dir, 1, 1, "m", TIMES)

    def close() -> bool:
        names = names_in(folder)
        silent = watch.is_silent(1, names.lease_names(1), start)
        return fence.close_attempt(held.run_dir, names, 1, start, silent)

    begun = lease.boot_time_s()
    while lease.boot_time_s() < begun + 1.2 * TIMES.take_s:
        assert further.renew() in ("held", "unknown") and not close()
        if lease.boot_time_s() < begun + 0.5 * TIMES.take_s:
            held.renew()
    wait_until(close, 10, "all of them are silent")
    assert not names_in(folder).may_run(1) and held.renew() == "lost" and further.renew() == "over"


def test_whoever_saw_an_old_name_of_a_node_closes_nothing(held: lease.Lease) -> None:
    further, old = lease.NodeLease(held.run_dir, 1, 1, "m", TIMES), names_in(Path(held.run_dir))
    assert further.renew() == "held"
    assert not lease.close_node_leases(held.run_dir, 1, old) and names_in(Path(held.run_dir)).nodes == {1: {1: 1}}


def test_a_node_is_renewed_while_the_first_one_is_and_let_go_when_the_agent_says_so(
    held: lease.Lease, node: Node
) -> None:
    renew_until(held, lambda: (node.renewals or 0) > 4)
    assert node.is_running()
    node.tell(over=True)
    assert node.guard.wait(300) == 0
    assert node.is_gone() and not names_in(node.folder).nodes


@pytest.mark.slow
def test_processes_of_a_node_are_stopped_while_the_first_one_is_silent_and_go_on_when_it_is_not(
    held: lease.Lease, node: Node
) -> None:
    wait_until(node.is_stopped, 30, "program and child are stopped")
    watch = fence.LeaseWatch()

    def is_silent() -> bool:
        return watch.is_silent(1, names_in(node.folder).lease_names(1), held.start)

    wait_until(lambda: is_silent() and node.is_stopped(), 10, "it is silent too: somebody may close the attempt")
    renew_until(held, node.is_running)


@pytest.mark.parametrize("how", ["lost", "end"])
def test_processes_of_a_node_are_killed_when_the_attempt_is_over(held: lease.Lease, node: Node, how: str) -> None:
    assert node.guard.stdin is not None
    node.guard.stdin.close()  # as when srun is killed: only the files tell
    if how == "lost":
        assert lease.close_lease(held.run_dir, 1, 0)
    else:
        assert held.end(END)
    wait_until(node.is_gone, 30, "program and child are killed")
    wait_until(lambda: not names_in(node.folder).may_run(1), 30, "its names are gone")


@pytest.mark.parametrize("who", ["guard", "renewer"])
def test_processes_of_a_node_are_killed_when_its_guard_is(held: lease.Lease, node: Node, who: str) -> None:
    (renewer,) = processes.descendants(node.guard.pid)
    os.kill(node.guard.pid if who == "guard" else renewer, signal.SIGKILL)
    wait_until(node.is_gone, 30, "program and child are killed")
    wait_until(lambda: not names_in(node.folder).nodes, 30, "its names are gone")


def test_a_node_goes_on_with_another_attempt_when_the_agent_says_so(
    tmp_path: Path, held: lease.Lease, node: Node
) -> None:
    new = begin(tmp_path / "other", number=7)
    node.tell(run_dir=new.run_dir, number=7)
    assert node.guard.stdout is not None and node.guard.stdout.readline() == b"7 1\n"
    wait_until(lambda: not names_in(node.folder).nodes, 30, "the old lease is let go")
    held.end(END)
    renew_until(new, lambda: (names_in(tmp_path / "other").nodes[7][1] or 0) > 3)
    assert node.is_running()


def test_a_guard_that_finds_no_lease_of_its_node_touches_nothing(held: lease.Lease) -> None:
    lease.close_node_leases(held.run_dir, 1, names_in(Path(held.run_dir)))
    bystander = subprocess.Popen(["sleep", "600"], env={**os.environ, processes.LEASE_MARK_VARIABLE: held.mark})
    try:
        held.end(END)
        words = [sys.executable, "-c", MAIN, held.run_dir, "1", held.mark, str(TIMES.beat_s)]
        assert subprocess.run(words, stdin=subprocess.DEVNULL, timeout=300, check=False).returncode == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
