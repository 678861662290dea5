"""Parameters, progress and metrics as columns: which, in which order, and what damaged metrics do to them."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up import NOW, MadeUp
from project import SHOAL, Project
from shoal.errors import InputError
from shoal.kernel import MetricRange, RunOutput, read_metrics, read_series, summarize_metrics
from shoal.kernel import metric_summary as reading
from shoal.observe import RunSummaries, RunSummary, RunView, observe
from shoal.views import status
from shoal.views.run_table import (
    MetricChoice,
    best_value,
    choose_metric,
    group_table,
    guess_mode,
    short_param_names,
    shorten_names,
    sort_views,
    value_key,
    varying_params,
)
from shoal.views.table_choice import TableChoice
from shoal.views.terminal import Screen

LRS = (0.1, 0.01, 0.03)


def _lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def sweep(tmp_path: Path) -> MadeUp:
    """Three learning rates with two seeds each: one run still works, one failed before it wrote a metric."""
    made = MadeUp(tmp_path / "project")
    for lr in LRS:
        for seed in range(2):
            state = "running" if (lr, seed) == (0.03, 1) else "failed" if (lr, seed) == (0.1, 1) else "completed"
            name = f"001_sweep/000_train_lr{lr}_{seed}"
            progress = "40/100" if state == "running" else None
            output = made.run(name, state, params={"optimizer.lr": lr, "width": 32}, progress=progress, began=-600)
            if state != "failed":
                rows = [{"step": step, "val_loss": lr + seed / 100 + 1 / step, "acc": step / 10} for step in (1, 2, 5)]
                (output / "metrics.jsonl").write_text(_lines(*rows))
    return made


def _report(made: MadeUp, choice: TableChoice | None = None) -> status.StatusReport:
    return status.gather_status(made.home, clock=lambda: NOW, choice=choice)


def test_parameters_that_vary_are_columns_sorted_by_value_with_progress_and_metrics(sweep: MadeUp) -> None:
    report = _report(sweep)
    lines = status.status_lines(report, report.views, Screen(tty=True, width=150))
    header = lines[1].split()
    assert header[:8] == ["RUN", "STATE", "lr", "SEED", "PROGRESS", "END", "val_loss", "BEST"]
    rows = [line.split() for line in lines[2:8]]
    assert [(row[3], row[4]) for row in rows] == [(str(lr), str(seed)) for lr in sorted(LRS) for seed in range(2)]
    running = next(row for row in rows if row[1] == "running")
    assert running[5] == "40%" and running[6].startswith("~") and running[7] == "0.24"
    assert [row[0] for row in rows if "*" in row] == ["001_sweep/000_train_lr0.01_0"]


def test_status_json_has_parameters_metrics_and_progress_of_each_run(sweep: MadeUp) -> None:
    runs = {run["name"][-10:]: run for run in status.status_document(_report(sweep))["runs"]}
    one = runs["n_lr0.03_1"]
    assert one["params"] == {"optimizer.lr": 0.03, "width": 32} and one["seed"] == 1
    assert one["progress_fraction"] == 0.4
    assert one["metrics"] == {"val_loss": pytest.approx(0.24), "acc": 0.5}
    assert one["metric"] == {
        "name": "val_loss",
        "mode": "min",
        "last": pytest.approx(0.24),
        "best": pytest.approx(0.24),
    }
    assert runs["in_lr0.1_1"]["metrics"] == {} and runs["in_lr0.1_1"]["metric"] is None


def test_groups_fold_seeds_and_name_the_missing_ones(sweep: MadeUp) -> None:
    choice = TableChoice(group=True, sort="val_loss")
    report = _report(sweep, choice)
    lines = status.status_lines(report, report.views, Screen(tty=True, width=150), choice=choice)
    assert lines[1].split() == ["GROUP", "STATES", "lr", "val_loss", "N", "MISSING"]
    assert "0.215 ± 0.0071 *" in lines[2] and "2/2" in lines[2]
    assert "1 running" in lines[3] and "0.235 ± 0.0071" in lines[3]
    assert "1/2" in lines[4] and lines[4].endswith("seed 1 failed")


def test_the_best_first_and_by_parameter_and_an_unknown_name_is_refused(sweep: MadeUp) -> None:
    report = _report(sweep, TableChoice(sort="acc"))
    assert report.metric == MetricChoice("acc", "max")
    ordered = sort_views(report.views, report.summaries, MetricChoice("val_loss", "min"), "val_loss")
    assert [view.name.partition("lr")[2] for view in ordered] == [
        "0.01_0",
        "0.01_1",
        "0.03_0",
        "0.03_1",
        "0.1_0",
        "0.1_1",
    ]
    by_lr = sort_views(report.views, report.summaries, report.metric, "lr")
    assert [view.name.partition("lr")[2] for view in by_lr][:2] == ["0.01_0", "0.01_1"]
    with pytest.raises(InputError, match="no run has a metric or parameter 'los'"):
        sort_views(report.views, report.summaries, report.metric, "los")


def test_a_folded_sweep_names_its_best_run(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")
    for number in range(9):
        made.run(f"001_a/000_train_lr{number}_0", params={"lr": number}, metrics={"accuracy": number / 10})
    report = _report(made)
    lines = status.status_lines(report, report.views, Screen(tty=True, width=100))
    assert "  best   accuracy 0.8  lr 8  (000_train_lr8_0)" in lines


@pytest.mark.parametrize(
    ("name", "mode"),
    [("val_loss", "min"), ("eval/accuracy", "max"), ("train.mse", "min"), ("top1_error", "min"), ("speed", None)],
)
def test_the_direction_of_a_metric_comes_from_its_name(name: str, mode: str | None) -> None:
    assert guess_mode(name) == mode


def _with(*names: str, **metric: str) -> RunSummary:
    return RunSummary(step="train", metrics={name: MetricRange(1.0, 0.5, 2.0) for name in names}, metric=metric)


def test_the_metric_is_told_by_sort_sweep_file_setting_or_guessed_in_this_order() -> None:
    runs = [_with("loss", "val_loss", "score", "speed", name="score", mode="min"), _with("loss", "speed")]
    assert choose_metric(runs, {"name": "loss"}, "speed") == MetricChoice("speed", None)
    assert choose_metric(runs, {"name": "loss"}) == MetricChoice("score", "min")
    assert choose_metric(runs[1:], {"name": "loss", "mode": "max"}) == MetricChoice("loss", "max")
    assert choose_metric([_with("loss", "val/loss")]) == MetricChoice("val/loss", "min")
    assert choose_metric([_with("zeta", "eta")]) == MetricChoice("eta", None)
    assert choose_metric([RunSummary()]) is None


def test_the_best_value_is_told_only_where_it_is_known() -> None:
    run = _with("loss", "acc", "speed")
    assert best_value(run, MetricChoice("loss", "min")) == 0.5
    assert best_value(run, MetricChoice("acc", "max")) == 2.0
    assert best_value(run, MetricChoice("speed", None)) is None
    part = RunSummary(metrics={"loss": MetricRange(1.0, 0.5, 2.0, is_whole=False)})
    assert best_value(part, MetricChoice("loss", "min")) is None


def test_values_sort_as_numbers_and_parameters_that_follow_from_others_are_no_columns() -> None:
    assert sorted([0.1, "adam", "0.03", None, 0.01, "1e-4"], key=value_key) == ["1e-4", 0.01, "0.03", 0.1, "adam", None]
    runs = [RunSummary(step="t", params={"lr": lr, "decay": lr / 10, "width": 4}, derived=["decay"]) for lr in LRS]
    assert varying_params(runs) == ["lr"]
    assert short_param_names(["optimizer.lr", "model.lr", "data.path"]) == {
        "optimizer.lr": "optimizer.lr", "model.lr": "model.lr", "data.path": "path",
    }  # fmt: skip


@given(st.lists(st.text("ab01_.", min_size=1, max_size=60), max_size=30), st.integers(6, 40))
def test_shortened_names_stay_different(names: list[str], width: int) -> None:
    short = shorten_names(names, width)
    assert len(set(short.values())) == len(set(names))
    assert all(len(short[name]) <= len(name) for name in names)


def test_long_names_lose_their_middle() -> None:
    names = [f"001_x/000_train_lr0.{lr}_width32_dropout0.1_{seed}" for lr in (1, 3) for seed in (0, 1)]
    short = shorten_names(names, 30)
    assert all(len(one) <= 30 and "…" in one for one in short.values())


def _summary(folder: Path, before: reading.MetricSummary | None = None) -> reading.MetricSummary:
    return summarize_metrics(RunOutput(str(folder)), before)


def test_damaged_metrics_give_what_is_whole_in_them(tmp_path: Path) -> None:
    """NaN, text, half a line, other text, two writers that tore each other's lines, names with HTML and escapes."""
    evil = "<img src=x onerror=alert(1)>\x1b[31m"
    text = _lines({"step": 1, "loss": 2.0, "note": "text", evil: 1.0}, {"step": 2, "loss": math.nan})
    text += '{"step": 3, "lo{"step": 3, "loss": 0.5}\nnot json\n' + _lines(
        {"step": 4, "loss": 1.0}, {"step": 5, "x": None}
    )
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 6, "loss": 0.')
    found = _summary(tmp_path)
    assert found.metrics["loss"] == MetricRange(1.0, 1.0, 2.0)
    assert math.isnan(found.metrics["x"].last) and evil in found.metrics and "note" not in found.metrics
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("25}\n")
    assert _summary(tmp_path, found).metrics["loss"] == MetricRange(0.25, 0.25, 2.0)


def test_a_file_that_was_begun_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(_lines({"step": 1, "loss": 9.0}, {"step": 2, "loss": 8.0}))
    first = _summary(tmp_path)
    path.write_text(_lines({"step": 1, "loss": 3.0}))
    assert _summary(tmp_path, first).metrics["loss"] == MetricRange(3.0, 3.0, 3.0)


def test_a_large_file_is_read_in_parts_and_its_best_is_not_told_before_all_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_MAX_NEW_BYTES", 2000)
    monkeypatch.setattr(reading, "_LOG_BYTES", 300)
    losses = [5.0, 0.125, *([1.0] * 198), 0.75]
    (tmp_path / "metrics.jsonl").write_text(_lines(*({"step": at, "loss": one} for at, one in enumerate(losses))))
    found = _summary(tmp_path)
    assert found.metrics["loss"].last == 0.75 and not found.metrics["loss"].is_whole
    for _ in range(10):
        found = _summary(tmp_path, found)
    assert found.metrics["loss"] == MetricRange(0.75, 0.125, 5.0)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["a", "b"]), st.floats(allow_nan=True) | st.none(), max_size=2), max_size=8
    )
)
def test_the_last_values_are_those_that_results_reads(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / "metrics.jsonl").write_text(_lines(*rows))
    last = {name: one.last for name, one in _summary(folder).metrics.items()}
    assert repr(last) == repr(read_metrics(RunOutput(str(folder))))


def test_five_hundred_metrics_and_a_run_without_any(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")
    made.run("001_a/000_train_0", metrics={f"m{number}": number for number in range(500)})
    made.run("001_a/000_train_1")
    runs = status.status_document(_report(made))["runs"]
    assert [len(run["metrics"]) for run in runs] == [500, 0]


@pytest.fixture
def looked(sweep: MadeUp) -> Iterator[tuple[MadeUp, list[RunView]]]:
    views = list(observe(sweep.home, clock=lambda: NOW).views.values())
    RunSummaries(sweep.home).read(views)
    yield sweep, views


def test_what_was_read_is_kept_and_read_again_when_it_changed(looked: tuple[MadeUp, list[RunView]]) -> None:
    made, views = looked
    done = next(view for view in views if view.state == "completed")
    assert done.output_dir is not None
    again = RunSummaries(made.home, max_look_s=-1).read(views)
    assert again.unread == 0 and again.runs[done.name].metrics["acc"].last == 0.5
    with (Path(done.output_dir) / "metrics.jsonl").open("a") as file:
        file.write(_lines({"step": 9, "acc": 0.9}))
    assert RunSummaries(made.home).read(views).runs[done.name].metrics["acc"].last == 0.9
    shutil.rmtree(done.output_dir)
    assert RunSummaries(made.home).read(views).runs[done.name].metrics == {}


def test_runs_that_took_too_long_to_read_are_counted_and_read_next_time(sweep: MadeUp) -> None:
    views = list(observe(sweep.home, clock=lambda: NOW).views.values())
    assert RunSummaries(sweep.home, max_look_s=-1).read(views).unread == len(views)
    assert RunSummaries(sweep.home).read(views).unread == 0


@pytest.mark.parametrize("content", [b"", b"{", b'{"runs": {"x": 3}}', b'{"runs": {}, "schema": 9}'])
def test_a_damaged_cache_is_read_over(looked: tuple[MadeUp, list[RunView]], content: bytes) -> None:
    made, views = looked
    for path in Path(made.home, "cache", f"summaries-{os.getuid()}").iterdir():
        path.write_bytes(content)
    assert len(RunSummaries(made.home).read(views).runs[views[0].name].params) == 2


def test_groups_of_runs_without_seeds_or_metrics_have_a_row(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")
    made.run("001_a/000_train_0", "failed")
    report = _report(made)
    table = group_table(report.views, report.summaries, report.metric)
    assert [len(group.missing) for group in table.groups] == [1]


def _shoal(made: MadeUp, *words: str, code: int = 0) -> str:
    environ = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    done = subprocess.run([SHOAL, *words], cwd=made.root, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_choices_last_on_a_terminal_and_are_forgotten_on_request(sweep: MadeUp) -> None:
    _shoal(sweep, "status", "--tty", "--columns", "run,lr,acc")
    again = _shoal(sweep, "status", "--tty", "--all")
    assert again.splitlines()[1].split() == ["RUN", "lr", "acc"]
    assert "--reset restores the usual table" in again
    assert "REASON" in _shoal(sweep, "status", "--all"), "a pipe gets the usual table"
    assert "REASON" in _shoal(sweep, "status", "--tty", "--reset", "--all")
    assert "unknown column 'lrr'" in _shoal(sweep, "status", "--columns", "lrr", code=2)
    _shoal(sweep, "status", "--tty", "--sort", "val_loss")
    sweep.run("002_other/000_train_0")
    assert "002_other" in _shoal(sweep, "status", "002_other", "--tty"), "a remembered sort refuses nothing"


def test_a_curve_that_is_thinned_keeps_its_extremes_and_its_end(tmp_path: Path) -> None:
    values = [math.sin(step / 50) for step in range(9999)]
    values[1234], values[7777] = 40.0, -40.0
    (tmp_path / "metrics.jsonl").write_text(_lines(*({"step": at, "loss": one} for at, one in enumerate(values))))
    points = read_series(RunOutput(str(tmp_path)))["loss"]
    assert len(points) <= 601 and [1234.0, 40.0] in points and [7777.0, -40.0] in points and points[-1][0] == 9998
    assert points == sorted(points)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('metric = "score"', {"name": "score"}),
        ('metric = { name = "rate", mode = "min" }', {"name": "rate", "mode": "min"}),
        ('[early_stopping]\nmetric = "loss"\nfirst = 2', {"name": "loss", "mode": "min"}),
        ("", {}),
    ],
)
def test_a_sweep_file_names_the_metric_of_its_runs(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    project = Project(tmp_path)
    project.write("experiments/001_a/000_train.toml", f"seeds = 1\n{text}\n")
    project.shoal("submit", "experiments/001_a/000_train.toml", "--on", "local")
    (spec,) = Path(project.root, ".shoal/runs/001_a").glob("*/spec.1.json")
    assert json.loads(spec.read_text()).get("metric", {}) == expected


def test_a_metric_with_another_mode_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("experiments/001_a/000_train.toml", 'seeds = 1\nmetric = { name = "rate", mode = "small" }\n')
    refused = project.shoal("plan", "experiments/001_a/000_train.toml", code=2)
    assert "expected one of max, min" in refused.err
