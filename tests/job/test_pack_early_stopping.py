"""Early stopping: losing runs are stopped early, gently, by one rule over all engines, and every view says so."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from project import Project, assert_clear_error, project_here
from shoal.describe.sweep_file import parse_early_stop_flag
from shoal.errors import InputError
from shoal.job.pack.early_stopping import (
    EarlyStopping,
    HalvingRule,
    RungBoard,
    RungReader,
    RungResult,
    is_stopped_at,
    rank_of_value,
)
from shoal.kernel import layout
from shoal.sandbox import Sandbox
from waiting import wait_until

#: Reports step 1 to 5 with loss quality / step, then waits for a file, or for SIGTERM, upon which it saves. The best
#: reports first, so that of six runs one goes on with it at most, in whatever order the others come.
LEARN = """\
import glob, json, os, signal, sys, time
quality, out = float(sys.argv[1]), os.environ["SHOAL_OUTPUT_DIR"]
def stop(number, frame):
    with open(os.path.join(out, "model_saved.pth"), "w") as file:
        file.write("weights")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
while quality > 1 and not glob.glob(os.path.join(ROOT, ".shoal/early_stopping/*/*")):
    time.sleep(0.05)
with open(os.path.join(out, "metrics.jsonl"), "a") as file:
    for step in range(1, 6):
        file.write(json.dumps({"step": step, "loss": quality / step}) + "\\n")
while not os.path.exists(os.path.join(ROOT, "go")):
    time.sleep(0.05)
"""
SWEEP_FILE = """\
step = "train"
command = [{python}, "-S", {learn}, "{{quality}}"]
[sweep]
quality = "1:{runs}:1"
{request}
[early_stopping]
metric = "loss"
first = 5
"""
REQUEST = """\
[request]
gpus = 1
cpus = 1
memory = "50M"
"""
VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=40)
RULES = st.builds(HalvingRule, st.just("loss"), st.sampled_from(["min", "max"]), st.just(1.0), st.integers(2, 5))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = project_here(tmp_path)
    made.write("learn.py", f"ROOT = {str(made.root)!r}\n{LEARN}")
    return made


def sweep_file(project: Project, runs: int, request: str = "") -> Path:
    words = {"python": json.dumps(sys.executable), "learn": json.dumps(str(project.root / "learn.py"))}
    return project.write("experiments/001_early/000_train.toml", SWEEP_FILE.format(runs=runs, request=request, **words))


# -- the rule ---------------------------------------------------------------------------------------------------------


@given(RULES, VALUES)
def test_the_best_so_far_is_never_stopped_and_too_few_stop_nobody(rule: HalvingRule, values: list[float]) -> None:
    for count in range(1, len(values) + 1):
        seen = values[:count]
        best = min(seen, key=rule.sort_value)
        assert not is_stopped_at(rule, rank_of_value(rule, best, seen), count)
        if count < rule.eta:
            assert not any(is_stopped_at(rule, rank_of_value(rule, one, seen), count) for one in seen)


@given(RULES, VALUES)
def test_whoever_goes_on_was_in_the_best_part_of_what_was_there(rule: HalvingRule, values: list[float]) -> None:
    for count in range(rule.eta, len(values) + 1):
        seen, mine = values[:count], values[count - 1]
        better = sum(1 for other in seen if rule.sort_value(other) < rule.sort_value(mine))
        assert is_stopped_at(rule, rank_of_value(rule, mine, seen), count) == (better >= math.ceil(count / rule.eta))


@given(VALUES)
def test_a_loss_of_nan_is_the_worst_of_all(values: list[float]) -> None:
    rule = HalvingRule("loss")
    worst = max((one for one in values if not math.isnan(one)), key=rule.sort_value, default=0.0)
    assert rank_of_value(rule, math.nan, [*values, math.nan]) >= rank_of_value(rule, worst, values)


@settings(max_examples=25)
@given(st.permutations(range(1, 10)), st.integers(1, 4))
def test_several_engines_decide_as_one(tmp_path_factory: pytest.TempPathFactory, order: list[int], n: int) -> None:
    """The same reports in the same order, through files: whoever reads them, the decisions are the same."""
    rule = HalvingRule("loss", first=1.0)
    one, several = (str(tmp_path_factory.mktemp("home")) for _ in range(2))
    alone, engines = EarlyStopping(rule, one, "e"), [EarlyStopping(rule, several, f"e{k}") for k in range(n)]
    for place, quality in enumerate(order):
        name = f"001_a/r{quality}"
        told = []
        for home, stopper in ((one, alone), (several, engines[place % n])):
            out = Path(home, "out", str(quality))
            out.mkdir(parents=True)
            (out / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": quality}) + "\n")
            Path(home, "runs", name).mkdir(parents=True)
            Path(home, "runs", name, "spec.1.json").touch()
            told.append(stopper.look(name, 1, 1, str(out)))
        assert told[0] == told[1]


def test_rungs_are_reached_as_the_file_grows_each_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reports = RungReader(HalvingRule("val.loss", first=2, eta=2, last=16, resource="epoch"), str(tmp_path))
    assert reports.new() == []
    path.write_text(
        '{"epoch": 1, "val": {"loss": 9}}\nnot json\n{"epoch": 2, "lr": 1}\n{"epoch": 3, "val.loss": 8}\n{"ep'
    )
    assert reports.new() == [RungResult(2, 8, 3, "epoch")]
    with path.open("a") as file:
        file.write('och": 9, "val": {"loss": 7}}\n{"epoch": 99, "val": {"loss": 6}}\n')
    assert [(one.rung, one.value) for one in reports.new()] == [(4, 7), (8, 7)]
    path.write_text('{"epoch": 1, "val": {"loss": 5}}\n')
    assert reports.new() == [], "begun anew: what it has reached it has reached"


def test_reports_in_the_working_directory_count_too(tmp_path: Path) -> None:
    work = Path(layout.work_dir(str(tmp_path)))
    (work / "repository").mkdir(parents=True)
    (work / layout.CWD_NAME).symlink_to("repository")
    reports = RungReader(HalvingRule("loss"), str(tmp_path))
    assert reports.new() == []
    (work / "repository" / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n')
    assert reports.new() == [RungResult(1, 2, 1, "step")]


def test_reports_without_a_counter_are_counted_anew_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reports = RungReader(HalvingRule("loss", first=2, eta=2), str(tmp_path))
    path.write_text("{'loss': 3}\n" + '{"loss": 2}\n' * 2)
    assert reports.new() == [RungResult(2, 2, 2, "report")], "a printed dict is a report too"
    path.write_text('{"loss": 1}\n')
    assert reports.new() == []
    with path.open("a") as file:
        file.write('{"loss": 1}\n' * 3)
    assert reports.new() == [RungResult(4, 1, 4, "report")]


def test_a_value_that_was_not_measured_stops_nobody_and_an_endless_count_does_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reports = RungReader(HalvingRule("loss", first=1, eta=2), str(tmp_path))
    path.write_text('{"step": 1, "loss": null}\n{"step": Infinity, "epoch": 1, "loss": 3}\n{"step": 2, "loss": NaN}\n')
    assert [(one.rung, math.isnan(one.value)) for one in reports.new()] == [(1, False), (2, True)]


def test_a_run_that_was_started_over_is_not_compared_with_its_old_self(tmp_path: Path) -> None:
    board = RungBoard(str(tmp_path), "e1", HalvingRule("loss"))
    folder = tmp_path / "runs" / "001_a" / "r"
    folder.mkdir(parents=True)
    (folder / "spec.1.json").touch()
    board.note("001_a/r", 1, RungResult(1, 0.5, 1, "step"))
    assert RungBoard(str(tmp_path), "e2", HalvingRule("loss")).values("001_a/other", 1) == {"001_a/r": 0.5}
    (folder / "spec.2.json").touch()
    assert RungBoard(str(tmp_path), "e3", HalvingRule("loss")).values("001_a/other", 1) == {}
    assert RungBoard(str(tmp_path), "e2", HalvingRule("accuracy")).values("001_a/other", 1) == {}


# -- asking for it ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("metric=loss", "missing key 'first'"),
        ("first=5", "missing key 'metric'"),
        ("metric=loss,first=0", "above 0"),
        ("metric=loss,first=5,eta=1", "at least 2"),
        ("metric=loss,first=5,mode=low", "invalid mode = 'low': expected one of min, max"),
        ("metric=loss,first=5,rungs=3", "unknown key"),
        ("loss", "expected NAME=VALUE"),
    ],
)
def test_a_mistaken_rule_is_one_sentence(words: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        parse_early_stop_flag(words)
    assert caught.value.place == "--early-stop" and parse_early_stop_flag((caught.value.hint or "").partition(" ")[2])


def test_what_is_wrong_with_a_rule_is_told_before_anything_starts(project: Project) -> None:
    done = project.shoal("pack", "--early-stop", "metric=loss", "--slots", 2, "--", "true", code=2)
    assert_clear_error(done, 2, "missing key 'first'")
    assert not project.home.exists()


def test_outside_of_a_pack_a_sweep_file_with_early_stopping_is_told_that_nothing_is_stopped(project: Project) -> None:
    done = project.shoal("submit", sweep_file(project, 2), "--dry-run")
    assert "--layout pack" in done.out + done.err


# -- stopping ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_losers_are_stopped_gently_told_honestly_and_run_on_only_when_named(project: Project) -> None:
    path = sweep_file(project, 6)
    begun = project.start("submit", path, "--layout", "pack", "--slots", 3)
    wait_until(lambda: _states(project).count("stopped") >= 3, 180, "three losers were stopped", poll_s=0.5)
    project.write("go", "")
    said, problems = begun.communicate(timeout=300)
    assert begun.returncode == 0, said + problems
    runs = project.status()
    best = runs["001_early/000_train_quality1"]
    assert best["state"] == "completed"
    losers = {name: run for name, run in runs.items() if run["state"] == "stopped"}
    assert len(losers) >= 3
    for run in losers.values():
        assert run["reason"].startswith("stopped early at step 5: loss ")
        assert Path(run["output_dir"], "model_saved.pth").exists(), "it had time to write a checkpoint"
    again = project.shoal("submit", path, "--layout", "pack", "--slots", 3, "--json")
    assert {run["did"] for run in again.json["runs"]} == {"left alone"}
    name = next(iter(losers))
    assert "no run" in project.shoal("retry", name).err
    assert name in project.shoal("results", "001_early").out
    table = project.shoal("results", "001_early", "--json").json
    (group,) = (one for one in table["groups"] if one["name"] == name)
    assert group["metrics"] == {} and group["missing"][0]["reason"] == losers[name]["reason"]
    assert "1/1 (1 not completed)" in project.shoal("results", "001_early", "--partial").out
    assert f"shoal retry {name} --state stopped" in project.shoal("why", name).out
    assert "rank" in project.shoal("report", "001_early").out
    assert project.shoal("status", "001_early").code == 0
    project.shoal("retry", name, "--state", "stopped")
    assert project.status(name)[name]["state"] == "completed"


@pytest.mark.slurm
def test_pilots_of_one_experiment_decide_together(tmp_path: Path, quiet_cluster: Sandbox) -> None:
    project = Project(tmp_path, quiet_cluster)
    project.write("learn.py", f"ROOT = {str(project.root)!r}\n{LEARN}")
    project.shoal("submit", sweep_file(project, 6, REQUEST), "--pilots", 3, "--time", "5m")
    wait_until(lambda: _states(project).count("stopped") >= 3, 180, "three losers were stopped", poll_s=0.5)
    project.write("go", "")
    wait_until(lambda: set(_states(project)) <= {"stopped", "completed"}, 120, "the rest completed", poll_s=0.5)
    assert project.status()["001_early/000_train_quality1"]["state"] == "completed"
    noted = list((project.home / "early_stopping" / "001_early").iterdir())
    assert len(noted) == 3, "each pilot wrote what it saw, and read what the others did"
    reasons = [run["reason"] for run in project.status().values() if run["state"] == "stopped"]
    assert all(int(reason.rpartition(" ")[2]) >= 3 for reason in reasons), "one pilot alone never saw three at a time"


def _states(project: Project) -> list[str]:
    return [run["state"] for run in project.status().values()]
