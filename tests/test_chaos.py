"""The short form of `make chaos`, and the judge's own rules on ledgers that are written here."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.__main__ import run_seed, table
from chaos.judge import Counts, judge
from chaos.launchers import Said
from chaos.people import Look
from chaos.plan import FAULTS, Plan, Work, make_plan
from chaos.world import Hit
from ledger import Ledger

RUN = "001_a/000_work_0"


@pytest.mark.slurm
@pytest.mark.parametrize("seed", [1, 2])
def test_no_promise_is_broken_under_random_faults(seed: int) -> None:
    counts = run_seed(seed, "shoal", duration_s=25, deadline_s=80)
    assert counts.is_clean, "\n".join([table([(str(seed), counts)]), *counts.notes])


def test_a_seed_always_gives_the_same_plan_and_many_seeds_give_every_fault() -> None:
    assert make_plan(3, 40, [RUN]) == make_plan(3, 40, [RUN]) != make_plan(4, 40, [RUN])
    assert {fault.kind for seed in range(20) for fault in make_plan(seed, 40, [RUN]).faults} == set(FAULTS)


def process(pid: int, begin: float, end: float, code: int | None = None, pause: tuple[float, float] = (0, 0)) -> str:
    """The lines of one process that ran from `begin` to `end`, without marks in the pause."""
    marks = [begin + step / 10 for step in range(round((end - begin) * 10) + 1)]
    lines = [f"{mark:.2f} {pid} host alive\n" for mark in marks if not pause[0] < mark < pause[1]]
    last = [] if code is None else [f"{end:.2f} {pid} host end={code}\n"]
    return "".join([f"{begin:.2f} {pid} host begin=11,10\n", *lines, *last])


def counts_of(
    folder: Path, *lines: str, said: str = "completed", looks: tuple[Look, ...] = (), **more: object
) -> Counts:
    ledger = Ledger(folder / "ledger")
    (ledger.folder / RUN.replace("/", ".")).write_text("".join(lines))
    plan = Plan(1, [], [], {RUN: Work(5, 0, False)})
    hits = more.get("hits", [])
    return judge(plan, ledger, list(looks), {RUN: Said(said, 0)}, hits, folder / "state")  # type: ignore[arg-type]


def test_a_run_that_ended_once_and_was_told_so_is_clean(tmp_path: Path) -> None:
    look = Look(10, 11, {RUN: Said("running", None)})
    assert counts_of(tmp_path, process(1, 5, 20, 0), looks=(look,)).is_clean


def test_a_run_without_an_end_is_lost_and_one_with_two_ran_twice(tmp_path: Path) -> None:
    assert counts_of(tmp_path / "a", process(1, 5, 20)).lost == 1
    both = counts_of(tmp_path / "b", process(1, 5, 20, 0), process(2, 30, 40, 0))
    assert (both.twice, both.overlap_s) == (1, 0)
    assert counts_of(tmp_path / "c", process(1, 5, 20, 0), said="lost").wrong_state == 1


def test_an_end_that_was_killed_before_its_record_is_told_apart(tmp_path: Path) -> None:
    ends = (process(1, 5, 20, 0), process(2, 30, 40, 0))
    agent = frozenset({10})
    soon = counts_of(tmp_path / "a", *ends, hits=[Hit("kill agent", 20.5, 20.5, agent)])
    assert (soon.twice, soon.killed_at_end) == (0, 1)
    late = counts_of(tmp_path / "b", *ends, hits=[Hit("kill agent", 22, 22, agent)])
    other = counts_of(tmp_path / "c", *ends, hits=[Hit("kill agent", 20.5, 20.5, frozenset({99}))])
    assert (late.twice, other.twice) == (1, 1)
    frozen = [Hit("freeze agent", 15, 25, agent), Hit("power cut", 24, 24, agent)]
    assert counts_of(tmp_path / "d", *ends, hits=frozen).killed_at_end == 1
    thawed = [Hit("freeze all of a run", 15, 19.8, frozenset({1, 10, 11})), Hit("kill guard", 17, 17, frozenset({11}))]
    assert counts_of(tmp_path / "e", *ends, hits=thawed).killed_at_end == 1


def test_user_code_beside_itself_is_measured_and_the_second_after_a_thaw_apart(tmp_path: Path) -> None:
    assert counts_of(tmp_path / "a", process(1, 5, 20), process(2, 18, 40, 0)).overlap_s == pytest.approx(2, abs=0.2)
    thawed = counts_of(tmp_path / "b", process(1, 5, 30.5, pause=(10, 30)), process(2, 20, 40, 0))
    assert thawed.overlap_s == 0 and thawed.thaw_s == pytest.approx(0.5, abs=0.2)
    longer = counts_of(tmp_path / "c", process(1, 5, 33, pause=(10, 30)), process(2, 20, 40, 0))
    assert longer.overlap_s == pytest.approx(3, abs=0.2)


def test_an_end_that_is_told_while_the_process_runs_on_is_a_lie(tmp_path: Path) -> None:
    look = Look(10, 11, {RUN: Said("lost", None)})
    assert counts_of(tmp_path / "a", process(1, 5, 20, 0), looks=(look, look)).over_while_running == 1
    assert counts_of(tmp_path / "b", process(1, 5, 11.1), process(2, 12, 20, 0), looks=(look,)).over_while_running == 0


def test_a_temporary_file_that_stays_is_counted(tmp_path: Path) -> None:
    (tmp_path / "state" / "runs").mkdir(parents=True)
    (tmp_path / "state" / "runs" / "attempt.1.end.tmp-12-ab").touch()
    assert counts_of(tmp_path, process(1, 5, 20, 0)).left_files == 1
