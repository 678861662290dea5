"""Curves over seeds in a notebook and in a report; metrics as libraries and broken programs leave them."""

from __future__ import annotations

import io
import json
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from made_up import MadeUp
from shoal.errors import InputError
from shoal.functions import Run, Runs
from shoal.views import report
from shoal.views.figures import curves_svg, experiment_curves
from shoal.views.report.page import report_page
from shoal.views.status import gather_status, show_status
from shoal.views.terminal import Screen
from terminal import run_in_terminal


def write_curve(output: Path, values: Sequence[float], every: int = 1) -> None:
    rows = [json.dumps({"step": at * every, "val_loss": value}) for at, value in enumerate(values)]
    (output / "metrics.jsonl").write_text("\n".join(rows) + "\n")


@pytest.fixture
def made(tmp_path: Path) -> MadeUp:
    """Two settings; of the first a seed that stops early, of the second one that writes half as often."""
    made = MadeUp(tmp_path / "project")
    for lr, seed, values, every in (
        (0.1, 0, [4, 3, 2], 1),
        (0.1, 1, [6, 5], 1),
        (0.01, 0, [8, 8, 8], 1),
        (0.01, 1, [6, 4], 2),
    ):
        name = f"001_a/000_train_lr{lr}_{seed}"
        write_curve(made.run(name, "completed", params={"optimizer.lr": lr, "width": 8}), values, every)
    return made


def runs_of(made: MadeUp) -> Runs:
    names = [f"001_a/000_train_lr{lr}_{seed}" for lr in (0.1, 0.01) for seed in range(2)]
    return Runs(Run(made.home, name) for name in names)


def test_a_plot_has_the_mean_and_a_band_for_each_setting_and_a_notebook_shows_it(made: MadeUp) -> None:
    figure = runs_of(made).plot("val_loss")
    axes: Any = figure.axes[0]
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    # Beyond the end of a run the mean is that of the others; between its points it is a straight line.
    assert lines == {"lr=0.01 (n=2)": [7.0, 6.5, 6.0], "lr=0.1 (n=2)": [5.0, 4.0, 2.0]}
    assert len(axes.collections) == 2
    low = min(float(y) for path in axes.collections[0].get_paths() for _, y in path.vertices)
    assert math.isclose(low, 6 - 4 / math.sqrt(2))
    assert axes.get_ylabel() == "val_loss" and axes.get_title() == "001_a"
    figure.savefig(picture := io.BytesIO(), format="png")
    assert picture.getvalue().startswith(b"\x89PNG")
    with pytest.raises(InputError) as error:
        runs_of(made).plot("nope")
    assert error.value.hint == "use one of: val_loss"
    with pytest.raises(InputError):
        Runs().plot("val_loss")


def test_a_report_is_one_file_with_the_curves_of_each_experiment(made: MadeUp) -> None:
    output = made.run("002_<b>b/000_train_0", "completed", params={"<i>": "\x1b[31m$x_$"})
    write_curve(output, [3, 2, 1])
    made.run("003_none/000_train_0", "completed")
    views = gather_status(made.home).views
    curves = experiment_curves(made.home, views)
    assert [(one.experiment, one.metric, len(one.lines)) for one in curves] == [
        ("001_a", "val_loss", 2),
        ("002_<b>b", "val_loss", 1),
    ]
    page = report_page(report.gather.gather_report(made.home, []), curves)
    assert page.count("<polyline") == 3 and page.count("<polygon") == 2
    assert "lr=0.01 (n=2) <b>6</b>" in page
    assert "<b>b" not in page and "\x1b" not in page
    assert "http" not in page.replace("http-equiv", "") and "<script" not in page and "<img" not in page
    flat = curves[0]._replace(lines=[curves[0].lines[0]._replace(mean=[1.0] * 3, std=[None] * 3)])
    assert "nan" not in curves_svg(flat)


def test_metrics_that_are_broken_huge_or_many_show_what_is_whole_in_every_view(made: MadeUp) -> None:
    """NaN, text, half a line, two writers, five hundred metrics, and a directory that vanishes during a look."""
    hostile = made.run("004_x/000_train_lr1_0", "completed", params={"lr": 1})
    rows = ['{"step": 1, "loss": 3, "note": "<b>\\u001b[31m"}', '{"step": 1, "loss": 5}', '{"step": 2, "loss": NaN}']
    rows += ['{"step": 3, "loss": "high"}', '{"step": 4, "loss": 1}{"step": 4, "loss": 9}', '{"step": 5, "lo']
    (hostile / "metrics.jsonl").write_text("\n".join(rows))
    many = made.run("004_x/000_train_lr2_0", "completed", params={"lr": 2})
    (many / "metrics.jsonl").write_text(json.dumps({"step": 1, **{f"<m{n}>": n for n in range(500)}, "loss": 2}) + "\n")
    gone = made.run("004_x/000_train_lr3_0", "running", params={"lr": 3})
    shutil.rmtree(gone)
    found = gather_status(made.home)
    assert {"004_x/000_train_lr1_0", "004_x/000_train_lr3_0"} <= {view.name for view in found.views}
    summary = found.summaries["004_x/000_train_lr1_0"].metrics["loss"]
    assert (summary.low, summary.high) == (3.0, 5.0) and math.isnan(summary.last)
    assert len(found.summaries["004_x/000_train_lr2_0"].metrics) == 501
    curves = [one for one in experiment_curves(made.home, found.views) if one.experiment == "004_x"]
    assert [line.mean for one in curves for line in one.lines] == []  # one step each is no curve
    page = report_page(report.gather.gather_report(made.home, []), experiment_curves(made.home, found.views))
    assert "<m1>" not in page and "\x1b" not in page
    show_status(found, everything=True, tasks=True, screen=Screen(tty=True, width=80))


@pytest.mark.slow
def test_watch_in_a_real_terminal_shows_columns_and_a_curve_and_ends_with_q(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "watched", now=time.time())
    for lr in (0.1, 0.3):
        output = made.run(f"001_a/000_train_lr{lr}_0", "running", params={"lr": lr}, progress="4/10")
        write_curve(output, [3, 2, 1])
    for columns, words in ((80, "40% 1"), (160, "PROGRESS")):
        text = run_in_terminal(["watch"], made.root, columns=columns, then=("val_loss █▄▁ 1", b"q"), LINES="24")
        assert words in text and "val_loss █▄▁ 1" in text
        assert text.rstrip().endswith("\x1b[?25h") or "\x1b[?1049l" in text, "the terminal is as it was"
