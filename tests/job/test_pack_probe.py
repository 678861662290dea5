"""Probes: runs of unknown length tell by their progress how long they are, and then the longest goes first."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from project import Project, assert_clear_error, project_here, read_record
from shoal.job.pack.allocator import Demand
from shoal.job.pack.engine import estimate_duration_s
from shoal.job.pack.queue import QueuedRun, RunQueue
from waiting import wait_until

pytestmark = pytest.mark.slow

#: Takes `length` steps of 0.1 s and tells of each; from its second attempt on it is quick about it.
LEARN = """\
import os, sys, time
length, told = int(sys.argv[1]), os.environ["SHOAL_ATTEMPT"] == "1"
for step in range(1, length + 1):
    time.sleep(0.1 if told else 0.0)
    with open(os.environ["SHOAL_PROGRESS"], "w") as file:
        file.write("%d/%d\\n" % (step, length))
"""


@given(st.floats(0, 100), st.floats(0.01, 10), st.integers(2, 1000), st.integers(1, 999))
def test_start_up_is_paid_once_and_not_in_proportion(start_s: float, step_s: float, steps: int, seen: int) -> None:
    seen = min(seen, steps)
    first = (start_s + step_s, 1 / steps)
    elapsed = start_s + seen * step_s
    whole = start_s + steps * step_s
    if seen > 1:
        assert estimate_duration_s(first, (elapsed, seen / steps)) == pytest.approx(whole)
    assert estimate_duration_s(None, None) is None


def test_what_was_learnt_decides_who_is_next() -> None:
    queue = RunQueue([QueuedRun("unknown", 9, Demand())])
    for place, expect in enumerate((5.0, 50.0, 0.0, 20.0)):
        queue.put_by_length(QueuedRun(f"e{expect:g}", place, Demand(), expect_s=expect))
    assert [item.name for item in queue.waiting] == ["unknown", "e50", "e20", "e5", "e0"]


def test_after_a_short_start_of_each_the_longest_goes_first(tmp_path: Path) -> None:
    project = project_here(tmp_path)
    project.write("learn.py", LEARN)
    words = ("--slots", 1, "--probe", "4s", "--set", "length=1,60,600,200", "--json")
    begun = project.start("pack", *words, "--", sys.executable, "-S", "learn.py", "{length}")
    wait_until(lambda: "was probed" in str(project.status()), 60, "one was probed and waits for its turn")
    out, said = begun.communicate(timeout=300)
    done = json.loads(out)
    assert {run["state"] for run in done["runs"]} == {"completed"}, said
    bars = [(bar["run"].rpartition("length")[2], bar["state"]) for bar in done["timeline"]]
    assert bars[:4] == [("1", "completed"), ("60", "stopped"), ("600", "stopped"), ("200", "stopped")]
    assert bars[4:] == [("600", "completed"), ("200", "completed"), ("60", "completed")], (
        "completed in its probe, it needs no second start"
    )
    ends = [read_record(path) for path in (project.home / "runs").glob("*/*length600/attempt.1.end")]
    assert 40 < ends[0]["expect_s"] < 1200, "60 s, on a machine that has nothing else to do"
    again = project.shoal("pack", *words, "--", sys.executable, "-S", "learn.py", "{length}")
    assert len(again.json["timeline"]) == len(bars)


@pytest.mark.parametrize("words", [("--pilots", 2), ("--nodes", 2)])
def test_probes_of_several_engines_are_refused(tmp_path: Path, words: tuple[object, ...]) -> None:
    project = Project(tmp_path)
    done = project.shoal("pack", *words, "--probe", "2s", "--on", "local", "--", "true", code=2)
    assert_clear_error(done, 2, "one engine")
