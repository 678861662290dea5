"""Curves of many runs: nothing that matters is lost, live runs are read on, and foreign files are read as they are."""

from __future__ import annotations

import json
import math
import random
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up import MadeUp
from shoal.clusters import QueueState
from shoal.observe import RunView
from shoal.views.curves import MAX_POINTS, Curve, CurveReader, mean_curve
from shoal.views.status import gather_status


def views_of(made: MadeUp) -> dict[str, RunView]:
    return {view.name: view for view in gather_status(made.home, ask=lambda environ, newer: QueueState({})).views}


def curve_of(values: list[float]) -> Curve:
    curve = Curve()
    for step, value in enumerate(values):
        curve.add(float(step), None, None, value)
    return curve


@settings(max_examples=25, deadline=None)
@given(st.integers(4, 30_000), st.integers(0, 2**32), st.booleans())
def test_extremes_gaps_and_the_last_point_stay_in_a_thousand_points(count: int, seed: int, has_gaps: bool) -> None:
    chance = random.Random(seed)
    values = [chance.gauss(0, 1) for _ in range(min(count, 3000))] * (1 + count // 3000)
    values[chance.randrange(len(values))] = 99.0
    values[-1] = -99.0
    if has_gaps:
        values[len(values) // 2] = math.nan
        values[0] = math.inf
    xs, ys = curve_of(values).points()
    finite = [y for y in ys if y is not None]
    assert len(xs) == len(ys) <= MAX_POINTS + 1 and xs == sorted(xs)
    assert max(finite) == max(value for value in values if math.isfinite(value)) and min(finite) == -99.0
    assert (xs[-1], ys[-1]) == (len(values) - 1, -99.0)
    assert (None in ys) == any(not math.isfinite(value) for value in values)
    assert all(y is None or y == values[int(x)] for x, y in zip(xs, ys, strict=True)), "every point is a real one"
    assert len(curve_of(values).points("step", None, 100)[0]) <= 101


def test_a_mean_over_seeds_ends_where_seeds_end_and_is_exact_for_short_curves() -> None:
    seeds = [curve_of([1.0, 2.0, 3.0]), curve_of([3.0, 4.0]), curve_of([math.nan, 6.0, 6.0])]
    found = mean_curve([curve.means() for curve in seeds])
    assert found.x == [0, 1, 2] and found.size == [2, 3, 2] and found.mean == [2.0, 4.0, 4.5]
    assert found.std == [pytest.approx(statistics.stdev([1, 3])), 2.0, pytest.approx(statistics.stdev([3, 6]))]
    long = curve_of([float(step % 2) for step in range(20_000)])
    assert all(mean == pytest.approx(0.5, abs=0.01) for mean in mean_curve([long.means()]).mean[:-1])
    assert mean_curve([([], [])]).x == []


def test_a_running_run_is_read_on_and_odd_rows_do_no_harm(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")
    output = made.run("e/000_train_0", "running")
    made.run("e/000_train_1")
    file = output / "metrics.jsonl"
    file.write_text(
        '{"step": 1, "loss": 2, "t": 1800000000}\n{"step": 2, "loss": null}\n[1]\n{"step": 3, "loss": "x"}\n{"st'
    )
    reader, views = CurveReader(made.home), views_of(made)
    look = reader.read(list(views.values()), ["loss", "other"])
    assert look.runs["e/000_train_0"]["loss"].points() == ([1.0, 2.0], [2.0, None])
    assert look.runs["e/000_train_0"]["loss"].points("time") == ([1.8e9], [2.0]), "only what tells its time"
    assert look.runs["e/000_train_0"]["loss"].points("epoch") == ([], []) and look.runs["e/000_train_1"] == {}
    with file.open("a") as stream:
        stream.write('ep": 4, "loss": 1}\n{"step": 5, "loss": 0.5, "epoch": 1}')
    again = reader.read(list(views.values()), ["loss"])
    assert again.versions["e/000_train_0"] > look.versions["e/000_train_0"]
    assert again.runs["e/000_train_0"]["loss"].points() == ([1.0, 2.0, 4.0], [2.0, None, 1.0])
    made.run("e/000_train_0")
    ended = reader.read([views_of(made)["e/000_train_0"]], ["loss"])
    assert ended.runs["e/000_train_0"]["loss"].points()[0][-1] == 5.0, "the last line lacks its newline for good"
    file.write_text('{"step": 1, "loss": 7}\n')
    made.run("e/000_train_0", "running")
    anew = CurveReader(made.home).read([views_of(made)["e/000_train_0"]], ["loss"])
    assert anew.runs["e/000_train_0"]["loss"].points() == ([1.0], [7.0])
    shutil.rmtree(output)
    assert CurveReader(made.home).read(list(views.values()), ["loss"]).runs == {
        "e/000_train_0": {},
        "e/000_train_1": {},
    }


def test_a_look_at_many_runs_stops_in_time_and_the_next_one_goes_on(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")
    for seed in range(4):
        (made.run(f"e/000_train_{seed}") / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n')
    views, clock = list(views_of(made).values()), iter(range(1000))
    reader = CurveReader(made.home, max_look_s=2)
    first = reader.read(views, ["loss"], lambda: float(next(clock)))
    second = reader.read(views, ["loss"], lambda: float(next(clock)))
    assert first.unread == 2 and second.unread == 0 and len(second.runs) == 4
    assert min(second.versions[view.name] for view in views[2:]) > max(first.versions.values())


LIGHTNING = """
import sys, torch, lightning
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__(); self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        loss = self.layer(batch[0]).square().mean(); self.log("train_loss", loss); return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
logger = {"csv": CSVLogger, "tb": TensorBoardLogger}[sys.argv[1]](sys.argv[2])
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=4)
lightning.Trainer(max_epochs=2, logger=logger, log_every_n_steps=4, enable_progress_bar=False,
                  enable_model_summary=False, enable_checkpointing=False, accelerator="cpu").fit(Model(), data)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "tb"])
def test_runs_of_lightning_have_curves_over_steps_epochs_and_time(tmp_path: Path, kind: str) -> None:
    made = MadeUp(tmp_path / "project")
    output = made.run("e/000_train_0")
    words = [sys.executable, "-c", LIGHTNING, kind, str(output)]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    curve = (
        CurveReader(made.home).read(list(views_of(made).values()), ["train_loss"]).runs["e/000_train_0"]["train_loss"]
    )
    xs, ys = curve.points()
    assert xs == [3, 7, 11, 15, 19, 23, 27, 31] and all(y is not None and y > 0 for y in ys)
    if kind == "csv":
        assert curve.points("epoch")[0] == [0, 0, 0, 0, 1, 1, 1, 1] and curve.points("time") == ([], [])
    else:
        assert len(curve.points("time")[0]) == 8 and 0 <= curve.points("hours")[0][-1] < 1
    json.dumps([xs, ys])
