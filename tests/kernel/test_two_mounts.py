"""Two nodes that see one state folder through old caches, as on NFS: the lease protocol holds all the same.

Times are scaled: with a lease of 3 s a cache of 1 s is what actimeo=30 is for the lease of 90 s. OLD is a cache that is
older than the time after which a lease may be closed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cached_mount import Node, node
from ledger import Ledger, keeping_ledger, shoal_processes
from made_up import END, START
from project import ENDED, SHOAL, end_process, project_here
from shoal.kernel import layout, lease, processes, submission
from shoal.observe.run_files import ClaimRecord, Outcome
from waiting import wait_until

pytestmark = pytest.mark.slow

RUN = "001_a/000_train_0"
TOKEN = "abcdefghijkm"
LEASE_S = 3.0
TIMES = lease.timing({lease.LEASE_VARIABLE: str(LEASE_S)})
#: The ages of caches: as 30 s are to a lease of 90 s, and older than the lease.
FRESH, OLD = LEASE_S / 3, LEASE_S * 1.5

#: What the programs below have in common. They say what they did in lines of JSON.
COMMON = f"""
import json, os, sys, time
from shoal.job.pack import run_status
from shoal.kernel import fence, files, layout, lease, records, submission
run_dir, token = sys.argv[1:3]
times = lease.timing({{lease.LEASE_VARIABLE: "{LEASE_S}"}})
def start(number):
    host, now = os.uname().nodename, time.time()
    return records.Start(number, 1, 1, token, host, 1, "x:1", now, "/o", "/l", beat_s=times.beat_s)
def begin(number):
    return lease.create_lease(run_dir, number, start(number), times)
def end(number, success):
    why = None if success else "handover"
    return records.End(number, 1, 1, token, "/o", 0, success, time.time(), time.time(), 0.0, stopped_by=why)
def names():
    return layout.parse_names(files.list_names(run_dir))
def say(*words):
    print(json.dumps(words), flush=True)
"""
#: Holds attempt 1 and renews it until it is killed.
HOLDER = """
held = begin(1)
while True:
    say(held.renew(), held.renewals, held.held_until)
    time.sleep(times.beat_s)
"""
#: Waits for its turn as a job does, and says each time that it tries to close the lease of the other one.
CLAIMANT = """
really_close = lease.close_lease
def close(*lease_name):
    closed = really_close(*lease_name)
    say("closed" if closed else "not closed", lease.boot_time_s())
    return closed
lease.close_lease = close
turn = fence.AttemptWait(fence.find_claim(run_dir, token), records.Allocation(os.uname().nodename, 1, None))
while True:
    names = turn.look()
    say("looked", lease.boot_time_s())
    if names is not None:
        break
    time.sleep(times.beat_s / 4)
"""
#: For each number that it reads: tries to begin that attempt, renews it twice, ends each second one.
RACER = """
for line in sys.stdin:
    number = int(line)
    names()
    held = begin(number)
    renewed = [held.renew(), held.renew()] if held else []
    if held and number % 2:
        held.end(end(number, False))
    say(held is not None, renewed)
"""
#: Says what each expression that it reads has as its value.
INTERPRETER = """
for line in sys.stdin:
    say(eval(line))
"""


def test_a_node_does_not_see_what_another_one_changed_while_its_caches_are_fresh(tmp_path: Path) -> None:
    """The tool itself: without stale answers the tests below would prove nothing."""
    for name in ("a", "f"):
        (tmp_path / name).write_text("1")
    with _interpreter(tmp_path, ".") as ask:
        look = "sorted(os.listdir('.')), [os.path.exists(name) for name in 'ab'], os.path.getsize('f')"
        before = ask(look)
        assert before == [["a", "f"], [True, False], 1]
        os.rename(tmp_path / "a", tmp_path / "b")
        (tmp_path / "f").write_text("22")
        assert ask(look) == before, "listing, names found and missing, attributes"
        assert ask("open('f').read()") == "22", "what is opened is as the server has it"
        assert ask("files.create_exclusive('b', b'')") is False, "exclusive creation is decided by the server"
        assert ask("os.mkdir('c')") is None and ask("sorted(os.listdir('.'))") == ["a", "c", "f"], (
            "own changes are seen"
        )
    assert sorted(os.listdir(tmp_path)) == ["b", "c", "f"]


def test_a_renewal_is_not_believed_because_an_old_listing_shows_it(tmp_path: Path) -> None:
    """The answer to a renewal was lost, and then somebody closed the lease."""
    run_dir = _claimed(tmp_path)
    with _interpreter(tmp_path, run_dir) as ask:
        assert ask("globals().update(held=begin(1))") is None
        assert ask("os.rename(held.path, held.path[:-1] + '1')") is None
        assert ask("names().renewals[1, 'live']") == 1
        held_until = ask("held.held_until")
        assert lease.close_lease(run_dir, 1, 1)
        assert ask("held.renew()") == "unknown" and ask("held.held_until") == held_until


def test_a_run_that_is_done_is_known_as_done_though_it_was_looked_at_in_the_moment_of_its_beginning(
    tmp_path: Path,
) -> None:
    run_dir = _claimed(tmp_path)
    with _interpreter(tmp_path, run_dir) as ask:
        early = "layout.parse_names(['attempt.1.live.000000'])"  # The second name of its file is not there yet.
        assert ask(f"lease.read_attempt(run_dir, {early}, 1)") is None
        held = lease.create_lease(run_dir, 1, START, TIMES)
        assert held is not None and held.end(END)
        assert ask("lease.successful_attempt(run_dir, names(), 1)") == 1


def test_an_attempt_that_is_being_created_is_not_free_for_another_engine(tmp_path: Path) -> None:
    run_dir = _claimed(tmp_path)
    (Path(run_dir) / layout.lease_file(1, "live", 0)).touch()
    with _interpreter(tmp_path, run_dir) as ask:
        assert ask(f"run_status.read_status({str(tmp_path)!r}, {RUN!r}, token)[:3:2]") == ["taken", 1]


def test_a_submission_that_was_given_up_is_not_accepted_though_it_was_looked_for_before(tmp_path: Path) -> None:
    run_dir = _claimed(tmp_path)
    where = f"{str(tmp_path)!r}, token"
    with _interpreter(tmp_path, run_dir) as ask:
        assert ask(f"submission.outcome_of({where})") is None
        submission.write_outcome(str(tmp_path), TOKEN, Outcome("void", reason="given up"))
        assert ask(f"submission.write_outcome({where}, records.Outcome('accepted')).kind") == "void"


def test_a_lease_that_is_renewed_is_not_closed_and_one_that_is_not_is_closed_in_time(tmp_path: Path) -> None:
    with ExitStack() as stack:
        rivals = [Rivals(stack, tmp_path / name, age_s) for name, age_s in (("fresh", FRESH), ("old", OLD))]
        enough = max(len(one.renewals) for one in rivals) + TIMES.take_s / TIMES.beat_s + 1

        def is_renewed(one: Rivals) -> bool:
            return len(one.renewals) > enough

        for one in rivals:
            wait_until(partial(is_renewed, one), 30, "it was renewed for longer than a lease")
            assert {found for found, *_ in one.renewals} == {"held"} and one.times("closed") == []
            end_process(one.holder)
        for one in rivals:
            one.claimant.wait(300)
    for one in rivals:
        (closed_at,) = one.times("closed")
        held_until = one.renewals[-1][2]
        assert closed_at >= held_until + TIMES.stop_s, "nothing of the holder could still run"
        assert closed_at <= held_until - TIMES.hold_s + TIMES.take_s + one.age_s + 10, "10 s are for a busy machine"
        assert len(one.times("not closed")) < len(one.times("looked")), "the server is asked once in each look"
    assert rivals[1].times("not closed"), "an old listing makes it try too early, and the server refuses"


def test_of_two_who_begin_an_attempt_on_two_nodes_one_does(tmp_path: Path) -> None:
    run_dir = _claimed(tmp_path)
    rounds = 60
    with ExitStack() as stack:
        racers = []
        for name in ("alpha", "beta"):
            here = stack.enter_context(node(tmp_path, name, 1000))
            racers.append(stack.enter_context(_kernel(here, tmp_path, RACER, run_dir, None)))
        for number in range(1, rounds + 1):
            first, second = racers if number % 3 else reversed(racers)
            first_answer = None
            print(number, file=first.stdin, flush=True)
            if number % 4 == 0:  # the other one comes late, when the name that it would see has changed
                first_answer = _answer(first)
            print(number, file=second.stdin, flush=True)
            answers = [first_answer or _answer(first), _answer(second)]
            assert sorted(won for won, _ in answers) == [False, True], f"attempt {number}: {answers}"
            assert [found for _, renewals in answers for found in renewals] == ["held", "held"]
    names = layout.parse_names(os.listdir(run_dir))
    everything = list(range(1, rounds + 1))
    assert names.attempts["start"] == everything and names.attempts["end"] == everything[::2]
    assert names.attempts["live"] == everything[1::2], "nothing is left of those who came second"


class Rivals:
    """A holder on one node and a claimant on another one, both at work; caches are `age_s` old at most."""

    def __init__(self, stack: ExitStack, folder: Path, age_s: float) -> None:
        self.age_s = age_s
        self._told, self._heard = folder / "told", folder / "heard"
        run_dir = _claimed(folder)
        alpha, beta = (stack.enter_context(node(folder, name, age_s)) for name in ("alpha", "beta"))
        self.holder = stack.enter_context(_kernel(alpha, folder, HOLDER, run_dir, self._told))
        wait_until(lambda: self.renewals, 30, "the lease is held")
        self.claimant = stack.enter_context(_kernel(beta, folder, CLAIMANT, run_dir, self._heard))
        wait_until(lambda: self.times("looked"), 30, "the other one waits for it")

    @property
    def renewals(self) -> list[Any]:
        """What became of each, how many they were, until when the lease was held."""
        return _lines(self._told)

    def times(self, what: str) -> list[float]:
        """When the claimant looked, closed the lease, or could not close it."""
        return [at for word, at in _lines(self._heard) if word == what]


class Pair:
    """A project that two nodes share, and what was started on them."""

    def __init__(self, folder: Path, ledger: Ledger, lease_s: float) -> None:
        self.record_writer = ledger
        self.project = keeping_ledger(project_here(folder, SHOAL_LEASE_S=str(lease_s)), ledger)
        self.script = self.project.script("001_a/000_train_0.sh", "train -- wait=go")
        self.started: list[subprocess.Popen[str]] = []

    def shoal(self, where: Node, *words: object) -> str:
        return self.project.run(where.argv(self.project.root, [SHOAL, *words]), code=None).out

    def state(self, where: Node) -> str:
        (run,) = json.loads(self.shoal(where, "status", "--json"))["runs"]
        return str(run["state"])

    def submit(self, where: Node) -> subprocess.Popen[str]:
        return self._start(where, SHOAL, "submit", self.script)

    def start_job_again(self, where: Node) -> subprocess.Popen[str]:
        """The job of the submission once more, as Slurm does when it has lost contact with its node."""
        (folder,) = self.project.submissions()
        return self._start(where, "bash", folder / "script.sh", SHOAL_TOKEN=folder.name, SHOAL_FOLLOW="1")

    def _start(self, where: Node, *words: object, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(word) for word in where.argv(self.project.root, words)],
            env={**self.project.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        for pid in (pid for pid, _ in shoal_processes(self.project)):
            for number in (signal.SIGCONT, signal.SIGKILL):
                processes.send_signal(pid, number)
        for process in self.started:
            processes.send_signal(process.pid, signal.SIGCONT)
            end_process(process)
        self.record_writer.end_all()


@contextmanager
def two_nodes(folder: Path, lease_s: float, age_s: float) -> Iterator[tuple[Pair, Node, Node]]:
    pair = Pair(folder, Ledger(folder / "ledger"), lease_s)
    with node(pair.project.root, "alpha", age_s) as alpha, node(pair.project.root, "beta", age_s) as beta:
        try:
            yield pair, alpha, beta
        finally:
            pair.end()


def test_a_run_of_a_frozen_node_goes_on_elsewhere_and_does_not_overlap_when_it_thaws(tmp_path: Path) -> None:
    with two_nodes(tmp_path, 4.5, 1.5) as (pair, alpha, beta):
        first = pair.submit(alpha)
        frozen_program = pair.record_writer.wait_begun(RUN)
        everything = [first.pid, *processes.descendants(first.pid)]
        for pid in everything:
            os.kill(pid, signal.SIGSTOP)
        frozen_at = lease.boot_time_s()
        second = pair.start_job_again(beta)
        begun = pair.record_writer.wait_begun(RUN, 2)
        assert begun.host == "beta" and begun.marks[0] >= frozen_at + 4.5, "nothing of the first could still run"
        for pid in everything:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not frozen_program.lives(pair.record_writer.program), 30, "the first program was killed")
        assert first.wait(300) != 0
        pair.record_writer.release()
        assert second.wait(300) == 0
        wait_until(lambda: pair.state(beta) == "completed", 30, f"{beta.name} sees that it completed")
        wait_until(lambda: pair.state(alpha) == "completed", 30, f"{alpha.name} sees that it completed")
    first_run, second_run = pair.record_writer.executions(RUN)
    after_thaw = [mark for mark in first_run.marks if mark > second_run.marks[0]]
    assert not after_thaw or after_thaw[-1] - after_thaw[0] < 1, "the guard stops it within a second of the thaw"
    assert (first_run.exit_code, second_run.exit_code) == (None, 0)


def test_a_run_is_handed_over_from_one_node_to_the_other(tmp_path: Path) -> None:
    with two_nodes(tmp_path, 4.5, 1.5) as (pair, alpha, beta):
        first = pair.submit(alpha)
        pair.record_writer.wait_begun(RUN)
        second = pair.start_job_again(beta)
        assert pair.record_writer.wait_begun(RUN, 2).host == "beta"
        assert first.wait(300) != 0
        pair.record_writer.release()
        assert second.wait(300) == 0
        wait_until(lambda: pair.state(alpha) == "completed", 30, "the first node sees that it completed")
    assert [end["stopped_by"] for end in pair.project.records(RUN, "attempt.*.end")] == ["handover", None]
    assert pair.record_writer.overlap_s(RUN) == 0 and pair.record_writer.ends(RUN) == 1


@pytest.mark.parametrize("age_s", [FRESH, OLD], ids=["fresh", "old"])
def test_another_node_never_says_that_a_running_run_is_over_and_never_repeats_one_that_is_done(
    age_s: float, tmp_path: Path
) -> None:
    with two_nodes(tmp_path, LEASE_S, age_s) as (pair, alpha, beta):
        pair.shoal(beta, "status")  # From now on it has old answers about a project without runs.
        first = pair.submit(alpha)
        pair.record_writer.wait_begun(RUN)
        pair.shoal(beta, "submit", pair.script)
        wait_until(lambda: pair.state(beta) == "running", 30, "the other node sees that it runs")
        until = lease.boot_time_s() + TIMES.take_s + 1

        def watched() -> bool:
            assert pair.state(beta) == "running"
            return lease.boot_time_s() > until

        wait_until(watched, 30, "the other node has watched for longer than a lease")
        pair.record_writer.release()
        assert first.wait(300) == 0
        pair.shoal(beta, "submit", pair.script)
        states: list[str] = []

        def done() -> bool:
            states.append(pair.state(beta))
            return states[-1] == "completed"

        wait_until(done, 30, "the other node sees that it completed")
        assert not set(states) & set(ENDED) - {"completed"}, states
        pair.shoal(beta, "submit", pair.script)
        assert pair.state(alpha) == "completed"
    (execution,) = pair.record_writer.executions(RUN)
    assert (execution.host, execution.exit_code) == ("alpha", 0)


def _claimed(folder: Path) -> str:
    """A run with one claimed generation; returns its state folder."""
    run_dir = folder / "runs" / RUN
    run_dir.mkdir(parents=True)
    (folder / "submissions" / TOKEN).mkdir(parents=True)
    submission.claim_generation(
        str(folder), RUN, 1, ClaimRecord(token=TOKEN, revision=1, output_dir="/o", log_dir="/l")
    )
    return str(run_dir)


@contextmanager
def _interpreter(folder: Path, run_dir: str) -> Iterator[Callable[[str], Any]]:
    """Asks a node whose caches never end for the values of expressions."""
    with node(folder, "beta", 1000) as beta, _kernel(beta, folder, INTERPRETER, run_dir, None) as process:

        def ask(expression: str) -> Any:
            print(expression, file=process.stdin, flush=True)
            return _answer(process)[0]

        yield ask


@contextmanager
def _kernel(where: Node, folder: Path, program: str, run_dir: str, out: Path | None) -> Iterator[subprocess.Popen[str]]:
    """One of the programs above on a node; it writes to `out`, or answers what it is asked through pipes."""
    words = [sys.executable, "-c", COMMON + program, run_dir, TOKEN]
    if out is None:
        with _started(where, folder, words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            yield process
        return
    with out.open("w") as file, _started(where, folder, words, stdin=subprocess.DEVNULL, stdout=file) as process:
        yield process


@contextmanager
def _started(where: Node, folder: Path, words: list[str], **pipes: object) -> Iterator[subprocess.Popen[str]]:
    argv = [str(word) for word in where.argv(folder, words)]
    process: subprocess.Popen[str] = subprocess.Popen(argv, text=True, **pipes)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        end_process(process)


def _lines(path: Path) -> list[Any]:
    """What a program has said so far; a line that is just being written is none yet."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def _answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())
