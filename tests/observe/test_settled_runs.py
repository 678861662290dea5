"""Ended runs are kept from look to look: what is read again, what is noticed, and that no cache is believed blindly."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from made_up import MadeUp, put_attempt
from shoal.clusters import QueueState
from shoal.kernel import ClaimRecord, Outcome, files, layout, lease, processes, submission
from shoal.kernel.records import Start, Submission
from shoal.observe import RunFiles, RunReader, SettledRuns, observe, run_writer, settled_runs
from shoal.views.status import StatusMemory, StatusReport, gather_status
from shoal.views.web.api import DashboardData


class Looks:
    """A process that looks at a project again and again, and counts the runs whose files it reads."""

    def __init__(self, made: MadeUp, monkeypatch: pytest.MonkeyPatch, *, stays: bool = True) -> None:
        self.made = made
        self.read: list[str] = []
        self.memory = StatusMemory(made.home, stays=stays)
        # Directories of a test are younger than those that are trusted otherwise.
        self.memory.settled = SettledRuns(made.home, stays=stays, min_age_s=-60)
        real_run = RunReader.run

        def run(reader: RunReader, name: str) -> RunFiles:
            self.read.append(name)
            return real_run(reader, name)

        monkeypatch.setattr(RunReader, "run", run)

    def look(self) -> tuple[dict[str, str], list[str]]:
        self.read.clear()
        report: StatusReport = gather_status(self.made.home, clock=lambda: self.made.now, memory=self.memory)
        return {view.name: view.state for view in report.views}, sorted(set(self.read))


@pytest.fixture
def made(tmp_path: Path) -> MadeUp:
    made = MadeUp(tmp_path / "project")
    for seed in range(40):
        made.run(f"001_a/000_train_{seed}", "failed" if seed % 4 == 1 else "completed", params={"lr": 0.1})
    made.run("001_a/000_train_99", "running")
    return made


def test_a_second_look_reads_what_runs_and_a_few_others_and_finds_the_same(
    made: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays = Looks(made, monkeypatch)
    first, read = stays.look()
    assert len(read) == 41
    for looks in (stays, Looks(made, monkeypatch, stays=False)):  # the same process, and a new one with the files
        again, read = looks.look()
        assert again == first
        assert "001_a/000_train_99" in read
        assert len(read) <= 6


def test_what_changes_an_ended_run_is_seen_at_the_next_look(made: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(made, monkeypatch)
    looks.look()
    name = "001_a/000_train_1"
    folder = Path(layout.run_dir(made.home, name))
    claim = json.loads((folder / "submit.1.claim").read_text())
    source = Path(layout.submission_dir(made.home, claim["token"]))
    target = source.with_name("tok000again")
    target.mkdir()
    record = {**json.loads((source / "submission.json").read_text()), "token": target.name}
    (target / "submission.json").write_text(json.dumps(record))
    (target / "send.0.outcome").write_text((source / "send.0.outcome").read_text())
    (folder / "submit.2.claim").write_text(json.dumps({**claim, "token": target.name}))
    states, _ = looks.look()
    assert states[name] in ("waiting", "pending")
    put_attempt(folder, 2, {"generation": 2, "token": target.name, "t": made.now}, {"generation": 2, "attempt": 2})
    shutil.rmtree(Path(layout.run_dir(made.home, "001_a/000_train_7")))
    states, _ = looks.look()
    assert states[name] == "completed"
    assert "001_a/000_train_7" not in states


def test_a_look_that_fails_or_names_a_run_twice_hides_no_change(made: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled_runs, "_CHECKS_PER_LOOK", 0)
    settled = SettledRuns(made.home, stays=True, min_age_s=-60)
    names, name = settled.names(), "001_a/000_train_1"

    def look(names: list[str]) -> dict[str, str]:
        found = observe(made.home, names, clock=lambda: made.now, settled=settled)
        return {view.name: view.state for view in found.views.values()}

    assert look(names)[name] == "failed"
    run_writer.request_cancel(made.home, name, 1, {"t": made.now})
    with monkeypatch.context() as patched, pytest.raises(OSError):
        patched.setattr("shoal.observe.run_views.RunReader.run", _fail)
        look(names)
    assert look(names)[name] == "cancelled"
    Path(layout.run_dir(made.home, name), "submit.1.cancel").unlink()
    files.announce_change(layout.run_dir(made.home, name))
    look([*(one for one in names if one != name), names[0]])
    assert look(names)[name] == "failed"


def test_a_slow_look_does_not_make_a_directory_old_that_had_just_changed(
    made: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where times are whole seconds, it may have changed once more after it was read."""
    settled, clock = SettledRuns(made.home, stays=True), [time.time()]
    monkeypatch.setattr(settled_runs, "time", SimpleNamespace(time=lambda: clock[0], monotonic=time.monotonic))

    def ask_slowly(environ: Mapping[str, str], newer: float) -> QueueState:
        clock[0] += 3600
        return QueueState({}, t=made.now)

    made.run("001_a/000_train_50", "pending", backend="slurm")
    names = settled.names()
    observe(made.home, names, clock=lambda: made.now, settled=settled, ask=ask_slowly)
    assert clock[0] > time.time() + 3000 and not settled.knows_most_of(names)
    observe(made.home, names, clock=lambda: made.now, settled=settled, ask=ask_slowly)
    assert settled.knows_most_of(names)


def _fail(*args: object) -> RunFiles:
    raise OSError(5, "Input/output error")


def test_caches_may_be_deleted_damaged_or_wrong(made: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(40):
        if seed > 3:
            shutil.rmtree(layout.run_dir(made.home, f"001_a/000_train_{seed}"))
    truth, _ = Looks(made, monkeypatch).look()
    (kept,) = Path(made.home, "cache").glob("views-*/*")
    good = kept.read_bytes()
    wrong = msgspec.msgpack.decode(good)
    for run in wrong["runs"].values():
        run[1]["state"] = "cancelled"
    for text in (msgspec.msgpack.encode(wrong), b"", b"\xc1 no msgpack", good[:-20]):
        kept.write_bytes(text)
        assert Looks(made, monkeypatch, stays=False).look()[0] == truth
    kept.write_bytes(msgspec.msgpack.encode(wrong))
    Looks(made, monkeypatch, stays=False).look()
    assert kept.read_bytes() != msgspec.msgpack.encode(wrong), "a wrong cache does not stay"
    shutil.rmtree(Path(made.home, "cache"))
    assert Looks(made, monkeypatch, stays=False).look()[0] == truth


def test_runs_whose_values_fit_no_cache_are_shown_and_do_not_keep_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MadeUp(tmp_path / "project")
    made.run("001_a/000_train_0", params={"big": 2**70})
    made.run("001_a/000_train_1", params={"big": 1}, metrics={"loss": float("nan")})
    Looks(made, monkeypatch).look()
    (kept,) = Path(made.home, "cache").glob("summaries-*/*")
    assert list(msgspec.msgpack.decode(kept.read_bytes())["runs"]) == ["001_a/000_train_1"]
    report = gather_status(made.home, clock=lambda: made.now)
    assert report.summaries["001_a/000_train_0"].params["big"] == 2**70
    runs = DashboardData(made.home, lambda environ, newer: QueueState({})).runs()["runs"]
    assert [run["params"]["big"][0] for run in runs] == [str(2**70), "1"]


def test_the_page_gets_many_runs_in_parts_and_then_only_changes(made: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.views.web.api._FIRST_RUNS", 10)
    monkeypatch.setattr("shoal.views.web.api._PART_RUNS", 20)
    now = [made.now]
    feed = DashboardData(made.home, lambda environ, newer: QueueState({}), clock=lambda: now[0])
    found: dict[str, dict[str, Any]] = {}
    answer: dict[str, Any] = {"more": True}
    version = looks = 0
    while answer["more"]:
        answer = json.loads(feed.runs_json(version, {}, limit=15))
        assert len(answer["runs"]) <= 15
        assert answer["complete"] == (looks == 0)
        found.update((run["id"], run) for run in answer["runs"])
        version, looks = answer["version"], looks + 1
    assert len(found) == 41
    assert looks > 3
    assert next(iter(found.values()))["name"] == "001_a/000_train_31", "the runs that stand last come first"
    assert answer["unread"] == 0
    assert answer["counts"] == {"running": 1, "completed": 30, "failed": 10}
    now[0] += 3
    made.run("001_a/000_train_99", "completed", lasted=900)
    answer = json.loads(feed.runs_json(version, {}))
    assert [(run["name"], run["state"]) for run in answer["runs"]] == [("001_a/000_train_99", "completed")]
    assert json.loads(feed.runs_json(answer["version"], {}))["runs"] == []


RUNS = 120
NAME = "002_b/000_train_7"


@pytest.fixture
def large(tmp_path: Path) -> MadeUp:
    """More runs than are checked in each look, and as many that ended badly; all of them long ago."""
    made = MadeUp(tmp_path / "large")
    for seed in range(RUNS):
        made.run(f"002_b/000_train_{seed}", "failed" if seed % 4 == 3 else "completed", err=b"ValueError: no\n")
    return made


def no_checks(count: int) -> tuple[frozenset[int], frozenset[int]]:
    return frozenset(), frozenset()


def count_opened(monkeypatch: pytest.MonkeyPatch, home: str) -> list[str]:
    """The directories of runs that looks open from now on."""
    opened: list[str] = []
    real = settled_runs._stamp_of

    def stamp_of(folder: str) -> tuple[int, int] | None:
        if os.path.dirname(os.path.dirname(folder)) == layout.runs_dir(home):
            opened.append(folder)
        return real(folder)

    monkeypatch.setattr(settled_runs, "_stamp_of", stamp_of)
    return opened


def test_a_look_at_many_ended_runs_opens_a_fixed_number_of_directories(
    large: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = Looks(large, monkeypatch).look()
    opened = count_opened(monkeypatch, large.home)
    for stays in (False, True):
        opened.clear()
        again, read = Looks(large, monkeypatch, stays=stays).look()
        assert again == first
        assert len(opened) == settled_runs._CHECKS_PER_LOOK < RUNS
        assert len(read) == settled_runs._READS_PER_LOOK


def claim_again(made: MadeUp) -> None:
    """As `shoal retry` does."""
    me, token = processes.own_identity(), "tokagain"
    intent = Submission(token=token, backend="local", cluster="c", job_name="j", runs=[NAME], t=made.now, **me)
    submission.write_intent(made.home, intent, b"#!/bin/sh\n")
    record = ClaimRecord(token, 1, "/o", "/o", t=made.now)
    assert submission.claim_generation(made.home, NAME, 2, record)
    submission.write_outcome(made.home, token, Outcome("accepted"))


def requeue(made: MadeUp) -> None:
    """As the agent does after `scontrol requeue`: an attempt of the same generation."""
    start = Start(
        attempt=2, generation=1, revision=1, token="t", t=made.now, output_dir="/o", log_dir="/o", beat_s=20.0,
        **{key: value for key, value in processes.own_identity().items() if key in Start._fields},
    )  # fmt: skip
    assert lease.create_lease(layout.run_dir(made.home, NAME), 2, start, lease.timing({}))


def cancel(made: MadeUp) -> None:
    assert run_writer.request_cancel(made.home, NAME, 1, {"t": made.now})


def delete(made: MadeUp) -> None:
    shutil.rmtree(layout.run_dir(made.home, NAME))


@pytest.mark.parametrize(
    ("change", "state"),
    [(claim_again, "pending"), (requeue, "running"), (cancel, "cancelled"), (delete, None)],
    ids=["claimed", "requeued", "cancelled", "deleted"],
)
def test_whoever_changes_an_ended_run_lets_the_next_look_see_it(
    large: MadeUp, monkeypatch: pytest.MonkeyPatch, change: Callable[[MadeUp], None], state: str | None
) -> None:
    monkeypatch.setattr(settled_runs, "_chosen", no_checks)
    stays = Looks(large, monkeypatch)
    before, _ = stays.look()
    assert before[NAME] == "failed"
    assert stays.look() == (before, [])
    change(large)
    for looks in (stays, Looks(large, monkeypatch, stays=False)):
        after, read = looks.look()
        assert after.pop(NAME, None) in ((state, "waiting") if state == "pending" else (state,))
        assert after == {name: one for name, one in before.items() if name != NAME}
        assert set(read) <= {NAME}


def test_a_change_without_a_sign_is_found_by_the_checks_and_then_nothing_is_trusted(
    large: MadeUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"002_b/000_train_{seed}" for seed in (3, 7)]
    looks = Looks(large, monkeypatch)
    looks.look()
    for name in names:  # by hand, or by another version of shoal
        (Path(layout.run_dir(large.home, name)) / "submit.1.cancel").write_text("{}")
    monkeypatch.setattr(settled_runs, "_chosen", no_checks)
    assert [looks.look()[0][name] for name in names] == ["failed", "failed"]
    monkeypatch.setattr(settled_runs, "_chosen", lambda count: (frozenset({7}), frozenset()))
    states, read = looks.look()
    assert [states[name] for name in names] == ["cancelled", "cancelled"]
    assert read == names


@pytest.mark.parametrize("clock_ahead_s", [0.0, 3600.0, -3600.0])
def test_times_of_change_that_cannot_tell_are_not_trusted(
    large: MadeUp, monkeypatch: pytest.MonkeyPatch, clock_ahead_s: float
) -> None:
    """Whole seconds, or a clock that differs from the file server's: what changed lately is read again."""
    monkeypatch.setattr(settled_runs, "_chosen", no_checks)
    real_time = time.time
    real, at = settled_runs._stamp_of, int(real_time()) * 10**9
    monkeypatch.setattr(
        settled_runs, "_stamp_of", lambda folder: None if (found := real(folder)) is None else (at, found[1])
    )
    monkeypatch.setattr(time, "time", lambda: real_time() + clock_ahead_s)

    def look() -> str:
        memory = StatusMemory(large.home, stays=False)
        return next(v.state for v in gather_status(large.home, memory=memory).views if v.name == NAME)

    assert look() == "failed"
    cancel(large)
    assert look() == "cancelled"


def test_output_that_became_visible_late_is_read(large: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log and metrics that a node had not written out when the run ended, and that a look found incomplete."""
    monkeypatch.setattr(settled_runs, "_chosen", no_checks)
    output = large.run(NAME, "failed", began=-100, lasted=90, err=b"")
    ended = large.now - 10

    def look(now: float) -> tuple[str | None, dict[str, Any]]:
        memory = StatusMemory(large.home, stays=False)
        memory.settled = SettledRuns(large.home, min_age_s=-60)
        monkeypatch.setattr(settled_runs, "OUTPUT_AGE_S", -60.0)  # directories of a test are young
        report = gather_status(large.home, clock=lambda: now, memory=memory, checks_outputs=False)
        view = next(view for view in report.views if view.name == NAME)
        return view.reason, dict(report.summaries[NAME].metrics)

    reason, metrics = look(ended + 5)
    assert "ValueError" not in (reason or "")
    (output / "attempt-1.out").write_text("ValueError: late\n")
    (output / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    for now in (ended + 1000, ended + 2000):
        reason, metrics = look(now)
        assert "ValueError: late" in (reason or "")
        assert metrics["loss"].last == 0.5


def test_metrics_written_long_after_the_end_are_in_json(large: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "002_b/000_train_8"
    gather_status(large.home)
    (large.root / "outputs" / name / "metrics.jsonl").write_text('{"step": 1, "accuracy": 0.9}\n')
    report = gather_status(large.home)
    assert report.summaries[name].metrics["accuracy"].last == 0.9
