"""`shoal logs` of launches: ranks, replicas and attempts are picked, followed, and searched for errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launching import Launching
from project import assert_clear_error, end_process
from shoal.views.log_files import RankSelection, rank_logs, select_ranks
from waiting import wait_until

pytestmark = pytest.mark.slow

#: Replica 1 fails when the other has spoken, which lives until the run is ended because of that.
BROKEN = """
import os, time
print("replica", os.environ["SHOAL_REPLICA"], "begins", flush=True)
begun = os.path.join(os.environ["SHOAL_OUTPUT_DIR"], "begun")
if os.environ["SHOAL_REPLICA"] == "1":
    while not os.path.exists(begun):
        time.sleep(0.05)
    raise RuntimeError("the loss is not a number")
open(begun, "w").close()
time.sleep(3600)
"""


def test_ranks_of_a_launch_are_picked_by_number(tmp_path: Path) -> None:
    project = Launching(tmp_path, show='launch = { mode = "srun", processes = 2 }')
    name = project.submit("000_show_0", "show")
    first = project.shoal("logs", name).out.splitlines()
    assert first[0].startswith("shoal: ") and first[1:] == ["rank 0 speaks"], "the launcher, then rank 0"
    assert project.shoal("logs", name, "--rank", "1").out == "rank 1 speaks\n"
    both = [f"rank 0 | {first[0]}", "rank 0 | rank 0 speaks", "rank 1 | rank 1 speaks"]
    assert project.shoal("logs", name, "--rank", "all").out.splitlines() == both
    assert project.shoal("logs", name, "--rank", "all", "-f").out.splitlines() == both
    found = json.loads(project.shoal("logs", name, "--rank", "all", "--json").out)
    assert [Path(log["path"]).name for log in found["logs"]] == ["attempt-1.out", "rank-1.out"]
    lost = project.shoal("logs", name, "--rank", "7", code=None)
    assert_clear_error(lost, 2, "attempt 1 of 001_a/000_show_0 has no such part; it has rank 0, rank 1")
    assert project.shoal("logs", name, "--rank", "first", code=None).code == 2


def test_replicas_are_followed_together_and_their_errors_are_found(tmp_path: Path) -> None:
    launch = 'launch = { mode = "replicas", replicas_per_node = 2, restarts = 1 }'
    project = Launching(tmp_path, broken=launch)
    project.write("broken.py", BROKEN)
    project.script("001_a/000_broken_0.sh", "broken")
    name = "001_a/000_broken_0"
    running = project.start("submit", "experiments")
    try:
        wait_until(lambda: list((project.home / "runs" / name).glob("attempt.1.start")), 60, "the run begins")
        followed = project.shoal("logs", name, "-f", code=4)
        running.communicate(timeout=300)
    finally:
        end_process(running)
    assert "replica 0 | replica 0 begins\n" in followed.out
    assert followed.out.count("replica 1 | replica 1 begins\n") == 2, "both attempts"
    told = project.shoal("logs", name, "--replica", "1").out
    assert told.startswith("replica 1 begins\n") and "RuntimeError: the loss is not a number\n" in told, "in order"
    headed = project.shoal("logs", name, "--replica", "1", "--all").out
    assert headed.startswith("==> replica-1.attempt-1.out <==\nreplica 1 begins\n")
    assert "==> replica-1.attempt-2.out <==\nreplica 1 begins\n" in headed
    assert "replica 1 ended with code 1 and starts again" in project.shoal("logs", name).out
    errors = project.shoal("logs", "--errors").out
    assert "RuntimeError: the loss is not a number" in errors
    assert "replica-1.attempt-2.out" in errors


def test_every_name_that_a_launch_gives_is_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "attempt-2.launch"
    folder.mkdir()
    names = ("replica-0.attempt-1.out", "replica-0.attempt-1.rank-1.out", "replica-0.attempt-10.out",
             "replica-0.attempt-9.out", "replica-0.start-2.attempt-1.out", "replica-3.attempt-1.rank-1.restart-1.out",
             "lighthouse.log", "plan.json", "replica-0.attempt-1.group.json", "rank-2.restart-1.out", "rank-2.out",
             "rank-2.alone")  # fmt: skip
    for name in names:
        (folder / name).touch()
    found = {part.label: [Path(path).name for path in part.attempts] for part in rank_logs(str(tmp_path), 2)}
    assert found == {
        "rank 0": ["attempt-2.out"],
        "rank 2": ["rank-2.out", "rank-2.restart-1.out"],
        "replica 0": [
            "replica-0.attempt-1.out",
            "replica-0.attempt-9.out",
            "replica-0.attempt-10.out",
            "replica-0.start-2.attempt-1.out",
        ],
        "replica 0 rank 1": ["replica-0.attempt-1.rank-1.out"],
        "replica 3 rank 1": ["replica-3.attempt-1.rank-1.restart-1.out"],
    }
    everything = rank_logs(str(tmp_path), 2)
    assert [part.label for part in select_ranks(everything, RankSelection(replica=0, rank="all"))] == [
        "replica 0",
        "replica 0 rank 1",
    ]
    assert [part.label for part in select_ranks(everything, RankSelection(rank=2))] == ["rank 2"]
