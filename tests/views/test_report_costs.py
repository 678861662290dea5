"""Costs by allocation add up, whatever the runs in it did."""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up import NOW, MadeUp, put_attempt
from shoal.kernel import layout
from shoal.units import format_duration
from shoal.views.report.costs import Costs, Holding, divide
from shoal.views.report.gather import HOUR_WORDS, PART_WORDS, WAIT_WORDS, CostReport, gather_report, report_document
from shoal.views.report.page import report_page
from shoal.views.report.text import report_csv, report_lines
from shoal.views.terminal import Screen
from shoal.views.timeline import share_rows

_TIMES = st.floats(-50, 400, allow_nan=False)
_HOLDINGS = st.lists(
    st.builds(
        Holding,
        run=st.sampled_from(["a/0", "a/1", "b/0"]),
        attempt=st.integers(1, 3),
        begin=_TIMES,
        end=_TIMES,
        amount=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
        staging_s=st.floats(0, 100),
        busy_s=st.floats(0, 500),
        idle_s=st.floats(0, 500),
        wasted_s=st.floats(0, 500),
    ),
    max_size=12,
)


_RESIZES = st.lists(st.tuples(st.floats(-50, 400), st.sampled_from([0.0, 1.0, 2.0])), max_size=3)


def assert_parts_add_up(one: Costs) -> None:
    parts = one.runs + one.staging + one.set_up + one.idle_slots + one.tail
    assert parts == pytest.approx(one.allocated, abs=1e-6)
    assert one.busy + one.idle + one.not_measured == pytest.approx(one.allocated, abs=1e-6)
    assert min(one) >= -1e-6


@given(_HOLDINGS, st.floats(0, 100), st.floats(0, 300), st.sampled_from([0.0, 1.0, 2.0, 8.0]), _RESIZES)
def test_the_parts_of_any_schedule_add_up(
    holdings: list[Holding], start: float, length: float, amount: float, resizes: list[tuple[float, float]]
) -> None:
    """Runs that overlap and share, restart, wait for data, outlast their allocation; nodes given back in between."""
    end = start + length
    found = divide(start, end, amount, 600, holdings, ["a/0", "a/1"], resizes)
    whole = found.whole
    sizes = [(start, amount), *((min(max(t, start), end), size) for t, size in sorted(resizes)), (end, 0.0)]
    held = sum(size * (until - since) for (since, size), (until, _) in pairwise(sizes))
    assert whole.allocated == pytest.approx(held, abs=1e-6)
    assert whole.requested == pytest.approx(max(amount * 600, held), abs=1e-6)
    for one in (whole, *found.by_run.values(), *found.by_attempt.values()):
        assert_parts_add_up(one)
    assert sum(found.by_run.values(), Costs()) == pytest.approx(whole, abs=1e-6)


def test_a_pack_that_gave_a_node_back_pays_for_it_until_then() -> None:
    """Two GPUs for 20 s, then one for 40 s."""
    holdings = [Holding("a/0", 1, 0, 15, 1), Holding("a/1", 1, 0, 60, 1)]
    found = divide(0, 60, 2, 600, holdings, resizes=[(20, 1)])
    assert found.whole == Costs(requested=1200, allocated=80, runs=75, idle_slots=5, not_measured=80)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["001_a/000_train_0", "001_a/000_train_1", "002_b/000_train_0"]),
            st.floats(0, 900),
            st.floats(0, 600),
            st.sampled_from([0.25, 0.5, 1.0]),
            st.floats(0, 100),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([(), ((700.0, 1),)]),
)
def test_runs_experiments_and_project_add_up_for_any_pack(
    attempts: list[tuple[str, float, float, float, float]], resizes: tuple[tuple[float, int], ...]
) -> None:
    """Attempts of three runs in one allocation of 2 GPUs, written to disk and read back by three reports."""
    with tempfile.TemporaryDirectory() as folder:
        made = MadeUp(Path(folder) / "project")
        key = made.pack(sorted({run for run, *_ in attempts}), gpus=2, begin=-1000.0, end=0.0, resizes=resizes)
        numbers: dict[str, int] = {}
        for run, begin, length, share, staged_s in sorted(attempts, key=lambda one: one[1]):
            numbers[run] = numbers.get(run, 0) + 1
            made.packed_attempt(key, run, numbers[run], begin - 1000, length, share, staged_s)
        project = gather_report(made.home, [], clock=lambda: NOW)
        parts = [gather_report(made.home, [name], clock=lambda: NOW) for name in sorted({run[:5] for run in numbers})]
    held = 2 * 1000 if not resizes else 2 * 700 + 300
    assert project.gpu.allocated * 3600 == pytest.approx(held, abs=1e-3)
    assert sum((one.gpu for one in parts), Costs()) == pytest.approx(project.gpu, abs=1e-6)
    assert sum((one.cpu for one in parts), Costs()) == pytest.approx(project.cpu, abs=1e-6)
    for one in (project.gpu, project.cpu, *(part.gpu for part in parts)):
        assert_parts_add_up(one)
    runs = report_document(project)["runs"]
    assert sum(run["gpu_hours"]["allocated"] for run in runs) == pytest.approx(project.gpu.allocated, abs=1e-4)
    assert_csv_adds_up(project)


def test_a_pack_with_an_idle_tail_pays_for_it() -> None:
    """Two GPUs for 60 s: 5 s of set-up, three runs, and a GPU that waits 20 s for the last one."""
    holdings = [Holding("a/0", 1, 5, 35, 1), Holding("a/1", 1, 5, 35, 1), Holding("a/2", 1, 35, 55, 1)]
    found = divide(0, 60, 2, 360, holdings)
    assert found.whole == Costs(
        requested=720, allocated=120, runs=80, set_up=10, idle_slots=20, tail=10, not_measured=120
    )
    assert found.by_run["a/2"].allocated == pytest.approx(20 + 40 * 20 / 80)


def test_a_job_whose_set_up_failed_is_paid_by_its_runs() -> None:
    found = divide(0, 8, 1, 300, [], ["a/0", "a/1"])
    assert found.whole.set_up == found.whole.allocated == 8
    assert found.by_run["a/0"].allocated == 4


def assert_csv_adds_up(report: CostReport) -> None:
    rows = list(csv.DictReader(io.StringIO(report_csv(report))))
    sums = {key: sum(float(row[key]) for row in rows) for key in rows[0] if key.endswith("_hours")}
    assert sums["gpu_hours"] + sums["overhead_gpu_hours"] == pytest.approx(report.gpu.allocated, abs=1e-5)
    assert sums["allocated_gpu_hours"] == pytest.approx(report.gpu.allocated, abs=1e-5)
    assert sums["overhead_gpu_hours"] == pytest.approx(report.gpu.overhead, abs=1e-5)
    assert sums["wasted_gpu_hours"] == pytest.approx(report.gpu.wasted, abs=1e-5)
    assert sums["cpu_hours"] == pytest.approx(report.cpu.allocated, abs=1e-5)


def report_of_two_attempts(
    folder: Path, end: dict[str, Any], following: dict[str, Any], verdict: str | None = None
) -> CostReport:
    """A run whose first attempt ended after 600 s, and whose second one completed."""
    made = MadeUp(folder)
    made.run("001_a/000_train_0", "failed", lasted=600, job_id="7", end={"job_id": "7", "exit_code": 143, **end})
    runs = Path(layout.run_dir(made.home, "001_a/000_train_0"))
    if verdict is not None:
        (runs / "submit.1.verdict1").write_text(json.dumps({"schema": 1, "word": verdict}))
    start = {"t": NOW - 900, "job_id": "8", "generation": 1, "token": "t", **following}
    put_attempt(runs, 2, start, {"attempt": 2, "began": NOW - 900, "ended": NOW - 300, "duration_s": 600.0})
    return gather_report(made.home, [], clock=lambda: NOW)


@pytest.mark.parametrize(
    ("end", "following", "verdict", "state", "reason"),
    [
        ({"stopped_by": "SIGTERM"}, {"job_id": "7"}, None, "preempted", "put its job into the queue again"),
        ({"stopped_by": "SIGTERM"}, {}, "PREEMPTED", "preempted", "preempted by another job"),
        ({"stopped_by": "SIGTERM"}, {}, "TIMEOUT", "timeout", "time limit"),
        ({"stopped_by": "SIGTERM"}, {}, "NODE_FAIL", "node_fail", "the node failed"),
        ({"stopped_by": "lost"}, {"failed_nodes": ["n3"]}, None, "node_fail", "n3"),
        ({"stopped_by": "lost"}, {}, None, "lost", "lost contact"),
        ({"stopped_by": "limit"}, {}, None, "timeout", "time limit"),
        ({"stopped_by": "early_stopping"}, {}, None, "stopped", "stopped early"),
        ({"stopped_by": "superseded"}, {}, None, "stopped", "another job took the run over"),
        ({"stopped_by": "handover"}, {}, None, "stopped", "another job took the run over"),
        ({"stopped_by": "probe"}, {}, None, "stopped", "probed"),
        ({"stopped_by": "cancelled"}, {}, None, "cancelled", "cancelled"),
        ({"oom": True}, {}, None, "oom", "out of memory"),
        ({"exit_code": 3}, {}, None, "failed", "exit code 3"),
    ],
)
def test_an_earlier_attempt_is_what_it_was(
    end: dict[str, Any], following: dict[str, Any], verdict: str | None, state: str, reason: str, tmp_path: Path
) -> None:
    report = report_of_two_attempts(tmp_path / "project", end, following, verdict)
    first, second = report.histories[0].attempts
    assert (first.state, second.state) == (state, "completed")
    assert reason in (first.reason or "")
    rows = list(csv.DictReader(io.StringIO(report_csv(report))))
    failed = state not in ("stopped", "cancelled")
    assert [(row["state"], row["cause"]) for row in rows] == [(state, state if failed else ""), ("completed", "")]
    assert [one.reason == "ended with an error" for one in report.failures] == ([state == "failed"] if failed else [])
    assert report.gpu.wasted == pytest.approx(2 * 600 / 3600), "the next attempt began anew"
    assert_csv_adds_up(report)


def test_a_cancelled_run_is_no_failure(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")
    made.run("001_a/000_train_0", "cancelled", lasted=600)
    report = gather_report(made.home, [], clock=lambda: NOW)
    assert report.failures == [] and report.gpu.wasted == 0


def test_the_csv_adds_up_also_with_a_job_in_which_no_run_began(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")
    made.run("001_a/000_train_0", "completed", lasted=600)
    made.run("001_a/000_train_1", "failed", lasted=300, job_id="9")
    for path in Path(layout.run_dir(made.home, "001_a/000_train_1")).glob("attempt.*"):
        path.unlink()
    report = gather_report(made.home, [], clock=lambda: NOW)
    assert_csv_adds_up(report)
    first, second = csv.DictReader(io.StringIO(report_csv(report)))
    assert (first["attempt"], second["attempt"]) == ("1", "")
    assert float(second["overhead_gpu_hours"]) == pytest.approx(2 * 300 / 3600, abs=1e-5)
    assert (second["job_id"], second["gpus"], second["time_limit_s"]) == ("9", "2", "7200")


def test_a_shared_gpu_is_one_lane_and_busy_is_what_was_measured(tmp_path: Path) -> None:
    """Two quarters at a time on one GPU, a run alone on the other one of the pack, and a job beside it on that node."""
    made = MadeUp(tmp_path / "project")
    names = [f"001_a/000_train_{seed}" for seed in range(4)]
    key = made.pack(names, gpus=2, begin=-1000.0, end=0.0)
    for number, name in enumerate(names[:3]):
        made.packed_attempt(key, name, 1, -1000.0 + 250 * number, 500.0, share=0.25)
    made.packed_attempt(key, names[3], 1, -1000.0, 1000.0, gpu="1")
    use = {"every_s": 10, "duration_s": 500.0, "host": "n1", "gpus": [{"name": "x", "mean_percent": 40.0}]}
    made.write_usage(names[0], use)
    report = gather_report(made.home, [], clock=lambda: NOW)
    lanes = report.timeline.by_lane()
    assert {lane: len(bars) for lane, bars in lanes.items()} == {"n1:0": 3, "n1:1": 1}
    document = report_document(report)
    assert [(one["occupied"], one["busy"]) for one in document["lanes"]] == [(0.375, 0.05), (1.0, None)]
    assert share_rows(lanes["n1:0"]) == [0, 1, 0], "the third run has the place of the first"
    first, second = (line for line in report_lines(report, Screen(tty=True, width=100)) if "% occupied" in line[-30:])
    assert first.endswith("|  38% occupied, 5% busy") and second.endswith("|  100% occupied")
    assert "38% occupied, 5% busy</title>38%" in report_page(report)


def test_waits_for_a_dependency_the_queue_set_up_and_a_turn_are_told_apart(tmp_path: Path) -> None:
    """Submitted 100 s before it was eligible, 50 s in the queue, 20 s of set-up; the third run begins after the first
    one, which failed and then begins again."""
    made = MadeUp(tmp_path / "project")
    names = [f"001_a/000_train_{seed}" for seed in range(3)]
    key = made.pack(names, gpus=2, begin=-1000.0, end=0.0, eligible_s=-50.0, submitted_s=-150.0)
    made.packed_attempt(key, names[0], 1, -980.0, 200.0)
    made.packed_attempt(key, names[1], 1, -980.0, 900.0, gpu="1")
    made.packed_attempt(key, names[2], 1, -780.0, 100.0)
    made.packed_attempt(key, names[0], 2, -680.0, 100.0)
    report = gather_report(made.home, [], clock=lambda: NOW)
    fields = ("run", "attempt", "dependency_wait_s", "queue_wait_s", "set_up_wait_s", "turn_wait_s")
    told = [
        (names[0], 1, 100.0, 50.0, 20.0, 0.0),
        (names[0], 2, None, None, None, 100.0),
        (names[1], 1, 100.0, 50.0, 20.0, 0.0),
        (names[2], 1, 100.0, 50.0, 20.0, 200.0),
    ]
    document = report_document(report)
    attempts = [{"run": run["name"], **one} for run in document["runs"] for one in run["attempts"]]
    assert [tuple(one[key] for key in fields) for one in attempts] == told
    rows = csv.DictReader(io.StringIO(report_csv(report)))
    shown = [tuple("" if cell is None else str(cell) for cell in row) for row in told]
    assert [tuple(row[key] for key in fields) for row in rows] == shown
    assert document["queue_wait"] == {"median_s": 50.0, "max_s": 50.0, "jobs": 1}
    assert document["waits"]["turn"] == {"median_s": 50.0, "max_s": 200.0, "attempts": 4}
    text = " ".join(" ".join(report_lines(report, Screen(tty=False, width=400))).split())
    for words, median, most in (("dependency", 100, 100), ("set-up", 20, 20), ("turn in the pack", 50, 200)):
        assert re.search(f"{words}( wait)? {format_duration(median)} .median., {format_duration(most)} .max.", text)


def test_text_page_json_and_csv_use_the_words_of_the_documentation(tmp_path: Path) -> None:
    report = report_of_two_attempts(tmp_path / "project", {"exit_code": 3}, {})
    text = (Path(__file__).parents[2] / "docs" / "hours.md").read_text()
    documented = set(re.findall(r"^\| ([a-z-]+(?: [a-z-]+)*) \|", text, re.MULTILINE)) - {"word", "minutes"}
    words = {*HOUR_WORDS.values(), *PART_WORDS.values(), *WAIT_WORDS.values(), "queue wait"}
    assert documented == words
    document = report_document(report)
    keys = {word.replace(" ", "_").replace("-", "_") for word in (*HOUR_WORDS.values(), *PART_WORDS.values())}
    assert set(document["gpu_hours"]) == set(document["cpu_hours"]) == keys
    columns = report_csv(report).splitlines()[0].split(",")
    waits = set(re.findall(r"`([a-z_]+_wait_s)`", text))
    assert waits < set(columns) and waits < set(document["runs"][0]["attempts"][0])
    assert {column for column in columns if column.endswith("_hours")} == set(
        re.findall(r"`((?:\w+_)?[gc]pu_hours)`", text)
    )
    for shown in (report_page(report), "\n".join(report_lines(report, Screen(tty=False, width=200)))):
        assert all(word in shown for word in HOUR_WORDS.values())
